"""A server in OpenAI's form over an embedder: /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from time import monotonic
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from dhlo.errors import ContractError
from dhlo.serve.doors import Doors, Post, ServerOptions, aside, make_application, unless_gone
from dhlo.serve.embed import Embedder, Vectors
from dhlo.serve.metrics import SECONDS
from dhlo.serve.openai import SPEECH_PATHS, ApiError, EmbeddingBody, parse
from dhlo.serve.types import QueueFullError

__all__ = ["make_embedding_app"]

_MOST_TEXTS: Final = 2048  # of a request, as OpenAI has it


def make_embedding_app(embedder: Embedder, options: ServerOptions | None = None) -> FastAPI:
    """The application for a server of ASGI. It leaves closing the embedder to the caller."""
    doors = _EmbeddingDoors(embedder, options or ServerOptions())
    others = (Post(path, doors.complete) for path in ("/v1/chat/completions", "/v1/completions", *SPEECH_PATHS))
    return make_application(doors, [Post("/v1/embeddings", doors.embed, EmbeddingBody.model_json_schema()), *others])


class _EmbeddingDoors(Doors):
    """The endpoints."""

    def __init__(self, embedder: Embedder, options: ServerOptions) -> None:
        super().__init__(options, embedder.name, embedder.max_tokens)
        self._embedder = embedder
        self._registry = CollectorRegistry()
        self._registry.register(_OfEmbedder(self._name, embedder))
        seconds = Histogram(
            "vllm:e2e_request_latency_seconds",
            "From a request's arrival to its end.",
            ("model_name", "engine"),
            buckets=SECONDS,
            registry=self._registry,
        )
        self._seconds = seconds.labels(model_name=self._name, engine="0")

    def failure(self) -> str:
        """As the embedder says."""
        return self._embedder.stats.failure

    async def embed(self, http: Request) -> Response:
        """/v1/embeddings."""
        start = monotonic()
        body = parse(EmbeddingBody, data := await self.read(http))
        self.check_model(body.model)
        self.check_ready(1)
        try:
            self._embedder.check_dimensions(body.dimensions)
        except ContractError as e:
            raise ApiError(400, str(e), param="dimensions", code="invalid_value") from None
        texts = await aside(lambda: self._texts(body), len(data))
        try:
            future = self._embedder.enqueue(texts)
        except QueueFullError as e:
            raise ApiError(429, str(e), code="queue_full", retry_after=1) from None

        async def whole() -> Response:
            vectors = self._embedder.cut(await asyncio.wrap_future(future), body.dimensions)
            tokens = sum(map(len, texts))
            answer = {
                "object": "list",
                "data": [{"object": "embedding", "index": k, "embedding": v} for k, v in enumerate(_written(vectors, body))],
                "model": self._name,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
            response = await aside(lambda: JSONResponse(answer), vectors.nbytes)
            self._seconds.observe(monotonic() - start)
            return response

        return await unless_gone(http, whole())

    def _texts(self, body: EmbeddingBody) -> list[list[int]]:
        """The tokens of each text. Raises ApiError."""
        texts = body.texts(_MOST_TEXTS)
        out = list[list[int]]()
        for k, text in enumerate(texts):
            place = f"input[{k}]" if len(texts) > 1 else "input"
            try:
                out.append(self._embedder.encode(text, body.prompt_name) if isinstance(text, str) else text)
                self._embedder.check(out[-1])
            except ContractError as e:
                known = body.prompt_name is None or body.prompt_name in self._embedder.pipeline.prompts
                param = "input" if known else "prompt_name"
                code = "context_length_exceeded" if "maximum context length" in str(e) else "invalid_value"
                raise ApiError(400, f"{place if known else param}: {e}", param=param, code=code) from None
        return out

    async def complete(self, http: Request) -> Response:
        """What a model of this kind doesn't do."""
        await self.read(http)
        raise self.doesnt("completes no texts: it gives embeddings")

    def metrics(self) -> bytes:
        """In Prometheus' text format."""
        out: bytes = generate_latest(self._registry)
        return out


def _written(vectors: Vectors, body: EmbeddingBody) -> list[Any]:
    """As numbers, or the bytes of such (f32, the lowest byte first) in base64."""
    if body.encoding_format == "base64":
        return [base64.b64encode(v.astype("<f4", copy=False).tobytes()).decode() for v in vectors]
    return [v.tolist() for v in vectors]


class _OfEmbedder:
    """Gauges and counters of an embedder as it is when they are read."""

    def __init__(self, model: str, embedder: Embedder) -> None:
        self._model, self._embedder = model, embedder

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        s = self._embedder.stats
        for name, what, kind, value in (
            ("engine_failed", "1 where there are no vectors to be had any more, else 0.", GaugeMetricFamily, int(bool(s.failure))),
            ("num_requests_waiting", "Texts that wait.", GaugeMetricFamily, s.waiting),
            ("prompt_tokens", "Tokens of texts.", CounterMetricFamily, s.tokens),
            ("padded_tokens", "Places of batches without a token.", CounterMetricFamily, s.padded_tokens),
            ("engine_steps", "Batches.", CounterMetricFamily, s.batches),
            ("engine_step_seconds", "Seconds in batches.", CounterMetricFamily, s.seconds),
        ):
            family = kind(f"vllm:{name}", what, labels=("model_name", "engine"))
            family.add_metric((self._model, "0"), value)
            yield family
