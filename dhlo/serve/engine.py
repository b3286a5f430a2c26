"""The serving engine: takes requests at any time, and runs a compiled step over parts of many of them at once.

Requests are scheduled, computed and sampled by threads of the native engine (`runtime/serve/`). A thread of this module waits for
what they say, without Python's lock, and hands it on to whoever waits for a request, in threads or on event loops.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import threading
import time
import weakref
from array import array
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, SupportsFloat, SupportsIndex, TypeAlias

from dhlo import _runtime
from dhlo.errors import ContractError, DeadlineError, translate
from dhlo.serve.adapters import Adapter, read_adapter
from dhlo.serve.shards import communicator_of, peer_timeout
from dhlo.serve.stores import Store, WatchedStore
from dhlo.serve.types import (
    Choice,
    EngineOptions,
    EngineStats,
    Event,
    FinishReason,
    Output,
    QueueFullError,
    SamplingParams,
    TokenLogprobs,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from dhlo.model import CompiledModel

__all__ = ["Engine", "Request"]

_LOG = logging.getLogger("dhlo")

_OPTIONS, _PARAMS = EngineOptions(), SamplingParams()  # the defaults
_INTEGERS = ("priority", "max_tokens", "top_k", "n", "seed", "logprobs", "beam_width")
_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "timeout",
    "length_penalty",
)
_OPTIONAL = ("seed", "logprobs", "timeout")
_FORMATS = {"?": 0, "B": 1, "b": 2, "h": 3, "i": 4, "l": 5, "q": 5, "e": 6, "f": 8, "d": 9}  # of buffers: dhlo_dtype
# By dhlo_finish of serve.h.
_FINISHES = (
    None,
    FinishReason.STOP,
    FinishReason.LENGTH,
    FinishReason.CANCELLED,
    FinishReason.DEADLINE,
    FinishReason.ERROR,
)

_Waiter: TypeAlias = tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]


class Request:
    """A request that an engine has taken. Its events can be gone through any number of times, by any thread."""

    def __init__(self, engine: Engine, params: SamplingParams, prompt_tokens: int) -> None:
        self.id = 0
        self.params = params
        self.prompt_tokens = prompt_tokens
        self._cached_tokens = 0
        self._engine: Engine | None = engine  # until it has ended, so that it does
        self._events = list[Event]()
        self._ended = False
        self._changed = threading.Condition()
        self._waiters = list[_Waiter]()

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt whose keys and values were known; 0 until there is an event."""
        return self._cached_tokens

    def cancel(self) -> None:
        """Ends the request with FinishReason.CANCELLED; does nothing if it has ended."""
        engine = self._engine
        if engine is not None:
            engine._native.cancel(self.id)

    def __iter__(self) -> Iterator[Event]:
        """Its events, from the first; waits for those that are to come, and ends after the last choice's end. Raises ContractError
        in the child of a fork, where none come."""
        self._need_events()
        at = 0
        while True:
            with self._changed:
                while len(self._events) == at and not self._ended:
                    self._changed.wait()
                new = self._events[at:]
            if not new:
                return
            yield from new
            at += len(new)

    async def __aiter__(self) -> AsyncIterator[Event]:
        """The same, waiting on the running event loop."""
        loop, at = asyncio.get_running_loop(), 0
        while True:
            with self._changed:
                new, ended = self._events[at:], self._ended
                if not new and not ended:
                    waiter = loop.create_future()
                    self._waiters.append((loop, waiter))
            if new:
                for event in new:
                    yield event
                at += len(new)
            elif ended:
                return
            else:
                await waiter

    def result(self, timeout: float | None = None) -> Output:
        """Waits until it has ended. Raises DeadlineError if that takes more than `timeout` seconds: the request goes on;
        ContractError in the child of a fork."""
        self._need_events()
        with self._changed:
            if not self._changed.wait_for(lambda: self._ended, timeout):
                raise DeadlineError(f"request {self.id} hasn't ended within {timeout} seconds")
        return Output(tuple(self._choice(i) for i in range(self.params.n)), self.prompt_tokens, self._cached_tokens)

    def _need_events(self) -> None:
        engine = self._engine
        if engine is not None:
            engine._need_this_process()

    def _choice(self, index: int) -> Choice:
        events = [e for e in self._events if e.choice == index]
        last = events[-1]
        assert last.finish is not None
        tokens = tuple(t for e in events for t in e.tokens)
        return Choice(tokens, last.finish, tuple(x for e in events for x in e.logprobs), last.stop, last.error, last.score)

    def _take(self, events: Sequence[_runtime.EngineEvent]) -> list[_Waiter]:
        """Called by the dispatcher's thread, which wakes those that are returned."""
        made = [
            Event(
                choice,
                tokens,
                tuple(TokenLogprobs(*x) for x in logprobs),
                _FINISHES[finish],
                self.params.stop[stop] if stop >= 0 else None,
                error,
                score,
            )
            for _, choice, finish, _, tokens, logprobs, stop, error, _, _, score in events
        ]
        with self._changed:
            self._events += made
            self._ended = events[-1][3]
            self._cached_tokens = events[-1][9]
            self._changed.notify_all()
            waiters, self._waiters = self._waiters, []
        if self._ended:
            self._engine = None
        return waiters

    def _fail(self, error: str) -> None:
        """Ends it where nobody tells of it any more."""
        with self._changed:
            ended = {e.choice for e in self._events if e.finish is not None}
            self._events += [Event(i, (), finish=FinishReason.ERROR, error=error) for i in range(self.params.n) if i not in ended]
            self._ended, self._engine = True, None
            self._changed.notify_all()
            waiters, self._waiters = self._waiters, []
        _wake(waiters)


