"""Chat templates as transformers renders them, without transformers: Jinja in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dhlo.errors import ContractError, ModelFileError
from dhlo.serve.call_forms import FORCED, CallForm, Schemas, call_form_of
from dhlo.serve.harmony import FINAL, MARKS, HarmonyReader, is_harmony
from dhlo.serve.replies import Reader, ReplyReader, thinking_of

__all__ = ["ChatTemplate"]

_FILE: Final = "chat_template.jinja"
_MORE: Final = "additional_chat_templates"
_DEFAULT: Final = "default"
_TOOLS: Final = "tool_use"
_SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_REASONING: Final = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """The templates of a folder by name: "default", and "tool_use" for chats with tools if there is one."""

    def __init__(self, templates: Mapping[str, str], special: Mapping[str, str] | None = None) -> None:
        """`special` are the special tokens that templates name (bos_token, ...). Raises ModelFileError for templates that aren't
        Jinja."""
        environment = _environment()
        self._special = dict(special or {})
        written = templates.get(_TOOLS, "") + templates[_DEFAULT]
        self._harmony = is_harmony(written)
        self._calls: CallForm | None = None if self._harmony else call_form_of(written)
        self._thinking: tuple[str, str] | None = None if self._harmony else thinking_of(written)
        self._templates = dict[str, Any]()
        for name, text in templates.items():
            try:
                self._templates[name] = environment.from_string(text)
            except jinja2.TemplateError as e:
                raise ModelFileError(f"the chat template '{name}' can't be read: {e}") from None

    @property
    def marks(self) -> list[str]:
        """Tokens that are to be seen in a text, though tokenizers may call them special."""
        return [*(() if self._calls is None else self._calls.special), *(self._thinking or ()), *(MARKS if self._harmony else ())]

    @property
    def long_ids(self) -> bool:
        """Whether calls' ids may be of any length; else they have nine letters and digits."""
        return self._calls is None or self._calls.long_ids

    def reader(self, prompt: str, schemas: Schemas, *, held: bool, must_call: bool) -> Reader:
        """What takes the answer to a prompt apart, in which tools of these `schemas` may be called. What a grammar makes, where it
        is `held` to one, is no thought, though the prompt may have begun one; of an answer that `must_call` it makes a call."""
        if held:
            return ReplyReader(FORCED if must_call else self._calls if schemas else None, schemas=schemas)
        if self._harmony:
            return HarmonyReader(schemas)
        inside = self._thinking is not None and prompt.rstrip().endswith(self._thinking[0])
        return ReplyReader(self._calls if schemas else None, self._thinking, inside=inside, schemas=schemas)

    @staticmethod
    def of_folder(folder: Path, config: Mapping[str, Any]) -> ChatTemplate | None:
        """That of a folder whose tokenizer_config.json is `config`; None if it has none. Raises ModelFileError."""
        templates = dict[str, str]()
        given = config.get("chat_template")
        if isinstance(given, str):
            templates[_DEFAULT] = given
        elif isinstance(given, list):
            try:
                templates |= {str(t["name"]): str(t["template"]) for t in given}
            except (TypeError, KeyError):
                raise ModelFileError(f"'{folder}': chat_template is neither text nor a list of name and template") from None
        for path in [folder / _FILE, *sorted((folder / _MORE).glob("*.jinja"))]:
            if path.is_file():
                try:
                    text = path.read_text(encoding="utf-8")
                except UnicodeError as e:
                    raise ModelFileError(f"'{path}' isn't text: {e}") from None
                templates[_DEFAULT if path.name == _FILE else path.stem] = text
        if not templates:
            return None
        if _DEFAULT not in templates:
            raise ModelFileError(f"'{folder}' has several chat templates and none called '{_DEFAULT}': {', '.join(templates)}")
        special = {name: _content(config[name]) for name in _SPECIAL if config.get(name) is not None}
        return ChatTemplate(templates, special)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        held: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt for messages, which are values of JSON, each an object. `variables` are for the template, too. Where a grammar
        makes the answer, which is `held` to it, what marks an answer's beginning is the prompt's.

        Raises ContractError where the template refuses them.
        """
        template = self._templates[_TOOLS if tools is not None and _TOOLS in self._templates else _DEFAULT]
        given = {"documents": None, **self._special, **variables}
        told = [_told(m) for m in messages]
        if self._harmony:
            told = [_with_thoughts_alone(m) for m in told]
        given |= {"messages": told, "tools": tools, "add_generation_prompt": add_generation_prompt}
        try:
            text: str = template.render(given)
        except Exception as e:  # a template can raise anything by what it does with the messages
            raise ContractError(f"the chat template refuses the messages: {e}") from None
        return text + FINAL if self._harmony and held and add_generation_prompt else text


def _content(token: Any) -> str:
    """A special token, which is text or an object with its text."""
    return str(token.get("content", "")) if isinstance(token, Mapping) else str(token)


def _told(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without keys that say nothing, and with its reasoning under the names that templates read it by."""
    out = {k: v for k, v in message.items() if v is not None}
    calls = out.get("tool_calls")
    if isinstance(calls, list):
        out["tool_calls"] = [_call(c) if isinstance(c, Mapping) else c for c in calls]
    reasoning = next((out[k] for k in _REASONING if k in out), None)
    return out if reasoning is None else {"thinking": reasoning, **out, "reasoning_content": reasoning}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), Mapping):
        return dict(call)
    return {**call, "function": {**function, "arguments": _Arguments(function["arguments"])}}


class _Arguments(dict[str, Any]):
    """A call's arguments, for templates that take them for an object and for those that take them for its text."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __radd__(self, before: str) -> str:
        return before + str(self)

    def __add__(self, after: str) -> str:
        return str(self) + after


def _with_thoughts_alone(message: dict[str, Any]) -> dict[str, Any]:
    """Of a message with calls harmony's template takes thoughts or a content, which it writes as thoughts, too."""
    thoughts, content = message.get("thinking"), message.get("content")
    if not (message.get("tool_calls") and isinstance(thoughts, str) and isinstance(content, str) and thoughts and content):
        return message
    return {**message, "thinking": f"{thoughts}\n\n{content}", "content": ""}


class _Generation(Extension):
    """`{% generation %}`, which marks what an assistant says: it is rendered as it is."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> Any:
        return caller()


class _Namespace(jinja2.utils.Namespace):
    """Without names that begin with an underscore, by which a template could reach Python's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # as Jinja's, so that a template may say namespace(self=...)
        self, given = args[0], dict(*args[1:], **kwargs)
        for name in given:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace has no attribute {name!r}")


class _Dict:
    """`dict(...)`, and nothing of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment


def _to_json(x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    """JSON without HTML's escapes."""
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
