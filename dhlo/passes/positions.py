"""What masks of attention say by comparing positions of keys with those of queries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy

from dhlo.ir.dialect import attr, defining, exprs
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.movement import Broadcast, Concat, Full, Iota, Reshape, Slice, Take, Transpose
from dhlo.ir.symbols import is_static, parse
from dhlo.ir.types import from_mlir

__all__ = ["Seen", "end_of_positions", "line_of", "seen"]

_QUERIES, _KEYS = 2, 3  # dims of a mask
_TRUE = ("True", "true", "1")

Dims = tuple[int | None, ...]  # of each dim of a value: the mask's dim that it is


@dataclass(frozen=True)
class Seen:
    """Which keys j a mask lets query i see, at most: j <= i + `past`, unless that is None; and if `window` isn't 0, the last so
    many up to its own, where both are counted from one position. `whole`: the mask says no more than that."""

    past: sympy.Expr | None = None
    window: int = 0
    whole: bool = True

    def __and__(self, other: Seen) -> Seen:
        if None not in (self.past, other.past) and self.past != other.past or self.window and other.window:
            return Seen(self.past, self.window, whole=False)
        past = other.past if self.past is None else self.past
        return Seen(past, self.window or other.window, self.whole and other.whole)


def seen(mask: Any, positions: Any = None, single: bool = False) -> Seen:
    """What a mask [batch, heads, queries, keys] of bools says, or, where it is `single`, one [queries, heads, 1, keys].
    `positions`: a vector that counts as the queries' numbers."""
    return _seen(mask, (_QUERIES, 1, None, _KEYS) if single else (0, 1, _QUERIES, _KEYS), positions)


def _seen(v: Any, dims: Dims, positions: Any) -> Seen:
    op = defining(v)
    match op:
        case Full() if attr(op, "value") in _TRUE:
            return Seen()
        case Broadcast():
            narrow = from_mlir(op.operands[0]).shape
            spread = [dims[d] if s != 1 else None for d, s in zip(attr(op, "dims"), narrow, strict=True)]
            return _seen(op.operands[0], tuple(spread), positions)
        case Reshape():
            inner = _through_reshape(op, dims) or _of_heads(op, dims)
            return Seen(whole=False) if inner is None else _seen(op.operands[0], inner, positions)
        case Transpose():
            perm = attr(op, "perm")
            return _seen(op.operands[0], tuple(dims[perm.index(d)] for d in range(len(perm))), positions)
        case ew.Copy():
            return _seen(op.operands[0], dims, positions)
        case Slice() if not {dims[d] for d in _cut(op)} & {_QUERIES, _KEYS}:  # heads
            return _seen(op.operands[0], dims, positions)
        case Concat() if dims[attr(op, "dim")] not in (_QUERIES, _KEYS):
            each = {_seen(v, dims, positions) for v in op.operands}
            return each.pop() if len(each) == 1 else Seen(whole=False)
        case ew.And():
            return _seen(op.operands[0], dims, positions) & _seen(op.operands[1], dims, positions)
        case ew.Le() | ew.Lt() | ew.Ge() | ew.Gt():
            return _compared(op, dims, positions)
        case ew.Eq():
            return _of_one_part(op, dims, positions)
    return Seen(whole=False)


def _cut(op: Any) -> list[int]:
    """The dims of which a slice leaves something out."""
    before, after, starts = from_mlir(op.operands[0]).shape, from_mlir(op.results[0]).shape, exprs(attr(op, "starts"))
    each = zip(before, after, starts, attr(op, "steps"), strict=True)
    return [d for d, (a, b, start, step) in enumerate(each) if a != b or start != 0 or step != 1]


def _of_one_part(op: Any, dims: Dims, positions: Any) -> Seen:
    """Whether the positions of a key and of a query are in the same part of so many: no more of them can be seen."""
    left, right = (_line(v, positions) for v in op.operands)
    if left is None or right is None or left.size != right.size:
        return Seen(whole=False)
    starts = {dims[x.dim]: x.start for x in (left, right)}
    if set(starts) != {_QUERIES, _KEYS}:
        return Seen(whole=False)
    before = (starts[_QUERIES] - starts[_KEYS]).expand() - left.size  # key > query + before
    return Seen(window=-int(before) if before.is_Integer and before < 0 else 0, whole=False)


def _compared(op: Any, dims: Dims, positions: Any) -> Seen:
    """A comparison of a key's position with a query's: key - query <= past, or key - query > past."""
    sides, by = list(op.operands), sympy.Integer(0)
    apart, limit = defining(sides[0]), _number(sides[1])
    if isinstance(apart, ew.Sub) and limit is not None:  # how far they are apart
        sides, by = list(apart.operands), limit
    left, right = (line_of(v, positions) for v in sides)
    if left is None or right is None:
        return Seen(whole=False)
    right = right[0], right[1] + by
    starts = {dims[d]: start for d, start in (left, right)}
    if set(starts) != {_QUERIES, _KEYS}:
        return Seen(whole=False)
    past = (starts[_QUERIES] - starts[_KEYS]).expand()
    key_first = dims[left[0]] == _KEYS
    below = isinstance(op, (ew.Le, ew.Lt)) == key_first
    strict = isinstance(op, (ew.Lt, ew.Gt))
    if below:
        return Seen(past=past - 1 if strict else past)
    before = past if strict else past - 1  # key > query + before
    return Seen(window=-int(before)) if before.is_Integer and before < 0 else Seen(whole=False)


