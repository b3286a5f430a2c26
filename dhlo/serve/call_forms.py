"""The forms in which models are trained to write calls of tools, by their chat templates."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["FORCED", "CallForm", "Schemas", "ToolCall", "call_form_of", "call_of"]


@dataclass(frozen=True)
class ToolCall:
    """`arguments` are a text of JSON, an object; `id`, the model's own, if it gives one."""

    name: str
    arguments: str
    id: str | None = None


Schemas = Mapping[str, Mapping[str, Any]]
"""Of tools' arguments, by name."""


_Read = Callable[[str, Schemas], list[ToolCall]]


@dataclass(frozen=True)
class CallForm:
    """How a model writes calls."""

    opens: tuple[str, ...]
    """What one begins with."""
    close: str | None
    """What it ends with; None: the text's end."""
    anywhere: bool
    """Behind other text, too, rather than at the beginning alone."""
    keeps: bool
    """What opens it is part of it."""
    read: _Read
    """The calls in what is between. Raises ValueError."""
    special: tuple[str, ...] = ()
    """Tokens that are to be seen in the text, though tokenizers call them special."""
    long_ids: bool = True
    """Whether templates take calls' ids of any length; else they have nine letters and digits."""


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_constant)


def _dumped(given: dict[str, Any]) -> str:
    """Raises ValueError for numbers that JSON doesn't have, and halves of surrogate pairs, which no answer can hold."""
    text = json.dumps(given, ensure_ascii=False, allow_nan=False)
    text.encode()
    return text


def call_of(name: str, given: Any, id: str | None = None) -> ToolCall:
    """A call with these arguments, an object or its text. Raises ValueError."""
    if isinstance(given, str):  # some models write text of JSON into JSON
        given = _DECODER.decode(given)
    if not isinstance(given, dict):
        raise ValueError("arguments are an object")
    if not name:
        raise ValueError("a call has a name")
    name.encode()
    return ToolCall(name, _dumped(given), id)


def _of_object(call: Any) -> ToolCall:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise ValueError("a call is an object with a name")
    return call_of(call["name"], call.get("arguments", call.get("parameters", {})))


def _of_json(text: str, _: Schemas) -> list[ToolCall]:
    """One object, a list of such, or several, one behind the other (Llama's stand between semicolons)."""
    out, at = list[ToolCall](), 0
    while at < len(text):
        value, end = _DECODER.raw_decode(text, at)
        out += map(_of_object, value if isinstance(value, list) else [value])
        at = _SPACE.match(text, end).end()  # type: ignore[union-attr]
    return _some(out)


def _some(calls: list[ToolCall]) -> list[ToolCall]:
    if not calls:
        raise ValueError("there is no call")
    return calls


_SPACE: Final = re.compile(r"[ \t\r\n;]*")


def _between(text: str, *marks: str) -> Iterator[tuple[str, ...]]:
    """What stands between the marks of each group of such, in a time that grows with the text alone."""
    at = text.find(marks[0])
    while at >= 0:
        parts, at = list[str](), at + len(marks[0])
        for mark in marks[1:]:
            end = text.find(mark, at)
            if end < 0:
                return
            parts.append(text[at:end])
            at = end + len(mark)
        yield tuple(parts)
        at = text.find(marks[0], at)


def _typed(name: str, pairs: Iterable[tuple[str, ...]], schemas: Schemas) -> ToolCall:
    """A call whose arguments are text: those that the schema doesn't call texts are JSON, if they can be."""
    known, out = schemas.get(name, {}).get("properties") or {}, dict[str, Any]()
    for key, text in pairs:
        schema = known.get(key) if isinstance(known, dict) else None
        out[key] = text
        if not (isinstance(schema, dict) and schema.get("type") == "string"):
            try:
                out[key] = _DECODER.decode(text)
            except (ValueError, RecursionError):
                pass
    return call_of(name, out)


