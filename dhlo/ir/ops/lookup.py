"""Ops that order, count and write by index; each has a kernel of its own."""

# ruff: noqa: E704
import math
from itertools import pairwise
from typing import Any

import torch

from dhlo.ir.dialect import Flag, Ints, Kind, Op, Out, Sizes, Tensor, TypeError_, Variadic, attr, dims_of, equal_shapes, exprs
from dhlo.ir.mlir import ir
from dhlo.ir.symbols import symbol
from dhlo.ir.types import TensorType, from_mlir

Args = list[torch.Tensor]
COMBINATIONS = ("set", "add", "mul", "max", "min")


class Sort(Op, name="sort"):
    """Values and their indices (i64) in ascending or descending order along `dim`; stable, NaN counts as largest
    (aten.sort)."""

    kind = Kind.OPAQUE
    x: Tensor
    dim: ir.IntegerAttr
    descending: Flag
    values: Out
    index: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        dims_of([attrs["dim"]], operands[0].rank)
        return [operands[0], operands[0].with_dtype("i64")]

    def reference(self, args: Args, sizes: Any) -> Args:
        return list(torch.sort(args[0], dim=attr(self, "dim"), descending=attr(self, "descending"), stable=True))


class LexSort(Op, name="lexsort"):
    """The positions (i64) of rows [n, m] in ascending lexicographic order; stable, NaN counts as largest. What
    aten.unique_dim sorts by."""

    kind = Kind.OPAQUE
    x: Tensor
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if operands[0].rank != 2:
            raise TypeError_("lexsort wants rows [n, m]")
        return [TensorType.of("i64", operands[0].shape[:1])]

    def reference(self, args: Args, sizes: Any) -> Args:
        order = torch.arange(args[0].shape[0])
        for column in reversed(args[0].unbind(1)):
            order = order[torch.sort(column[order], stable=True).indices]
        return [order]


class TopK(Op, name="topk"):
    """The k largest or smallest values along `dim` and their indices (i64), best first; k is in the result type
    (aten.topk).
    Among equal values the lower index comes first."""

    kind = Kind.OPAQUE
    explicit = True
    x: Tensor
    dim: ir.IntegerAttr
    largest: Flag
    values: Out
    index: Out

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        x, (values, index), d = operands[0], results, attrs["dim"]
        dims_of([d], x.rank)
        good = values.dtype == x.dtype and values.rank == x.rank and values.shape == index.shape and index.dtype.name == "i64"
        return None if good else "results must be values and i64 indices of one shape, of the operand's rank"

    def reference(self, args: Args, sizes: Any) -> Args:
        d = attr(self, "dim")
        k = sizes(from_mlir(self.results[0]).shape[d])
        values, index = torch.sort(args[0], dim=d, descending=attr(self, "largest"), stable=True)
        return [values.narrow(d, 0, k), index.narrow(d, 0, k)]


class Scatter(Op, name="scatter"):
    """The operand with `src` combined into the places that `take` with the same indices, dims and at would read.
    Operands: x, one
    integer tensor for each of `dims` (all of one shape I), src. `how`: set (which of several writes to a place wins is
    unspecified), add, mul, max or min. Negative indices count from the end if `wrap`; one out of range fails the call. Covers
    aten.index_put, index_add, index_copy, scatter, scatter_add and scatter_reduce."""

    kind = Kind.OPAQUE
    x: Tensor
    index: Variadic
    src: Tensor
    dims: Ints
    at: ir.IntegerAttr
    how: ir.StringAttr
    wrap: Flag
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        x, *index, src = operands
        if attrs["how"] not in COMBINATIONS:
            raise TypeError_(f"unknown combination {attrs['how']!r}")
        if not index or len(index) != len(attrs["dims"]) or any(not i.dtype.is_int for i in index) or src.dtype != x.dtype:
            raise TypeError_("scatter wants one integer tensor for each dim and a source of the operand's dtype")
        dims_of(attrs["dims"], x.rank)
        equal_shapes(index, "indices")
        rest = [s for d, s in enumerate(x.shape) if d not in attrs["dims"]]
        if not 0 <= attrs["at"] <= len(rest):
            raise TypeError_(f"{attrs['at']} is no place among {len(rest)} dims")
        equal_shapes([src, src.with_shape([*rest[: attrs["at"]], *index[0].shape, *rest[attrs["at"] :]])], "source and places")
        return [x]

    def reference(self, args: Args, sizes: Any) -> Args:
        x, *index, src = args
        dims, at, how = attr(self, "dims"), attr(self, "at"), attr(self, "how")
        rest = [d for d in range(x.dim()) if d not in dims]
        n = index[0].dim()
        y = x.permute([*dims, *rest]).clone()
        order = [*range(at, at + n), *range(at), *range(at + n, src.dim())]
        place, value = tuple(i.long() for i in index), src.permute(order)
        if how in ("set", "add"):
            y.index_put_(place, value, accumulate=how == "add")
        else:
            flat = torch.arange(y.numel()).reshape(y.shape)[place].reshape(-1)
            mode = {"mul": "prod", "max": "amax", "min": "amin"}[how]
            y = y.reshape(-1).scatter_reduce(0, flat, value.reshape(-1), mode).reshape(y.shape)
        back = [[*dims, *rest].index(d) for d in range(x.dim())]
        return [y.permute(back)]


