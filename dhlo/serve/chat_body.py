"""The body of a request for a chat in OpenAI's form: its messages, the tools that may be called, and what the answer is to be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dhlo.serve.grammar import Grammar
from dhlo.serve.openai import ANY_OBJECT, MOST_LOGPROBS, MOST_TOKENS, ApiError, Body, SamplingBody, json_text

__all__ = ["ChatBody"]


class JsonSchema(Body):
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's, and "regex" and "grammar" (llguidance's form of Lark) with an argument of that name."""

    type: Literal["text", "json_object", "json_schema", "regex", "grammar"]
    json_schema: JsonSchema | None = None
    regex: str | None = None
    grammar: str | None = None


class _Function(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    name: Annotated[str, Field(min_length=1, max_length=256)]
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    """What isn't named here is the template's."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: Literal["function"]
    function: _Function


class _Named(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: _Named


class ChatBody(SamplingBody):
    """Of /v1/chat/completions."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=MOST_TOKENS)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Field(min_length=1, max_length=256)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def schemas(self) -> dict[str, dict[str, Any]]:
        """Of the arguments of tools that may be called, by name. Raises ApiError for a choice of a tool that there isn't."""
        if not self.tools:
            if self.tool_choice not in (None, "none", "auto"):
                raise ApiError(400, "tool_choice: goes with tools", param="tool_choice")
            return {}
        if self.tool_choice == "none":
            return {}
        known = {t.function.name: t.function.parameters or {} for t in self.tools}
        if isinstance(self.tool_choice, NamedTool):
            name = self.tool_choice.function.name
            if name not in known:
                raise ApiError(400, f"tool_choice: {name[:100]!r} is none of the tools", param="tool_choice")
            return {name: known[name]}
        return known

    @property
    def must_call(self) -> bool:
        """Whether the answer is to be a call."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)

    @property
    def grammar(self) -> Grammar | None:
        said = self.response_format
        if self.must_call:
            if (said is not None and said.type != "text") or self.structured_outputs is not None:
                raise ApiError(400, "tool_choice: goes without other structured output", param="tool_choice")
            if self.ignore_eos:
                raise ApiError(400, "ignore_eos: structured output ends by it", param="ignore_eos")
            return Grammar("json", json_text(_call_schema(self.schemas)))
        if said is None or said.type == "text":
            return super().grammar
        if self.structured_outputs is not None:
            raise ApiError(400, "response_format: goes without structured_outputs", param="response_format")
        if self.ignore_eos:
            raise ApiError(400, "ignore_eos: structured output ends by it", param="ignore_eos")
        kind, text = {
            "json_object": ("json", ANY_OBJECT),
            "json_schema": ("json", None if said.json_schema is None else json_text(said.json_schema.schema_ or {})),
            "regex": ("regex", said.regex),
            "grammar": ("lark", said.grammar),
        }[said.type]
        if text is None:
            raise ApiError(400, f"response_format: type {said.type} needs {said.type}", param="response_format")
        return Grammar(kind, text)  # type: ignore[arg-type]

    def template_arguments(self) -> dict[str, Any]:
        """What a chat template is given. Raises ApiError for messages that aren't text."""
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs: goes with logprobs: true", param="top_logprobs")
        variables = dict(self.chat_template_kwargs or {})
        if taken := {"messages", "tools", "add_generation_prompt", "held", "self"} & variables.keys():
            raise ApiError(400, f"chat_template_kwargs: '{min(taken)}' is the request's own", param="chat_template_kwargs")
        if self.reasoning_effort is not None:
            variables["reasoning_effort"] = self.reasoning_effort
        return {
            **variables,
            "messages": [_message(m, f"messages.{k}") for k, m in enumerate(self.messages)],
            "tools": [t.model_dump(exclude_unset=True) for t in self.tools] if self.tools and self.tool_choice != "none" else None,
            "add_generation_prompt": self.add_generation_prompt is not False,
        }


def _call_schema(schemas: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Of a call of one of some tools. Raises ApiError where two of them define something else by one name."""
    calls, shared = list[dict[str, Any]](), dict[str, dict[str, Any]]()
    for name, schema in schemas.items():
        own = dict(schema)
        for key in ("$defs", "definitions"):  # what references lead to stays at the root
            definitions = own.pop(key, None) or {}
            if not isinstance(definitions, dict):
                raise ApiError(400, f"tools: {key} of {name[:100]!r} is an object", param="tools")
            for defined, what in definitions.items():
                if shared.setdefault(key, {}).setdefault(defined, what) != what:
                    raise ApiError(400, f"tools: two of them define {defined[:100]!r} otherwise", param="tools")
        properties = {"name": {"const": name}, "arguments": {**own, "type": "object"}}
        calls.append({"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False})
    return {**({"anyOf": calls} if len(calls) > 1 else calls[0]), **shared}


def _message(message: dict[str, Any], place: str) -> dict[str, Any]:
    """A message as templates take them: its content is text, and arguments of tools' calls are objects."""
    if not isinstance(message.get("role"), str):
        raise ApiError(400, f"{place}.role: is one of system, developer, user, assistant and tool", param=f"{place}.role")
    out = dict(message)
    content = message.get("content")
    if isinstance(content, list):
        out["content"] = "\n".join(_part(p, f"{place}.content.{k}") for k, p in enumerate(content))
    elif content is not None and not isinstance(content, str):
        raise ApiError(400, f"{place}.content: is text, or a list of parts", param=f"{place}.content")
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise ApiError(400, f"{place}.tool_calls: is a list", param=f"{place}.tool_calls")
        out["tool_calls"] = [_call(c, f"{place}.tool_calls.{k}") for k, c in enumerate(calls)]
        if content is None:  # to which some templates add
            out["content"] = ""
    return out


def _part(part: Any, place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text" or not isinstance(part.get("text"), str):
        what = (
            f"parts of type {kind!r} aren't taken" if isinstance(kind, str) and kind != "text" else "a part has a type and a text"
        )
        raise ApiError(400, f"{place}: {what[:200]}; the model reads text alone", param=place)
    text: str = part["text"]
    return text


def _call(call: Any, place: str) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise ApiError(400, f"{place}: a call has a function", param=place)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments else {}
        except (ValueError, RecursionError):
            raise ApiError(400, f"{place}.function.arguments: isn't JSON", param=place) from None
    return {**call, "function": {**function, "arguments": arguments}}
