"""Bodies of requests in OpenAI's form, what they say of sampling, and errors in the same form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dhlo.serve.grammar import Grammar
from dhlo.serve.tokens import Tokenizer
from dhlo.serve.types import SamplingParams

__all__ = [
    "SPEECH_PATHS",
    "ANY_OBJECT",
    "ApiError",
    "Body",
    "CompletionBody",
    "EmbeddingBody",
    "LoadAdapterBody",
    "MOST_LOGPROBS",
    "MOST_TOKENS",
    "SamplingBody",
    "UnloadAdapterBody",
    "StructuredOutputs",
    "check_context",
    "json_text",
    "parse",
]

SPEECH_PATHS: Final = ("/v1/audio/transcriptions", "/v1/audio/translations")

MOST_LOGPROBS: Final = 20
MOST_TOKENS: Final = 1 << 31
ANY_OBJECT: Final = '{"type": "object"}'
_DEFAULTS: Final = SamplingParams()
_DRAWS: Final = ("temperature", "top_k", "top_p", "min_p")


class ApiError(Exception):
    """An error for the client, with the status of HTTP."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after

    @property
    def body(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "service_unavailable_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class Body(BaseModel):
    """Takes no arguments that it doesn't know, and none of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Body):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding against onlookers: there is none


class StructuredOutputs(Body):
    """vLLM's: one of these."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = Field(None, min_length=1)
    grammar: str | None = None


def json_text(schema: dict[str, Any] | str) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema)


class SamplingBody(Body):
    """What both kinds of completions take. What is None is as if it weren't there."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=MOST_TOKENS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    # Of vLLM's:
    top_k: Annotated[int, Field(ge=-1, lt=MOST_TOKENS)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=64)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    priority: Annotated[int, Field(gt=-MOST_TOKENS, lt=MOST_TOKENS)] | None = None
    cache_salt: Annotated[str, Field(max_length=256)] | None = None
    structured_outputs: StructuredOutputs | None = None
    use_beam_search: bool | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None
    early_stopping: bool | Literal["never"] | None = None
    # Of no effect on what is answered:
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def wanted_tokens(self) -> int | None:
        """As many tokens as are asked for at most."""
        return self.max_tokens

    @property
    def grammar(self) -> Grammar | None:
        """What the text is to be. Raises ApiError for several of these, or none."""
        said = self.structured_outputs
        if said is None:
            return None
        if self.ignore_eos:
            raise ApiError(400, "ignore_eos: structured output ends by it", param="ignore_eos")
        grammars = [
            *([Grammar("json", json_text(said.json_))] if said.json_ is not None else []),
            *([Grammar("json", ANY_OBJECT)] if said.json_object else []),
            *([Grammar("regex", said.regex)] if said.regex is not None else []),
            *([Grammar("lark", said.grammar)] if said.grammar is not None else []),
            *([Grammar.of_choices(said.choice)] if said.choice is not None else []),
        ]
        if len(grammars) != 1:
            what = "json, json_object, regex, choice and grammar"
            raise ApiError(400, f"structured_outputs: is one of {what}, got {len(grammars)}", param="structured_outputs")
        return grammars[0]

    @property
    def wanted_logprobs(self) -> int | None:
        return None

    @property
    def beam_width(self) -> int:
        """0: no beam search. Raises ApiError for what goes with it alone."""
        if self.use_beam_search:
            return self.n or 1
        for name in ("length_penalty", "early_stopping"):
            if getattr(self, name) not in (None, getattr(_DEFAULTS, name)):
                raise ApiError(400, f"{name}: goes with use_beam_search: true", param=name)
        return 0

    def sampling(self, defaults: Mapping[str, float], tokenizer: Tokenizer, max_tokens: int) -> SamplingParams:
        """How tokens are chosen: as the body says, else as `defaults` do. Raises ApiError for tokens that there aren't."""
        width = self.beam_width
        if width > 0:  # what isn't said draws nothing
            defaults = {k: v for k, v in defaults.items() if k not in _DRAWS}
        given = {
            "beam_width": width,
            "length_penalty": self.length_penalty if width > 0 else None,
            "early_stopping": self.early_stopping if width > 0 else None,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": max(self.top_k, 0) if self.top_k is not None else None,  # vLLM's -1 is all
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "seed": None if self.seed is None else self.seed % (1 << 63),
            "n": self.n,
            "ignore_eos": self.ignore_eos,
            "priority": self.priority,
            "cache_salt": self.cache_salt,
        }
        params = SamplingParams(**{**defaults, **{k: v for k, v in given.items() if v is not None}})  # type: ignore[arg-type]
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if "" in stop:
            raise ApiError(400, "stop: an empty string ends nothing", param="stop")
        for name, text in [("stop", s) for s in stop] + [("cache_salt", self.cache_salt or "")]:
            _check_unicode(name, text)
        return replace(
            params,
            max_tokens=max_tokens,
            stop=tuple(stop),
            stop_tokens=tuple(_token(t, "stop_token_ids", tokenizer) for t in self.stop_token_ids or ()),
            logit_bias={_token(t, "logit_bias", tokenizer): b for t, b in (self.logit_bias or {}).items()},
            logprobs=self.wanted_logprobs,
        )


