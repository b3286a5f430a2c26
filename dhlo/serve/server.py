"""A server in OpenAI's form over one engine: completions and chats, models, health, metrics, and a page to look at."""

from __future__ import annotations

import asyncio
import contextlib
import math
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from dhlo.serve.answers import Answers, Chat, Completion, EngineLike, Prompted, RequestLike, Writer
from dhlo.serve.chat_body import ChatBody
from dhlo.serve.doors import Doors, EventStream, Post, ServerOptions, aside, event_of, make_application, run_server, unless_gone
from dhlo.serve.folder import Served
from dhlo.serve.grammar import Constraint, Grammars
from dhlo.serve.loaded import LoadedAdapters
from dhlo.serve.metrics import Metrics
from dhlo.serve.openai import (
    SPEECH_PATHS,
    ApiError,
    CompletionBody,
    EmbeddingBody,
    LoadAdapterBody,
    SamplingBody,
    UnloadAdapterBody,
    check_context,
    parse,
)
from dhlo.serve.speech_server import make_speech_app
from dhlo.serve.types import QueueFullError, SamplingParams

__all__ = ["ServerOptions", "make_app", "run_server"]

_PAGE: Final = Path(__file__).parent / "page" / "index.html"
_COMPLETION_TOKENS: Final = 16  # OpenAI's, where a completion doesn't say how many


def make_app(engine: EngineLike, served: Served, options: ServerOptions | None = None) -> FastAPI:
    """The application for a server of ASGI: of a model that hears, that of `speech_server`. It drains the engine when it ends, and
    leaves closing it to the caller."""
    options = options or ServerOptions()
    if served.speech is not None:
        return make_speech_app(engine, served, options)
    doors = _Doors(engine, served, options)
    loading = (
        Post("/v1/load_lora_adapter", doors.load_adapter, LoadAdapterBody.model_json_schema()),
        Post("/v1/unload_lora_adapter", doors.unload_adapter, UnloadAdapterBody.model_json_schema()),
    )
    posts = (
        Post("/v1/chat/completions", doors.chat, ChatBody.model_json_schema()),
        Post("/v1/completions", doors.complete, CompletionBody.model_json_schema()),
        Post("/v1/embeddings", doors.embed, EmbeddingBody.model_json_schema()),
        *(Post(path, doors.listen) for path in SPEECH_PATHS),
        *(loading if options.load_adapters else ()),
    )
    app = make_application(doors, posts, lambda: engine.drain(0.0))
    app.add_api_route("/", doors.page, methods=["GET"], response_model=None, include_in_schema=False)
    return app


