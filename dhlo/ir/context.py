"""An MLIR context in which dhlo is registered: what every reader and builder of modules starts with."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dhlo.ir import ops  # noqa: F401  (defines the ops)
from dhlo.ir.dialect import DHLO
from dhlo.ir.mlir import ir

__all__ = ["context", "load"]

_LOADING = threading.Lock()  # the bindings describe the dialect in a module of their own, once, which threads must not do at once


@contextmanager
def context() -> Iterator[Any]:
    """A fresh context with an unknown default location."""
    with ir.Context() as ctx, ir.Location.unknown():
        load()
        yield ctx


def load() -> None:
    """Registers the dialect with the current context."""
    with _LOADING:
        DHLO.load()
