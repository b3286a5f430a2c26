"""Convolutions of bytes that are dequantised before them add up the bytes themselves; scales come after the sums."""

from __future__ import annotations

from typing import Any

import torch

from dhlo.ir.coded import takes_codes
from dhlo.ir.dialect import attr, build, defining
from dhlo.ir.handles import Block, Module, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.compute import Conv, ConvBytes
from dhlo.ir.ops.movement import Broadcast, Full, Reshape, Weight, number
from dhlo.ir.ops.quantised import Dequantize, along
from dhlo.ir.types import TensorType, from_mlir
from dhlo.passes.cse import erase_dead

__all__ = ["integer_convolutions", "new_weight"]

Weights = dict[str, torch.Tensor]

_INTEGERS = ("i8", "ui8", "i4", "ui4")


def integer_convolutions(module: Module, weights: Weights) -> None:
    """Makes `conv_bytes` of convolutions of `(bytes - zero) * scale`, with numbers for both, and constant weights of 8 bits at most
    whose scales are those of output channels. Sums are then exact, and images travel as bytes. Of other images scales of output
    channels come after the convolution, too: kernels decode weights without."""
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            if _rewrite_block(block, weights):
                erase_dead(block)


def _rewrite_block(block: Block, weights: Weights) -> bool:
    found = False
    for op in list(block.operations):
        for region in op.operation.regions:
            for inner in region.blocks:
                found |= _rewrite_block(inner, weights)
        if isinstance(op, Conv) and not attr(op, "transposed") and from_mlir(op.operands[0]).rank <= 5:
            found |= _rewrite(op, weights) or _scale_after(op, weights)
    return found


def _rewrite(op: Any, weights: Weights) -> bool:
    """Whether the convolution was one of bytes."""
    image = _image(op.operands[0], weights)
    if image is None:
        return False
    with ir.InsertionPoint(op.operation), op.location:
        kernel = _kernel(op.operands[1], weights)
        if kernel is None:
            return False
        (x, zero, scale), (w, scales), y = image, kernel, from_mlir(op.results[0])
        attrs = {name: attr(op, name) for name in ("stride", "padding", "dilation", "groups")}
        sums = build(ConvBytes, [x, w], {**attrs, "zero": zero}, results=[y.with_dtype("i32")]).results[0]
        wide = build(ew.Convert, [sums], results=[y]).results[0]
        factors = (scales * torch.tensor(scale)).reshape(-1)
        new = build(ew.Mul, [wide, _spread(factors, f"{_name(w)}.scales", y, weights)]).results[0]
    op.results[0].replace_all_uses_with(new)
    return True


def _scale_after(op: Any, weights: Weights) -> bool:
    """Whether weights became codes without scales and zero points, which the kernels decode: (conv of them) times the scales."""
    w = op.operands[1]
    while isinstance(defining(w), ew.Convert):
        w = defining(w).operands[0]
    made, y = defining(w), from_mlir(op.results[0])
    if not isinstance(made, Dequantize) or len(made.operands) < 2 or not takes_codes(op, 1) or y.dtype.name != "f32":
        return False
    data = [weights.get(attr(s, "name_")) if isinstance(s := defining(x), Weight) else None for x in made.operands]
    if any(d is None for d in data):
        return False
    q, *parameters = [d.detach() for d in data if d is not None]
    if not all(bool(p.isfinite().all()) for p in parameters):
        return False
    scale = _by_channel(parameters[0].float(), q)
    code, codes = attr(made, "code"), made.operands[0]
    if scale is None or len(parameters) == 2 and code not in _INTEGERS:
        return False
    with ir.InsertionPoint(op.operation), op.location:
        if len(parameters) == 2:
            values = _integers(q, parameters[1])
            if values is None:
                return False
            code = "i4" if values.numel() and -8 <= int(values.min()) and int(values.max()) <= 7 else "i8"
            codes = new_weight(f"{_name(codes)}.{code}", values, weights)
        plain = build(Dequantize, [codes], {"code": code, "dtype": "f32"}).results[0]
        attrs = {n: attr(op, n) for n in ("stride", "padding", "dilation", "transposed", "output_padding", "groups")}
        sums = build(Conv, [op.operands[0], plain], attrs, results=[y]).results[0]
        new = build(ew.Mul, [sums, _spread(scale.reshape(-1), f"{_name(codes)}.scales", y, weights)]).results[0]
    op.results[0].replace_all_uses_with(new)
    return True


