"""From an engine's events to answers in OpenAI's form: as a whole, and in parts as they come."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from dhlo.serve.call_forms import ToolCall
from dhlo.serve.metrics import Metrics, Timing
from dhlo.serve.openai import ApiError
from dhlo.serve.replies import Reader, ReplyReader
from dhlo.serve.tokens import TextStream, Tokenizer
from dhlo.serve.types import EngineStats, Event, FinishReason, SamplingParams, TokenLogprobs

__all__ = ["LEAST_LOGPROB", "Answer", "Answers", "Chat", "Completion", "EngineLike", "Prompted", "RequestLike", "Writer"]

_REASONS: Final = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}
LEAST_LOGPROB: Final = -9999.0  # JSON has no infinities


class RequestLike(Protocol):
    """What is needed of `engine.Request`."""

    @property
    def cached_tokens(self) -> int: ...
    def cancel(self) -> None: ...
    def __aiter__(self) -> AsyncIterator[Event]: ...


class EngineLike(Protocol):
    """What is needed of `engine.Engine`."""

    def submit(self, prompt: Sequence[int], params: SamplingParams, inputs: Any = None) -> RequestLike: ...
    def load_adapter(self, name: str, adapter: str) -> None: ...
    def unload_adapter(self, name: str) -> None: ...
    def stats(self) -> EngineStats: ...
    def drain(self, timeout: float | None = None) -> bool: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Prompted:
    """A prompt in work, and what its choices are chosen by. Of an encoder-decoder, the prompt is what its encoder reads."""

    request: RequestLike
    prompt: Sequence[int]
    params: SamplingParams


@dataclass(frozen=True)
class Answer:
    """New text of a choice: `index` counts the choices of all prompts. `logprobs` are those of `tokens`, if they are wanted."""

    index: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish: str | None


class _Reader:
    """The texts of the choices of a prompt."""

    def __init__(self, of: Prompted, first: int, tokenizer: Tokenizer, eos: Iterable[int], with_stop: bool, timing: Timing) -> None:
        self._of, self._first, self._tokenizer, self._with_stop, self.timing = of, first, tokenizer, with_stop, timing
        self._streams = dict[int, TextStream]()
        self._ending = {*of.params.stop_tokens, *(() if of.params.ignore_eos else eos)}

    def read(self, event: Event) -> Answer:
        """Raises ApiError for an event that says that the step failed."""
        if event.finish is FinishReason.ERROR:
            raise ApiError(500, event.error or "the step failed")
        stream = self._streams.setdefault(event.choice, TextStream(self._tokenizer.vocabulary, self._ending))
        text = stream.read(event, with_stop=self._with_stop)
        finish = None if event.finish is None else _REASONS.get(event.finish, "abort")
        return Answer(self._first + event.choice, text, event.tokens, event.logprobs, finish)


class Answers:
    """What comes of some prompts, as it comes. To be closed: that cancels what hasn't ended, whether anybody listens or not."""

    def __init__(
        self, prompted: Sequence[Prompted], tokenizer: Tokenizer, eos: Iterable[int], metrics: Metrics, *, with_stop: bool = False
    ) -> None:
        self._prompted = prompted
        self._timings = [Timing(metrics, len(p.prompt), p.params.n, p.params.max_tokens) for p in prompted]
        self._readers, first = list[_Reader](), 0
        for p, timing in zip(prompted, self._timings, strict=True):
            self._readers.append(_Reader(p, first, tokenizer, eos, with_stop, timing))
            first += p.params.n

    def close(self) -> None:
        """Cancels the requests that haven't ended. May be called again."""
        for p in self._prompted:
            p.request.cancel()
        for timing in self._timings:
            timing.end()
        self._timings = []

    async def __aiter__(self) -> AsyncIterator[Answer]:
        """Raises ApiError where a step fails."""
        queue: asyncio.Queue[tuple[_Reader, Event | BaseException | None]] = asyncio.Queue()

        async def listen(reader: _Reader, request: RequestLike) -> None:
            end = None
            try:
                async for event in request:
                    reader.timing.tokens(event.choice, len(event.tokens))
                    queue.put_nowait((reader, event))
            except Exception as e:  # raised where it is waited for
                end = e
            queue.put_nowait((reader, end))

        tasks = [asyncio.create_task(listen(r, p.request)) for r, p in zip(self._readers, self._prompted, strict=True)]
        try:
            left = len(tasks)
            while left:
                # All that has come since is one answer of each choice: whoever is slow to listen gets longer parts, not more.
                new, joined = [await queue.get()], dict[tuple[int, int], tuple[_Reader, Event]]()
                while not queue.empty():
                    new.append(queue.get_nowait())
                for reader, event in new:
                    if isinstance(event, BaseException):
                        raise event
                    if event is None:
                        left -= 1
                    else:
                        key = id(reader), event.choice
                        joined[key] = reader, _join(joined[key][1], event) if key in joined else event
                for reader, event in joined.values():
                    yield reader.read(event)
                await asyncio.sleep(0)  # others' turn, where neither the queue nor the client makes this one wait
        finally:
            for task in tasks:
                task.cancel()


