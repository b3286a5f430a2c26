"""Norms of channels take the sums of narrow convolutions as they are, not rounded to the type that these are in."""

from __future__ import annotations

from typing import Any

from dhlo.ir.dialect import attr, defining
from dhlo.ir.function import bodies, walk
from dhlo.ir.handles import Module, Value
from dhlo.ir.ops.compute import Conv
from dhlo.ir.ops.elementwise import Add, Convert, Mul
from dhlo.ir.ops.movement import Broadcast
from dhlo.ir.types import from_mlir
from dhlo.passes.fold_weights import made_of_weights
from dhlo.passes.simplify import is_rounded

__all__ = ["keep_sums"]

_CHANNELS = 1  # the dim of a result that norms have numbers for


def keep_sums(module: Module) -> None:
    """Lets a multiplication of each channel by a number of its own, a norm as inference knows it, read the sums of a convolution of
    bf16 or f16 before they are rounded, where nothing else reads them: one rounding less, as compilers have it that fold norms into
    weights. What a program converts by itself, of numbers that weren't narrow, stays rounded."""
    for block in bodies(module):
        for op in list(walk(block)):
            if isinstance(op, Conv):
                _keep(op)


def _keep(conv: Any) -> None:
    sums = conv.results[0]
    biased = _only_reader(sums, Add)
    if biased is not None and any(map(_of_channels, biased.operands)):
        sums = biased.results[0]
    narrow = _only_reader(sums, Convert)
    wide = None if narrow is None else _only_reader(narrow.results[0], Convert)
    if wide is None or from_mlir(wide.results[0]) != from_mlir(sums) or from_mlir(sums).dtype.name != "f32":
        return
    to = from_mlir(narrow.results[0]).dtype
    norm = _only_reader(wide.results[0], Mul)
    if to.is_float and all(is_rounded(x, to) for x in conv.operands) and norm is not None and any(map(_of_channels, norm.operands)):
        wide.results[0].replace_all_uses_with(sums)
        for op in (wide, narrow):
            op.operation.erase()


def _of_channels(v: Value) -> bool:
    """Whether v has a number for each channel of a convolution's result, made of weights."""
    spread = defining(v)
    return isinstance(spread, Broadcast) and attr(spread, "dims") == [_CHANNELS] and made_of_weights(v)


def _only_reader(v: Value, kind: type) -> Any:
    """The op of that kind which alone reads v, once."""
    uses = list(v.uses)
    user = uses[0].owner.operation.opview if len(uses) == 1 else None
    return user if isinstance(user, kind) else None
