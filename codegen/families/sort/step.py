"""Ordering and searching of groups."""

from __future__ import annotations

from dhlo.codegen.families.family import KernelFamily
from dhlo.codegen.families.kernel import Launch, where
from dhlo.codegen.families.lowering import Lowering, anchor_of
from dhlo.codegen.families.sort.lexsort import lower_lexsort
from dhlo.codegen.families.sort.search import lower_histogram, lower_search_sorted
from dhlo.codegen.families.sort.sort import lower_sort, lower_topk
from dhlo.errors import CompileError
from dhlo.ir.dialect import Kind
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.lookup import Histogram, LexSort, SearchSorted, Sort, TopK
from dhlo.ir.types import from_mlir

__all__ = ["HistogramFamily", "LexSortFamily", "SearchSortedFamily", "SortFamily", "TopKFamily"]


class _OpaqueFamily(KernelFamily):
    """Groups that hold one op and nothing else."""

    anchor = Kind.OPAQUE.value

    def __init__(self, low: Lowering, group: Group) -> None:
        super().__init__(low, group)
        self.op = anchor_of(group, Kind.OPAQUE)


class HistogramFamily(_OpaqueFamily):
    """Counts of values in bins."""

    ops = (Histogram,)

    def __init__(self, low: Lowering, group: Group) -> None:
        super().__init__(low, group)
        x = from_mlir(self.op.operands[0])
        if not x.dtype.is_float:
            raise CompileError(f"histogram of {x.dtype} has no kernel yet", where=where(self.op), hint="count floats")

    def lower(self) -> Launch:
        return lower_histogram(self.low, self.group, self.op)


class SearchSortedFamily(_OpaqueFamily):
    """Places in an ordered line."""

    ops = (SearchSorted,)

    def __init__(self, low: Lowering, group: Group) -> None:
        super().__init__(low, group)
        edges, x = (from_mlir(v) for v in self.op.operands)
        if edges.dtype != x.dtype:
            raise CompileError(f"search of {x.dtype} among {edges.dtype} has no kernel yet", where=where(self.op))

    def lower(self) -> Launch:
        return lower_search_sorted(self.low, self.group, self.op)


class LexSortFamily(_OpaqueFamily):
    """The order of rows."""

    ops = (LexSort,)

    def lower(self) -> Launch:
        return lower_lexsort(self.low, self.group, self.op)


class SortFamily(_OpaqueFamily):
    """Ordered lines."""

    ops = (Sort,)

    def lower(self) -> Launch:
        return lower_sort(self.low, self.group, self.op)


class TopKFamily(_OpaqueFamily):
    """The first of ordered lines."""

    ops = (TopK,)

    def lower(self) -> Launch:
        return lower_topk(self.low, self.group, self.op)
