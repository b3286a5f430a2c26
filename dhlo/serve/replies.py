"""What the text of a chat's answer is made of: what is said, what was thought before, and calls of tools, in the forms that models
are trained to write them in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

__all__ = [
    "FORCED",
    "CallForm",
    "Part",
    "Reader",
    "ReplyReader",
    "Schemas",
    "ToolCall",
    "call_form_of",
    "call_of",
    "safe_length",
    "thinking_of",
]


@dataclass(frozen=True)
class ToolCall:
    """`arguments` are a text of JSON, an object."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Part:
    """New text of one kind, or a call."""

    kind: Literal["content", "reasoning", "call"]
    text: str = ""
    call: ToolCall | None = None


Schemas = Mapping[str, Mapping[str, Any]]
"""Of tools' arguments, by name."""


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
    read: Callable[[str, Schemas], list[ToolCall]]
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


def call_of(name: str, given: Any) -> ToolCall:
    """A call with these arguments, an object or its text. Raises ValueError."""
    if isinstance(given, str):  # some models write text of JSON into JSON
        given = _DECODER.decode(given)
    if not isinstance(given, dict):
        raise ValueError("arguments are an object")
    name.encode()
    return ToolCall(name, _dumped(given))


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
    if not out:
        raise ValueError("there is no call")
    return out


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
        if not arguments.lstrip().startswith("{"):
            name, mark, arguments = arguments.partition("\n")
            arguments = arguments.strip().removeprefix("```json").removesuffix("```")
        out.append(call_of(name.strip(), arguments.strip()))
    if not out:
        raise ValueError("there is no call")
    return out


_KIMI_ID: Final = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?", re.DOTALL)


def _of_kimi(text: str, _: Schemas) -> list[ToolCall]:
    """Each call an id, which holds its name, and its arguments."""
    marks = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
    out = list[ToolCall]()
    for id, arguments in _between(text, *marks):
        found = _KIMI_ID.fullmatch(id.strip())
        if found is None:
            raise ValueError("a call has a name")
        out.append(call_of(found[1], arguments.strip()))
    if not out:
        raise ValueError("there is no call")
    return out


_DEEPSEEK: Final = CallForm(
    ("<｜tool▁calls▁begin｜>",),
    "<｜tool▁calls▁end｜>",
    anywhere=True,
    keeps=False,
    read=_of_deepseek,
    special=tuple(f"<｜tool▁{x}｜>" for x in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")),
)
_KIMI: Final = CallForm(
    ("<|tool_calls_section_begin|>",),
    "<|tool_calls_section_end|>",
    anywhere=True,
    keeps=False,
    read=_of_kimi,
    special=tuple(f"<|tool_call{x}|>" for x in ("s_section_begin", "s_section_end", "_begin", "_end", "_argument_begin")),
)
_LLAMA: Final = CallForm(("<|python_tag|>", "{"), None, anywhere=False, keeps=True, read=_of_llama, special=("<|python_tag|>",))
FORCED: Final = CallForm(("{",), None, anywhere=False, keeps=True, read=_of_json)
"""Of answers that a grammar holds to be a call."""

_FORMS: Final = (
    ("<tool_call>", _TAGS),
    ("[TOOL_CALLS]", _MISTRAL),
    ("<｜tool▁calls▁begin｜>", _DEEPSEEK),
    ("<|tool_calls_section_begin|>", _KIMI),
    ("dictionary of argument name and its value", _LLAMA),
    ("<|python_tag|>", _LLAMA),
)
_THINKING: Final = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))


def call_form_of(template: str) -> CallForm | None:
    """The form that a chat template shows calls in; None if it isn't known."""
    return next((form for mark, form in _FORMS if mark in template), None)


def thinking_of(template: str) -> tuple[str, str] | None:
    """What stands around thoughts by a chat template, if it knows any."""
    return next((marks for marks in _THINKING if marks[1] in template), None)


class Reader(Protocol):
    """Takes one choice's text apart, as it comes."""

    def push(self, text: str, *, last: bool = False) -> list[Part]:
        """What this text adds; `last`: none follows."""
        ...


