"""Adapters of products (LoRA, Hu et al. 2021): what two small matrices, chosen for each row, add to a product of all rows."""

# ruff: noqa: E704
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from dhlo.ir.dialect import Ints, Kind, Op, Out, Tensor, TypeError_, attr, equal_shapes
from dhlo.ir.mlir import ir
from dhlo.ir.pull import Element, Elements, Position
from dhlo.ir.types import TensorType, from_mlir

Args = list[torch.Tensor]


def _check(x: TensorType, weights: TensorType, adapters: TensorType, attrs: dict[str, Any]) -> None:
    """Raises TypeError_ but for rows [..., T, K], weights [A, P] of their dtype, i32 [T], and matrices that lie in a row of P."""
    if x.rank < 2 or weights.rank != 2 or adapters.rank != 1 or weights.dtype != x.dtype or adapters.dtype.name != "i32":
        raise TypeError_("adapters want rows [..., T, K], weights [A, P] of their dtype, and the adapter of each row, i32 [T]")
    if not all(n == 1 for n in x.shape[:-2]):
        raise TypeError_("rows with adapters have no dims before them")
    equal_shapes([adapters, adapters.with_shape([x.shape[-2]])], "rows, and their adapters")
    at, columns, rank, k = attrs["at"], attrs["columns"], attrs["rank"], x.shape[-1]
    if not at or len(at) != len(columns) or rank < 1 or min(at) < 0 or min(columns) < 1 or not k.is_integer:
        raise TypeError_("each product has a place in a row of the weights, and columns")
    whole = weights.shape[1]
    if not (k.is_Integer and whole.is_Integer) or any(p + rank * (k + n) > whole for p, n in zip(at, columns, strict=True)):
        raise TypeError_("the matrices of a product lie within a row of the weights")


def _low_rank(
    x: torch.Tensor, weights: torch.Tensor, adapters: torch.Tensor, at: Sequence[int], columns: Sequence[int], rank: int
) -> torch.Tensor:
    """What adapters give of rows [T, K]: zeros for rows without one."""
    out = x.new_zeros(x.shape[0], sum(columns))
    k, first = x.shape[1], 0
    for place, n in zip(at, columns, strict=True):
        for i in {int(a) for a in adapters if a >= 0}:
            row = weights[i, place:].float()
            a, b = row[: k * rank].reshape(k, rank), row[k * rank : (k + n) * rank].reshape(rank, n)
            rows = adapters == i
            out[rows, first : first + n] = (x[rows].float() @ a @ b).to(out.dtype)
        first += n
    return out


class Adapt(Op, name="adapt"):
    """A product y [..., T, N] of rows x [..., T, K], with what the adapter of each row adds to it: row t of y plus
    x[t] A B. `adapters` i32 [T] says whose A [K, rank] and B [rank, n] these are, below 0 nobody's: they lie one after the other in
    row adapters[t] of `weights` [A, P], at element `at`. Where y is several products side by side, `at` and `columns` (n) have
    an entry for each."""

    kind = Kind.OPAQUE
    y: Tensor
    x: Tensor
    weights: Tensor
    adapters: Tensor
    at: Ints
    columns: Ints
    rank: ir.IntegerAttr
    z: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        y, x, weights, adapters = operands
        _check(x, weights, adapters, attrs)
        equal_shapes([y, y.with_shape([*x.shape[:-1], sum(attrs["columns"])])], "a product, and its rows and columns")
        return [y]

    def reference(self, args: Args, sizes: Any) -> Args:
        y, x, weights, adapters = args
        added = _low_rank(
            x.reshape(-1, x.shape[-1]), weights, adapters, attr(self, "at"), attr(self, "columns"), attr(self, "rank")
        )
        return [y + added.to(y.dtype).reshape(y.shape)]


class LowRank(Op, name="low_rank"):
    """What `adapt` adds to products of rows x: [..., T, columns of all]. Rows without an adapter are undefined. An adapter that
    `weights` has no row for fails the call."""

    kind = Kind.OPAQUE
    x: Tensor
    weights: Tensor
    adapters: Tensor
    at: Ints
    columns: Ints
    rank: ir.IntegerAttr
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        x, weights, adapters = operands
        _check(x, weights, adapters, attrs)
        return [x.with_shape([*x.shape[:-1], sum(attrs["columns"])])]

    def reference(self, args: Args, sizes: Any) -> Args:
        x, weights, adapters = args
        y = _low_rank(x.reshape(-1, x.shape[-1]), weights, adapters, attr(self, "at"), attr(self, "columns"), attr(self, "rank"))
        return [y.reshape(*x.shape[:-1], y.shape[1])]

    def flops(self) -> sympy.Expr:
        """Of rows that all have an adapter."""
        t = from_mlir(self.operands[0])
        each = sum(t.shape[-1] + n for n in attr(self, "columns"))
        return 2 * t.shape[-2] * attr(self, "rank") * each


class ChosenRows(Op, name="chosen_rows"):
    """Rows t of x [..., T, N] where `chosen` [T] is true, zeros elsewhere, where x isn't read."""

    kind = Kind.GATHER
    work = 2
    x: Tensor
    chosen: Tensor
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        x, chosen = operands
        if x.rank < 2 or chosen.rank != 1 or not chosen.dtype.is_bool:
            raise TypeError_("chosen_rows wants rows [..., T, N] and a bool for each")
        equal_shapes([chosen, chosen.with_shape([x.shape[-2]])], "rows, and whether they are chosen")
        return [x]

    def reference(self, args: Args, sizes: Any) -> Args:
        x, chosen = args
        return [torch.where(chosen[:, None], x, torch.zeros((), dtype=x.dtype))]

    def pull(self, em: Elements, idx: list[Position]) -> Element:
        x, chosen = self.operands
        return em.guarded(em.value(chosen, [idx[-2]]), lambda: em.value(x, idx), em.constant(0, from_mlir(x).dtype))


__all__ = [n for n, c in list(globals().items()) if isinstance(c, type) and issubclass(c, Op)]
