"""Bounds of expressions from those of their symbols. Sizes of nested windows name the same quotients again and again, so each part
of an expression is worked out once, while the symbols' ranges are what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import sympy
from torch.utils._sympy.interp import _run_sympy_handler, sympy_interp
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import SymPyValueRangeAnalysis, ValueRanges

from dhlo.frontend.program import Range

__all__ = ["Intervals"]

_Values: TypeAlias = ValueRanges[Any]


class Intervals:
    """Bounds under the ranges that `range_of` gives for symbols' names, until `forget`; `at_least` is assumed of every size of an
    input."""

    def __init__(self, range_of: Callable[[str], Range]) -> None:
        self._range_of = range_of
        self._known: dict[tuple[sympy.Basic, int], _Values | Exception] = {}

    def forget(self) -> None:
        """Ranges have changed."""
        self._known.clear()

    def of(self, e: sympy.Basic, at_least: int = 0) -> _Values:
        """The values that an expression can have. Raises what torch's analysis does of an expression that it doesn't know."""
        key = (e, at_least)
        found = self._known.get(key)
        if found is None:
            try:
                found = self._symbol(e, at_least) if isinstance(e, sympy.Symbol) else self._compound(e, at_least)
            except Exception as error:  # the next question would be answered alike
                found = error
            self._known[key] = found
        if isinstance(found, Exception):
            raise found
        return found

    def _compound(self, e: sympy.Basic, at_least: int) -> _Values:
        if not e.args:
            constant: _Values = sympy_interp(SymPyValueRangeAnalysis, {}, e)
            return constant
        parts = [self.of(a, at_least) for a in e.args]
        whole: _Values = _run_sympy_handler(SymPyValueRangeAnalysis, parts, e)  # type: ignore[no-untyped-call]
        return whole

    def _symbol(self, s: sympy.Symbol, at_least: int) -> _Values:
        r = self._range_of(s.name)
        lo = r.lo if s.name.startswith("u") else max(r.lo or 0, at_least)
        if not s.is_integer:
            return ValueRanges(-sympy.oo, sympy.oo)
        return ValueRanges(-int_oo if lo is None else lo, int_oo if r.hi is None else max(r.hi, lo or 0))
