"""Writes `dhlo.dequantize` out as conversion, subtraction and multiplication for readers that have no kernel for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dhlo.ir.coded import coded, is_stored, takes_codes
from dhlo.ir.dialect import Kind, attr, build, defining
from dhlo.ir.handles import Block, Module, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.movement import Broadcast, Full, Reshape, Slice, Take, Transpose, Weight
from dhlo.ir.ops.paged import PagedAttention
from dhlo.ir.ops.quantised import Dequantize
from dhlo.ir.types import TensorType, from_mlir
from dhlo.passes.cse import erase_dead
from dhlo.passes.lookups import take_from

__all__ = ["expand_dequantize", "written_out"]

_ORDER = (Transpose, ew.Convert)  # what products look through to find codes
_VIEWS = (*_ORDER, Reshape, Slice)
_FLOATS = {"f8e4m3fn": "f8E4M3FN", "f8e5m2": "f8E5M2"}  # dtypes of codes that are bits of floats


def expand_dequantize(module: Module, weights: dict[str, torch.Tensor]) -> None:
    """Leaves `dequantize` to products, which decode their right side, and to attention over pools. Elsewhere it becomes elementwise
    ops, which loops compute where they read the codes, or constants again for what reads those alone."""
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            if _expand(block, weights):
                erase_dead(block)


def _expand(block: Block, weights: dict[str, torch.Tensor]) -> bool:
    """Whether there was anything to write out."""
    found = False
    for op in list(block.operations):
        for region in op.operation.regions:
            for inner in region.blocks:
                _bring_codes(inner)
                found |= _expand(inner, weights)
        if not isinstance(op, Dequantize):
            continue
        found = True
        _decode_what_is_found(op)
        made: dict[str, Value] = {}
        for use in list(op.results[0].uses):
            how = _way(op, use)
            if how == "decoded":
                continue
            if how not in made:
                with ir.InsertionPoint(op.operation), op.location:
                    made[how] = written_out(op) if how == "computed" else _widened(op, weights)
            use.owner.operation.operands[use.operand_number] = made[how]
    return found


def _bring_codes(block: Block) -> None:
    """What is decoded by readers in a region of a control-flow op is made there: outside it would have to be in memory."""
    for op in list(block.operations):
        for i, v in enumerate(op.operands):
            if takes_codes(op, i) and coded(v) is not None:
                op.operation.operands[i] = _beside(op, v)


def _beside(reader: Any, v: Value) -> Any:
    """A value of codes whose decoding and order of dims are ops of the reader's block."""
    op = defining(v)
    if not isinstance(op, (*_ORDER, Dequantize)):
        return v
    here = op.operation.block == reader.operation.block
    operands = [_beside(op if here else reader, x) for x in op.operands]
    made = op.operation if here else op.operation.clone(ir.InsertionPoint(reader))
    for i, x in enumerate(operands):
        made.operands[i] = x
    return made.results[0]


def _decode_what_is_found(op: Any) -> None:
    """Rows that are looked up become codes and parameters that are looked up, so that no table has to be decoded for them."""
    q, *parameters = op.operands
    if not from_mlir(q).rank:
        return
    rows = from_mlir(q).shape[0]
    if any(from_mlir(p).shape[0] not in (1, rows) for p in parameters):
        return
    for use in list(op.results[0].uses):
        take = use.owner.operation.opview
        if not isinstance(take, Take) or use.operand_number != 0 or attr(take, "dims") != [0] or attr(take, "at") != 0:
            continue
        index, attrs = take.operands[1], {name: attr(take, name) for name in ("dims", "at", "wrap")}
        readers = take_from(take, q)
        with ir.InsertionPoint.after(take.operation), take.location:
            found = [_parameter_of_rows(p, rows, index, attrs) for p in parameters]
            how = {name: attr(op, name) for name in ("code", "dtype")}
            decoded = build(Dequantize, [take.results[0], *found], how)
            values = written_out(decoded)
            decoded.operation.erase()
        for reader in readers:
            reader.owner.operation.operands[reader.operand_number] = values


