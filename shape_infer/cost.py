"""What a fused group has to do: arithmetic and bytes as expressions of sizes, and the time that a machine should take for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy

from dhlo.ir.dialect import Kind, defining
from dhlo.ir.handles import Value
from dhlo.ir.types import TensorType, from_mlir

__all__ = ["Cost", "Rates", "element_work", "group_cost"]


@dataclass(frozen=True)
class Cost:
    """Flops: what the ops say of themselves. Bytes: everything read once, of tables only what is looked up, and the results;
    `weight_bytes` of them are the program's constants. `variants`: flops by the kernel that is launched, where it takes another
    number than the ops say."""

    flops: sympy.Expr
    bytes: sympy.Expr
    weight_bytes: sympy.Expr
    variants: Mapping[str, sympy.Expr] = field(default_factory=dict)


@dataclass(frozen=True)
class Rates:
    """What a machine does, as measured, with up to `threads` threads: flops a nanosecond of one core by the element type that is
    multiplied; `caches` as (bytes that fit, bytes that a core reads a nanosecond), nearest first, memory last; nanoseconds in which
    a launch reaches another thread, which is asked for if its part takes `share` times as long, or of a product of matrices
    `product_share` times."""

    threads: int
    flops: Mapping[str, float]
    caches: Sequence[tuple[float, float]]
    wake: float
    share: float
    product_share: float

    def seconds(
        self, flops: float, nbytes: float, weights: float, constants: float, dtype: str, launches: int = 1, *, product: bool = False
    ) -> float:
        """The time of a group of `launches` launches that multiplies elements of `dtype`: arithmetic and memory overlap.

        Weights come from where all of a model's `constants` bytes fit, as every call reads them all; the rest from where the
        group's own bytes fit.
        """
        arithmetic = flops / self.flops.get(dtype, self.flops["f32"])
        moving = self._moving(weights, constants) + self._moving(nbytes - weights, nbytes - weights)
        alone = max(arithmetic, moving)
        if alone < 2 * (self.product_share if product else self.share) * self.wake * launches:
            return alone / 1e9
        return (alone / self.threads + self.wake * launches * (self.threads > 1)) / 1e9

    def _moving(self, nbytes: float, resident: float) -> float:
        rate = next((rate for size, rate in self.caches if resident <= size), self.caches[-1][1])
        return nbytes / rate


def element_work(ops: Iterable[Any]) -> int:
    """Price of one element (or vector of elements) of all these ops, in simple operations, and of storing it."""
    return 1 + sum(int(op.work) for op in ops)


def group_cost(group: Any) -> Cost:
    """The cost of a fused group."""
    ops = list(group.operation.regions[0].blocks[0].operations)
    inside = {op.operation for op in ops if getattr(op, "kind", None) is not Kind.WEIGHT}
    uses: dict[Any, list[tuple[Any, int]]] = {}
    for op in ops:
        for i, v in enumerate(op.operands):
            uses.setdefault(v, []).append((op, i))
    flops = sum((op.flops() for op in ops[:-1]), sympy.Integer(0))
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


def _elements_read(v: Value, uses: dict[Any, list[tuple[Any, int]]]) -> sympy.Expr:
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
    if (source.numel - result.numel).is_nonnegative is True:
        return True
    return result.rank == source.rank and all(
        r == s or (s - r).is_nonnegative is True for r, s in zip(result.shape, source.shape, strict=True)
    )
