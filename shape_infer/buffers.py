"""The buffer plan: lifetimes over the schedule, and one arena whose offsets are expressions of the sizes.

Two buffers that live at the same time may not overlap. An arrangement decides once which of the two lies lower, by placing them at
a sample of the sizes (best fit, large first); after that every offset is the largest end of the buffers below it that live at the
same time, for all sizes. So an arrangement is valid at any shape, and as tight as its sample is typical. A plan has a few, made
for small and for large sizes, and each call takes the one that needs least.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import sympy

from dhlo.ir.symbols import ceil_div, evaluate

__all__ = ["ALIGN", "Arrangement", "Buffer", "Plan", "aligned", "peaks", "plan_arena"]

ALIGN = 64
# Arrangements of a plan, each of which costs a call a little time; what counts as near the best; buffers so many that each
# arrangement takes long to make.
_MAX_KEPT, _NEAR, _MANY = 4, 1.01, 400


@dataclass(eq=False)
class Buffer:
    """Memory that is needed at steps first..last (inclusive); `bytes` is rounded up to ALIGN."""

    name: str
    bytes: sympy.Expr
    first: int
    last: int

    def overlaps(self, other: Buffer) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass
class Arrangement:
    """Buffers ordered so that each comes after those `below` it, whose largest end is its offset."""

    order: list[Buffer]
    below: dict[Buffer, list[Buffer]]

    def offsets(self, env: Mapping[str, int]) -> tuple[dict[Buffer, int], int]:
        """Offsets and arena bytes at given sizes."""
        return self.place(bytes_of(self.order, env))

    def place(self, bytes_: Mapping[Buffer, int]) -> tuple[dict[Buffer, int], int]:
        """Offsets and arena bytes for buffers of so many bytes."""
        out: dict[Buffer, int] = {}
        for b in self.order:
            out[b] = max((out[x] + bytes_[x] for x in self.below[b]), default=0)
        return out, max((at + bytes_[b] for b, at in out.items()), default=0)


@dataclass
class Plan:
    """An arena; `peaks` say which buffers exist at once (see `peaks`)."""

    buffers: list[Buffer]
    arrangements: list[Arrangement]
    peaks: list[tuple[list[Buffer], list[Buffer]]]

    def total(self, env: Mapping[str, int]) -> int:
        """Arena bytes at given sizes."""
        return min((a.offsets(env)[1] for a in self.arrangements), default=0)

    def peak_live(self, env: Mapping[str, int]) -> int:
        """Bytes that any plan for this schedule needs."""
        most = now = 0
        bytes_ = bytes_of(self.buffers, env)
        for came, went in self.peaks:
            now += sum(bytes_[b] for b in came) - sum(bytes_[b] for b in went)
            most = max(most, now)
        return most


def aligned(size: sympy.Expr) -> sympy.Expr:
    """A size rounded up to ALIGN."""
    if size.is_Integer:
        return sympy.Integer(-(-int(size) // ALIGN) * ALIGN)
    coeff, _ = size.as_coeff_Mul()
    if coeff.is_Integer and int(coeff) % ALIGN == 0:
        return size
    return ceil_div(size, ALIGN) * ALIGN


def bytes_of(buffers: Sequence[Buffer], env: Mapping[str, int]) -> dict[Buffer, int]:
    """How many bytes each buffer takes at given sizes."""
    values = {e: evaluate(e, env) for e in {b.bytes for b in buffers}}
    return {b: values[b.bytes] for b in buffers}


def plan_arena(buffers: Sequence[Buffer], samples: Sequence[Callable[[str], int]], certain: int = 0) -> Plan:
    """Arranges buffers at each sample, which gives a value of every symbol, and keeps the fewest arrangements (up to
    _MAX_KEPT) of which one is near the best at each sample; at the first `certain` ones before others."""
    names = {s.name for b in buffers for s in b.bytes.free_symbols}
    envs = {tuple(sorted(e.items())): e for e in ({n: sample(n) for n in names} for sample in samples)}
    points = [bytes_of(buffers, env) for env in list(envs.values())[: None if len(buffers) <= _MANY else 3]]
    made: list[Arrangement] = []
    for bytes_ in points:
        a = _arrange(buffers, bytes_)
        if all(a.below != k.below for k in made):
            made.append(a)
    needs = [[a.place(bytes_)[1] for bytes_ in points] for a in made]
    best = [min(column) for column in zip(*needs, strict=True)]
    near = [{p for p, n in enumerate(row) if n <= best[p] * _NEAR} for row in needs]
    kept: list[Arrangement] = []
    open_ = set(range(len(points)))
    while open_ and len(kept) < _MAX_KEPT:
        k = max(range(len(made)), key=lambda i: (sum(p < certain for p in near[i] & open_), len(near[i] & open_)))
        kept.append(made[k])
        open_ -= near[k]
    return Plan(list(buffers), kept, peaks(buffers))


def _arrange(buffers: Sequence[Buffer], bytes_: Mapping[Buffer, int]) -> Arrangement:
    """Large buffers first, each into the tightest gap that is free while it lives."""
    size = {b: max(1, bytes_[b]) for b in buffers}
    at: dict[Buffer, int] = {}
    placed: list[tuple[int, int, Buffer]] = []  # in order of position
    for n, b in enumerate(sorted(buffers, key=lambda b: (-size[b], b.first))):
        best, best_gap, end = None, None, 0
        for start, _, x in placed:
            if not x.overlaps(b):
                continue
            gap = start - end
            if gap >= size[b] and (best_gap is None or gap < best_gap):
                best, best_gap = end, gap
            end = max(end, start + size[x])
        at[b] = end if best is None else best
        insort(placed, (at[b], n, b))
    order = sorted(buffers, key=lambda b: (at[b], b.first))
    return Arrangement(order, _below(order, at))


def _below(order: Sequence[Buffer], at: Mapping[Buffer, int]) -> dict[Buffer, list[Buffer]]:
    """What each buffer rests on: those that live at the same time and lie lower, but for those that one of these rests on. Sets are
    bits of integers, since there may be thousands of buffers."""
    bit = {b: 1 << n for n, b in enumerate(order)}
    below: dict[Buffer, list[Buffer]] = {}
    covered: dict[Buffer, int] = {}  # all that a buffer rests on, directly or not
    for n, b in enumerate(order):
        seen, direct = 0, list[Buffer]()
        for x in reversed(order[:n]):
            if not seen & bit[x] and at[x] < at[b] and x.overlaps(b):
                direct.append(x)
                seen |= covered[x] | bit[x]
        below[b], covered[b] = direct[::-1], seen
    return below


def peaks(buffers: Sequence[Buffer]) -> list[tuple[list[Buffer], list[Buffer]]]:
    """The moments when buffers are alive that never are together with more: what came since the moment before, and what went."""
    out: list[tuple[list[Buffer], list[Buffer]]] = []
    came: list[Buffer] = []
    went: list[Buffer] = []
    ends = sorted(buffers, key=lambda b: b.last)
    k = 0
    for b in sorted(buffers, key=lambda b: b.first):
        if ends[k].last < b.first and came:
            out.append((came, went))
            came, went = [], []
        while ends[k].last < b.first:
            went.append(ends[k])
            k += 1
        came.append(b)
    return [*out, (came, went)] if came else out
