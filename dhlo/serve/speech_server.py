"""A server in OpenAI's form over an engine that hears: /v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import zlib
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from dhlo.errors import ContractError, DhloError
from dhlo.serve.answers import LEAST_LOGPROB, EngineLike
from dhlo.serve.audio import read_audio
from dhlo.serve.doors import Doors, EventStream, Post, ServerOptions, event_of, make_application, unless_gone
from dhlo.serve.folder import Served
from dhlo.serve.metrics import Metrics
from dhlo.serve.openai import SPEECH_PATHS, ApiError, parse
from dhlo.serve.speech import Segment, Speech, SpeechTask
from dhlo.serve.transcribing import Asked, Transcription
from dhlo.serve.types import QueueFullError, SamplingParams

__all__ = ["make_speech_app", "subtitles"]

_LISTS: Final = dict.fromkeys(("timestamp_granularities[]", "timestamp_granularities"), "timestamp_granularities")
_MOST_FIELDS: Final = 32
_LOG = logging.getLogger("dhlo")


class SpeechBody(BaseModel):
    """The fields of a form of /v1/audio/transcriptions and /v1/audio/translations, but for the file."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: str | None = None
    language: Annotated[str, Field(max_length=64)] | None = None
    prompt: Annotated[str, Field(max_length=1 << 16)] | None = None
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    stream: bool = False
    timestamp_granularities: Annotated[list[Literal["segment"]], Field(max_length=1)] | None = None
    chunking_strategy: Literal["auto"] | None = None

    @property
    def times(self) -> bool:
        """Whether the answer says when what was said."""
        return self.response_format in ("srt", "verbose_json", "vtt")


