"""Ordering and searching of groups."""

from __future__ import annotations

from dhlo.codegen.families.family import LaunchFamily
from dhlo.codegen.families.kernel import Launch
from dhlo.codegen.families.lowering import anchor_of
from dhlo.codegen.families.sort.lexsort import lower_lexsort
from dhlo.codegen.families.sort.search import lower_histogram, lower_search_sorted
from dhlo.codegen.families.sort.sort import lower_sort, lower_topk
from dhlo.ir.dialect import Kind
from dhlo.ir.ops.lookup import Histogram, LexSort, SearchSorted, Sort, TopK

__all__ = ["HistogramFamily", "SearchSortedFamily", "LexSortFamily", "SortFamily", "TopKFamily"]


class HistogramFamily(LaunchFamily):
    """Counts of values in bins."""

    anchor = Kind.OPAQUE.value
    ops = (Histogram,)

    def lower(self) -> Launch:
        return lower_histogram(self.low, self.group, anchor_of(self.group, Kind.OPAQUE))


class SearchSortedFamily(LaunchFamily):
    """Places in an ordered line."""

    anchor = Kind.OPAQUE.value
    ops = (SearchSorted,)

    def lower(self) -> Launch:
        return lower_search_sorted(self.low, self.group, anchor_of(self.group, Kind.OPAQUE))


class LexSortFamily(LaunchFamily):
    """The order of rows."""

    anchor = Kind.OPAQUE.value
    ops = (LexSort,)

    def lower(self) -> Launch:
        return lower_lexsort(self.low, self.group, anchor_of(self.group, Kind.OPAQUE))


class SortFamily(LaunchFamily):
    """Ordered lines."""

    anchor = Kind.OPAQUE.value
    ops = (Sort,)

    def lower(self) -> Launch:
        return lower_sort(self.low, self.group, anchor_of(self.group, Kind.OPAQUE))


class TopKFamily(LaunchFamily):
    """The first of ordered lines."""

    anchor = Kind.OPAQUE.value
    ops = (TopK,)

    def lower(self) -> Launch:
        return lower_topk(self.low, self.group, anchor_of(self.group, Kind.OPAQUE))
