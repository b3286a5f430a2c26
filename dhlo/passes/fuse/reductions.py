"""Reductions over the same dims of one domain, with the elementwise work between and around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Any

from dhlo.ir.dialect import Kind, attr
from dhlo.ir.handles import Value
from dhlo.ir.ops.compute import Reduce
from dhlo.ir.ops.control import MAX_LIST
from dhlo.ir.ops.movement import Take
from dhlo.ir.types import from_mlir
from dhlo.passes.fuse.cost import reads_fewer
from dhlo.passes.fuse.graph import Graph, Unit, bits, kind_of
from dhlo.shape_infer.axes import reduction_axes

__all__ = ["grow_reductions"]


def grow_reductions(g: Graph) -> None:
    for n, op in enumerate(g.ops):
        if isinstance(op, Reduce) and n not in g.unit:
            g.merge(_grow_reduction(g, n))


class _Readers:
    """Ops after a first one that read any of some values, in order; values may be added on the way."""

    def __init__(self, g: Graph, after: int) -> None:
        self.g, self.at = g, after
        self.values: set[Any] = set()
        self.todo: list[int] = []

    def add(self, values: Iterable[Any]) -> None:
        for v in values:
            if v not in self.values:
                self.values.add(v)
                for n in self.g.users(v):
                    if n > self.at:
                        heappush(self.todo, n)

    def next(self) -> int | None:
        while self.todo:
            n = heappop(self.todo)
            if n > self.at:
                self.at = n
                return n
        return None


def _grow_reduction(g: Graph, seed: int) -> Unit:
    op = g.ops[seed]
    domain, dims = from_mlir(op.operands[0]).shape, attr(op, "dims")
    kept = tuple(d for d in range(len(domain)) if d not in dims)
    full = tuple(range(len(domain)))
    axes: dict[Any, tuple[int | None, ...]] = {op.results[0]: kept}
    taken = {seed}
    _absorb_producers(g, op, taken, axes, domain, full)
    todo = _Readers(g, seed)
    todo.add([*axes, op.operands[0]])
    while (k := todo.next()) is not None:
        u = g.ops[k]
        sibling = isinstance(u, Reduce) and u.operands[0] == op.operands[0] and attr(u, "dims") == dims  # reads the same rows
        if (
            k in g.unit
            or k in taken
            or not (sibling or any(v in axes for v in u.operands))
            or kind_of(u) not in (Kind.ELEMENTWISE, Kind.MOVEMENT, Kind.REDUCTION)
        ):
            continue
        inside = bits(taken)
        if any(p not in taken and (g.above[p] | 1 << p) & inside for p in g.sources[k]):
            continue
        new: tuple[int | None, ...] | None
        if isinstance(u, Reduce):
            new = kept if sibling or (attr(u, "dims") == dims and axes[u.operands[0]] == full) else None
        else:
            new = reduction_axes(u, axes, domain)
        if new is None:
            continue
        taken.add(k)
        axes[u.results[0]] = new
        if new == full or isinstance(u, Reduce):
            _absorb_producers(g, u, taken, axes, domain, full)
        todo.add(axes)
    while len(_open(g, sorted(taken))) > MAX_LIST:
        taken.remove(max(taken))
    again = _leave_to_lookups(g, taken, axes, full)
    ops = sorted(taken)
    outputs = [v for v in _open(g, ops) if v not in again]
    for v in again:
        outputs += [x for x in _needed_again(g, v, taken) if x not in outputs]
    return Unit(Kind.REDUCTION, ops, sorted(outputs, key=lambda v: g.producer(v) or 0))


def _leave_to_lookups(g: Graph, taken: set[int], axes: dict[Any, tuple[int | None, ...]], full: tuple[int, ...]) -> set[Any]:
    """Values of the whole domain that only lookups of fewer elements read need no memory: the log-softmax of which one entry a
    row is picked, say. Such ops leave the unit; returns the values that the unit computes for itself and its readers again."""
    left: set[int] = set()
    again: set[Any] = set()
    for n in sorted(taken, reverse=True):
        op = g.ops[n]
        v = op.results[0]
        if not kind_of(op).pullable or axes.get(v) != full:
            continue
        outside = [u for u in g.users(v) if u not in taken]
        if not outside or not all(
            u in left or isinstance(g.ops[u], Take) and g.ops[u].operands[0] == v and reads_fewer(g.ops[u]) for u in outside
        ):
            continue
        if len(outside) == len(g.users(v)):
            taken.discard(n)
        elif op.work <= 1:
            again.add(v)
        else:
            continue
        left.add(n)
    return again


def _needed_again(g: Graph, v: Value, taken: set[int]) -> list[Any]:
    """What computing v outside of the unit reads from it."""
    out: list[Any] = []
    todo = [v]
    while todo:
        x = todo.pop()
        q = g.producer(x)
        if q is None or x is not v and q not in taken:
            continue
        if x is v or kind_of(g.ops[q]).pullable and g.ops[q].work <= 1:
            todo += reversed(g.ops[q].operands)
        elif x not in out:
            out.append(x)
    return out


def _absorb_producers(
    g: Graph, op: Any, taken: set[int], axes: dict[Any, tuple[int | None, ...]], domain: Sequence[Any], full: tuple[int, ...]
) -> None:
    """Elementwise producers of the whole domain that others read too are computed (and stored) here."""
    todo = [(op, v) for v in reversed(op.operands)]
    while todo:
        op, v = todo.pop()
        p = g.producer(v)
        if p is None or p in taken or p in g.unit or getattr(g.ops[p], "kind", None) is not Kind.ELEMENTWISE:
            continue
        if from_mlir(v).shape != tuple(domain):
            continue
        # nothing taken so far may reach it, and it may reach what is taken only directly
        if g.above[p] & bits(taken) or any(
            u not in taken and any(g.above[t] >> u & 1 for t in taken) for u in g.users(v) if g.ops[u] != op
        ):
            continue
        taken.add(p)
        axes[v] = full
        todo += [(g.ops[p], x) for x in reversed(g.ops[p].operands)]


def _open(g: Graph, ops: Sequence[int]) -> list[Any]:
    inside = set(ops)
    return [v for n in ops for v in g.ops[n].results if any(u not in inside for u in g.users(v))]
