"""What a fused group has to do at least: arithmetic and bytes, as expressions of sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy

from dhlo.ir.dialect import Kind, attr, defining
from dhlo.ir.symbols import product
from dhlo.ir.types import TensorType, from_mlir

__all__ = ["Cost", "group_cost"]


@dataclass(frozen=True)
class Cost:
    """Flops: a multiply-add of a product, a convolution or attention is 2, a floating-point result of an elementwise op
    and an element that is reduced is 1. Bytes: everything read once, of tables only what is looked up, and the results;
    `weight_bytes` of them are the program's constants."""

    flops: sympy.Expr
    bytes: sympy.Expr
    weight_bytes: sympy.Expr


def group_cost(group: Any) -> Cost:
    """The cost of a fused group."""
    ops = list(group.operation.regions[0].blocks[0].operations)
    inside = {op.operation for op in ops if getattr(op, "kind", None) is not Kind.WEIGHT}
    uses: dict[Any, list[tuple[Any, int]]] = {}
    for op in ops:
        for i, v in enumerate(op.operands):
            uses.setdefault(v, []).append((op, i))
    flops = sum((_flops(op) for op in ops[:-1]), sympy.Integer(0))
    total = weights = sympy.Integer(0)
    for v in uses:
        owner = defining(v)
        if owner is not None and owner.operation in inside:
            continue
        nbytes = _elements_read(v, uses) * from_mlir(v).dtype.bytes
        total += nbytes
        if owner is not None and owner.kind is Kind.WEIGHT:
            weights += nbytes
    return Cost(flops, total + sum((from_mlir(v).bytes for v in ops[-1].operands), sympy.Integer(0)), weights)


def _elements_read(v: Any, uses: dict[Any, list[tuple[Any, int]]]) -> sympy.Expr:
    """Of a value's elements, those that its users look at: of a slice its own, of a table as many as are looked up."""
    everything = from_mlir(v).numel
    total: sympy.Expr = sympy.Integer(0)
    for op, i in uses.get(v, []):
        kind = getattr(op, "kind", None)
        if kind is Kind.GATHER and i == 0:
            total += from_mlir(op.results[0]).numel
        elif kind is Kind.MOVEMENT and len(op.operands) == 1 and _no_more(from_mlir(op.results[0]), from_mlir(v)):
            total += _elements_read(op.results[0], uses)
        else:
            return everything
    return total


def _no_more(result: TensorType, source: TensorType) -> bool:
    """A view has no more elements than its source: it is a rearrangement, or a cut along some dims."""
    if result.numel == source.numel:
        return True
    return result.rank == source.rank and all(
        r == s or (s - r).is_nonnegative is True for r, s in zip(result.shape, source.shape, strict=True)
    )


# ---------------------------------------------------------------------- arithmetic
def _flops(op: Any) -> sympy.Expr:
    count = _COSTS.get(getattr(op, "kind", None))
    return sympy.Integer(0) if count is None else count(op, [from_mlir(v) for v in op.operands], from_mlir(op.results[0]))


def _attention(op: Any, args: list[TensorType], out: TensorType) -> sympy.Expr:
    """Both products; under a causal mask query i looks at i + 1 keys."""
    (batch, heads, queries, depth), keys = args[0].shape, args[1].shape[2]
    pairs = queries * (queries + 1) / 2 if attr(op, "causal") and queries == keys else queries * keys
    return 2 * batch * heads * pairs * (depth + out.shape[3])


def _convolution(op: Any, args: list[TensorType], out: TensorType) -> sympy.Expr:
    """The weights of an output channel (transposed: of an input channel) are a multiply-add each."""
    return 2 * (args[0] if attr(op, "transposed") else out).numel * product(args[1].shape[1:])


def _window(op: Any, args: list[TensorType], out: TensorType) -> sympy.Expr:
    """An element of the window each; adaptive windows together cover the input."""
    return out.numel * product(attr(op, "window")) if "window" in op.attributes else args[0].numel


_COSTS: dict[Kind | None, Callable[[Any, list[TensorType], TensorType], sympy.Expr]] = {
    Kind.ELEMENTWISE: lambda op, args, out: out.numel if out.dtype.is_float else sympy.Integer(0),
    Kind.REDUCTION: lambda op, args, out: args[0].numel,
    Kind.MATMUL: lambda op, args, out: 2 * out.numel * args[0].shape[-1],
    Kind.ATTENTION: _attention,
    Kind.CONVOLUTION: _convolution,
    Kind.WINDOW: _window,
}
