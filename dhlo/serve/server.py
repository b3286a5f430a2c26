"""A server in OpenAI's form over one engine: completions and chats, models, health, metrics, and a page to look at."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any, Final

from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse

import dhlo
from dhlo.serve.answers import Answers, Chat, Completion, EngineLike, Prompted, Writer
from dhlo.serve.doors import Doors, ServerOptions, aside, handle_errors, run_server, unless_gone
from dhlo.serve.folder import Served
from dhlo.serve.grammar import Constraint, Grammars
from dhlo.serve.loaded import LoadedAdapters
from dhlo.serve.metrics import CONTENT_TYPE, Metrics
from dhlo.serve.openai import (
    ApiError,
    ChatBody,
    CompletionBody,
    EmbeddingBody,
    LoadAdapterBody,
    SamplingBody,
    UnloadAdapterBody,
    check_context,
    parse,
)
from dhlo.serve.types import QueueFullError, SamplingParams

__all__ = ["ServerOptions", "make_app", "run_server"]

_PAGE: Final = Path(__file__).parent / "page" / "index.html"
_COMPLETION_TOKENS: Final = 16  # OpenAI's, where a completion doesn't say how many


def make_app(engine: EngineLike, served: Served, options: ServerOptions | None = None) -> FastAPI:
    """The application for a server of ASGI. It drains the engine when it ends, and leaves closing it to the caller."""
    options = options or ServerOptions()
    doors = _Doors(engine, served, options)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        doors.draining = True
        await asyncio.to_thread(engine.drain, 0.0)

    app = FastAPI(title="dhlo", version=dhlo.__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    guarded = [Depends(doors.check_key)]
    loading = (
        ("/v1/load_lora_adapter", doors.load_adapter, LoadAdapterBody),
        ("/v1/unload_lora_adapter", doors.unload_adapter, UnloadAdapterBody),
    )
    for path, endpoint, body in (
        ("/v1/chat/completions", doors.chat, ChatBody),
        ("/v1/completions", doors.complete, CompletionBody),
        ("/v1/embeddings", doors.embed, EmbeddingBody),
        *(loading if options.load_adapters else ()),
    ):
        schema = {"requestBody": {"required": True, "content": {"application/json": {"schema": body.model_json_schema()}}}}
        app.add_api_route(path, endpoint, methods=["POST"], dependencies=guarded, openapi_extra=schema, response_model=None)
    app.add_api_route("/v1/models", doors.models, methods=["GET"], dependencies=guarded)
    app.add_api_route("/v1/models/{name:path}", doors.model, methods=["GET"], dependencies=guarded)
    app.add_api_route("/health", doors.health, methods=["GET"], response_model=None)
    app.add_api_route("/metrics", doors.metrics_text, methods=["GET"], response_model=None)
    app.add_api_route("/", doors.page, methods=["GET"], response_model=None, include_in_schema=False)
    handle_errors(app)
    return app


class _Doors(Doors):
    """The endpoints."""

    def __init__(self, engine: EngineLike, served: Served, options: ServerOptions) -> None:
        super().__init__(options)
        self._engine, self._served = engine, served
        self._name = options.name or served.name
        self._adapters = LoadedAdapters(engine, self._name, options.adapters)
        self._metrics = Metrics(self._name, engine.stats)
        self._grammars = Grammars(served.tokenizer, served.eos_tokens)
        self._created = int(time())
        self._page = _PAGE.read_text(encoding="utf-8")

    def failure(self) -> str:
        """As the engine says."""
        return self._engine.stats().failure

    def _check_model(self, name: str | None) -> str:
        """The adapter that a model's name stands for; "" for the model itself. Raises ApiError for names of neither."""
        if name is None or name == self._name:
            return ""
        if name not in self._adapters:
            raise ApiError(404, f"The model '{name[:200]}' does not exist", param="model", code="model_not_found")
        return name

    # ------------------------------------------------------------------ completions
    async def chat(self, http: Request) -> Response:
        """/v1/chat/completions."""
        body = parse(ChatBody, data := await self.read(http))
        adapter = self._check_model(body.model)
        template = self._served.chat
        if template is None:
            raise ApiError(400, f"the model '{self._name}' has no chat template; /v1/completions takes texts as they are")
        arguments = body.template_arguments()
        encode = lambda: self._served.tokenizer.encode(template.render(**arguments), special=False)
        prompt = await aside(encode, len(data))
        prompted = self._submit(body, adapter, [prompt], None, await self._constraints(body, 1))
        return await self._answer(
            http, body, prompted, Chat(uuid.uuid4().hex, adapter or self._name, prompted, self._served.tokenizer)
        )

    async def complete(self, http: Request) -> Response:
        """/v1/completions."""
        body = parse(CompletionBody, data := await self.read(http))
        adapter = self._check_model(body.model)
        tokenizer = self._served.tokenizer
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
        options, out = self._options, list[Prompted]()
        params = list[SamplingParams]()
        for prompt, constraint in zip(prompts, constraints, strict=True):
            room = check_context(len(prompt), body.wanted_tokens, options.max_positions, options.max_tokens, usual)
            params.append(
                replace(body.sampling(self._served.defaults, self._served.tokenizer, room), constrain=constraint, adapter=adapter)
            )
        try:
            for prompt, its in zip(prompts, params, strict=True):
                out.append(Prompted(self._engine.submit(prompt, its), prompt, its))
        except BaseException as e:
            for p in out:
                p.request.cancel()
            if isinstance(e, QueueFullError) and not self.draining:
                raise ApiError(429, str(e), code="queue_full", retry_after=self._retry_after()) from None
            raise
        return out

    def _retry_after(self) -> int:
        """Seconds after which there may be room: as long as a request takes."""
        return min(max(math.ceil(self._metrics.mean_seconds), 1), 60)

    async def _answer(self, http: Request, body: SamplingBody, prompted: Sequence[Prompted], writer: Writer) -> Response:
        with_stop = body.include_stop_str_in_output is True
        answers = Answers(prompted, self._served.tokenizer, self._served.eos_tokens, self._metrics, with_stop=with_stop)
        if body.stream:
            wants_usage = body.stream_options is not None and body.stream_options.include_usage is True
            return _Stream(answers, writer, wants_usage)

        async def whole() -> Response:
            async for answer in answers:
                writer.add(answer)
            return JSONResponse(writer.whole())

        with contextlib.closing(answers):
            return await unless_gone(http, whole())

    async def embed(self, http: Request) -> Response:
        """/v1/embeddings: a step of a decoder gives logits alone."""
        self._check_model(parse(EmbeddingBody, await self.read(http)).model)
        raise ApiError(
            404, f"the model '{self._name}' gives no embeddings: it completes texts", param="model", code="model_not_found"
        )

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
    def _card(self) -> dict[str, Any]:
        longest = self._options.max_positions
        return {"id": self._name, "object": "model", "created": self._created, "owned_by": "dhlo", "max_model_len": longest}

    async def models(self) -> dict[str, Any]:
        """/v1/models."""
        return {"object": "list", "data": [self._card(), *self._adapters.cards(self._options.max_positions)]}

    async def model(self, name: str) -> dict[str, Any]:
        """/v1/models/NAME."""
        adapter = self._check_model(name)
        return self._adapters.card(adapter, self._options.max_positions) if adapter else self._card()

    async def metrics_text(self) -> Response:
        """/metrics, for Prometheus."""
        return Response(self._metrics.text(), media_type=CONTENT_TYPE)

    async def page(self) -> Response:
        """What the server does, and a chat."""
        policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
        return HTMLResponse(self._page, headers={"content-security-policy": policy})


class _Stream(StreamingResponse):
    """Server-sent events."""

    def __init__(self, answers: Answers, writer: Writer, wants_usage: bool) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(_events(answers, writer, wants_usage), media_type="text/event-stream", headers=headers)
        self._answers = answers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with contextlib.closing(self._answers):  # however it ends: most of all, when the client goes
            await super().__call__(scope, receive, send)


async def _events(answers: Answers, writer: Writer, wants_usage: bool) -> AsyncIterator[bytes]:
    """An error after the first is an event, in place of the rest."""
    try:
        for chunk in writer.begin():
            yield _event(chunk)
        async for answer in answers:
            part = writer.part(answer)
            if part is not None:
                yield _event(part)
        if wants_usage:
            yield _event(writer.last())
    except ApiError as e:
        yield _event(e.body)
    yield b"data: [DONE]\n\n"


def _event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
