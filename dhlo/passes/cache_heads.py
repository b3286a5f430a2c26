"""Attention over heads of caches that were chosen, repeated or put in another order: over the caches themselves.

Keys and values lie in pools, of which a kernel reads heads that follow one another, each with as many heads of queries behind one
another. Where a program repeats all heads in turn (JetMoE), or reads half of the values beside all keys (DiffLlama), heads of
queries are put in the order of the caches' instead, and attention is cut up where those of keys and values don't go along together.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from dhlo.ir.dialect import attr, build, defining, exprs
from dhlo.ir.mlir import ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.compute import Attention, extra
from dhlo.ir.ops.movement import Broadcast, Concat, Reshape, Slice, Transpose
from dhlo.ir.symbols import is_static
from dhlo.ir.types import from_mlir
from dhlo.passes.cse import erase_dead

__all__ = ["heads_in_order", "is_part"]

_HEADS = 1  # the dim of queries, keys, values and masks


def heads_in_order(block: Any, wholes: Collection[Any]) -> None:
    """Makes attention over heads of `wholes` [batch, heads, keys, depth], in whatever order, attention over slices of them."""
    for op in list(block.operations):
        if not isinstance(op, Attention) or _heads(op.operands[0]) is None:
            continue
        keys, values = (_chosen(v, wholes) for v in list(op.operands)[1:3])
        if keys is not None and values is not None and not (keys.is_whole and values.is_whole):
            with ir.InsertionPoint(op.operation), op.location:
                y = _attention(op, keys, values)
            op.results[0].replace_all_uses_with(y)
            op.operation.erase()
    erase_dead(block)


def is_part(v: Any, wholes: Collection[Any], columns: bool = False) -> bool:
    """Whether v is one of `wholes`, or some of its heads, one behind the other; or some columns, if asked."""
    if v in wholes:
        return True
    op = defining(v)
    if not isinstance(op, Slice) or op.operands[0] not in wholes or any(step != 1 for step in attr(op, "steps")):
        return False
    given, out = from_mlir(op.operands[0]).shape, from_mlir(v).shape
    cut = {d for d, s in enumerate(given) if s != out[d]}
    return cut <= ({_HEADS, 3} if columns else {_HEADS}) and all(is_static(out[d]) for d in cut)


@dataclass(frozen=True)
class _Chosen:
    """Heads of a cache with what is new joined to it."""

    whole: Any
    heads: list[int]

    @property
    def is_whole(self) -> bool:
        return self.heads == list(range(_heads(self.whole) or 0))

    def part(self, first: int, count: int) -> Any:
        """So many of the cache's heads."""
        t = from_mlir(self.whole)
        if count == t.shape[_HEADS]:
            return self.whole
        where = {"starts": ["0", str(first), "0", "0"], "steps": [1] * 4}
        out = t.with_shape([t.shape[0], sympy.Integer(count), *t.shape[2:]])
        return build(Slice, [self.whole], where, results=[out]).results[0]


@dataclass(frozen=True)
class _Run:
    """Heads of keys and of values that follow one another, and those of queries that read each of them."""

    key: int
    value: int
    queries: list[list[int]]

    def goes_on(self, key: int, value: int, queries: Sequence[int]) -> bool:
        n = len(self.queries)
        return (self.key + n, self.value + n) == (key, value) and len(queries) == len(self.queries[0])


def _heads(v: Any) -> int | None:
    size = from_mlir(v).shape[_HEADS] if from_mlir(v).rank == 4 else None
    return int(size) if size is not None and is_static(size) else None


def _chosen(v: Any, wholes: Collection[Any]) -> _Chosen | None:
    """Which heads of which whole v is; None if it is something else."""
    count = _heads(v)
    if v in wholes:
        return None if count is None else _Chosen(v, list(range(count)))
    op = defining(v)
    if op is None or count is None:
        return None
    match op:
        case ew.Copy():
            return _chosen(op.operands[0], wholes)
        case Slice():
            inner = _chosen(op.operands[0], wholes)
            given, out = from_mlir(op.operands[0]).shape, from_mlir(v).shape
            first = exprs(attr(op, "starts"))[_HEADS]
            if inner is None or any(d != _HEADS and s != out[d] for d, s in enumerate(given)) or not first.is_Integer:
                return None
            return _Chosen(inner.whole, inner.heads[int(first) :: attr(op, "steps")[_HEADS]][:count])
        case Concat() if attr(op, "dim") == _HEADS:
            parts = [_chosen(x, wholes) for x in op.operands]
            found = [x for x in parts if x is not None]
            if len(found) < len(parts) or any(x.whole != found[0].whole for x in found):
                return None
            return _Chosen(found[0].whole, [h for x in found for h in x.heads])
        case Broadcast() if attr(op, "dims") == [0, 1, 2, 3] and _heads(op.operands[0]) == 1:
            inner = _chosen(op.operands[0], wholes)
            return None if inner is None or not _alike(op.operands[0], v) else _Chosen(inner.whole, inner.heads * count)
        case Reshape():
            return _repeated(op, wholes)
    return None


def _alike(x: Any, y: Any) -> bool:
    """Whether two values differ in their heads alone."""
    a, b = from_mlir(x).shape, from_mlir(y).shape
    return a[0] == b[0] and a[2:] == b[2:]


