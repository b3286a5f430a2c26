"""Products of quantised weights with rows that are dequantised before them multiply bytes; zero points and scales come after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from dhlo.ir.coded import Coded, coded, only_multiplies
from dhlo.ir.dialect import attr, build, defining
from dhlo.ir.function import bodies, walk
from dhlo.ir.handles import Module, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.compute import Matmul, RoundedMatmul
from dhlo.ir.ops.movement import Broadcast, Full, Reshape, number
from dhlo.ir.types import TensorType, from_mlir
from dhlo.passes.cse import erase_dead
from dhlo.passes.find_dequantize import constant_of
from dhlo.passes.integer_convolutions import new_weight
from dhlo.passes.round_activations import integer_group

__all__ = ["multiply_bytes"]

Weights = dict[str, torch.Tensor]

_SIGN: Final = 128
"""What an unsigned byte is above the signed one that has its bits but for the highest."""
_LARGEST: Final = 2.0**64
"""Kernels take codes whose scales and zero points are no larger."""
_LEAST_BITS: Final = 16
"""Of floats whose rounding products may leave out."""
_FAR: Final = 512
"""Zero points beyond this would cost accuracy, as they are subtracted after the sums."""


@dataclass(frozen=True)
class _Rows:
    """(bytes - zero) * scale, or bytes + zero if it's `added`. Zero and scale have one value in a row, or are left out."""

    bytes: Value
    zero: Value | None
    scale: Value | None
    added: bool


def multiply_bytes(module: Module, weights: Weights) -> None:
    """Makes `rounded_matmul` of bytes of products of `(bytes - zero) * scale`, as dynamic and static quantisation of activations
    leave it, with quantised integers: zero and scale, each one number in a row, come after the sums, which are exact in a group."""
    for block in bodies(module):
        if any([_rewrite(op, weights) for op in list(walk(block)) if isinstance(op, Matmul)]):  # all of them, not the first alone
            erase_dead(block)


def _rewrite(op: Any, weights: Weights) -> bool:
    """Whether the product became one of bytes."""
    group, rows = integer_group(op), _rows(op.operands[0])
    if group is None or rows is None or (right := _right(op.operands[1], weights)) is None:
        return False
    made = from_mlir(op.results[0])
    y = made.with_dtype("f32")
    with ir.InsertionPoint(op.operation), op.location:
        data, zero = rows.bytes, None if rows.zero is None else _along(rows.zero, y)
        if from_mlir(data).dtype.name == "ui8":
            data, zero = _signed(data), _less_sign(zero, y, rows.added)
        out: Value = build(RoundedMatmul, [data, op.operands[1]], {"group": group}, results=[y]).results[0]
        if zero is not None:
            sums = right.numbers().double().sum(-2).float()
            factor = build(
                Broadcast, [new_weight("column.sums", sums, weights)], {"dims": [*range(sums.dim() - 1), y.rank - 1]}, results=[y]
            ).results[0]
            shift = build(ew.Mul, [zero, factor]).results[0]
            out = build(ew.Add if rows.added else ew.Sub, [out, shift]).results[0]
        if rows.scale is not None:
            out = build(ew.Mul, [out, _along(rows.scale, y)]).results[0]
        if made != y:
            out = build(ew.Convert, [out], results=[made]).results[0]
    op.results[0].replace_all_uses_with(out)
    op.operation.erase()
    return True


@dataclass(frozen=True)
class _Right:
    """A right side of codes, and its constants."""

    found: Coded
    data: list[torch.Tensor]

    def numbers(self) -> torch.Tensor:
        """What the codes stand for."""
        out: torch.Tensor = self.found.op.reference(self.data, None)[0].permute(self.found.perm)
        return out


def _right(v: Value, weights: Weights) -> _Right | None:
    """A right side of codes, if kernels take it as these."""
    found = coded(v)
    assert found is not None  # or there were no group
    if not only_multiplies(found.op.results[0]):  # expand-dequantize may then write out what this product reads, too
        return None
    known: dict[Any, torch.Tensor | None] = {}
    data = [constant_of(x, weights, known) for x in found.op.operands]
    given = [d for d in data if d is not None]
    if len(given) < len(data) or not given[0].numel() or any(not bool((p.float().abs() <= _LARGEST).all()) for p in given[1:]):
        return None
    return _Right(found, given)