def _wake(waiters: Sequence[_Waiter]) -> None:
    """Wakes all of a loop at once: each call into a loop's thread is a write, and may make this thread wait for that one."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for loop, waiter in waiters:
        by_loop.setdefault(loop, []).append(waiter)
    for loop, its in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_end_wait, its)


def _end_wait(waiters: Sequence[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


class _Requests:
    """Those in work, by id."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.by_id = dict[int, Request]()
        self.failure = ""

    def dispatch(self, native: _runtime.Engine) -> None:
        """Hands on events until the engine is closed. Where that fails the engine is closed, and all requests end."""
        try:
            self._hand_on(native)
        except Exception as e:  # MemoryError, say
            _LOG.exception("an engine is closed: its events can't be handed on")
            self.failure = f"events can't be handed on: {type(e).__name__}: {e}"
            native.close()
            with self.changed:
                left, self.by_id = list(self.by_id.values()), {}
                self.changed.notify_all()
            for request in left:
                request._fail(self.failure)

    def _hand_on(self, native: _runtime.Engine) -> None:
        while (events := native.poll()) is not None:
            grouped: dict[int, list[_runtime.EngineEvent]] = {}
            for event in events:
                grouped.setdefault(event[0], []).append(event)
            with self.changed:
                taken = [(self.by_id[id], mine) for id, mine in grouped.items()]
            _wake([waiter for request, mine in taken for waiter in request._take(mine)])
            with self.changed:
                for request, mine in taken:
                    if mine[-1][3]:
                        del self.by_id[request.id]
                self.changed.notify_all()
            del taken, request  # of which the last reference may be one to the engine


def _close(native: _runtime.Engine, dispatcher: threading.Thread) -> None:
    native.close()
    if dispatcher is not threading.current_thread():  # which may drop the last reference to an engine
        dispatcher.join()


def _digest(model: CompiledModel | _runtime.Model, options: EngineOptions) -> bytes:
    """What stands for the model and its encoder in their folder or store of blocks. Raises ContractError, and what
    `CompiledModel.digest` raises."""
    if options.cache_folder is None and options.cache_store is None:
        return b""
    if options.model_digest:
        if len(options.model_digest) != 32:
            raise ContractError(f"model_digest has 32 bytes, got {len(options.model_digest)}")
        return options.model_digest
    encoder = options.encoder
    if isinstance(model, _runtime.Model) or isinstance(encoder, _runtime.Model):
        kind = "cache_folder" if options.cache_folder is not None else "cache_store"
        raise ContractError(f"{kind} needs model_digest: blocks are of one model alone, which this one doesn't name")
    step = model.digest()
    if encoder is None or (other := encoder.digest()) == step:  # an entry of the same binary
        return step
    return hashlib.sha256(step + other).digest()