def _check_unicode(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeError:
        raise ApiError(400, f"{name}: half of a surrogate pair is no character", param=name) from None


def _token(text: str | int, param: str, tokenizer: Tokenizer) -> int:
    number = int(text) if isinstance(text, int) or (text.isascii() and text.isdigit() and len(text) < 12) else -1
    if not 0 <= number < len(tokenizer.vocabulary):
        raise ApiError(400, f"{param}: {str(text)[:40]!r} is no token: these are 0 to {len(tokenizer.vocabulary) - 1}", param=param)
    return number


class CompletionBody(SamplingBody):
    """Of /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1, lt=MOST_TOKENS)] | None = None
    suffix: str | None = None

    @property
    def wanted_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def beam_width(self) -> int:
        """As many as `best_of` says, if it says something."""
        width = super().beam_width
        return width if self.best_of is None or width == 0 else self.best_of

    def prompts(self, tokenizer: Tokenizer, most: int) -> list[list[int]]:
        """The tokens of each prompt. Raises ApiError and ContractError."""
        if self.suffix:
            raise ApiError(400, "suffix: the model only continues texts", param="suffix")
        if self.best_of is not None and self.best_of != (self.n or 1) and not self.use_beam_search:
            raise ApiError(400, "best_of: as many as n are computed, and all are given", param="best_of")
        if self.echo and self.logprobs is not None:
            raise ApiError(400, "echo: log-probabilities are those of new tokens; leave out echo or logprobs", param="echo")
        given = self.prompt
        many: list[Any] = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
        if len(many) > most:
            raise ApiError(400, f"prompt: {len(many)} prompts in one request; at most {most} are taken", param="prompt")
        prompts = [tokenizer.encode(p) if isinstance(p, str) else p for p in many]
        for prompt in prompts:
            if not prompt:
                raise ApiError(400, "prompt: there is nothing to continue", param="prompt")
            for token in (min(prompt), max(prompt)):
                _token(token, "prompt", tokenizer)
        return prompts


class UnloadAdapterBody(Body):
    """Of /v1/unload_lora_adapter; fields are vLLM's."""

    lora_name: Annotated[str, Field(min_length=1, max_length=256)]
    lora_int_id: int | None = None


class LoadAdapterBody(UnloadAdapterBody):
    """Of /v1/load_lora_adapter. The path is of a folder of the server's."""

    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]
    load_inplace: Literal[False] | None = None


class EmbeddingBody(Body):
    """Of /v1/embeddings. `prompt_name` is one of sentence-transformers' prompts."""

    input: str | list[str] | list[int] | list[list[int]]
    model: str | None = None
    dimensions: Annotated[int, Field(ge=1, lt=MOST_TOKENS)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None  # of no effect
    prompt_name: str | None = None

    def texts(self, most: int) -> list[str | list[int]]:
        """Texts and tokens of such. Raises ApiError for empty ones, and more than so many."""
        given = self.input
        many: list[Any] = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
        if len(many) > most:
            raise ApiError(400, f"input: {len(many)} texts in one request; at most {most} are taken", param="input")
        for k, text in enumerate(many):
            if not text:
                place = "input" if len(many) == 1 else f"input[{k}]"
                raise ApiError(400, f"{place}: is empty", param="input", code="invalid_value")
        if self.prompt_name is not None and not all(isinstance(x, str) for x in many):
            raise ApiError(400, "prompt_name: goes with texts, not with tokens", param="prompt_name")
        return many


_B = TypeVar("_B", bound=BaseModel)


def parse(kind: type[_B], body: bytes | Mapping[str, Any]) -> _B:
    """The body of a request: JSON, or the fields of a form. Raises ApiError, which names the argument."""
    try:
        parsed: _B = kind.model_validate_json(body) if isinstance(body, bytes) else kind.model_validate(body)
    except ValidationError as e:
        raise _explained(e) from None
    return parsed


def _explained(error: Any) -> ApiError:
    """One error of those that there are: of arguments that may be of several types, all types that they may be."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    first = errors[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body isn't JSON: {first['msg'].removeprefix('Invalid JSON: ')}", code="invalid_json")
    place = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        name = ".".join(map(str, first["loc"]))[:100]
        return ApiError(400, f"Unrecognized request argument supplied: {name}", param=name, code="unknown_parameter")
    if first["type"] == "missing":
        name = ".".join(map(str, first["loc"]))
        return ApiError(400, f"you must provide {name}", param=name, code="missing_required_parameter")
    if not place:
        return ApiError(400, "the body isn't an object of JSON", code="invalid_json")
    why = dict.fromkeys(e["msg"] for e in errors if e["loc"][:1] == first["loc"][:1])
    return ApiError(400, f"{place}: {'; or '.join(list(why)[:4])}", param=place, code="invalid_value")


def check_context(prompt: int, wanted: int | None, limit: int, cap: int | None, usual: int | None) -> int:
    """How many tokens a choice may have after a prompt of so many, of a model with `limit` positions. `wanted`: as the request
    says; `cap`: as the server allows; `usual`: where the request says nothing (None: as many as there is room for). Raises
    ApiError."""
    room = limit - prompt
    if room < 1 or (wanted is not None and wanted > room):
        what = f"{prompt} in the prompt" + (f", {wanted} in the completion" if wanted is not None else "")
        raise ApiError(
            400,
            f"This model's maximum context length is {limit} tokens; you requested {what}",
            param="messages" if wanted is None else "max_tokens",
            code="context_length_exceeded",
        )
    if wanted is not None and cap is not None and wanted > cap:
        raise ApiError(400, f"max_tokens: this server gives at most {cap} tokens", param="max_tokens", code="invalid_value")
    return min(x for x in (room, wanted or usual, cap) if x is not None)