def make_speech_app(engine: EngineLike, served: Served, options: ServerOptions | None = None) -> FastAPI:
    """The application for a server of ASGI. It drains the engine when it ends, and leaves closing it to the caller."""
    doors = _SpeechDoors(engine, served, options or ServerOptions())
    schema = SpeechBody.model_json_schema()
    schema["properties"]["file"] = {"type": "string", "format": "binary"}
    schema["required"] = ["file"]
    hearing = [
        Post(path, endpoint, schema, "multipart/form-data")
        for path, endpoint in zip(SPEECH_PATHS, (doors.transcribe, doors.translate), strict=True)
    ]
    others = [Post(path, doors.complete) for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")]
    return make_application(doors, [*hearing, *others], lambda: engine.drain(0.0))


class _SpeechDoors(Doors):
    """The endpoints."""

    def __init__(self, engine: EngineLike, served: Served, options: ServerOptions) -> None:
        assert served.speech is not None
        self._speech: Speech = served.speech
        super().__init__(options, served.name, self._speech.positions)
        self._engine, self._tokenizer = engine, served.tokenizer
        self._metrics = Metrics(self._name, engine.stats)

    def failure(self) -> str:
        """As the engine says."""
        return self._engine.stats().failure

    async def transcribe(self, http: Request) -> Response:
        """/v1/audio/transcriptions."""
        return await self._hear(http, "transcribe")

    async def translate(self, http: Request) -> Response:
        """/v1/audio/translations, to English."""
        return await self._hear(http, "translate")

    async def complete(self, http: Request) -> Response:
        """What a model of this kind doesn't do."""
        await self.read(http)
        raise self.doesnt("completes no texts: it reads recordings (/v1/audio/transcriptions)")

    def metrics(self) -> bytes:
        """In Prometheus' text format."""
        return self._metrics.text()

    async def _hear(self, http: Request, task: SpeechTask) -> Response:
        body, recording = await self._form(http)
        self.check_model(body.model)
        self.check_ready(1)
        rate = self._speech.features.rate
        samples = await asyncio.to_thread(read_audio, recording, rate, self._options.max_audio_seconds)
        if not len(samples):
            raise ApiError(400, "file: the recording is empty", param="file", code="invalid_value")
        heard = Transcription(self._engine, self._speech, self._tokenizer, self._asked(body, task), self._metrics)
        try:
            await heard.begin(samples)
        except QueueFullError as e:
            if self.draining:
                raise
            raise ApiError(429, str(e), code="queue_full", retry_after=1) from None
        if body.stream:
            return EventStream(_events(heard), heard)

        async def whole() -> Response:
            try:
                async for _ in heard:
                    pass
            except DhloError as e:
                raise e if isinstance(e, QueueFullError) else ApiError(500, str(e)) from None
            return _answer(heard, body, task)

        with contextlib.closing(heard):
            return await unless_gone(http, whole())

    def _asked(self, body: SpeechBody, task: SpeechTask) -> Asked:
        """Raises ApiError and ContractError."""
        if body.stream and body.times:
            raise ApiError(400, f"stream: goes with json and text, not with {body.response_format}", param="stream")
        if body.timestamp_granularities and body.response_format != "verbose_json":
            raise ApiError(400, "timestamp_granularities: goes with verbose_json", param="timestamp_granularities")
        try:
            language = self._speech.language_of(body.language)
        except ContractError as e:
            raise ApiError(400, str(e), param="language", code="invalid_value") from None
        earlier = self._tokenizer.encode(" " + body.prompt.strip(), special=False) if body.prompt else []
        if any(t in self._tokenizer.special for t in earlier):
            raise ApiError(400, "prompt: has what is written like a special token", param="prompt", code="invalid_value")
        params = SamplingParams(
            temperature=body.temperature,
            seed=None if body.seed is None else body.seed % (1 << 63),
            logprobs=0 if body.response_format == "verbose_json" else None,
        )
        return Asked(task, language, body.times, tuple(earlier), params)

    async def _form(self, http: Request) -> tuple[SpeechBody, bytes]:
        """The fields of the form, and the file. Raises ApiError."""
        data = await self.read(http)
        if not http.headers.get("content-type", "").lower().startswith("multipart/form-data"):
            raise ApiError(400, "the body isn't a form (multipart/form-data) with a file", code="invalid_form")

        async def stream() -> AsyncIterator[bytes]:
            yield data

        try:
            form = await MultiPartParser(http.headers, stream(), max_files=1, max_fields=_MOST_FIELDS).parse()
            for name, value in form.multi_items():  # charsets can make halves of surrogate pairs, which no answer can hold
                (name if isinstance(value, UploadFile) else name + value).encode()
        except (MultiPartException, UnicodeError, KeyError) as e:
            raise ApiError(400, f"the form can't be read: {str(getattr(e, 'message', e))[:200]}", code="invalid_form") from None
        fields, recording = dict[str, Any](), None
        for name, value in form.multi_items():
            if name == "file":
                recording = await value.read() if isinstance(value, UploadFile) else value.encode()
            elif isinstance(value, UploadFile):
                raise ApiError(400, f"{name[:100]}: is no file", param=name[:100], code="invalid_value")
            elif name in _LISTS:
                fields.setdefault(_LISTS[name], []).append(value)
            else:
                fields[name] = value
        await form.close()
        body = parse(SpeechBody, fields)
        if recording is None:
            raise ApiError(400, "you must provide file", param="file", code="missing_required_parameter")
        return body, recording


def _answer(heard: Transcription, body: SpeechBody, task: SpeechTask) -> Response:
    text = heard.text.strip()
    match body.response_format:
        case "text":
            return PlainTextResponse(text + "\n")
        case "srt" | "vtt":
            return PlainTextResponse(subtitles(heard.segments, body.response_format))
        case "verbose_json":
            segments = [
                {
                    "id": k,
                    "seek": int(100 * s.start),
                    "start": round(s.start, 2),
                    "end": round(s.end, 2),
                    "text": s.text,
                    "tokens": list(s.tokens),
                    "temperature": body.temperature,
                    "avg_logprob": None if s.avg_logprob is None else max(s.avg_logprob, LEAST_LOGPROB),
                    "compression_ratio": len(s.text.encode()) / len(zlib.compress(s.text.encode())),
                }
                for k, s in enumerate(heard.segments)
            ]
            told = {"task": task, "language": heard.language or "en", "duration": heard.seconds, "text": text}
            return JSONResponse({**told, "segments": segments, "usage": _usage(heard)})
    return JSONResponse({"text": text, "usage": _usage(heard)})


def _usage(heard: Transcription) -> dict[str, Any]:
    return {"type": "duration", "seconds": math.ceil(heard.seconds)}


def subtitles(segments: list[Segment], form: str) -> str:
    """Segments as SubRip ("srt") or WebVTT ("vtt") has them."""
    mark = "," if form == "srt" else "."

    def at(seconds: float) -> str:
        whole = round(1000 * seconds)
        return f"{whole // 3600000:02}:{whole // 60000 % 60:02}:{whole // 1000 % 60:02}{mark}{whole % 1000:03}"

    parts = ["" if form == "srt" else "WEBVTT\n\n"]
    for k, s in enumerate(segments, 1):
        number = f"{k}\n" if form == "srt" else ""
        words = " ".join(s.text.split()).replace("-->", "->")  # an arrow and an empty line would end a cue
        parts.append(f"{number}{at(s.start)} --> {at(s.end)}\n{words}\n\n")
    return "".join(parts)


async def _events(heard: Transcription) -> AsyncIterator[bytes]:
    """The text as it comes. An error after the first part is an event, in place of the rest."""
    try:
        async for part in heard:
            if part:
                yield event_of({"type": "transcript.text.delta", "delta": part})
        yield event_of({"type": "transcript.text.done", "text": heard.text.strip(), "usage": _usage(heard)})
    except Exception as e:
        if not isinstance(e, DhloError):
            _LOG.error("a request failed", exc_info=e)
        yield event_of(ApiError(500, str(e) if isinstance(e, DhloError) else "internal error").body)
    yield b"data: [DONE]\n\n"