class Engine:
    """Serves a compiled step whose caches are pools of blocks (`dhlo.compile(step_program(model), pages=...)`).

    It is closed when it is no longer referenced, by `with`, or as Python exits. All methods may be called by any thread, but in the
    child of a fork, where they raise ContractError."""

    def __init__(self, model: CompiledModel | _runtime.Model, options: EngineOptions = _OPTIONS) -> None:
        """Raises ContractError for a model that is no such step, and for options out of range; MemoryError."""
        native = _native(model, "an engine serves a compiled model")
        vocabulary, store = options.vocabulary, options.cache_store
        if store is not None and not isinstance(store, Store):
            raise ContractError(f"cache_store has methods put, get and remove, got {store!r}")
        if not 1 <= options.cache_store_threads <= 64:
            raise ContractError(f"cache_store_threads is from 1 to 64, got {options.cache_store_threads}")
        try:
            offsets = array("q", accumulate(map(len, vocabulary), initial=0)) if vocabulary else array("q")
            self._native = _runtime.Engine(
                native,
                _size(options.cache_bytes, "cache_bytes"),
                options.max_step_tokens,
                _size(options.max_sequences, "max_sequences"),
                options.max_waiting,
                _size(options.max_positions, "max_positions"),
                _tokens(options.eos_tokens, "eos_tokens"),
                b"".join(vocabulary),
                offsets,
                options.prefix_cache,
                options.prompt_lookup,
                options.cache_folder,
                options.cache_folder_bytes,
                _digest(model, options),
                None if options.draft_model is None else _native(options.draft_model, "draft_model is a compiled model or None"),
                options.draft_tokens,
                options.draft_branches,
                _size(options.draft_cache_bytes, "draft_cache_bytes"),
                _size(options.draft_max_positions, "draft_max_positions"),
                None if store is None else WatchedStore(store),
                options.cache_store_threads,
                _number(options.preemption, ("recompute", "swap"), "preemption"),
                _size(options.swap_bytes, "swap_bytes"),
                communicator_of(model, options.communicator),
                peer_timeout(options.peer_timeout),
                _size(options.evict_to, "evict_to"),
                options.evict_sinks,
                options.evict_recent,
                _number(options.evict_by, ("recent", "norms"), "evict_by"),
                None if options.encoder is None else _native(options.encoder, "encoder is a compiled model or None"),
                _size(options.max_source_positions, "max_source_positions"),
            )
        except (TypeError, ValueError, OverflowError, RuntimeError) as e:
            raise _translated(e) from None
        self.options = options
        self._process = os.getpid()
        self._requests = _Requests()
        dispatcher = threading.Thread(target=self._requests.dispatch, args=(self._native,), name="dhlo-engine", daemon=True)
        dispatcher.start()
        self._closer = weakref.finalize(self, _close, self._native, dispatcher)

    def submit(
        self, prompt: Sequence[int], params: SamplingParams = _PARAMS, inputs: Mapping[str, Buffer] | None = None
    ) -> Request:
        """Takes a request, at once. `inputs`: what `EngineOptions.encoder` takes of it, by name: arrays in memory (numpy's, or
        whatever has a buffer), which are copied. Raises ContractError for what is out of range, and for a prompt that leaves no
        room for another token; QueueFullError if as many wait as may, and for an engine that is drained or closed."""
        self._need_this_process()
        try:
            tokens = _tokens(prompt, "prompt")
            request = Request(self, params, len(tokens))
            packed = (*_pack(params), _arrays(inputs or {}))
            with self._requests.changed:  # so that there is no event before the request is known
                request.id = self._native.submit(tokens, *packed)
                self._requests.by_id[request.id] = request
        except (TypeError, ValueError, OverflowError, RuntimeError) as e:
            raise _translated(e) from None
        return request

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] = _PARAMS,
        inputs: Sequence[Mapping[str, Buffer]] | None = None,
    ) -> list[Output]:
        """Submits all and waits for them; `params` for all or for each, `inputs` of each. Raises what `submit` raises, after the
        others are cancelled."""
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
        if len(each) != len(prompts):
            raise ContractError(f"params: one for each of {len(prompts)} prompts is needed, got {len(each)}")
        given = [None] * len(prompts) if inputs is None else inputs
        if len(given) != len(prompts):
            raise ContractError(f"inputs: those of each of {len(prompts)} prompts are needed, got {len(given)}")
        requests = list[Request]()
        try:
            for prompt, its, about in zip(prompts, each, given, strict=True):
                requests.append(self.submit(prompt, its, about))
            return [r.result() for r in requests]
        except BaseException:
            for r in requests:
                r.cancel()
            raise

    def load_adapter(self, name: str, adapter: Adapter | str | os.PathLike[str]) -> None:
        """Gives a step that was compiled with `lora` an adapter, or that of a folder as PEFT writes it, by a name that none has;
        requests may go on meanwhile.

        Raises what `read_adapter` does; ContractError for what the step wasn't compiled for: modules, sizes, ranks; QueueFullError
        if there are as many as it has room for.
        """
        self._need_this_process()
        given = adapter if isinstance(adapter, Adapter) else read_adapter(Path(adapter))
        try:
            self._native.load_adapter(name, tuple(tuple(getattr(p, f.name) for f in fields(p)) for p in given.pairs))
        except (TypeError, ValueError, OverflowError, RuntimeError) as e:
            raise _translated(e) from None

    def unload_adapter(self, name: str) -> None:
        """No more requests can have it. Those that do end as they would, and its room is free then. Raises ContractError if there
        is none of that name."""
        self._need_this_process()
        try:
            self._native.unload_adapter(name)
        except (TypeError, ValueError) as e:
            raise _translated(e) from None

    def stats(self) -> EngineStats:
        """What it has done and holds, as of the last step."""
        self._need_this_process()
        stats = self._native.stats()
        finished = {f.value: n for f, n in zip(_FINISHES, stats["finished"], strict=True) if f is not None}
        given_tiers = {"folder": self.options.cache_folder, "store": self.options.cache_store}
        tiers = {name: stats[name] for name, tier in given_tiers.items() if tier is not None}
        given = {f.name: stats[f.name] for f in fields(EngineStats) if f.name in stats}
        failure = stats["failure"] or self._requests.failure
        return EngineStats(**given | {"finished": finished, "tiers": tiers, "failure": failure})

    def drain(self, timeout: float | None = None) -> bool:
        """Takes no more requests, and waits, at most `timeout` seconds, until those in work have ended; whether they have."""
        self._need_this_process()
        begin = time.monotonic()
        try:
            ended = self._native.drain(-1.0 if timeout is None else max(timeout, 0.0))
        except (TypeError, ValueError) as e:  # or a grammar calls it
            raise _translated(e) from None
        if not ended:
            return False
        rest = None if timeout is None else max(begin + timeout - time.monotonic(), 0.0)
        requests = self._requests
        with requests.changed:  # until they know it
            return requests.changed.wait_for(lambda: not requests.by_id, rest)

    def close(self) -> None:
        """Cancels what is left, ends the engine's threads, and writes what is kept to the folder or store of blocks, if there is
        one, for 5 seconds at most. Raises ContractError if a grammar calls it, which these threads run."""
        try:
            self._native.close()
        except ValueError as e:
            raise _translated(e) from None
        self._closer()

    def _need_this_process(self) -> None:
        if os.getpid() != self._process:  # locks may be as another thread held them then
            raise ContractError("the engine belongs to the process that forked this one: make another one")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _native(model: object, what: str) -> _runtime.Model:
    native = getattr(model, "native", model)
    if not isinstance(native, _runtime.Model):
        raise ContractError(f"{what}, got {model!r}")
    return native


