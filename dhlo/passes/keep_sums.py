"""What follows a narrow convolution takes its sums as they are, not rounded to its type on the way."""

from __future__ import annotations

from typing import Any

from dhlo.ir.dialect import Kind, attr, build, defining
from dhlo.ir.function import bodies, walk
from dhlo.ir.handles import Module, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops.compute import Conv
from dhlo.ir.ops.elementwise import Add, Convert, Maximum, Minimum, Mul, SigmoidShort, Sub, Tanh
from dhlo.ir.ops.movement import Broadcast, Full
from dhlo.ir.types import DType, from_mlir
from dhlo.passes.fold_weights import made_of_weights
from dhlo.passes.simplify import is_rounded

__all__ = ["keep_sums"]

_CHANNELS = 1  # the dim of a result that norms have numbers for
_MOST_STEPS = 8  # of an activation, one after another
# As a program has them on numbers of bf16 or f16: residuals, bounds, activations.
_NARROW = (Add, Sub, Mul, Maximum, Minimum, SigmoidShort, Tanh)


def keep_sums(module: Module) -> None:
    """Lets norms of channels, as inference knows them, residuals and activations read the sums of a convolution of bf16 or f16, and
    one another's results, before they are rounded, where nothing else reads these: what is stored is rounded once, as where
    compilers compute what follows a convolution on its sums. What a program converts by itself, of numbers that weren't narrow,
    stays rounded."""
    for block in bodies(module):
        for op in list(walk(block)):
            if isinstance(op, Conv):
                _keep(op)


def _keep(conv: Any) -> None:
    v = conv.results[0]
    while (after := _only_reader(v)) is not None:
        if isinstance(after, (Add, Mul)) and any(map(_of_channels, after.operands)):
            v = after.results[0]
            continue
        reader = _only_reader(after.results[0]) if isinstance(after, Convert) else None
        if reader is None or from_mlir(v).dtype.name != "f32" or not _is_narrow(conv, from_mlir(after.results[0]).dtype):
            return
        narrow = from_mlir(after.results[0])
        if isinstance(reader, _NARROW) and all(from_mlir(x) == narrow for x in (*reader.operands, *reader.results)):
            later: Value | None = _compute_wide(reader, after.results[0], v)
        else:
            later = _give_wide(reader, narrow.dtype, v) if isinstance(reader, Convert) else None
        if later is None:
            return
        v = later
        for op in (reader, after):
            op.operation.erase()


def _compute_wide(op: Any, rounded: Value, v: Value) -> Value:
    """The f32 result of a narrow op on v, which is rounded before it reads it, and the rounding in place of the op's result."""
    t = from_mlir(op.results[0])
    with ir.InsertionPoint(op.operation), op.location:
        read = [v if x == rounded else build(Convert, [x], results=[from_mlir(v)]).results[0] for x in op.operands]
        y: Value = build(type(op), read).results[0]
        op.results[0].replace_all_uses_with(build(Convert, [y], results=[t]).results[0])
    return y


def _give_wide(widened: Any, to: DType, v: Value) -> Value | None:
    """Gives v itself to those that read it rounded to a type and widened, and returns it; None if one of them mayn't have it.
    Bounds that others know to be rounded are put before the rounding by `simplify`."""
    wide = widened.results[0]
    if from_mlir(wide) != from_mlir(v) or not _only_computes(wide, to):
        return None
    wide.replace_all_uses_with(v)
    return v


def _is_narrow(conv: Any, to: DType) -> bool:
    return to.is_float and all(is_rounded(x, to) for x in conv.operands)


def _only_computes(v: Value, to: DType) -> bool:
    """Whether v is read by functions of it alone, or of it and of numbers that channels have, whose results aren't numbers of `to`
    merely because v's are."""
    readers = [u.owner.operation.opview for u in v.uses]
    return all(
        getattr(op, "kind", None) is Kind.ELEMENTWISE
        and not isinstance(op, Convert)
        and _is_function(op.results[0], v)
        and not is_rounded(op.results[0], to)
        for op in readers
    )


def _is_function(y: Value, x: Value, left: int = _MOST_STEPS) -> bool:
    """Whether y is a function of the elements of x, and of constants."""
    op = defining(y)
    if y == x or isinstance(op, Full) or _of_channels(y):
        return True
    plain = left > 0 and getattr(op, "kind", None) is Kind.ELEMENTWISE and not isinstance(op, Convert)
    return plain and all(_is_function(v, x, left - 1) for v in op.operands)


def _of_channels(v: Value) -> bool:
    """Whether v has a number for each channel of a convolution's result, made of weights."""
    spread = defining(v)
    return isinstance(spread, Broadcast) and attr(spread, "dims") == [_CHANNELS] and made_of_weights(v)


def _only_reader(v: Value) -> Any:
    """The op which alone reads v, once."""
    uses = list(v.uses)
    return uses[0].owner.operation.opview if len(uses) == 1 else None