@dataclass(frozen=True)
class _Line:
    """What counts up by one along a dim, beginning with `start`, by so many at once: (start + i) // size."""

    dim: int
    start: sympy.Expr
    size: int = 1


def line_of(v: Any, positions: Any = None) -> tuple[int, sympy.Expr] | None:
    """The dim along which v counts up by one, and what it begins with."""
    line = _line(v, positions)
    return None if line is None or line.size != 1 else (line.dim, line.start)


def _line(v: Any, positions: Any) -> _Line | None:
    if positions is not None and v == positions:
        return _Line(0, sympy.Integer(0))
    op = defining(v)
    if from_mlir(v).dtype.name not in ("i32", "i64"):  # narrower numbers wrap
        return None
    match op:
        case Iota() if attr(op, "step") == "1":
            return _Line(attr(op, "dim"), parse(attr(op, "start")))
        case Broadcast():
            line = _line(op.operands[0], positions)
            if line is None or from_mlir(op.operands[0]).shape[line.dim] != from_mlir(v).shape[attr(op, "dims")[line.dim]]:
                return None
            return replace(line, dim=attr(op, "dims")[line.dim])
        case Reshape():
            line = _line(op.operands[0], positions)
            dims = _through_reshape(op, tuple(range(from_mlir(v).rank)))
            if line is None or dims is None or (d := dims[line.dim]) is None:
                return None
            return replace(line, dim=d)
        case ew.Convert() if from_mlir(v).dtype.name == "i64":
            return _line(op.operands[0], positions)
        case ew.Add() | ew.Sub() | ew.FloorDiv():
            line, by = _line(op.operands[0], positions), _number(op.operands[1])
            if by is None and isinstance(op, ew.Add):
                line, by = _line(op.operands[1], positions), _number(op.operands[0])
            if line is None or by is None or line.size != 1:
                return None
            if isinstance(op, ew.FloorDiv):
                return replace(line, size=int(by)) if by.is_Integer and by > 0 else None
            return replace(line, start=(line.start + (by if isinstance(op, ew.Add) else -by)).expand())
    return None


def _number(v: Any) -> sympy.Expr | None:
    """The size or whole number that all elements of v are."""
    op = defining(v)
    while isinstance(op, (Broadcast, Reshape, ew.Copy)):
        op = defining(op.operands[0])
    if isinstance(op, Iota) and from_mlir(op.results[0]).shape[attr(op, "dim")] == 1:
        return parse(attr(op, "start"))
    return parse(attr(op, "value")) if isinstance(op, Full) and from_mlir(v).dtype.is_int else None


def _through_reshape(op: Any, dims: Sequence[int | None]) -> Dims | None:
    """Dims of the operand of a reshape that only adds or takes away dims of size 1, given those of its result."""
    before, after = from_mlir(op.operands[0]).shape, from_mlir(op.results[0]).shape
    left = [d for d, s in zip(dims, after, strict=True) if s != 1]
    if [s for s in before if s != 1] != [s for s in after if s != 1]:
        return None
    return tuple(left.pop(0) if s != 1 else None for s in before)


def _of_heads(op: Any, dims: Sequence[int | None]) -> Dims | None:
    """Dims of the operand of a reshape of batch and heads alone."""
    before, after = from_mlir(op.operands[0]).shape, from_mlir(op.results[0]).shape
    if tuple(dims[-2:]) != (_QUERIES, _KEYS) or before[-2:] != after[-2:]:
        return None
    return (*[None] * (len(before) - 2), _QUERIES, _KEYS)


def end_of_positions(block: Any, positions: Collection[Any]) -> int:
    """The first position that a table of static size, which `positions` or they and a number are looked up in, has no row for; 0
    where there is no such table."""
    ends = list[int]()
    for op in list(block.operations)[:-1]:
        if not isinstance(op, Take):
            continue
        sizes = from_mlir(op.operands[0]).shape
        for index, dim in zip(list(op.operands)[1:], attr(op, "dims"), strict=True):
            by = _added(index, positions)
            if by is not None and is_static(sizes[dim]):
                ends.append(int(sizes[dim]) - by)
    return max(min(ends), 1) if ends else 0


def _added(v: Any, positions: Collection[Any]) -> int | None:
    """The number that v is more than some positions, by whatever shape."""
    if v in positions:
        return 0
    op = defining(v)
    if isinstance(op, (Broadcast, Reshape, ew.Copy, ew.Convert)):
        return _added(op.operands[0], positions)
    if isinstance(op, (ew.Add, ew.Sub)):
        before, by = _added(op.operands[0], positions), _number(op.operands[1])
        if before is not None and by is not None and by.is_Integer:
            return before + int(by if isinstance(op, ew.Add) else -by)
    return None
