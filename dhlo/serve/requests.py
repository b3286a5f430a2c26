"""Requests that an engine has taken, and the thread that hands on what it says of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Final, SupportsFloat, TypeAlias

from dhlo import _runtime
from dhlo.errors import ContractError, DeadlineError
from dhlo.serve.types import Choice, Event, FinishReason, Output, SamplingParams, TokenLogprobs

if TYPE_CHECKING:
    from dhlo.serve.engine import Engine

__all__ = ["FINISHES", "Request", "Requests"]

_LOG = logging.getLogger("dhlo")

FINISHES: Final = (
    None,
    FinishReason.STOP,
    FinishReason.LENGTH,
    FinishReason.CANCELLED,
    FinishReason.DEADLINE,
    FinishReason.ERROR,
)
"""By dhlo_finish of serve.h."""

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
        """Ends the request with FinishReason.CANCELLED; does nothing if it has ended. Raises ContractError in the child of a
        fork."""
        engine = self._engine
        if engine is not None:
            engine._need_this_process()
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
        ContractError for what is no number of them, and in the child of a fork."""
        self._need_events()
        if timeout is not None and (not isinstance(timeout, SupportsFloat) or math.isnan(timeout)):
            raise ContractError(f"timeout is a number of seconds or None, got {timeout!r}")
        longest = None if timeout is None else min(timeout, threading.TIMEOUT_MAX)
        with self._changed:
            if not self._changed.wait_for(lambda: self._ended, longest):
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
                FINISHES[finish],
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


class Requests:
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
