"""Which values are kept as small codes, which the kernels of products, convolutions and attention decode themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dhlo.ir.dialect import Kind, attr, defining, number
from dhlo.ir.handles import Value
from dhlo.ir.ops.compute import Attention, Conv, Matmul, RoundedMatmul
from dhlo.ir.ops.elementwise import Convert
from dhlo.ir.ops.lookup import Scatter, UpdateSlice
from dhlo.ir.ops.movement import Broadcast, Full, Reshape, Slice, State, Transpose, Weight
from dhlo.ir.ops.paged import PagedAttention
from dhlo.ir.ops.quantised import Dequantize
from dhlo.ir.ops.sequence import GroupedMatmul, RoundedGroupedMatmul
from dhlo.ir.types import from_mlir

__all__ = [
    "Coded",
    "Stored",
    "coded",
    "is_constant",
    "is_stored",
    "only_attended",
    "only_multiplies",
    "stored_image",
    "stored_rows",
    "takes_codes",
    "takes_narrow",
]

# Types of weights that products take as they are stored and convert to their own.
_REDUCED = ("f16", "bf16")
_STORED = (*_REDUCED, "i8", "ui8")


@dataclass(frozen=True)
class Coded:
    """`op`, a Dequantize or a Convert of constants, and the order of its dims that the value has."""

    op: Any
    perm: tuple[int, ...]


def is_constant(v: Value) -> bool:
    """Whether a value is a weight, a number, or a view of either."""
    op = defining(v)
    if op is None or not from_mlir(v).is_static:
        return False
    if isinstance(op, Full):
        return number(attr(op, "value")) is not None
    if isinstance(op, Weight):
        return True
    return op.kind is Kind.MOVEMENT and not op.mentions() and bool(op.operands) and all(map(is_constant, op.operands))


def coded(v: Value) -> Coded | None:
    """What a value is made of, if that is codes and no more than their dims' order and their type changes on the way: a rounding
    to f16 or bf16 in between may be left out."""
    perm = tuple(range(from_mlir(v).rank))
    if not from_mlir(v).dtype.is_float:
        return None
    while isinstance(op := defining(v), (Transpose, Convert)) and not _converts_constant(op):
        if isinstance(op, Transpose):
            order = attr(op, "perm")
            perm = tuple(order[d] for d in perm)
        v = op.operands[0]
        if not from_mlir(v).dtype.is_float:
            return None
    known = isinstance(op, Dequantize) or isinstance(op, Convert) and from_mlir(op.operands[0]).dtype.name in _STORED
    return Coded(op, perm) if known and all(map(is_constant, op.operands)) else None


def _converts_constant(op: Any) -> bool:
    return isinstance(op, Convert) and is_constant(op.operands[0])


def takes_codes(op: Any, i: int) -> bool:
    """Whether an op's kernels decode operand i themselves, of codes and scales as well as of numbers of narrow types."""
    if isinstance(op, Conv):  # those of depthwise convolutions are few
        return i == 1 and not attr(op, "transposed") and from_mlir(op.operands[1]).shape[1] != 1
    return isinstance(op, (Matmul, GroupedMatmul, RoundedMatmul, RoundedGroupedMatmul)) and i == 1


def takes_narrow(op: Any, i: int) -> bool:
    """Whether an op's kernels decode operand i themselves, as it is: transposed convolutions take numbers of narrow types alone."""
    if not isinstance(op, Conv) or not attr(op, "transposed"):
        return takes_codes(op, i)
    w, made = from_mlir(op.operands[1]), defining(op.operands[1])
    narrow = isinstance(made, Convert) and from_mlir(made.operands[0]).dtype.name in _REDUCED
    return i == 1 and narrow and w.shape[0] != attr(op, "groups")


def only_multiplies(v: Value) -> bool:
    """Whether a value is read as the right side of products or as weights of convolutions alone, through transposes and
    conversions at most."""
    users = [(u.owner.operation.opview, u.operand_number) for u in v.uses]
    return bool(users) and all(
        takes_narrow(op, i) or isinstance(op, (Transpose, Convert)) and only_multiplies(op.results[0]) for op, i in users
    )


def stored_image(op: Any) -> Value | None:
    """The f16 or bf16 that a convolution's image is converted from, which its kernels widen as they load it; None if it isn't."""
    if not isinstance(op, Conv):
        return None
    made = defining(op.operands[0])
    if not isinstance(made, Convert) or from_mlir(op.operands[0]).dtype.name != "f32":
        return None
    return made.operands[0] if from_mlir(made.operands[0]).dtype.name in _REDUCED else None


@dataclass(frozen=True)
class Stored:
    """Keys or values of attention [B, H, S, D], or pools of them [H, S, D], as they lie in memory, and their scales [B, H, S, 1] or
    [H, S, 1] if they have any."""

    values: Any
    scale: Any


def stored_rows(op: Any, i: int) -> Stored | None:
    """What operand i of attention is converted or dequantised from, in a form that its kernels decode; None if it isn't."""
    made = defining(op.operands[i])
    if not isinstance(op, (Attention, PagedAttention)) or i not in (1, 2) or made is None:
        return None
    if isinstance(made, Convert) and from_mlir(made.operands[0]).dtype.name in _REDUCED:
        return Stored(made.operands[0], None)
    if isinstance(made, Dequantize) and attr(made, "code") == "i8" and len(made.operands) == 2:
        codes, scale = made.operands
        t = from_mlir(scale)
        if t.dtype.name == "f32" and t.shape == (*from_mlir(codes).shape[:-1], 1):
            return Stored(codes, scale)
    return None


def is_stored(op: Any, i: int) -> bool:
    """Whether operand i is keys or values that attention decodes from the content of a state or of a pool, old or new."""
    rows = stored_rows(op, i)
    pools = isinstance(op, PagedAttention)
    return rows is not None and all(_is_kept(v, pools) for v in (rows.values, rows.scale) if v is not None)


def _is_kept(v: Value, pools: bool) -> bool:
    while isinstance(op := defining(v), (Reshape, Transpose, Slice, Broadcast, Scatter, UpdateSlice)):
        v = op.operands[0]
    return isinstance(op, State) or pools and op is None


def only_attended(v: Value) -> bool:
    """Whether a value is read by attention alone, which decodes it from a state."""
    users = [(u.owner.operation.opview, u.operand_number) for u in v.uses]
    return bool(users) and all(is_stored(op, i) for op, i in users)
