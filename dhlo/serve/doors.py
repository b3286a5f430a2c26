"""What servers have in common whatever their model does: who may ask, bodies, errors, and how they run and end."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import math
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import time
from typing import Any, Final, Protocol, TypeVar

import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import dhlo
from dhlo.errors import DhloError
from dhlo.serve.metrics import CONTENT_TYPE
from dhlo.serve.openai import ApiError
from dhlo.serve.types import QueueFullError

__all__ = [
    "Doors",
    "EventStream",
    "Post",
    "ServerOptions",
    "aside",
    "event_of",
    "make_application",
    "run_server",
    "unless_gone",
]

_LOG = logging.getLogger("dhlo")
_INLINE_BYTES: Final = 1 << 14  # of a body whose text is encoded without a thread of its own

_T = TypeVar("_T")


@dataclass(frozen=True)
class ServerOptions:
    """What a server allows."""

    name: str | None = None
    """The model's name for clients; by default the folder's."""
    api_keys: tuple[str, ...] = ()
    """One of which requests below /v1 need; none: nobody is asked."""
    max_tokens: int | None = None
    """Of a choice at most."""
    max_positions: int = 1 << 20
    """Tokens of prompt and choice together: as many as the engine takes."""
    max_body_bytes: int = 4 << 20
    max_audio_seconds: float = 3600.0
    """Of a recording."""
    max_prompts: int = 128
    """In one request for completions."""
    drain_seconds: float = 30.0
    """That requests in work have when the server is told to end."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """Folders of adapters that the engine has, by the names that clients ask for them by, as for models."""
    load_adapters: bool = False
    """Clients may load and unload adapters, of any folder that the server can read."""


class Doors:
    """What endpoints of any server have; `name` is the model's, `max_model_len` how many tokens it takes."""

    def __init__(self, options: ServerOptions, name: str, max_model_len: int) -> None:
        self._options = options
        self.draining = False
        self._name = options.name or name
        self._longest, self._created = max_model_len, int(time())

    def check_model(self, name: str | None) -> str:
        """What a model's name stands for beside the model itself (""). Raises ApiError for names of nothing."""
        if name is not None and name != self._name:
            raise ApiError(404, f"The model '{name[:200]}' does not exist", param="model", code="model_not_found")
        return ""

    def doesnt(self, what: str) -> ApiError:
        """The error of an endpoint that the model is of no use for."""
        return ApiError(404, f"the model '{self._name}' {what}", param="model", code="model_not_found")

    async def check_key(self, http: Request) -> None:
        """Raises ApiError unless one of the keys is given, if there are any."""
        scheme, _, key = http.headers.get("authorization", "").partition(" ")
        given = key.strip().encode("latin-1") if scheme.lower() == "bearer" else b""
        allowed = [hmac.compare_digest(given, k.encode()) for k in self._options.api_keys]
        if allowed and not any(allowed):
            raise ApiError(401, "Incorrect API key provided" if given else "You didn't provide an API key", code="invalid_api_key")

    async def read(self, http: Request) -> bytes:
        """The body. Raises ApiError where it is too long."""
        data, most = bytearray(), self._options.max_body_bytes
        length = http.headers.get("content-length", "0")
        if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > most):
            raise ApiError(413, f"a body has at most {most} bytes", code="request_too_large")
        try:
            async for chunk in http.stream():
                data += chunk
                if len(data) > most:
                    raise ApiError(413, f"a body has at most {most} bytes", code="request_too_large")
        except ClientDisconnect:
            raise ApiError(499, "the client has gone") from None
        return bytes(data)

    def failure(self) -> str:
        """Why no request can be answered any more; empty as long as they can."""
        return ""

    def check_ready(self, retry_after: int) -> None:
        """Raises ApiError where requests aren't taken any more."""
        if self.draining:
            raise ApiError(503, "the server is about to end", code="unavailable", retry_after=retry_after)
        if failure := self.failure():
            raise ApiError(503, f"the engine has failed, the server is to be started again: {failure}", code="unavailable")

    async def health(self) -> Response:
        """/health: 200, or 503 as soon as the server is about to end, or can answer no more."""
        failure = self.failure()
        status = "draining" if self.draining else "failed" if failure else "ok"
        return JSONResponse({"status": status} | ({"error": failure} if failure else {}), 200 if status == "ok" else 503)

    def _card(self) -> dict[str, Any]:
        return {"id": self._name, "object": "model", "created": self._created, "owned_by": "dhlo", "max_model_len": self._longest}

    async def models(self) -> dict[str, Any]:
        """/v1/models."""
        return {"object": "list", "data": [self._card()]}

    async def model(self, name: str) -> dict[str, Any]:
        """/v1/models/NAME."""
        self.check_model(name)
        return self._card()

    def metrics(self) -> bytes:
        """In Prometheus' text format."""
        raise NotImplementedError

    async def metrics_text(self) -> Response:
        """/metrics, for Prometheus."""
        return Response(self.metrics(), media_type=CONTENT_TYPE)


