"""Reductions over the same dims of one domain, with the elementwise work between and around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dhlo.ir.dialect import Kind, attr
from dhlo.ir.handles import Value
from dhlo.ir.ops.compute import Reduce
from dhlo.ir.ops.movement import Take
from dhlo.ir.types import from_mlir
from dhlo.passes.fuse.cost import reads_fewer
from dhlo.passes.fuse.graph import Graph, InOrder, Members, Unit, kind_of
from dhlo.shape_infer.axes import reduction_axes

__all__ = ["grow_reductions"]

STREAMS = 24
"""Results of one kernel at most. Rows of many arrays, written by turns, drive each other out of the first-level cache, whose sets
have 8 to 12 ways; and each keeps a pointer alive in the kernel's loops."""


def grow_reductions(g: Graph) -> None:
    for n, op in enumerate(g.ops):
        if isinstance(op, Reduce) and n not in g.unit:
            g.merge(_grow_reduction(g, n))


def _grow_reduction(g: Graph, seed: int) -> Unit:
    op = g.ops[seed]
    domain, dims = from_mlir(op.operands[0]).shape, attr(op, "dims")
    kept = tuple(d for d in range(len(domain)) if d not in dims)
    full = tuple(range(len(domain)))
    axes: dict[Any, tuple[int | None, ...]] = {op.results[0]: kept}
    taken = Members(g, seed)
    todo = InOrder(after=seed)
    for v in (op.results[0], *_absorb_producers(g, op, taken, axes, domain, full), op.operands[0]):
        todo.add(g.users(v))
    while (k := todo.next()) is not None:
        u = g.ops[k]
        sibling = isinstance(u, Reduce) and u.operands[0] == op.operands[0] and attr(u, "dims") == dims  # reads the same rows
        if (
            k in g.unit
            or k in taken.ops
            or not (sibling or any(v in axes for v in u.operands))
            or kind_of(u) not in (Kind.ELEMENTWISE, Kind.MOVEMENT, Kind.REDUCTION)
        ):
            continue
        if taken.closes_cycle(k):
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
        todo.add(g.users(u.results[0]))
        if new == full or isinstance(u, Reduce):
            for v in _absorb_producers(g, u, taken, axes, domain, full):
                todo.add(g.users(v))
    for k in sorted(taken.ops, reverse=True):
        if len(taken.read) <= STREAMS:
            break
        taken.drop_last(k)
    again = _leave_to_lookups(g, taken.ops, axes, full)
    ops = sorted(taken.ops)
    outputs = [v for v in _open(g, ops) if v not in again]
    for v in again:
        outputs += [x for x in _needed_again(g, v, taken.ops) if x not in outputs]
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
    g: Graph, op: Any, taken: Members, axes: dict[Any, tuple[int | None, ...]], domain: Sequence[Any], full: tuple[int, ...]
) -> list[Any]:
    """Elementwise producers of the whole domain that others read too are computed (and stored) here; returns their values."""
    found: list[Any] = []
    todo = [(op, v) for v in reversed(op.operands)]
    while todo:
        op, v = todo.pop()
        p = g.producer(v)
        if p is None or p in taken.ops or p in g.unit or getattr(g.ops[p], "kind", None) is not Kind.ELEMENTWISE:
            continue
        if from_mlir(v).shape != tuple(domain):
            continue
        # nothing taken so far may reach it, and it may reach what is taken only directly
        if g.above(p) & taken.bits or any(u not in taken.ops and taken.above >> u & 1 for u in g.users(v) if g.ops[u] != op):
            continue
        taken.add(p)
        axes[v] = full
        found.append(v)
        todo += [(g.ops[p], x) for x in reversed(g.ops[p].operands)]
    return found


def _open(g: Graph, ops: Sequence[int]) -> list[Any]:
    inside = set(ops)
    return [v for n in ops for v in g.ops[n].results if any(u not in inside for u in g.users(v))]