def _number(name: str, names: tuple[str, ...], what: str) -> int:
    """Of a value of an enum of serve.h, whose names are in order."""
    if name not in names:
        raise ContractError(f"{what} is {' or '.join(map(repr, names))}, got {name!r}")
    return names.index(name)


def _early_stopping(value: object) -> int:
    """A dhlo_early_stopping of serve.h."""
    if not isinstance(value, bool) and value != "never":
        raise ContractError(f"early_stopping is True, False or 'never', got {value!r}")
    return 2 if value == "never" else int(value)


def _size(value: int | None, name: str) -> int:
    """As the native engine takes it: 0 for what it is to choose."""
    if value is None:
        return 0
    if value < 1:
        raise ContractError(f"{name} is at least 1, got {value}")
    return value


def _typed(params: SamplingParams, name: str, kind: type, what: str) -> None:
    value = getattr(params, name)
    if not isinstance(value, kind) and not (value is None and name in _OPTIONAL):
        raise ContractError(f"{name} is {what}, got {value!r}")


def _tokens(tokens: Iterable[int], name: str) -> array[int]:
    try:
        return array("i", list(tokens))  # not bytes as they lie in memory
    except (TypeError, OverflowError) as e:
        raise ContractError(f"{name}: tokens are integers of the vocabulary: {e}") from None


