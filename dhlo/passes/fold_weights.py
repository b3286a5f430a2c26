"""Evaluates ops on weights alone at compile time, and indices that are made of numbers, and folds the scale of batch norm into
convolution weights."""

from __future__ import annotations

import functools
from typing import Any

import torch

from dhlo.ir.coded import coded, only_multiplies
from dhlo.ir.dialect import Kind, attr, build, defining
from dhlo.ir.handles import Block, Module, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops.compute import Conv
from dhlo.ir.ops.elementwise import Convert, Mul
from dhlo.ir.ops.movement import Broadcast, Full, Reshape, Take, Transpose, Weight, number
from dhlo.ir.ops.quantised import Dequantize
from dhlo.ir.ops.sequence import GroupedMatmul
from dhlo.ir.rising import rises
from dhlo.ir.symbols import is_static
from dhlo.ir.types import TensorType, from_mlir
from dhlo.passes.find_dequantize import constant_of
from dhlo.passes.lookups import take_from

__all__ = ["fold_weights", "made_of_weights"]

_FOLDABLE = (Kind.ELEMENTWISE, Kind.MOVEMENT, Kind.REDUCTION, Kind.GATHER, Kind.SOURCE)
_GROWTH = 4096  # elements that a folded value may have beyond what it is made of
# Indices of so many ops and more are folded, if these have no more elements in all, and all indices take one part in so many of
# the weights.
_LEAST_STEPS, _MOST_ELEMENTS, _INDEX_SHARE = 6, 1 << 24, 16


def fold_weights(module: Module, weights: dict[str, torch.Tensor]) -> None:
    """Replaces ops whose operands are all weights by new weights. Views stay views; values that would be much larger than what
    they are made of stay computed. Without data (text input) nothing is folded."""
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            _scale_convolutions(block, weights)
            _fold(block, weights)
            _fold_indices(block, weights)


def _weight_of(v: Value) -> str | None:
    op = defining(v)
    return attr(op, "name_") if isinstance(op, Weight) else None


def _fold(block: Block, weights: dict[str, torch.Tensor]) -> None:
    for op in list(block.operations):
        kind = getattr(op, "kind", None)
        if kind not in _FOLDABLE or not op.operands or len(op.results) != 1 or not from_mlir(op.results[0]).is_static:
            continue
        if kind is Kind.MOVEMENT and not isinstance(op, Reshape) and not _only_grouped(op) or isinstance(op, Dequantize):
            continue  # read in place, or packed as it is
        if kind is Kind.REDUCTION and made_of_weights(op.operands[0]):
            # At once with all that comes before, which may be larger than what it is made of: sums of int8 columns, say.
            whole = constant_of(op.results[0], weights, {})
            if whole is not None:
                _replace(op, whole.contiguous(), weights)
            continue
        if coded(op.results[0]) is not None:
            _convert_what_is_found(op)
            if not any(True for _ in op.results[0].uses) or only_multiplies(op.results[0]):
                continue  # products decode it
        args = [_value(v, weights) for v in op.operands]
        known = [a for a in args if a is not None]
        if len(known) < len(args) or not any(_weight_of(_source(v)) for v in op.operands):
            continue
        if int(from_mlir(op.results[0]).numel) > max(a.numel() for a in known) + _GROWTH:
            continue
        if isinstance(op, Take) and not op.in_range(known):
            continue  # the call fails
        value = op.reference([a.detach() for a in known], _static_size)[0].contiguous()
        _replace(op, value, weights)


def _fold_indices(block: Block, weights: dict[str, torch.Tensor]) -> None:
    """Evaluates what lookups take as indices, where many steps make them of numbers and weights: of relative positions, say, which
    each head of each layer would compute anew; not those that rise along their last dim, which loops know by how they are made."""
    whole = room = sum(w.nbytes for w in weights.values()) // _INDEX_SHARE
    folded, found = dict[str, torch.Tensor](), dict[Any, None]()
    for take in [op for op in block.operations if isinstance(op, Take)]:
        for v in list(take.operands)[1:]:
            t, makers = from_mlir(v), _makers(v)
            small = t.is_static and t.numel * t.dtype.bytes <= whole
            if len(makers) >= _LEAST_STEPS and small and _is_arithmetic(makers) and not rises(v):
                found[v] = None
    for v in found:  # all that are, before one of them is no step of another any more
        value = constant_of(v, weights, {})
        if value is None:
            continue
        same = next((name for name, x in folded.items() if x.dtype == value.dtype and torch.equal(x, value)), None)
        if same is not None or value.nbytes <= room:
            room -= value.nbytes if same is None else 0
            name = _replace(defining(v), value.contiguous(), weights, same)
            folded[name] = weights[name]


def _is_arithmetic(makers: list[Any]) -> bool:
    """Whether ops are of static sizes, small enough to be evaluated, and none of them looks anything up, which may fail."""
    if any(op is None or op.kind is Kind.GATHER for op in makers):
        return False
    types = [from_mlir(v) for op in makers for v in op.results]
    return all(t.is_static for t in types) and sum(int(t.numel) for t in types) <= _MOST_ELEMENTS


def _convert_what_is_found(op: Any) -> None:
    """Lookups in a converted weight look into the weight itself, so that it isn't widened for them."""
    for use in list(op.results[0].uses):
        take = use.owner.operation.opview
        if isinstance(op, Convert) and isinstance(take, Take) and use.operand_number == 0:
            wide, found = from_mlir(take.results[0]), take_from(take, op.operands[0])
            with ir.InsertionPoint.after(take.operation), take.location:
                converted = build(Convert, [take.results[0]], results=[wide]).results[0]
            for reader in found:
                reader.owner.operation.operands[reader.operand_number] = converted


