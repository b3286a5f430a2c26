"""Runs that can be stopped, and runs that an event loop waits for."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from dhlo.errors import DhloError

__all__ = ["CancelToken", "flag_of", "in_thread", "nanoseconds"]

T = TypeVar("T")


class CancelToken:
    """Stops the runs that it is given to, of any sessions, those included that haven't begun: `cancel` of any thread makes them
    raise CancelledError. It stays so: make another for other runs."""

    __slots__ = ("flag",)

    def __init__(self) -> None:
        self.flag = array("i", [0])  # what the runtime looks at

    def cancel(self) -> None:
        """Stops the runs."""
        self.flag[0] = 1

    @property
    def cancelled(self) -> bool:
        """Has it been told to?"""
        return self.flag[0] != 0


def nanoseconds(timeout: float | None) -> int:
    """A timeout in seconds as the runtime takes it. Raises ValueError unless it is above 0 or None."""
    if timeout is None:
        return 0
    with suppress(TypeError):  # of what has no order
        if timeout > 0:
            return max(1, int(min(timeout, 1e9) * 1e9))
    raise ValueError(f"timeout: expected seconds above 0, or None, got {timeout!r}")


def flag_of(cancel: CancelToken | None) -> array[int] | None:
    """What the runtime looks at of a token. Raises TypeError for what is none."""
    if cancel is None or isinstance(cancel, CancelToken):
        return None if cancel is None else cancel.flag
    raise TypeError(f"cancel: expected a dhlo.CancelToken, or None, got {type(cancel).__name__}")


async def in_thread(run: Callable[[CancelToken], T]) -> T:
    """What `run` returns, which is called in a thread of the event loop's executor. A task that is cancelled meanwhile stops it,
    and ends when it has; at once while all threads are taken by others."""
    token, begun = CancelToken(), threading.Event()

    def call() -> T:
        begun.set()
        return run(token)

    future = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        token.cancel()
        if not begun.is_set():
            future.cancel()  # if it begins right now, the token stops it
        else:
            with suppress(DhloError):
                await future
        raise
