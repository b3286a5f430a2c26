"""What is added to scores of attention: which parts of it hide keys, and which weigh them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dhlo.ir.dialect import attr, build, defining
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.movement import Broadcast, Concat, Full, Reshape, Slice, Transpose, number
from dhlo.ir.types import TensorType, from_mlir

__all__ = ["hides", "parts_of", "together", "truth_of"]

_HIDDEN = -1e9  # scores that have this, or less, added to them count nothing beside others (float16's least number apart)
_LEAST_F16 = -65504.0
_VIEWS = (Broadcast, Reshape)

Parts = tuple[list[Any], list[Any]]  # bools, true where a key is seen, and what is added to the scores


def hides(v: Any) -> bool:
    """Whether v is one number, which hides a key where it is its score or is added to it."""
    value = _number(v)
    return value is not None and (value <= _HIDDEN or value == _LEAST_F16)


def parts_of(mask: Any) -> Parts:
    """Of a mask, bools or floats, the bools under which keys are seen, and what is added to scores."""
    op = defining(mask)
    if from_mlir(mask).dtype.is_bool:
        return [truth_of(mask)], []
    match op:
        case ew.Add():
            (bools, added), (more, others) = (parts_of(v) for v in op.operands)
            return bools + more, added + others
        case ew.Select():
            sees, left, right = op.operands
            if hides(right):
                sees, rest = truth_of(sees), left
            elif hides(left):
                sees, rest = _not(truth_of(sees)), right
            else:
                return [], [mask]
            bools, added = parts_of(rest)
            return [sees, *bools], added
        case Full() if _number(mask) == 0:
            return [], []
        case Broadcast() | Reshape() | Slice() | Transpose() | ew.Copy() | ew.Convert() if from_mlir(op.operands[0]).dtype.is_float:
            bools, added = parts_of(op.operands[0])
            if added == [op.operands[0]]:
                return [], [mask]
            shape = from_mlir(mask).shape
            return [_like(op, v, shape) for v in bools], [_like(op, v, shape) for v in added]
        case Concat():
            each = [parts_of(v) for v in op.operands]
            numbers = {(len(bools), len(added)) for bools, added in each}
            if len(numbers) == 1 and numbers != {(0, 1)}:  # which says of each operand no more than it is
                dim = {"dim": attr(op, "dim")}
                kinds = (zip(*kind, strict=True) for kind in zip(*each, strict=True))
                bools, added = ([build(Concat, parts, dim).results[0] for parts in kind] for kind in kinds)
                return bools, added
    return [], [mask]


def truth_of(v: Any) -> Any:
    """A bool v, or, where it asks which of two numbers something is, what these were chosen by."""
    op = defining(v)
    match op:
        case Broadcast() | Reshape():
            inner = truth_of(op.operands[0])
            return v if inner == op.operands[0] else _like(op, inner, from_mlir(v).shape)
        case ew.Convert():
            chosen = _choice(op.operands[0])
            return v if chosen is None else _by(v, chosen[0], chosen[1] != 0, chosen[2] != 0)
        case ew.Lt():
            chosen, limit = _choice(op.operands[0]), _number(op.operands[1])
            if chosen is not None and limit is not None:
                return _by(v, chosen[0], chosen[1] < limit, chosen[2] < limit)
    return v


def together(bools: Sequence[Any], added: Sequence[Any], t: TensorType) -> Any:
    """The one mask of type t, of bools if nothing is added, that says all of this; None if there is nothing to say."""
    sees = _joined(ew.And, [_shaped(v, t.with_dtype("i1")) for v in bools])
    bias = _joined(ew.Add, [_shaped(v, t) for v in added])
    if sees is None or bias is None:
        return bias if sees is None else sees
    return build(ew.Select, [sees, bias, build(Full, [], {"value": "-inf"}, results=[t]).results[0]]).results[0]


def _joined(op: Any, values: Sequence[Any]) -> Any:
    out = None
    for v in values:
        out = v if out is None else build(op, [out, v]).results[0]
    return out


def _shaped(v: Any, t: TensorType) -> Any:
    """v as t, which has as many elements, in the same order."""
    if from_mlir(v).dtype != t.dtype:
        v = build(ew.Convert, [v], results=[from_mlir(v).with_dtype(t.dtype.name)]).results[0]
    return v if from_mlir(v).shape == t.shape else build(Reshape, [v], results=[t]).results[0]


def _number(v: Any) -> float | None:
    """The number that all elements of v are."""
    op = defining(v)
    while isinstance(op, (*_VIEWS, ew.Copy)) or isinstance(op, ew.Convert) and from_mlir(op.operands[0]).dtype.is_float:
        op = defining(op.operands[0])
    return None if not isinstance(op, Full) else number(attr(op, "value"))


def _choice(v: Any) -> tuple[Any, float, float] | None:
    """What v is chosen by, and the two numbers between which it is."""
    op = defining(v)
    if isinstance(op, _VIEWS):
        inner = _choice(op.operands[0])
        return None if inner is None else (_like(op, inner[0], from_mlir(v).shape), *inner[1:])
    if not isinstance(op, ew.Select):
        return None
    left, right = _number(op.operands[1]), _number(op.operands[2])
    return None if left is None or right is None else (op.operands[0], left, right)


def _by(v: Any, sees: Any, left: bool, right: bool) -> Any:
    """`left` where `sees` holds, else `right`; v if they are the same."""
    return v if left == right else sees if left else _not(sees)


def _not(v: Any) -> Any:
    op = defining(v)
    if isinstance(op, _VIEWS):  # so that what is no view meets what it is the opposite of
        return _like(op, _not(op.operands[0]), from_mlir(v).shape)
    return op.operands[0] if isinstance(op, ew.Not) else build(ew.Not, [v]).results[0]


def _like(op: Any, v: Any, shape: Sequence[Any]) -> Any:
    """v, in the place of the operand of a view, a copy or a conversion."""
    if not isinstance(op, (*_VIEWS, Slice, Transpose)):
        return v
    names = {Broadcast: ("dims",), Slice: ("starts", "steps"), Transpose: ("perm",)}.get(type(op), ())
    attrs = {name: attr(op, name) for name in names}
    return build(type(op), [v], attrs, results=[from_mlir(v).with_shape(shape)]).results[0]