def _only_grouped(op: Any) -> bool:
    """Whether a transpose is read by grouped products alone, which take their matrices as they lie in memory."""
    users = [use.owner.operation.opview for v in op.results for use in v.uses]
    return isinstance(op, Transpose) and bool(users) and all(isinstance(u, GroupedMatmul) for u in users)


def _source(v: Value) -> Any:
    """What a broadcast spreads, or v itself."""
    op = defining(v)
    return op.operands[0] if isinstance(op, Broadcast) else v


def _value(v: Value, weights: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """The value of a weight, of a constant, or of a broadcast of either."""
    name = _weight_of(v)
    if name is not None:
        return weights.get(name)
    op = defining(v)
    if op is None or not from_mlir(v).is_static:
        return None
    if isinstance(op, Full):
        if number(attr(op, "value")) is None:
            return None
        args: list[torch.Tensor] = []
    elif isinstance(op, Broadcast):
        inner = _value(op.operands[0], weights)
        if inner is None:
            return None
        args = [inner]
    else:
        return None
    if int(from_mlir(v).numel) > 1 << 26:
        return None
    out: torch.Tensor = op.reference(args, _static_size)[0]
    return out


def _static_size(e: Any, exact: bool = False) -> int:
    return int(e)


def _replace(op: Any, value: torch.Tensor, weights: dict[str, torch.Tensor], name: str | None = None) -> str:
    """Puts a weight in an op's place: a new one, or that of a `name`, which is the same. Returns its name."""
    name = f"folded.{len(weights)}" if name is None else name
    weights[name] = value
    with ir.InsertionPoint(op.operation), op.location:
        w = build(Weight, [], {"name_": name}, results=[from_mlir(op.results[0])])
    op.results[0].replace_all_uses_with(w.results[0])
    op.operation.erase()
    return name


def _scale_convolutions(block: Block, weights: dict[str, torch.Tensor]) -> None:
    """conv(x, w) * s with one s per output channel becomes conv(x, w * s), whose product is then folded. Not so with an infinite s,
    which would make NaN of sums of products of either sign."""
    for op in list(block.operations):
        if not isinstance(op, Mul):
            continue
        for k in (0, 1):
            conv, scale = op.operands[k], op.operands[1 - k]
            conv_op, b = defining(conv), defining(scale)
            if not isinstance(conv_op, Conv) or len(list(conv.uses)) != 1:
                continue
            if not isinstance(b, Broadcast) or attr(conv_op, "transposed"):
                continue
            s = _channel_vector(b, from_mlir(conv))
            if s is None or not _is_folded(conv_op.operands[1]):
                continue
            known = constant_of(s, weights, {})
            if known is not None and bool(known.isinf().any()):
                continue
            w = conv_op.operands[1]
            wt = from_mlir(w)
            _hoist(s, conv_op)
            with ir.InsertionPoint(conv_op.operation), op.location:
                wide = build(Broadcast, [s], {"dims": [0]}, results=[wt]).results[0]
                scaled = build(Mul, [w, wide]).results[0]
            conv_op.operation.operands[1] = scaled
            op.results[0].replace_all_uses_with(conv)
            op.operation.erase()
            break


def _is_folded(v: Value) -> bool:
    """Whether v is a weight, or the conversion of one that is done at compile time: of depthwise convolutions."""
    op = defining(v)
    return isinstance(op, Weight) or isinstance(op, Convert) and _weight_of(op.operands[0]) is not None and not only_multiplies(v)


def _channel_vector(b: Any, out: TensorType) -> Any:
    """The rank-1 weight that `b` spreads along dim 1, or None."""
    x = b.operands[0]
    dims = attr(b, "dims")
    if from_mlir(x).rank == 1 and dims == [1] and is_static(from_mlir(x).shape[0]) and from_mlir(x).shape[0] == out.shape[1]:
        return x if made_of_weights(x) else None
    r = defining(x)
    if isinstance(r, Reshape) and from_mlir(r.operands[0]).rank == 1 and from_mlir(r.operands[0]).shape[0] == out.shape[1]:
        return r.operands[0] if made_of_weights(r.operands[0]) else None
    return None


def _hoist(v: Value, before: Any) -> None:
    """Moves what makes v, all from weights, before an op."""
    late = [op for op in _makers(v) if op is not None and not op.operation.is_before_in_block(before.operation)]
    order = functools.cmp_to_key(_in_order)
    late.sort(key=order)
    for op in late:
        op.operation.move_before(before.operation)


def made_of_weights(v: Value) -> bool:
    """Whether a value is computed from weights and numbers alone."""
    return all(isinstance(op, (Weight, Full)) or op is not None and op.kind in _FOLDABLE and bool(op.operands) for op in _makers(v))


def _makers(v: Value) -> list[Any]:
    """The ops that v is made by, back to those that don't just compute; None for an argument. In no order."""
    found: dict[Any, Any] = {}
    todo = [v]
    while todo:
        x = todo.pop()
        if x in found:
            continue
        op = found[x] = defining(x)
        if op is not None and op.kind in _FOLDABLE:
            todo += op.operands
    return list(found.values())


def _in_order(a: Any, b: Any) -> int:
    return -1 if a.operation.is_before_in_block(b.operation) else 1