def _join(first: Event, then: Event) -> Event:
    """Two events of a choice as one."""
    return replace(then, tokens=first.tokens + then.tokens, logprobs=first.logprobs + then.logprobs)


@dataclass
class _Choice:
    """What has come of a choice."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[Mapping[str, Any]] = field(default_factory=list)
    finish: str | None = None


class Writer:
    """Answers of one request in the form of an endpoint. `echo` are the texts that choices begin with, one for each."""

    def __init__(
        self,
        id: str,
        model: str,
        prompted: Sequence[Prompted],
        tokenizer: Tokenizer,
        whole: str,
        part: str,
        echo: Sequence[str] = (),
    ) -> None:
        self._head = {"id": id, "created": int(time.time()), "model": model}
        self._prompted, self._tokenizer = prompted, tokenizer
        self._whole, self._part = whole, part
        self._choices = [_Choice() for p in prompted for _ in range(p.params.n)]
        for choice, text in zip(self._choices, echo, strict=False):
            choice.text.append(text)
        self._tokens = 0

    # ------------------------------------------------------------------ of an endpoint
    def _logprobs(self, answer: Answer, choice: _Choice) -> dict[str, Any]:
        """Of the tokens of a part."""
        raise NotImplementedError

    def _joined(self, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Of all parts of a choice."""
        raise NotImplementedError

    def _body(self, choice: _Choice) -> dict[str, Any]:
        """All of a choice."""
        raise NotImplementedError

    def _delta(self, answer: Answer, choice: _Choice) -> dict[str, Any] | None:
        """What an answer adds to one; None for nothing."""
        raise NotImplementedError

    def _echo(self, text: str) -> dict[str, Any]:
        """What a choice begins with."""
        raise NotImplementedError

    # ------------------------------------------------------------------ as a whole
    def add(self, answer: Answer) -> dict[str, Any] | None:
        """Keeps an answer; what it adds to its choice, if anything."""
        choice = self._choices[answer.index]
        self._tokens += len(answer.tokens)
        logprobs = self._logprobs(answer, choice) if answer.logprobs else None
        if logprobs is not None:
            choice.logprobs.append(logprobs)
        choice.finish = answer.finish
        delta = self._delta(answer, choice)
        if delta is None and logprobs is None and answer.finish is None:
            return None
        return {**(delta or self._echo("")), "logprobs": logprobs, "finish_reason": choice.finish}

    def whole(self) -> dict[str, Any]:
        """All that was added."""
        choices = [
            {
                "index": k,
                **self._body(c),
                "logprobs": self._joined(c.logprobs) if c.logprobs else None,
                "finish_reason": c.finish,
            }
            for k, c in enumerate(self._choices)
        ]
        return {**self._head, "object": self._whole, "choices": choices, "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        prompt = sum(len(p.prompt) for p in self._prompted)
        cached = sum(p.request.cached_tokens for p in self._prompted)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._tokens,
            "total_tokens": prompt + self._tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    # ------------------------------------------------------------------ in parts
    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "object": self._part, "choices": choices}

    def _choice_chunk(self, index: int, said: Mapping[str, Any]) -> dict[str, Any]:
        return self._chunk([{"index": index, "logprobs": None, "finish_reason": None, **said}])

    def begin(self) -> list[dict[str, Any]]:
        """What comes before the first answer."""
        return [self._choice_chunk(k, self._echo("".join(c.text))) for k, c in enumerate(self._choices) if c.text]

    def part(self, answer: Answer) -> dict[str, Any] | None:
        """An answer as a part; None where it has nothing to show yet."""
        said = self.add(answer)
        return None if said is None else self._choice_chunk(answer.index, said)

    def last(self) -> dict[str, Any]:
        """The part that says what was used."""
        return {**self._chunk([]), "usage": self.usage()}