class _Doors(Doors):
    """The endpoints."""

    def __init__(self, engine: EngineLike, served: Served, options: ServerOptions) -> None:
        super().__init__(options, served.name, options.max_positions)
        self._engine, self._served = engine, served
        self._adapters = LoadedAdapters(engine, self._name, options.adapters)
        self._metrics = Metrics(self._name, engine.stats)
        self._grammars = Grammars(served.tokenizer, served.eos_tokens)
        self._page = _PAGE.read_text(encoding="utf-8")

    def failure(self) -> str:
        """As the engine says."""
        return self._engine.stats().failure

    def check_model(self, name: str | None) -> str:
        """The adapter that a model's name stands for; "" for the model itself. Raises ApiError for names of neither."""
        return name if name is not None and name in self._adapters else super().check_model(name)

    # ------------------------------------------------------------------ completions
    async def chat(self, http: Request) -> Response:
        """/v1/chat/completions."""
        body = parse(ChatBody, data := await self.read(http))
        adapter = self.check_model(body.model)
        template = self._served.chat
        if template is None:
            raise ApiError(400, f"the model '{self._name}' has no chat template; /v1/completions takes texts as they are")
        arguments, schemas = body.template_arguments(), body.schemas
        tokenizer = self._served.tokenizer

        constraints = await self._constraints(body, 1)
        held = constraints != [None]

        def rendered() -> tuple[str, list[int]]:
            text = template.render(**arguments, held=held)
            return text, tokenizer.encode(text, special=False)

        text, prompt = await aside(rendered, len(data))
        prompted = self._submit(body, adapter, [prompt], None, constraints)
        reader = partial(template.reader, text, schemas, held=held, must_call=body.must_call)
        calls = 1 if body.parallel_tool_calls is False else None
        writer = Chat(uuid.uuid4().hex, adapter or self._name, prompted, tokenizer, reader, long_ids=template.long_ids, calls=calls)
        return await self._answer(http, body, prompted, writer)

    async def complete(self, http: Request) -> Response:
        """/v1/completions."""
        body = parse(CompletionBody, data := await self.read(http))
        adapter = self.check_model(body.model)
        tokenizer = self._served.tokenizer
        if body.echo and self._served.encoder is not None:
            raise ApiError(400, "echo: the model answers a text, and doesn't continue it", param="echo")
        prompts = await aside(lambda: body.prompts(tokenizer, self._options.max_prompts), len(data))
        prompted = self._submit(body, adapter, prompts, _COMPLETION_TOKENS, await self._constraints(body, len(prompts)))
        echo = [tokenizer.decode(p) for p in prompts for _ in range(body.n or 1)] if body.echo else ()
        return await self._answer(
            http, body, prompted, Completion(uuid.uuid4().hex, adapter or self._name, prompted, tokenizer, echo)
        )

    async def _constraints(self, body: SamplingBody, count: int) -> list[Constraint | None]:
        """What the text of each of so many prompts is held to. Raises ApiError and ContractError."""
        grammar = body.grammar
        if grammar is None:
            return [None] * count
        return [await asyncio.to_thread(self._grammars.compile, grammar) for _ in range(count)]

    def _submit(
        self,
        body: SamplingBody,
        adapter: str,
        prompts: Sequence[Sequence[int]],
        usual: int | None,
        constraints: Sequence[Constraint | None],
    ) -> list[Prompted]:
        """All prompts, or none. Raises ApiError and ContractError."""
        self.check_ready(self._retry_after())
        options, served, out = self._options, self._served, list[Prompted]()
        never = dict.fromkeys(served.never, -math.inf)
        params = list[SamplingParams]()
        for prompt, constraint in zip(prompts, constraints, strict=True):
            before = len(served.request(prompt)[0])
            room = check_context(before, body.wanted_tokens, options.max_positions, options.max_tokens, usual)
            its = body.sampling(served.defaults, served.tokenizer, room)
            params.append(replace(its, constrain=constraint, adapter=adapter, logit_bias={**its.logit_bias, **never}))
        try:
            for prompt, its in zip(prompts, params, strict=True):
                out.append(Prompted(self._ask(prompt, its), prompt, its))
        except BaseException as e:
            for p in out:
                p.request.cancel()
            if isinstance(e, QueueFullError) and not self.draining:
                raise ApiError(429, str(e), code="queue_full", retry_after=self._retry_after()) from None
            raise
        return out

    def _ask(self, prompt: Sequence[int], params: SamplingParams) -> RequestLike:
        tokens, inputs = self._served.request(prompt)
        return self._engine.submit(tokens, params) if inputs is None else self._engine.submit(tokens, params, inputs)

    def _retry_after(self) -> int:
        """Seconds after which there may be room: as long as a request takes."""
        return min(max(math.ceil(self._metrics.mean_seconds), 1), 60)

    async def _answer(self, http: Request, body: SamplingBody, prompted: Sequence[Prompted], writer: Writer) -> Response:
        with_stop = body.include_stop_str_in_output is True
        answers = Answers(prompted, self._served.tokenizer, self._served.eos_tokens, self._metrics, with_stop=with_stop)
        if body.stream:
            wants_usage = body.stream_options is not None and body.stream_options.include_usage is True
            return EventStream(_events(answers, writer, wants_usage), answers)

        async def whole() -> Response:
            async for answer in answers:
                writer.add(answer)
            return JSONResponse(writer.whole())

        with contextlib.closing(answers):
            return await unless_gone(http, whole())

    async def embed(self, http: Request) -> Response:
        """/v1/embeddings: a step of a decoder gives logits alone."""
        self.check_model(parse(EmbeddingBody, await self.read(http)).model)
        raise self.doesnt("gives no embeddings: it completes texts")

    async def listen(self, http: Request) -> Response:
        """/v1/audio/transcriptions and /v1/audio/translations: those of models of another kind."""
        await self.read(http)
        raise self.doesnt("reads no recordings: it completes texts")

    # ------------------------------------------------------------------ adapters
    async def load_adapter(self, http: Request) -> Response:
        """/v1/load_lora_adapter."""
        body = parse(LoadAdapterBody, await self.read(http))
        await self._adapters.load(body)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def unload_adapter(self, http: Request) -> Response:
        """/v1/unload_lora_adapter."""
        body = parse(UnloadAdapterBody, await self.read(http))
        await self._adapters.unload(body.lora_name)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    # ------------------------------------------------------------------ looking at it
    async def models(self) -> dict[str, Any]:
        """/v1/models."""
        return {"object": "list", "data": [self._card(), *self._adapters.cards(self._options.max_positions)]}

    async def model(self, name: str) -> dict[str, Any]:
        """/v1/models/NAME."""
        adapter = self.check_model(name)
        return self._adapters.card(adapter, self._options.max_positions) if adapter else await super().model(name)

    def metrics(self) -> bytes:
        """In Prometheus' text format."""
        return self._metrics.text()

    async def page(self) -> Response:
        """What the server does, and a chat."""
        policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
        return HTMLResponse(self._page, headers={"content-security-policy": policy})


async def _events(answers: Answers, writer: Writer, wants_usage: bool) -> AsyncIterator[bytes]:
    """An error after the first is an event, in place of the rest."""
    try:
        for chunk in writer.begin():
            yield event_of(chunk)
        async for answer in answers:
            part = writer.part(answer)
            if part is not None:
                yield event_of(part)
        if wants_usage:
            yield event_of(writer.last())
    except ApiError as e:
        yield event_of(e.body)
    yield b"data: [DONE]\n\n"