def _repeated(op: Any, wholes: Collection[Any]) -> _Chosen | None:
    """Heads that a reshape of a broadcast [batch, times, heads, keys, depth] or [batch, heads, times, keys, depth] repeats."""
    wide = defining(op.operands[0])
    if not isinstance(wide, Broadcast) or from_mlir(wide.results[0]).rank != 5 or not _alike(wide.operands[0], op.results[0]):
        return None
    dims, sizes, inner = attr(wide, "dims"), from_mlir(wide.results[0]).shape, _chosen(wide.operands[0], wholes)
    if inner is None or dims not in ([0, 2, 3, 4], [0, 1, 3, 4]) or sizes[dims[1]] != len(inner.heads):
        return None
    in_turn, total = dims[1] == 2, _heads(op.results[0])
    if total is None or total % len(inner.heads):
        return None
    times = total // len(inner.heads)
    return _Chosen(inner.whole, inner.heads * times if in_turn else [h for h in inner.heads for _ in range(times)])


def _attention(op: Any, keys: _Chosen, values: _Chosen) -> Any:
    """The result of attention over heads of caches, by attention over slices of these."""
    group = int(from_mlir(op.operands[0]).shape[_HEADS]) // len(keys.heads)
    reads: dict[tuple[int, int], list[int]] = {}
    for h, pair in enumerate(zip(keys.heads, values.heads, strict=True)):
        reads.setdefault(pair, []).extend(range(h * group, (h + 1) * group))
    runs: list[_Run] = []
    for (key, value), queries in sorted(reads.items()):
        if runs and runs[-1].goes_on(key, value, queries):
            runs[-1].queries.append(queries)
        else:
            runs.append(_Run(key, value, [queries]))
    attrs = {name: attr(op, name) for name in ("scale", "softcap", "causal", "past")}
    order, parts = list[int](), []
    for run in runs:
        asked = list(itertools.chain(*run.queries))
        more = [_in_order(x, asked, d) for x, d in ((extra(op, 4), _HEADS), (extra(op, 1), 0)) if x is not None]
        n = len(run.queries)
        given = [_in_order(op.operands[0], asked), keys.part(run.key, n), values.part(run.value, n), *more]
        parts.append(build(Attention, given, attrs).results[0])
        order += asked
    y = parts[0] if len(parts) == 1 else build(Concat, parts, {"dim": _HEADS}).results[0]
    return _in_order(y, [order.index(h) for h in range(len(order))])


def _in_order(x: Any, order: Sequence[int], dim: int = _HEADS) -> Any:
    """The elements of x at these places along a dim."""
    t, n = from_mlir(x), len(order)
    shape = [*t.shape[:dim], sympy.Integer(n), *t.shape[dim + 1 :]]
    wide = defining(x)
    if isinstance(wide, Broadcast) and all(
        to != dim or from_mlir(wide.operands[0]).shape[d] == 1 for d, to in enumerate(attr(wide, "dims"))
    ):  # alike at all places
        return build(Broadcast, [wide.operands[0]], {"dims": attr(wide, "dims")}, results=[t.with_shape(shape)]).results[0]
    step = next((k for k, place in enumerate(order) if place == 1), 0) if n == t.shape[dim] else 0
    if step > 1 and n % step == 0 and list(order) == [i + j * (n // step) for i in range(n // step) for j in range(step)]:
        return _transposed(x, step, dim)
    parts = list(_progressions(order))
    if len(parts) == 1 and n == t.shape[dim] and parts[0] == (0, 1, n):
        return x
    made = []
    for first, by, count in parts:
        along = [d == dim for d in range(t.rank)]
        where: dict[str, Any] = {
            "starts": [str(first) if here else "0" for here in along],
            "steps": [by if here else 1 for here in along],
        }
        out = t.with_shape([sympy.Integer(count) if d == dim else s for d, s in enumerate(t.shape)])
        made.append(build(Slice, [x], where, results=[out]).results[0])
    return made[0] if len(made) == 1 else build(Concat, made, {"dim": dim}).results[0]


def _transposed(x: Any, rows: int, dim: int) -> Any:
    """The elements along a dim, as rows of a matrix, column by column."""
    t = from_mlir(x)
    before, after, n = list(t.shape[:dim]), list(t.shape[dim + 1 :]), int(t.shape[dim])
    matrix = t.with_shape([*before, sympy.Integer(rows), sympy.Integer(n // rows), *after])
    cut = build(Reshape, [x], results=[matrix]).results[0]
    perm = [*range(dim), dim + 1, dim, *range(dim + 2, t.rank + 1)]
    return build(Reshape, [build(Transpose, [cut], {"perm": perm}).results[0]], results=[t]).results[0]


def _progressions(order: Sequence[int]) -> list[tuple[int, int, int]]:
    """Places as parts that go up by the same step: first, step and number of each."""
    parts: list[tuple[int, int, int]] = []
    for place in order:
        first, by, count = parts[-1] if parts else (0, 0, 0)
        if count == 1 and place > first or count > 1 and place == first + by * count:
            parts[-1] = (first, place - first if count == 1 else by, count + 1)
        else:
            parts.append((place, 1, 1))
    return parts
