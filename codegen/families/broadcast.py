"""Elements that lie side by side, each in all lanes of a vector: how a micro-kernel reads the factors of its rows."""

from __future__ import annotations

from collections.abc import Iterator

from dhlo.codegen.kernel_ir.builder import Fn, V, vec

__all__ = ["broadcast_each"]


def broadcast_each(fn: Fn, p: V, count: int, elem: str, lanes: int) -> Iterator[V]:
    """Elements 0 to count - 1 at `p`, in order, each in `lanes` lanes.

    Where a multiply-add takes a factor from any lane of a register, they are loaded by the vector: left to itself LLVM repeats
    elements by loads that take a turn of the arithmetic pipelines.
    """
    at = 0
    while at < count:
        width = min(lanes, 1 << (count - at).bit_length() - 1) if fn.target.lane_factors else 1
        if width == 1:
            yield fn.splat(fn.load(fn.gep(p, at, elem), elem), lanes)
        else:
            x = fn.load(fn.gep(p, at, elem), vec(elem, width))
            yield from (fn.shuffle(x, x, [i] * lanes) for i in range(width))
        at += width