def _of_tags(text: str, schemas: Schemas) -> list[ToolCall]:
    """JSON (Hermes, Qwen), <function=...> (Qwen's coders), or a name and <arg_key> (GLM)."""
    if text.startswith("<function="):
        name, _, rest = text.removeprefix("<function=").partition(">")
        pairs = [
            (key, value.removeprefix("\n").removesuffix("\n")) for key, value in _between(rest, "<parameter=", ">", "</parameter>")
        ]
        return [_typed(name.strip(), pairs, schemas)]
    if not text.startswith(("{", "[")) and (name := text.partition("<arg_key>")[0].strip()) and "\n" not in name:
        found = _between(text, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
        return [_typed(name, [(key.strip(), value) for key, _, value in found], schemas)]
    return _of_json(text, schemas)


_NAMED: Final = re.compile(r"([\w.-]+)(?:\[CALL_ID\][\w-]*)?(?:\[ARGS\])?(?=\s*\{)")


def _of_mistral(text: str, schemas: Schemas) -> list[ToolCall]:
    """A list of JSON, or each call's name before its arguments."""
    if text.startswith(("[", "{")):
        return _of_json(text, schemas)
    out = list[ToolCall]()
    for part in filter(None, map(str.strip, text.split("[TOOL_CALLS]"))):
        found = _NAMED.match(part)
        if found is None:
            raise ValueError("a call begins with a name")
        out.append(call_of(found[1], _DECODER.decode(part[found.end() :].lstrip())))
    return out


_TAGS: Final = CallForm(("<tool_call>",), "</tool_call>", anywhere=True, keeps=False, read=_of_tags)
_MISTRAL: Final = CallForm(
    ("[TOOL_CALLS]",),
    None,
    anywhere=True,
    keeps=False,
    read=_of_mistral,
    special=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    long_ids=False,
)


def _of_llama(text: str, schemas: Schemas) -> list[ToolCall]:
    return _of_json(text.removeprefix("<|python_tag|>").lstrip(), schemas)


def _of_deepseek(text: str, _: Schemas) -> list[ToolCall]:
    """Each call a name and its arguments, or its type, and a name before a block of JSON (before DeepSeek 3.1)."""
    out = list[ToolCall]()
    for (call,) in _between(text, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"):
        name, mark, arguments = call.partition("<｜tool▁sep｜>")
        if not mark:
            raise ValueError("a call has a name and arguments")
        if arguments.strip() and not arguments.lstrip().startswith("{"):
            name, mark, arguments = arguments.partition("\n")
            arguments = arguments.strip().removeprefix("```json").removesuffix("```")
        out.append(call_of(name.strip(), arguments.strip() or {}))
    return _some(out)


_KIMI_ID: Final = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?", re.DOTALL)


def _of_kimi(text: str, _: Schemas) -> list[ToolCall]:
    """Each call an id, which holds its name, and its arguments."""
    marks = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
    out = list[ToolCall]()
    for id, arguments in _between(text, *marks):
        found = _KIMI_ID.fullmatch(id := id.strip())
        if found is None:
            raise ValueError("a call has a name")
        id.encode()
        out.append(call_of(found[1], arguments.strip() or {}, id))
    return _some(out)


def _of_invokes(text: str, schemas: Schemas) -> list[ToolCall]:
    """Each call's name and arguments in tags' attributes (MiniMax M2)."""
    out = list[ToolCall]()
    for name, body in _between(text, '<invoke name="', '">', "</invoke>"):
        out.append(_typed(name, _between(body, '<parameter name="', '">', "</parameter>"), schemas))
    return _some(out)


def _of_python(text: str, schemas: Schemas) -> list[ToolCall]:
    """A list of calls as Python writes them, of literals by name (LFM 2), or JSON."""
    if text.startswith(("{", '[{"')):
        return _of_json(text, schemas)
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes that aren't Python's
            written = ast.parse(text, mode="eval").body
        calls = written.elts if isinstance(written, ast.List) else [written]
        return _some([_of_expression(call) for call in calls])
    except (SyntaxError, MemoryError, TypeError):  # TypeError: of what JSON doesn't have
        raise ValueError("it isn't Python") from None


def _of_expression(call: ast.expr) -> ToolCall:
    if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
        raise ValueError("a call has arguments by name")
    parts, func = list[str](), call.func
    while isinstance(func, ast.Attribute):
        parts.append(func.attr)
        func = func.value
    if not isinstance(func, ast.Name):
        raise ValueError("a call has a name")
    name = ".".join([func.id, *reversed(parts)])
    return call_of(name, {str(k.arg): ast.literal_eval(k.value) for k in call.keywords})


_QUOTE: Final = '<|"|>'
_GEMMA_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_GEMMA_WORDS: Final = {"true": True, "false": False, "null": None}


class _Gemma:
    """A value as Gemma 4 writes it: JSON with texts between marks of their own, and keys that needn't be."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def value(self) -> Any:
        """Raises ValueError and RecursionError."""
        if self._takes(_QUOTE):
            return self._until(_QUOTE)
        if self._takes("{"):
            return dict(self._items("}", self._pair))
        if self._takes("["):
            return self._items("]", self.value)
        if self._text.startswith('"', self._at):
            out, self._at = _DECODER.raw_decode(self._text, self._at)
            return out
        if found := _GEMMA_NUMBER.match(self._text, self._at):
            self._at = found.end()
            return _DECODER.decode(found[0])
        for word, value in _GEMMA_WORDS.items():
            if self._takes(word):
                return value
        raise ValueError("it is no value")

    def _items(self, close: str, one: Callable[[], Any]) -> list[Any]:
        out = list[Any]()
        while not self._takes(close):
            if out and not self._takes(","):
                raise ValueError("a comma is missing")
            out.append(one())
        return out

    def _pair(self) -> tuple[str, Any]:
        self._space()
        quoted = self._takes(_QUOTE)
        key = self._until(_QUOTE if quoted else ":").strip()
        if quoted and not self._takes(":"):
            raise ValueError("a key has a value")
        return key, self.value()

    def _until(self, mark: str) -> str:
        end = self._text.find(mark, self._at)
        if end < 0:
            raise ValueError(f"{mark} is missing")
        out, self._at = self._text[self._at : end], end + len(mark)
        return out

    def _takes(self, mark: str) -> bool:
        self._space()
        found = self._text.startswith(mark, self._at)
        self._at += len(mark) if found else 0
        return found

    def _space(self) -> None:
        self._at = _BLANK.match(self._text, self._at).end()  # type: ignore[union-attr]

    def ends(self) -> bool:
        self._space()
        return self._at == len(self._text)


_BLANK: Final = re.compile(r"\s*")


def _of_gemma(text: str, _: Schemas) -> list[ToolCall]:
    """A name and its arguments between braces."""
    name, mark, rest = text.removeprefix("call:").partition("{")
    reader = _Gemma(mark + rest)
    arguments = reader.value()
    if not text.startswith("call:") or not reader.ends():
        raise ValueError("a call has a name and arguments")
    return [call_of(name.strip(), arguments)]


def _marked(opens: str, close: str, read: _Read, *special: str) -> CallForm:
    """Calls between two marks, behind other text too."""
    return CallForm((opens,), close, anywhere=True, keeps=False, read=read, special=(opens, close, *special))


_LLAMA: Final = CallForm(("<|python_tag|>", "{"), None, anywhere=False, keeps=True, read=_of_llama, special=("<|python_tag|>",))
FORCED: Final = CallForm(("{",), None, anywhere=False, keeps=True, read=_of_json)
"""Of answers that a grammar holds to be a call."""

_FORMS: Final = (
    ("<tool_call>", _TAGS),
    ("[TOOL_CALLS]", _MISTRAL),
    (
        "<｜tool▁calls▁begin｜>",
        _marked(
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            _of_deepseek,
            *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
        ),
    ),
    (
        "<|tool_calls_section_begin|>",
        _marked(
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
            _of_kimi,
            *("<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"),
        ),
    ),
    ("<|tool_call>call:", _marked("<|tool_call>", "<tool_call|>", _of_gemma, _QUOTE, "<|channel>")),
    ("<|tool_call_start|>", _marked("<|tool_call_start|>", "<|tool_call_end|>", _of_python)),
    ("<|/tool_call|>", _marked("<|tool_call|>", "<|/tool_call|>", _of_json)),
    (
        "<|tool_call|>",
        CallForm(("<|tool_call|>",), None, anywhere=True, keeps=False, read=_of_json, special=("<|tool_call|>",)),
    ),
    ("<TOOLCALL>", _marked("<TOOLCALL>", "</TOOLCALL>", _of_json)),
    ("<seed:tool_call>", _marked("<seed:tool_call>", "</seed:tool_call>", _of_tags)),
    ("<minimax:tool_call>", _marked("<minimax:tool_call>", "</minimax:tool_call>", _of_invokes)),
    ("dictionary of argument name and its value", _LLAMA),
    ("<|python_tag|>", _LLAMA),
)


def call_form_of(template: str) -> CallForm | None:
    """The form that a chat template shows calls in; None if it isn't known."""
    return next((form for mark, form in _FORMS if mark in template), None)
