"""Turns new content that is old content with some parts replaced (a join of slices of the old and of what is new) into writes of
those parts alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from dhlo.ir.dialect import attr, build, defining, exprs
from dhlo.ir.function import Target, updates_of
from dhlo.ir.handles import Block, Module, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops.lookup import Scatter, UpdateSlice
from dhlo.ir.ops.movement import Concat, Full, Reshape, Slice, State
from dhlo.ir.symbols import show
from dhlo.ir.types import TensorType, from_mlir
from dhlo.passes.cse import erase_dead

__all__ = ["update_parts"]


def update_parts(module: Module) -> None:
    """Writes parts of state and arguments where the program joins their slices with new content."""
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            end = list(block.operations)[-1]
            for i, target in updates_of(block).items():
                if _rewrite(block, end.operands[i], target):
                    erase_dead(block)


def is_content(v: Value, block: Block, target: Target) -> bool:
    """Is v the content that the state or argument had when the call began?"""
    op = defining(v)
    if isinstance(target, int):
        return op is None and bool(v == block.arguments[target])
    return isinstance(op, State) and bool(attr(op, "name_") == target)


@dataclass
class _Part:
    """A value and where it goes in the whole, which has dims of its own. Or a scatter onto an element (in the dims `picked`) of the
    whole, that stands there."""

    value: Value
    starts: list[sympy.Expr]
    sizes: list[sympy.Expr]
    picked: list[int] | None = None

    def write(self, old: Value) -> Any:
        """`old` with the part in it."""
        if self.picked is None:
            src = _reshaped(self.value, from_mlir(self.value).with_shape(self.sizes))
            return build(UpdateSlice, [old, src], {"starts": self.starts}).results[0]
        op = defining(self.value)
        _, *index, src = op.operands
        dims = [d for d in range(len(self.sizes)) if d not in self.picked]
        at = [build(Full, [], {"value": show(self.starts[d])}, results=[from_mlir(index[0])]).results[0] for d in self.picked]
        where = {
            "dims": [*(dims[d] for d in attr(op, "dims")), *self.picked],
            "at": attr(op, "at"),
            "how": attr(op, "how"),
            "wrap": attr(op, "wrap"),
        }
        return build(Scatter, [old, *index, *at, src], where).results[0]


def _rewrite(block: Block, v: Value, target: Target) -> bool:
    """Replaces joins on the way from v to the old content, if that is where the way leads."""
    if is_content(v, block, target):
        return True
    op = defining(v)
    if op is None:
        return False
    with ir.InsertionPoint(op.operation), op.location:
        found = _as_parts(v)
        if found is None:
            return isinstance(op, (Scatter, UpdateSlice, Reshape)) and _rewrite(block, op.operands[0], target)
        base, parts = found
        if not _rewrite(block, base, target):
            return False
        new = base
        for p in parts:
            new = p.write(new)
        v.replace_all_uses_with(_reshaped(new, from_mlir(v)))
    return True


def _reshaped(v: Value, t: TensorType) -> Any:
    return v if from_mlir(v) == t else build(Reshape, [v], None, results=[t]).results[0]


def _as_parts(v: Value) -> tuple[Any, list[_Part]] | None:
    """v as a value of its type with parts replaced; None if nothing of that value is kept."""
    op = defining(v)
    if isinstance(op, Reshape) and _are_equal(from_mlir(op.operands[0]), from_mlir(v)):  # sizes written in another way
        op = defining(op.operands[0])
    if not isinstance(op, Concat):
        return None
    shape = list(from_mlir(v).shape)
    finder = _Finder(len(shape))
    finder.visit(_Part(op.results[0], [sympy.Integer(0)] * len(shape), shape))
    return (finder.base, finder.parts) if finder.base is not None else None


def _are_equal(a: TensorType, b: TensorType) -> bool:
    return a.rank == b.rank and all((m - n).expand() == 0 for m, n in zip(a.shape, b.shape, strict=True))


class _Finder:
    """Sorts what a join is made of into slices of one value, each at its own place, and parts that are new."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.base: Any = None
        self.parts: list[_Part] = []

    def visit(self, p: _Part) -> None:
        op = defining(p.value)
        if self._is_kept(p):
            return
        if isinstance(op, Concat) and from_mlir(p.value).rank == self.rank:
            d, at = attr(op, "dim"), p.starts[attr(op, "dim")]
            for x in op.operands:
                size = from_mlir(x).shape[d]
                self.visit(
                    _Part(
                        x,
                        [at if k == d else s for k, s in enumerate(p.starts)],
                        [size if k == d else s for k, s in enumerate(p.sizes)],
                    )
                )
                at = at + size
            return
        inner = _without_unit_dims(p)
        if inner is not None:
            self.visit(inner)
            return
        self.parts.append(self._scatter(p) or p)

    def _scatter(self, p: _Part) -> _Part | None:
        """The part as a write by index into an element of the old value."""
        v = _through_reshape(p.value)
        op = defining(v)
        if not isinstance(op, Scatter):
            return None
        old = _through_reshape(op.operands[0])
        picked = _unit_dims(p.sizes, list(from_mlir(v).shape))
        if picked is None or not self._is_kept(_Part(old, p.starts, p.sizes)):
            return None
        whole = from_mlir(self.base).shape
        if any((p.sizes[d] - s).expand() != 0 for d, s in enumerate(whole) if d not in picked):
            return None
        return _Part(v, p.starts, p.sizes, picked)

    def _is_kept(self, p: _Part) -> bool:
        """Is the part a slice of the old value that stays where it is?"""
        source = _slice_of(p.value)
        if source is None:
            return False
        base, starts = source
        if self.base is not None and base != self.base or from_mlir(base).rank != self.rank:
            return False
        if any((a - b).expand() != 0 for a, b in zip(starts, p.starts, strict=True)):
            return False
        self.base = base
        return True