class SegmentReduce(Op, name="segment_reduce"):
    """Runs of x [*lead, n, *row] combined by `how` (sum, prod, max or min) along n: `offsets` [*lead, S + 1] (i64) are where each
    begins, and where the last one ends; the result is [*lead, S, *row]. An empty run gives what changes nothing. An offset outside
    of [0, n] fails the call. What bags of aten.embedding_bag and aten.segment_reduce are."""

    kind = Kind.OPAQUE
    x: Tensor
    offsets: Tensor
    how: ir.StringAttr
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        x, offsets = operands
        lead = offsets.rank - 1
        if attrs["how"] not in ("sum", "prod", "max", "min"):
            raise TypeError_(f"unknown reduction {attrs['how']!r}")
        if offsets.dtype.name != "i64" or not 0 <= lead < x.rank or x.dtype.is_complex:
            raise TypeError_("segment_reduce wants rows and where their segments begin and end, as i64")
        equal_shapes([offsets.with_shape([*x.shape[:lead], offsets.shape[-1]]), offsets], "offsets and rows")
        return [x.with_shape([*x.shape[:lead], offsets.shape[-1] - 1, *x.shape[lead + 1 :]])]

    def computes(self, k: int) -> bool:
        return True

    def reference(self, args: Args, sizes: Any) -> Args:
        x, offsets = args
        lead, how = offsets.dim() - 1, attr(self, "how")
        rows = x.reshape(math.prod(x.shape[:lead]), *x.shape[lead:])
        y = rows.new_empty(rows.shape[0], offsets.shape[-1] - 1, *rows.shape[2:])
        for r, ends in enumerate(offsets.reshape(len(rows), offsets.shape[-1]).tolist()):
            for s, (start, end) in enumerate(pairwise(ends)):
                y[r, s] = _combined(rows[r, start:end], how)
        return [y.reshape(*x.shape[:lead], *y.shape[1:])]


def _combined(x: torch.Tensor, how: str) -> torch.Tensor:
    """The elements along dim 0."""
    if how in ("sum", "prod"):
        return getattr(x, how)(0, dtype=x.dtype)  # type: ignore[no-any-return]
    low = float("-inf") if x.is_floating_point() else torch.iinfo(x.dtype).min if x.dtype != torch.bool else False
    high = float("inf") if x.is_floating_point() else torch.iinfo(x.dtype).max if x.dtype != torch.bool else True
    neutral = x.new_full((1, *x.shape[1:]), low if how == "max" else high)
    return getattr(torch.cat([neutral, x]), f"a{how}")(0)  # type: ignore[no-any-return]


class UpdateSlice(Op, name="update_slice"):
    """The operand with `src`, of the same rank, stored from position `starts` (one for each dim) on; in range by contract."""

    kind = Kind.OPAQUE
    x: Tensor
    src: Tensor
    starts: Sizes
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        x, src = operands
        if x.dtype != src.dtype or not x.rank == src.rank == len(attrs["starts"]):
            raise TypeError_("update_slice wants a source of the operand's dtype and rank, and a start for each dim")
        return [x]

    def reference(self, args: Args, sizes: Any) -> Args:
        y = args[0].clone()
        y[tuple(slice(sizes(s), sizes(s) + n) for s, n in zip(exprs(attr(self, "starts")), args[1].shape, strict=True))] = args[1]
        return [y]


class SearchSorted(Op, name="searchsorted"):
    """For each element of x the index (i64) where it would be inserted into the sorted last dim of `edges`: before
    equal elements,
    or after them if `right` (aten.searchsorted). `edges` has rank 1 or x's leading dims."""

    kind = Kind.OPAQUE
    edges: Tensor
    x: Tensor
    right: Flag
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if operands[0].rank not in (1, operands[1].rank) or not operands[0].rank or operands[0].dtype != operands[1].dtype:
            raise TypeError_("edges must have rank 1 or the rank of the values, and their dtype")
        return [operands[1].with_dtype("i64")]

    def reference(self, args: Args, sizes: Any) -> Args:
        return [torch.searchsorted(args[0].contiguous(), args[1].contiguous(), right=attr(self, "right"))]


class Histogram(Op, name="histogram"):
    """Counts of elements in `bins` bins of equal width between low and high, or between the extremes where low == high
    (aten.histc)."""

    kind = Kind.OPAQUE
    x: Tensor
    bins: ir.IntegerAttr
    low: ir.FloatAttr
    high: ir.FloatAttr
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if attrs["bins"] < 1:
            raise TypeError_(f"can't count in {attrs['bins']} bins")
        return [operands[0].with_shape([attrs["bins"]])]

    def reference(self, args: Args, sizes: Any) -> Args:
        return [torch.histc(args[0], attr(self, "bins"), attr(self, "low"), attr(self, "high"))]


class Unique(Op, name="unique"):
    """Distinct values in ascending order, for each element the index (i64) of its value, and how often each occurs
    (i64); defines
    the symbol of their number (aten._unique2)."""

    kind = Kind.SYMBOL
    explicit = True
    x: Tensor
    symbol: ir.StringAttr
    values: Out
    inverse: Out
    counts: Out

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        x, (values, inverse, counts) = operands[0], results
        good = (
            (values.dtype, values.rank, values.shape) == (x.dtype, 1, counts.shape)
            and inverse.rank == x.rank
            and all(t.dtype.name == "i64" for t in (inverse, counts))
            and values.shape[0] == symbol(attrs["symbol"])
        )
        return None if good else "results must be values [n], indices like the operand and counts [n]"

    def reference(self, args: Args, sizes: Any) -> Args:
        return list(torch.unique(args[0], sorted=True, return_inverse=True, return_counts=True))


__all__ = [n for n, c in list(globals().items()) if isinstance(c, type) and issubclass(c, Op)] + ["COMBINATIONS"]
