"""What recomputing a value costs, against storing it."""

from __future__ import annotations

from typing import Any

import sympy

from dhlo.ir.dialect import Kind, attr
from dhlo.ir.handles import Value
from dhlo.ir.ops.movement import Broadcast, Concat, Full, Iota, Reshape, Slice, Take, Transpose
from dhlo.ir.types import from_mlir
from dhlo.passes.fuse.graph import Graph, kind_of

__all__ = ["CHEAP", "Costs", "reads_fewer", "subtree_cost", "worth_storing"]

CHEAP = 4  # recomputing this much is better than storing and loading
_FEW = 8  # places that a lookup may read of a dim that may have fewer
_NEAR = 4  # elements that stand as far apart are loaded together and shuffled


Costs = dict[tuple[int, int], int]
"""Of ops by number and depth, what `subtree_cost` found; good as long as nothing that they read is put into a unit."""


def worth_storing(g: Graph, op: Any, readers: set[int], costs: Costs) -> bool:
    """More than one group would repeat real work, or a broadcast would repeat it for every copy. Views are never stored for that:
    what they show is; but a transposed one whose elements are read several times, as neighbours in an image are, or that is joined
    with other rows, or reduced with what lies otherwise: each element would be gathered from another line."""
    if isinstance(op, Transpose):
        v = op.results[0]
        return _is_apart(op) and (_times_read(g, v) > 1 or _is_stacked(g, v) or _is_reduced_beside(g, v))
    if isinstance(op, (Full, Iota, Reshape, Slice, Broadcast)):
        return False
    cost = subtree_cost(g, op, costs)
    return cost > CHEAP and (len(readers) > 1 or _is_repeated(g, op.results[0]))


def _is_repeated(g: Graph, v: Value) -> bool:
    """Views lead from v to a broadcast that makes more elements of it, or to a lookup that may read an element, or use an index,
    many times."""
    todo = [v]
    while todo:
        v = todo.pop()
        for u in g.users(v):
            user = g.ops[u]
            if isinstance(user, Broadcast) and from_mlir(user.results[0]).numel != from_mlir(v).numel:
                return True
            if isinstance(user, Take) and (not reads_fewer(user) if user.operands[0] == v else _looks_up_slices(user)):
                return True
            if isinstance(user, (Reshape, Transpose, Slice, Broadcast)) and u not in g.unit:
                todo.append(user.results[0])
    return False


def _is_apart(transpose: Transpose) -> bool:
    """What is side by side in a row of the result is far apart in the operand."""
    out, src = from_mlir(transpose.results[0]).shape, from_mlir(transpose.operands[0]).shape
    perm = attr(transpose, "perm")
    d = next((d for d in reversed(range(len(out))) if out[d] != 1), 0)
    between = [n for n in src[perm[d] + 1 :] if n != 1] if out else []
    return len(between) > 1 or bool(between) and not (between[0].is_Integer and between[0] <= _NEAR)


def _times_read(g: Graph, v: Value) -> int:
    """How often lookups and copies read an element of v, or of a view of it: twice where they may read more than there are."""
    times = 0
    for u in g.users(v):
        user = g.ops[u]
        if isinstance(user, Take) and user.operands[0] == v:
            times += 1 if reads_fewer(user) else 2
        elif isinstance(user, Broadcast) and from_mlir(user.results[0]).numel != from_mlir(v).numel:
            times += 0 if _is_multiplied(g, user.results[0]) else 2
        elif isinstance(user, (Broadcast, Reshape)):
            times += _times_read(g, user.results[0])
    return times


def _is_multiplied(g: Graph, v: Value) -> bool:
    """Nothing but products reads v, or what it is reshaped to: these take it from where it lies."""
    users = [g.ops[u] for u in g.users(v)]
    return all(kind_of(u) is Kind.MATMUL or isinstance(u, Reshape) and _is_multiplied(g, u.results[0]) for u in users)


def _is_stacked(g: Graph, v: Value, depth: int = 8) -> bool:
    """Arithmetic and reshapes lead from v to a join of rows."""
    for u in g.users(v) if depth else ():
        user = g.ops[u]
        if isinstance(user, Concat) and attr(user, "dim") < from_mlir(v).rank - 1:
            return True
        if isinstance(user, Reshape) or kind_of(user) is Kind.ELEMENTWISE:
            if u not in g.unit and _is_stacked(g, user.results[0], depth - 1):
                return True
    return False


def _is_reduced_beside(g: Graph, v: Value) -> bool:
    """Arithmetic with what lies straight in memory, and reshapes, none of which has a loop of its own, lead from v to a reduction.
    (Of what is transposed alone `late-transposes` has made reductions of what was there before.)"""
    todo, seen = [(v, False)], {(v, False)}
    while todo:
        v, beside = todo.pop()
        for u in g.users(v):
            user = g.ops[u]
            if kind_of(user) is Kind.REDUCTION and beside:
                return True
            unit = g.unit.get(u)
            elsewhere = unit is not None and unit.anchor is not Kind.REDUCTION
            if elsewhere or not isinstance(user, Reshape) and kind_of(user) is not Kind.ELEMENTWISE:
                continue
            after = user.results[0], beside or any(_lies_straight(g, x) for x in g.operands[u] if x != v)
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return False


def _lies_straight(g: Graph, v: Value, depth: int = 8) -> bool:
    """A value in memory, or arithmetic with one; not a view of it."""
    p = g.producer(v)
    if p is None or not kind_of(g.ops[p]).pullable:
        return True
    if kind_of(g.ops[p]) is Kind.ELEMENTWISE or isinstance(g.ops[p], Reshape):
        return depth > 0 and any(_lies_straight(g, x, depth - 1) for x in g.operands[p])
    return False


def _looks_up_slices(take: Any) -> bool:
    """Indices run along the results' last dim, where each vector computes its own, and are used for several slices of the table."""
    out, index = from_mlir(take.results[0]), from_mlir(take.operands[1])
    return bool(attr(take, "at") + index.rank == out.rank and out.numel != index.numel)


def reads_fewer(take: Any) -> bool:
    """The lookup reads no more elements than its table has, whatever the sizes: picking one of each row, say; or few of a dim, as
    padding does."""
    table, out = from_mlir(take.operands[0]).numel, from_mlir(take.results[0]).numel
    places = from_mlir(take.operands[1]).numel
    if len(take.operands) == 2 and places.is_Integer and places <= _FEW:
        return True
    return out != 0 and bool(sympy.cancel(table / out).as_numer_denom()[1] == 1)


def subtree_cost(g: Graph, op: Any, costs: Costs, depth: int = 12) -> int:
    """Cost of computing a value from memory, counting what would be pulled in."""
    total: int = op.work
    if depth == 0 or total > 64:
        return total
    for v in op.operands:
        p = g.producer(v)
        if p is not None and p not in g.unit and kind_of(g.ops[p]).pullable:
            if (p, depth) not in costs:
                costs[p, depth] = subtree_cost(g, g.ops[p], costs, depth - 1)
            total += costs[p, depth]
    return total
