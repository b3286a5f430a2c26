"""The text of a recording: its pieces are requests of an engine, a few ahead of the one whose text is given out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Final

from dhlo.errors import DhloError
from dhlo.serve.answers import EngineLike, RequestLike
from dhlo.serve.audio import Samples, cut
from dhlo.serve.metrics import Metrics, Timing
from dhlo.serve.speech import Segment, Speech, SpeechTask
from dhlo.serve.tokens import TextStream, Tokenizer
from dhlo.serve.types import FinishReason, QueueFullError, SamplingParams

__all__ = ["Asked", "Transcription"]

_AHEAD: Final = 8  # pieces in work, whose features are some megabytes each


@dataclass(frozen=True)
class Asked:
    """What is asked of a recording. `language`: a code that the model knows, None to have it found out, piece by piece."""

    task: SpeechTask = "transcribe"
    language: str | None = None
    times: bool = False
    earlier: tuple[int, ...] = ()
    """Tokens of what was said before, or of words as they are to be written; each piece is told them."""
    params: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0))
    """How tokens are chosen; `max_tokens` and `constrain` are set here."""


@dataclass(frozen=True)
class _Piece:
    request: RequestLike
    timing: Timing | None
    offset: float
    seconds: float


class Transcription:
    """To be begun once, iterated once, and closed, which cancels what is in work. Not for several threads."""

    def __init__(
        self, engine: EngineLike, speech: Speech, tokenizer: Tokenizer, asked: Asked, metrics: Metrics | None = None
    ) -> None:
        """Raises ContractError for what the model can't do."""
        self._engine, self._speech, self._tokenizer, self._asked, self._metrics = engine, speech, tokenizer, asked, metrics
        self._prompt = speech.prompt(asked.language, asked.task, asked.times, asked.earlier)
        self._rules = speech.rules(asked.language, asked.task, asked.times)
        self._waiting = deque[tuple[float, Samples]]()
        self._working = deque[_Piece]()
        self.segments = list[Segment]()
        """So far; without times, one a piece."""
        self.text = ""
        self.seconds = 0.0
        self.language = asked.language
        """Of the first piece."""
        self.tokens = 0

    async def begin(self, samples: Samples) -> None:
        """Takes a recording, at the model's rate. Raises QueueFullError where its first piece has no place."""
        features, offset = self._speech.features, 0
        for piece in cut(samples, features.rate, features.seconds):
            self._waiting.append((offset / features.rate, piece))
            offset += len(piece)
        self.seconds = offset / features.rate
        try:
            await self._submit()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Cancels what is in work. May be called again."""
        self._waiting.clear()
        while self._working:
            self._end(self._working.popleft())

    async def __aiter__(self) -> AsyncIterator[str]:
        """The text, as it comes. Raises DhloError where a step fails, and QueueFullError where there is no place any more."""
        try:
            while self._working:
                piece = self._working[0]
                async for part in self._read(piece):
                    self.text += part
                    yield part
                self._end(self._working.popleft())
                await self._submit()
        finally:
            self.close()

    async def _submit(self) -> None:
        """Fills up what is in work."""
        speech, asked = self._speech, self._asked
        room = speech.positions - len(self._prompt)
        params = replace(asked.params, max_tokens=room, constrain=self._rules)
        while self._waiting and len(self._working) < _AHEAD:
            offset, samples = self._waiting[0]
            heard = await asyncio.to_thread(speech.features, samples)
            try:
                request = self._engine.submit(self._prompt, params, {"input_features": heard})
            except QueueFullError:
                if self._working:
                    return  # again, when one of these has ended
                raise
            self._waiting.popleft()
            timing = None if self._metrics is None else Timing(self._metrics, len(self._prompt), 1, room)
            self._working.append(_Piece(request, timing, offset, len(samples) / speech.features.rate))

    def _end(self, piece: _Piece) -> None:
        piece.request.cancel()
        if piece.timing is not None:
            piece.timing.end()

    async def _read(self, piece: _Piece) -> AsyncIterator[str]:
        speech, tokenizer = self._speech, self._tokenizer
        stream, tokens, logprobs = TextStream(tokenizer.vocabulary, (speech.end,)), list[int](), list[float]()
        async for event in piece.request:
            if event.finish not in (None, FinishReason.STOP, FinishReason.LENGTH):
                raise DhloError(event.error or f"the request has ended: {event.finish.value}")
            if piece.timing is not None:
                piece.timing.tokens(0, len(event.tokens))
            words = tuple(t for t in event.tokens if not speech.is_time(t))
            tokens += event.tokens
            logprobs += (x.logprob for x in event.logprobs)
            part = stream.push(words) if event.finish is None else stream.finish(words)
            yield part if self.text else part.lstrip()
        self.tokens += len(tokens)
        if self.language is None:
            self.language = speech.language_in(tokens)
        mean = sum(logprobs) / len(logprobs) if logprobs else None
        if self._asked.times:
            segments = speech.segments(tokens, tokenizer, piece.offset, piece.seconds)
            self.segments += (replace(s, avg_logprob=mean) for s in segments)
        elif said := tuple(t for t in tokens if not speech.is_time(t) and tokenizer.vocabulary[t]):
            self.segments.append(Segment(piece.offset, piece.offset + piece.seconds, tokenizer.decode(said), said, mean))