def _biases(values: Iterable[float]) -> array[float]:
    try:
        return array("f", list(values))
    except TypeError as e:
        raise ContractError(f"logit_bias: values are numbers: {e}") from None


def _arrays(inputs: Mapping[str, Buffer]) -> tuple[object, ...]:
    """Of each its name, dhlo_dtype, sizes and memory."""
    packed = list[object]()
    for name, given in inputs.items():
        try:
            view = memoryview(given)
        except TypeError:
            raise ContractError(f"inputs: '{name}' is an array in memory, got a {type(given).__name__}") from None
        if view.format not in _FORMATS:
            raise ContractError(f"inputs: '{name}' has elements of the format '{view.format}', which no input has")
        if not view.c_contiguous:
            raise ContractError(f"inputs: the elements of '{name}' lie in a row (numpy.ascontiguousarray)")
        packed.append((name, _FORMATS[view.format], tuple(view.shape or ()), view))
    return tuple(packed)


def _strings(strings: Iterable[str], name: str) -> tuple[bytes, ...]:
    try:
        if isinstance(strings, str):
            raise TypeError("a single string isn't a sequence of them")
        return tuple(str.encode(s) for s in strings)
    except (TypeError, UnicodeError) as e:
        raise ContractError(f"{name}: strings that UTF-8 has: {e}") from None


def _pack(params: SamplingParams) -> tuple[object, ...]:
    """In the order of `_runtime.Engine.submit`."""
    for name in _INTEGERS:
        _typed(params, name, SupportsIndex, "an integer")
    for name in _NUMBERS:
        _typed(params, name, SupportsFloat, "a number")
    if params.constrain is not None and not callable(params.constrain):
        raise ContractError(f"constrain is a function, got {params.constrain!r}")
    if params.timeout is not None and not params.timeout >= 0:
        raise ContractError(f"timeout is at least 0, got {params.timeout}")
    if params.logprobs is not None and params.logprobs < 0:
        raise ContractError(f"logprobs is at least 0, got {params.logprobs}")
    return (
        params.priority,
        params.max_tokens,
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        params.presence_penalty,
        params.frequency_penalty,
        params.repetition_penalty,
        (_tokens(params.logit_bias, "logit_bias"), _biases(params.logit_bias.values())),
        params.seed,
        params.n,
        -1 if params.logprobs is None else params.logprobs,
        params.ignore_eos,
        _strings(params.stop, "stop"),
        -1.0 if params.timeout is None else float(params.timeout),
        _strings([params.cache_salt], "cache_salt")[0],
        params.speculate,
        (_tokens(params.stop_tokens, "stop_tokens"),),
        params.constrain,
        params.adapter or None,
        params.beam_width,
        params.length_penalty,
        _early_stopping(params.early_stopping),
    )


def _translated(error: Exception) -> Exception:
    if getattr(error, "status", None) == "busy":
        return QueueFullError(str(error))
    return ContractError(str(error)) if isinstance(error, OverflowError) else translate(error)