class ReplyReader:
    """The parts of one choice's text, as it comes. Joined they are the text, without marks, but for what stands before and behind
    these: empty lines."""

    def __init__(
        self,
        form: CallForm | None = None,
        thinking: tuple[str, str] | None = None,
        *,
        inside: bool = False,
        schemas: Schemas | None = None,
    ) -> None:
        """`inside`: the prompt has begun the thoughts. `schemas`: of tools' arguments, by their names."""
        self._form, self._thinking, self._schemas = form, thinking, schemas or {}
        self._text, self._gap, self._opened = "", "", ""
        self._thought = self._called = False
        self._state = self._thoughts if inside and thinking is not None else self._start

    def push(self, text: str, *, last: bool = False) -> list[Part]:
        """What this text adds; `last`: none follows."""
        self._text += text
        out = list[Part]()
        before: object = None
        while self._state != before:  # a state that stays waits for more
            before = self._state
            out += self._state(last)
        return [p for p in out if p.text or p.call is not None]

    def _start(self, last: bool) -> list[Part]:
        text = self._text.lstrip()
        marks = [] if self._thinking is None else [self._thinking[0]]
        opens = [] if self._form is None or self._form.anywhere else list(self._form.opens)
        for mark in (*marks, *opens):
            if text.startswith(mark):
                self._text = text
                if mark in marks:
                    self._take(len(mark))
                    self._state = self._thoughts
                else:
                    self._open(mark)
                return []
        if last or not (marks or opens) or (text and not any(mark.startswith(text) for mark in (*marks, *opens))):
            self._state = self._plain
        return []

    def _thoughts(self, last: bool) -> list[Part]:
        assert self._thinking is not None
        mark = self._thinking[1]
        if not self._thought:
            self._text = self._text.lstrip()
        at = self._text.find(mark)
        end = at if at >= 0 else len(self._text) if last else safe_length(self._text, (mark,))
        thought = self._take(len(self._text[:end].rstrip()))
        self._thought = self._thought or bool(thought)
        if at >= 0:
            self._text = self._text.lstrip()[len(mark) :]
            self._thinking, self._state = None, self._after
        return [Part("reasoning", thought)]

    def _after(self, last: bool) -> list[Part]:
        """Behind thoughts and calls: empty lines are none of the answer."""
        self._text = self._text.lstrip()
        if self._text or last:
            self._state = self._plain if self._called else self._start
        return []

    def _plain(self, last: bool) -> list[Part]:
        form = self._form
        opens = form.opens if form is not None and form.anywhere else ()
        found = [(at, mark) for mark in opens if (at := self._text.find(mark)) >= 0]
        if not found:  # empty lines before a call are none of the answer
            end = len(self._text) if last else len(self._text[: safe_length(self._text, opens)].rstrip() if opens else self._text)
            return [Part("content", self._take(end))]
        at, mark = min(found)
        said = Part("content", self._take(len(self._text[:at].rstrip())))
        self._gap = self._take(self._text.find(mark))
        self._open(mark)
        return [said]

    def _open(self, mark: str) -> None:
        assert self._form is not None
        self._opened = "" if self._form.keeps else self._take(len(mark))
        self._state = self._call

    def _call(self, last: bool) -> list[Part]:
        form = self._form
        assert form is not None
        at = self._text.find(form.close) if form.close is not None else -1
        if at < 0 and not last:
            return []
        inner = self._take(at if at >= 0 else len(self._text))
        closed = self._take(len(form.close or "")) if at >= 0 else ""
        try:
            out = [Part("call", call=call) for call in form.read(inner.strip(), self._schemas)]
            self._called, self._state = True, self._after
        except (ValueError, RecursionError):  # no call: text like any other
            out = [Part("content", self._gap + self._opened + inner + closed)]
            self._state = self._plain
        return out

    def _take(self, count: int) -> str:
        taken, self._text = self._text[:count], self._text[count:]
        return taken


def safe_length(text: str, marks: Iterable[str]) -> int:
    """How much of a text is certainly before any mark: all but an end that may begin one."""
    longest = (k for mark in marks for k in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:k]))
    return len(text) - max(longest, default=0)
