"""What follows a narrow convolution takes its sums as they are, not rounded to its type on the way."""

from __future__ import annotations

from typing import Any

from dhlo.ir.dialect import Kind, attr, defining
from dhlo.ir.function import bodies, walk
from dhlo.ir.handles import Module, Value
from dhlo.ir.ops.compute import Conv
from dhlo.ir.ops.elementwise import Add, Convert, Mul
from dhlo.ir.ops.movement import Broadcast, Full
from dhlo.ir.types import DType, from_mlir
from dhlo.passes.fold_weights import made_of_weights
from dhlo.passes.simplify import is_rounded

__all__ = ["keep_sums"]

_CHANNELS = 1  # the dim of a result that norms have numbers for
_MOST_STEPS = 8  # of an activation, one after another


def keep_sums(module: Module) -> None:
    """Lets norms of channels, as inference knows them, and activations read the sums of a convolution of bf16 or f16, and one
    another's results, before they are rounded, where nothing else reads these: what is stored is rounded once, as compilers have it
    that compute what follows a convolution on its sums. What a program converts by itself, of numbers that weren't narrow, stays
    rounded."""
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
        wide = _only_reader(after.results[0]) if isinstance(after, Convert) else None
        if not isinstance(wide, Convert) or from_mlir(wide.results[0]) != from_mlir(v) or from_mlir(v).dtype.name != "f32":
            return
        if not _is_narrow(conv, from_mlir(after.results[0]).dtype) or not _only_computes(wide.results[0]):
            return
        wide.results[0].replace_all_uses_with(v)
        for op in (wide, after):
            op.operation.erase()


def _is_narrow(conv: Any, to: DType) -> bool:
    return to.is_float and all(is_rounded(x, to) for x in conv.operands)


def _only_computes(v: Value) -> bool:
    """Whether v is read by functions of it alone, or of it and of numbers that channels have."""
    readers = [u.owner.operation.opview for u in v.uses]
    return all(
        getattr(op, "kind", None) is Kind.ELEMENTWISE and not isinstance(op, Convert) and _is_function(op.results[0], v)
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