def _parameter_of_rows(p: Value, rows: Any, index: Value, attrs: dict[str, Any]) -> Any:
    """A parameter of a table's rows, for those that are looked up."""
    t = from_mlir(p)
    if t.shape[0] == rows:
        return build(Take, [p, index], attrs).results[0]
    return build(Reshape, [p], results=[t.with_shape([1] * from_mlir(index).rank + list(t.shape[1:]))]).results[0]


def _readers(use: Any, through: tuple[Any, ...]) -> Iterator[tuple[Any, int]]:
    """The ops at the end of some views that begin with a use, and which of their operands it is."""
    op = use.owner.operation.opview
    if isinstance(op, through):
        for u in op.results[0].uses:
            yield from _readers(u, through)
    else:
        yield op, use.operand_number


def _way(op: Any, use: Any) -> str:
    """How a use gets its values: decoded by the reader, computed in its loops, or widened once to a constant."""
    if all(takes_codes(o, k) or isinstance(o, PagedAttention) and is_stored(o, k) for o, k in _readers(use, _ORDER)):
        return "decoded"
    if any(getattr(o, "kind", None) in (Kind.CONVOLUTION, Kind.OPAQUE) for o, _ in _readers(use, _VIEWS)):
        return "widened"
    return "computed"


def _widened(op: Any, weights: dict[str, torch.Tensor]) -> Any:
    """The values as a constant; computed where there is no data."""
    names = [attr(w, "name_") for v in op.operands if isinstance(w := defining(v), Weight)]
    if len(names) < len(op.operands) or any(n not in weights for n in names):
        return written_out(op)
    name = f"widened.{len(weights)}"
    weights[name] = op.reference([weights[n].detach() for n in names], None)[0]
    return build(Weight, [], {"name_": name}, results=[from_mlir(op.results[0])]).results[0]


def written_out(op: Any) -> Any:
    """The values of a `dequantize` by elementwise ops."""
    q, *parameters = op.operands
    value, wide = _value(q, attr(op, "code")), from_mlir(q).with_dtype("f32")
    along = [_along(p, wide) for p in parameters]
    if len(along) == 2:
        value = build(ew.Sub, [value, along[1]]).results[0]
    if along:
        value = build(ew.Mul, [value, along[0]]).results[0]
    out = from_mlir(op.results[0])
    return value if out == wide else build(ew.Convert, [value], results=[out]).results[0]


def _value(q: Value, code: str) -> Any:
    """What codes stand for, in f32."""
    t = from_mlir(q)
    wide = t.with_dtype("f32")

    def constant(value: float | int, like: TensorType) -> Any:
        return build(Full, [], {"value": repr(value)}, results=[like]).results[0]

    if code in _FLOATS:
        q = build(ew.Bitcast, [q], results=[t.with_dtype(_FLOATS[code])]).results[0]
    if code != "f4e2m1fn":
        return build(ew.Convert, [q], results=[wide]).results[0]
    # The bits of a smaller f16, normal or not, whose exponents are 14 below.
    bits = build(ew.Convert, [q], results=[t.with_dtype("i16")]).results[0]
    parts = []
    for mask, shift in ((7, 9), (8, 12)):
        part = build(ew.And, [bits, constant(mask, t.with_dtype("i16"))]).results[0]
        parts.append(build(ew.ShiftLeft, [part, constant(shift, t.with_dtype("i16"))]).results[0])
    half = build(ew.Bitcast, [build(ew.Or, parts).results[0]], results=[t.with_dtype("f16")]).results[0]
    small = build(ew.Convert, [half], results=[wide]).results[0]
    return build(ew.Mul, [small, constant(2.0**14, wide)]).results[0]


def _along(p: Value, out: TensorType) -> Any:
    """A parameter for each element of a result: each of its blocks is a dim of its own, along which it is spread."""
    t = from_mlir(p).with_dtype("f32")
    if from_mlir(p) != t:
        p = build(ew.Convert, [p], results=[t]).results[0]
    dims: list[int] = []
    wide: list[Any] = []
    for blocks, size in zip(t.shape, out.shape, strict=True):
        dims.append(len(wide))
        wide += [size] if blocks in (1, size) else [blocks, size / blocks]
    spread = build(Broadcast, [p], {"dims": dims}, results=[t.with_shape(wide)]).results[0]
    return spread if len(wide) == out.rank else build(Reshape, [spread], results=[out]).results[0]
