"""Progress of a compilation on the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

__all__ = ["reporter"]


@contextmanager
def reporter(show: bool, done: str = "compiled") -> Iterator[Callable[[str], None]]:
    """Gives a function to say what is being done; with `show`, a status line with the elapsed time on stderr, and in the end that
    it is `done`."""
    if not show:
        yield lambda _: None
        return
    console = Console(stderr=True)
    start = time.perf_counter()
    with console.status("dhlo: compile") as status:
        yield lambda what: status.update(f"dhlo: {what} ({time.perf_counter() - start:.1f} s)")
    console.print(f"dhlo: {done} in {time.perf_counter() - start:.1f} s")
