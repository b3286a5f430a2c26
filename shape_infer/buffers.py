"""The buffer plan: lifetimes over the schedule, and one arena whose offsets are expressions of the sizes.

Two buffers that live at the same time may not overlap. Which of the two lies lower is decided once, at a sample of the sizes (best
fit, large first); after that every offset is the largest end of the buffers below it that live at the same time, for all sizes. So
the plan is valid at any shape, and as tight as the sample's order is good there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import sympy

from dhlo.shape_infer.symbols import ceil_div, evaluate

__all__ = ["ALIGN", "Buffer", "Plan", "plan_arena"]

ALIGN = 64


@dataclass
class Buffer:
    """Memory that is needed at steps first..last (inclusive); `bytes` is rounded up to ALIGN."""

    name: str
    bytes: sympy.Expr
    first: int
    last: int
    below: list[Buffer] = field(default_factory=list)  # what its offset is the largest end of

    def overlaps(self, other: Buffer) -> bool:
        return self.first <= other.last and other.first <= self.last

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


@dataclass
class Plan:
    """Buffers ordered so that each comes after those below it; `live` are the sets that exist at once, largest sets only."""

    buffers: list[Buffer]
    live: list[list[Buffer]]

    def offsets(self, env: Mapping[str, int]) -> dict[Buffer, int]:
        """Offsets at given sizes."""
        out: dict[Buffer, int] = {}
        for b in self.buffers:
            out[b] = max((out[x] + evaluate(x.bytes, env) for x in b.below), default=0)
        return out

    def total(self, env: Mapping[str, int]) -> int:
        """Arena bytes at given sizes."""
        at = self.offsets(env)
        return max((at[b] + evaluate(b.bytes, env) for b in self.buffers), default=0)

    def peak_live(self, env: Mapping[str, int]) -> int:
        """Bytes that any plan for this schedule needs."""
        return max((sum(evaluate(b.bytes, env) for b in s) for s in self.live), default=0)


def aligned(size: sympy.Expr) -> sympy.Expr:
    """A size rounded up to ALIGN."""
    if size.is_Integer:
        return sympy.Integer(-(-int(size) // ALIGN) * ALIGN)
    coeff, _ = size.as_coeff_Mul()
    if coeff.is_Integer and int(coeff) % ALIGN == 0:
        return size
    return ceil_div(size, ALIGN) * ALIGN


def plan_arena(buffers: Sequence[Buffer], sample: Callable[[str], int]) -> Plan:
    """Chooses who lies below whom. `sample` gives a typical value of a symbol."""
    env = {s.name: sample(s.name) for b in buffers for s in b.bytes.free_symbols}
    size = {b: max(1, evaluate(b.bytes, env)) for b in buffers}
    placed: list[Buffer] = []
    at: dict[Buffer, int] = {}
    for b in sorted(buffers, key=lambda b: (-size[b], b.first)):
        others = sorted((x for x in placed if x.overlaps(b)), key=lambda x: at[x])
        best, best_gap, end = None, None, 0
        for x in others:
            gap = at[x] - end
            if gap >= size[b] and (best_gap is None or gap < best_gap):
                best, best_gap = end, gap
            end = max(end, at[x] + size[x])
        at[b] = end if best is None else best
        placed.append(b)
    order = sorted(buffers, key=lambda b: (at[b], b.first))
    for n, b in enumerate(order):
        lower = [x for x in order[:n] if x.overlaps(b) and at[x] < at[b]]
        b.below = [x for x in lower if not any(x in y.below for y in lower)]
    return Plan(order, _largest_sets(buffers))


def _largest_sets(buffers: Sequence[Buffer]) -> list[list[Buffer]]:
    """Sets of buffers alive at one step, those contained in another left out."""
    steps = sorted({b.first for b in buffers})
    sets = [frozenset(b for b in buffers if b.first <= t <= b.last) for t in steps]
    kept: list[frozenset[Buffer]] = []
    for n, s in enumerate(sets):
        near = sets[max(0, n - 3):n] + sets[n + 1:n + 4]
        if not any(s < t for t in near) and s not in kept:
            kept.append(s)
    return [sorted(s, key=lambda b: b.first) for s in kept]