def _rows(v: Value) -> _Rows | None:
    """What rows of a product are made of, if that is bytes, and numbers of whole rows that scale and shift them."""
    v, scale, zero, added = _exact(v), None, None, False
    op = defining(v)
    if isinstance(op, ew.Mul):
        split = _row_number(op)
        if split is None or not from_mlir(v).dtype.is_float:
            return None
        v, scale = _exact(split[0]), split[1]
        op = defining(v)
    if isinstance(op, (ew.Sub, ew.Add)):
        split = _row_number(op)
        t = from_mlir(v).dtype
        if split is None or t.bits < (32 if t.is_int else _LEAST_BITS) or not _is_near(split[1]):
            return None
        v, zero, added = _exact(split[0]), split[1], isinstance(op, ew.Add)
    return _Rows(v, zero, scale, added) if from_mlir(v).dtype.name in ("i8", "ui8") else None


def _exact(v: Value) -> Value:
    """What a value was before conversions that are exact or between floats, whose rounding products may leave out."""
    while isinstance(op := defining(v), ew.Convert):
        src, dst = from_mlir(op.operands[0]).dtype, from_mlir(v).dtype
        wider = src.is_int and dst.is_int and dst.bits > src.bits and dst.name.startswith("i")
        floats = src.is_float and dst.is_float and min(src.bits, dst.bits) >= _LEAST_BITS
        if not (floats or wider or src.is_int and src.bits <= 32 and dst.is_float):
            return v
        v = op.operands[0]
    return v


def _row_number(op: Any) -> tuple[Value, Value] | None:
    """The operands of an op, the second of which has one value in a row; None where neither has, or the wrong one."""
    a, b = op.operands
    if _is_even(b):
        return a, b
    return (b, a) if _is_even(a) and not isinstance(op, ew.Sub) else None


def _is_even(v: Value) -> bool:
    """Whether all elements of a row are one number."""
    op = defining(v)
    if isinstance(op, ew.Convert):
        return _is_even(op.operands[0])
    if isinstance(op, Broadcast):
        of = from_mlir(op.operands[0])
        return from_mlir(v).rank - 1 not in attr(op, "dims") or of.shape[-1] == 1
    return isinstance(op, Full)


def _is_near(v: Value) -> bool:
    """Whether a zero point is one of integers, or a number among those."""
    op = defining(v)
    if isinstance(op, Full):
        value = number(attr(op, "value"))
        return value is not None and abs(value) <= _FAR
    return from_mlir(v).dtype.is_int or isinstance(op, (ew.Convert, Broadcast, Reshape)) and _is_near(op.operands[0])


def _along(v: Value, y: TensorType) -> Value:
    """The number of each row, for all elements of a row of `y` (f32)."""
    source, dims = _source(v)
    if from_mlir(source).dtype != y.dtype:
        source = _converted(source, y)
    out: Value = build(Broadcast, [source], {"dims": dims}, results=[y]).results[0]
    return out


def _source(v: Value) -> tuple[Value, list[int]]:
    """What has each number once, and which dims of the rows its dims are."""
    op = defining(v)
    if isinstance(op, ew.Convert):
        source, dims = _source(op.operands[0])
        return _converted(source, from_mlir(v)), dims
    if isinstance(op, Full):
        scalar = build(Full, [], {"value": attr(op, "value")}, results=[from_mlir(v).with_shape([])]).results[0]
        return scalar, []
    source, dims = op.operands[0], attr(op, "dims")
    if from_mlir(v).rank - 1 in dims:
        t = from_mlir(source)
        source, dims = build(Reshape, [source], results=[t.with_shape(t.shape[:-1])]).results[0], dims[:-1]
    return source, dims


def _converted(v: Value, to: TensorType) -> Value:
    out: Value = build(ew.Convert, [v], results=[from_mlir(v).with_dtype(to.dtype)]).results[0]
    return out


def _signed(v: Value) -> Value:
    """Unsigned bytes less 128."""
    t = from_mlir(v)
    sign = build(Full, [], {"value": str(_SIGN)}, results=[t]).results[0]
    flipped = build(ew.Xor, [v, sign]).results[0]
    out: Value = build(ew.Bitcast, [flipped], results=[t.with_dtype("i8")]).results[0]
    return out


def _less_sign(zero: Value | None, y: TensorType, added: bool) -> Value:
    """The zero point of bytes less 128."""
    sign = build(Full, [], {"value": repr(float(_SIGN if added else -_SIGN))}, results=[y]).results[0]
    out: Value = sign if zero is None else build(ew.Add, [zero, sign]).results[0]
    return out