def _image(v: Value, weights: Weights) -> tuple[Value, int, float] | None:
    """Bytes, zero point and scale of a value (f32) that is made so."""
    scale, zero = 1.0, 0.0
    op = defining(v)
    if isinstance(op, ew.Mul):
        a, b = op.operands
        factor = _number(b, weights)
        if factor is None:
            a, factor = b, _number(a, weights)
        if factor is None:
            return None
        scale, op = factor, defining(a)
    if isinstance(op, (ew.Sub, ew.Add)):
        shift = _number(op.operands[1], weights)
        if shift is None:
            return None
        zero, op = shift if isinstance(op, ew.Sub) else -shift, defining(op.operands[0])
    if not isinstance(op, ew.Convert) or from_mlir(op.results[0]).dtype.name != "f32":
        return None
    dtype = from_mlir(op.operands[0]).dtype.name
    low = {"ui8": 0, "i8": -128}.get(dtype)
    if low is None or zero != int(zero) or not low <= zero < low + 256:
        return None
    return op.operands[0], int(zero), scale


def _number(v: Value, weights: Weights) -> float | None:
    """The constant that all elements of a float value are."""
    op = defining(v)
    if isinstance(op, Full):
        value = number(attr(op, "value"))
        finite = value is not None and abs(value) < float("inf")
        return float(torch.tensor(float(value), dtype=from_mlir(v).dtype.torch)) if value is not None and finite else None
    if isinstance(op, Weight):
        data = weights.get(attr(op, "name_"))
        return float(data.float()) if data is not None and data.numel() == 1 and bool(data.isfinite().all()) else None
    if isinstance(op, (Broadcast, Reshape)):
        return _number(op.operands[0], weights)
    if isinstance(op, ew.Convert):
        value = _number(op.operands[0], weights)
        return None if value is None else float(torch.tensor(value, dtype=from_mlir(v).dtype.torch))
    return None


def _kernel(v: Value, weights: Weights) -> tuple[Value, torch.Tensor] | None:
    """Weights (i8) and the scales (f32) of output channels, or one for all, of a dequantised kernel."""
    op = defining(v)
    if not isinstance(op, Dequantize) or attr(op, "dtype") != "f32" or attr(op, "code") not in _INTEGERS:
        return None
    data = [weights.get(attr(w, "name_")) if isinstance(w := defining(x), Weight) else None for x in op.operands]
    if any(d is None for d in data):
        return None
    q, *parameters = [d.detach() for d in data if d is not None]
    scale = _by_channel(parameters[0].float() if parameters else torch.ones([1] * q.dim()), q)
    values = _integers(q, *parameters[1:])
    if scale is None or values is None:
        return None
    if q.dtype == torch.int8 and len(parameters) < 2:
        return op.operands[0], scale
    return new_weight(f"{_name(op.operands[0])}.i8", values, weights), scale


def _by_channel(scale: torch.Tensor, q: torch.Tensor) -> torch.Tensor | None:
    """Scales with an entry for each output channel or one for all, None for others."""
    if scale.numel() != scale.shape[0]:
        return None
    return scale if scale.numel() == 1 else along(scale, [q.shape[0], *scale.shape[1:]])


def _integers(q: torch.Tensor, zero: torch.Tensor | None = None) -> torch.Tensor | None:
    """Codes less zero points, if bytes (i8) hold them."""
    values = q.int()
    if zero is not None:
        wide = along(zero.float(), q.shape)
        if bool((wide != wide.round()).any()) or bool((wide.abs() > 512).any()):
            return None
        values = values - wide.int()
    if values.numel() and (int(values.min()) < -128 or int(values.max()) > 127):
        return None
    return values.to(torch.int8)


def _spread(factors: torch.Tensor, name: str, y: TensorType, weights: Weights) -> Value:
    """Factors of output channels, or one for all, for each element of a result."""
    if factors.numel() == 1:
        out: Value = build(Full, [], {"value": repr(float(factors))}, results=[y]).results[0]
    else:
        out = build(Broadcast, [new_weight(name, factors, weights)], {"dims": [1]}, results=[y]).results[0]
    return out


def _name(w: Value) -> str:
    name: str = attr(defining(w), "name_")
    return name


def new_weight(name: str, data: torch.Tensor, weights: Weights) -> Value:
    """A new constant."""
    free = next(n for k in range(len(weights) + 1) if (n := f"{name}.{k}" if k else name) not in weights)
    weights[free] = data.contiguous()
    t = TensorType.of({torch.int8: "i8", torch.float32: "f32"}[data.dtype], list(data.shape))
    out: Value = build(Weight, [], {"name_": free}, results=[t]).results[0]
    return out