class Chat(Writer):
    """Of /v1/chat/completions. `reader` makes what reads the text of a choice, of which `calls` tools at most are called."""

    def __init__(
        self,
        id: str,
        model: str,
        prompted: Sequence[Prompted],
        tokenizer: Tokenizer,
        reader: Callable[[], Reader] = ReplyReader,
        *,
        long_ids: bool = True,
        calls: int | None = None,
    ) -> None:
        super().__init__(f"chatcmpl-{id}", model, prompted, tokenizer, "chat.completion", "chat.completion.chunk")
        self._readers = [reader() for _ in self._choices]
        self._long_ids, self._most_calls = long_ids, calls

    def _logprobs(self, answer: Answer, choice: _Choice) -> dict[str, Any]:
        def of(token: int, logprob: float) -> dict[str, Any]:
            text = self._tokenizer.name_of(token)
            data = text.encode() if token in self._tokenizer.special else self._tokenizer.vocabulary[token]
            return {"token": text, "logprob": max(logprob, LEAST_LOGPROB), "bytes": list(data)}

        content = [
            {**of(t, x.logprob), "top_logprobs": [of(*top) for top in x.top]}
            for t, x in zip(answer.tokens, answer.logprobs, strict=True)
        ]
        return {"content": content, "refusal": None}

    def _joined(self, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {"content": [x for p in parts for x in p["content"]], "refusal": None}

    def _body(self, choice: _Choice) -> dict[str, Any]:
        text, thoughts = "".join(choice.text), "".join(choice.reasoning)
        message = {"role": "assistant", "content": text if text or not choice.calls else None, "refusal": None}
        more: dict[str, Any] = {"reasoning_content": thoughts} if thoughts else {}
        return {"message": message | more | ({"tool_calls": choice.calls} if choice.calls else {})}

    def _delta(self, answer: Answer, choice: _Choice) -> dict[str, Any] | None:
        delta = dict[str, Any]()
        calls = list[Any]()
        for part in self._readers[answer.index].push(answer.text, last=answer.finish is not None):
            match part.kind:
                case "call" if len(choice.calls) == self._most_calls:
                    pass
                case "call":
                    assert part.call is not None
                    calls.append(self._call(part.call, len(choice.calls)))
                    choice.calls.append({k: v for k, v in calls[-1].items() if k != "index"})
                case "reasoning":
                    choice.reasoning.append(part.text)
                    delta["reasoning_content"] = delta.get("reasoning_content", "") + part.text
                case _:
                    choice.text.append(part.text)
                    delta["content"] = delta.get("content", "") + part.text
        if calls:
            delta["tool_calls"] = calls
        if choice.calls and choice.finish == "stop":
            choice.finish = "tool_calls"
        return {"delta": delta} if delta else None

    def _call(self, call: ToolCall, index: int) -> dict[str, Any]:
        id = call.id or (f"call_{uuid.uuid4().hex[:24]}" if self._long_ids else uuid.uuid4().hex[:9])
        return {"index": index, "id": id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}

    def _echo(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}}

    def begin(self) -> list[dict[str, Any]]:
        return [self._choice_chunk(k, {"delta": {"role": "assistant", "content": ""}}) for k in range(len(self._choices))]


class Completion(Writer):
    """Of /v1/completions."""

    def __init__(self, id: str, model: str, prompted: Sequence[Prompted], tokenizer: Tokenizer, echo: Sequence[str] = ()) -> None:
        super().__init__(f"cmpl-{id}", model, prompted, tokenizer, "text_completion", "text_completion", echo)
        self._offsets = [0] * len(self._choices)

    def _logprobs(self, answer: Answer, choice: _Choice) -> dict[str, Any]:
        names = [self._tokenizer.name_of(t) for t in answer.tokens]
        offsets = list[int]()
        for name in names:
            offsets.append(self._offsets[answer.index])
            self._offsets[answer.index] += len(name)
        return {
            "tokens": names,
            "token_logprobs": [max(x.logprob, LEAST_LOGPROB) for x in answer.logprobs],
            "top_logprobs": [{self._tokenizer.name_of(t): max(p, LEAST_LOGPROB) for t, p in x.top} for x in answer.logprobs],
            "text_offset": offsets,
        }

    def _joined(self, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return {name: [x for p in parts for x in p[name]] for name in names}

    def _body(self, choice: _Choice) -> dict[str, Any]:
        return self._echo("".join(choice.text))

    def _delta(self, answer: Answer, choice: _Choice) -> dict[str, Any] | None:
        choice.text.append(answer.text)
        return self._echo(answer.text) if answer.text else None

    def _echo(self, text: str) -> dict[str, Any]:
        return {"text": text}
