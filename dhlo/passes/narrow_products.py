"""Products of f16 are given their operands as these lie in memory."""

from __future__ import annotations

from dhlo.ir.dialect import build, defining
from dhlo.ir.handles import Module, Value
from dhlo.ir.ops.compute import Matmul
from dhlo.ir.ops.elementwise import Convert
from dhlo.ir.types import from_mlir
from dhlo.passes.replace import replace_each

__all__ = ["narrow_products"]


def narrow_products(module: Module) -> None:
    """Takes away the conversions of f16 to f32 before both sides of a product, whose kernels widen as they load, pack or decode:
    neither is written to memory once more."""
    replace_each(module, Matmul, _of_narrow)


def _of_narrow(op: Matmul) -> Value | None:
    narrow = [_narrow(v) for v in op.operands]
    if any(v is None for v in narrow):
        return None
    product: Value = build(Matmul, narrow, results=[from_mlir(op.results[0])]).results[0]
    return product


def _narrow(v: Value) -> Value | None:
    """The f16 that a value is converted from."""
    made = defining(v)
    if not isinstance(made, Convert) or from_mlir(v).dtype.name != "f32":
        return None
    source = made.operands[0]
    return source if from_mlir(source).dtype.name == "f16" else None