def _slice_of(v: Value) -> tuple[Any, list[sympy.Expr]] | None:
    """The value that v is a contiguous part of, slices of slices included, and where it begins."""
    op = defining(v)
    if not isinstance(op, Slice) or any(k != 1 for k in attr(op, "steps")):
        return None
    starts = exprs(attr(op, "starts"))
    outer = _slice_of(op.operands[0])
    if outer is None:
        return op.operands[0], starts
    return outer[0], [a + b for a, b in zip(outer[1], starts, strict=True)]


def _without_unit_dims(p: _Part) -> _Part | None:
    """A part that is a join with a unit dim inserted (an element of the first dim was replaced, say), as a join of the whole's
    rank: the pieces get the unit dim instead."""
    op = defining(p.value)
    if not isinstance(op, Reshape) or not isinstance(defining(op.operands[0]), Concat):
        return None
    inner = defining(op.operands[0])
    outer_shape, inner_shape = list(from_mlir(p.value).shape), list(from_mlir(op.operands[0]).shape)
    at = _unit_dims(outer_shape, inner_shape)
    if at is None:
        return None

    def widen(x: Value) -> Any:
        shape = list(from_mlir(x).shape)
        for d in at:
            shape.insert(d, sympy.Integer(1))
        source = defining(x)
        if isinstance(source, Slice) and isinstance(defining(source.operands[0]), Reshape):  # a slice of an element of the whole
            whole = defining(source.operands[0]).operands[0]
            if _unit_dims(list(from_mlir(whole).shape), list(from_mlir(source.operands[0]).shape)) == at:
                starts = exprs(attr(source, "starts"))
                for d in at:
                    starts.insert(d, sympy.Integer(0))
                return build(
                    Slice, [whole], {"starts": starts, "steps": [1] * len(shape)}, results=[from_mlir(x).with_shape(shape)]
                ).results[0]
        return build(Reshape, [x], None, results=[from_mlir(x).with_shape(shape)]).results[0]

    d = attr(inner, "dim")
    for k in at:
        d += k <= d
    return _Part(build(Concat, [widen(x) for x in inner.operands], {"dim": d}).results[0], p.starts, p.sizes)


def _through_reshape(v: Value) -> Any:
    op = defining(v)
    return op.operands[0] if isinstance(op, Reshape) else v


def _unit_dims(outer: Sequence[sympy.Expr], inner: Sequence[sympy.Expr]) -> list[int] | None:
    """The dims of size 1 that `outer` has beyond those of `inner`, if that is all they differ in."""
    at: list[int] = []
    k = 0
    for d, s in enumerate(outer):
        if k < len(inner) and (s - inner[k]).expand() == 0 and len(inner) - k <= len(outer) - d:
            k += 1
        elif s == 1:
            at.append(d)
        else:
            return None
    return at if k == len(inner) and at else None