@dataclass(frozen=True)
class Post:
    """An endpoint below /v1. `schema` is of its body, as OpenAPI has it; None: the endpoint isn't told of."""

    path: str
    endpoint: Callable[[Request], Awaitable[Response]]
    schema: Mapping[str, Any] | None = None
    content: str = "application/json"


def make_application(doors: Doors, posts: Sequence[Post], drain: Callable[[], object] = lambda: None) -> FastAPI:
    """An application for a server of ASGI, with what all have. When it ends it takes no more requests, and calls `drain`."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        doors.draining = True
        await asyncio.to_thread(drain)

    app = FastAPI(title="dhlo", version=dhlo.__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    guarded = [Depends(doors.check_key)]
    for post in posts:
        told: dict[str, Any] = {"include_in_schema": post.schema is not None}
        if post.schema is not None:
            told["openapi_extra"] = {"requestBody": {"required": True, "content": {post.content: {"schema": post.schema}}}}
        app.add_api_route(post.path, post.endpoint, methods=["POST"], dependencies=guarded, response_model=None, **told)
    app.add_api_route("/v1/models", doors.models, methods=["GET"], dependencies=guarded)
    app.add_api_route("/v1/models/{name:path}", doors.model, methods=["GET"], dependencies=guarded)
    app.add_api_route("/health", doors.health, methods=["GET"], response_model=None)
    app.add_api_route("/metrics", doors.metrics_text, methods=["GET"], response_model=None)
    for kind in (ApiError, DhloError, HTTPException, Exception):
        app.add_exception_handler(kind, _answer_error)
    return app


async def _answer_error(_: Request, error: Exception) -> Response:
    """Any exception in OpenAI's form."""
    if isinstance(error, HTTPException):
        error = ApiError(error.status_code, str(error.detail))
    elif isinstance(error, QueueFullError):
        error = ApiError(503, str(error), code="unavailable", retry_after=1)
    elif isinstance(error, ValueError) and isinstance(error, DhloError):  # ContractError: the request's fault
        error = ApiError(400, str(error))
    elif not isinstance(error, ApiError):
        _LOG.error("a request failed", exc_info=error)
        error = ApiError(500, "internal error")
    headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error.body, error.status, headers)


def run_server(app: FastAPI, listening: socket.socket, options: ServerOptions) -> None:
    """Serves until SIGINT or SIGTERM; then takes no more connections, and ends when the requests in work have, or have had
    `drain_seconds`. A second signal ends it at once."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        timeout_graceful_shutdown=math.ceil(options.drain_seconds),
        server_header=False,
        timeout_keep_alive=75,
    )
    _Server(config).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Returns after a signal, where uvicorn's own ends the process by it: the caller has an engine to close."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {s: signal.signal(s, self.handle_exit) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Closed(Protocol):
    def close(self) -> object: ...


class EventStream(StreamingResponse):
    """Server-sent events, and what they come of, which is closed however they end: most of all, when the client goes."""

    def __init__(self, events: AsyncIterator[bytes], of: _Closed) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._of = of

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with contextlib.closing(self._of):
            await super().__call__(scope, receive, send)


def event_of(value: Any) -> bytes:
    """An event of such a stream."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def aside(work: Callable[[], _T], size: int) -> _T:
    """The result of work on a text, in a thread of its own if that is long: others mustn't wait for it."""
    return work() if size <= _INLINE_BYTES else await asyncio.to_thread(work)


async def unless_gone(http: Request, answer: Awaitable[Response]) -> Response:
    """An answer; if the client goes before it is there, it is given up."""

    async def gone() -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(answer), asyncio.create_task(gone())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else Response(status_code=499)
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.wait({task, watch})
