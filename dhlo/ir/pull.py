"""What the `pull` hook of an op asks for: elements of its operands at positions that follow from those of its result.

The hook says where an element comes from; whoever calls it knows what an element and a position are (of one element or of a
vector of them) and how to load, combine and select. Code generation implements this protocol in codegen/elementwise/emit.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import sympy

from dhlo.ir.dtypes import DType

__all__ = ["Element", "Elements", "Position"]

Position: TypeAlias = Any
"""Where an element stands along one dim."""
Element: TypeAlias = Any
"""The value of an element, or a truth about it."""


class Elements(Protocol):
    """Elements of values on demand."""

    zero: Position

    def value(self, v: Any, idx: Sequence[Position]) -> Element:
        """The element of a value, with a position for each of its dims."""
        ...

    def computed(self, v: Any) -> bool:
        """Is a value computed here, and not loaded?"""
        ...

    def constant(self, value: float | int, dtype: DType) -> Element: ...

    def scalar(self, text: str, dtype: DType) -> Element:
        """A number or size expression, as text."""
        ...

    def iota(self, i: Position, start: str, step: str, dtype: DType) -> Element:
        """start + i * step, both numbers or size expressions as text."""
        ...

    def component(self, v: Any, idx: Sequence[Position], part: int) -> Element:
        """The real (0) or imaginary (1) part of a complex value's element."""
        ...

    def random_word(self, position: Position, seed: Element, draw: Element, number: int) -> Element:
        """Word `number` of the Philox block of a position and a draw."""
        ...

    # ------------------------------------------------------------------ positions
    def shift(self, i: Position, by: sympy.Expr | int) -> Position: ...
    def scale(self, i: Position, k: int) -> Position: ...

    def flatten(self, idx: Sequence[Position], shape: Sequence[sympy.Expr]) -> Position:
        """The row-major position."""
        ...

    def reindex(self, idx: Sequence[Position], src: Sequence[sympy.Expr], dst: Sequence[sympy.Expr]) -> list[Position]:
        """Where the element at `idx` of shape `src` stands in `dst`, a shape of the same elements."""
        ...

    def lookup(self, i: Element, size: sympy.Expr, op: Any) -> Position:
        """An index tensor's element as a position in a dim of that size; one out of range fails the call, in the name of `op`."""
        ...

    def line(self, v: Any, idx: Sequence[Position], size: sympy.Expr, op: Any) -> tuple[Position, Element] | None:
        """Where elements of an index tensor lie in a line: that as a position in a dim of that size, and whether it is in range,
        without which nothing may be read there. If it isn't, the call fails as that of `lookup` does."""
        ...

    # ------------------------------------------------------------------ choices
    def in_range(self, i: Position, n: Any) -> Element: ...
    def both(self, a: Element, b: Element) -> Element: ...

    def nonempty(self, sizes: Sequence[sympy.Expr]) -> Element | None:
        """Are all sizes above 0? None where that is certain."""
        ...

    def guarded(self, cond: Element, inside: Callable[[], Element], other: Element) -> Element:
        """`inside()` where the condition holds, and nothing is read elsewhere; else `other`."""
        ...

    def piecewise(self, i: Position, pieces: list[tuple[sympy.Expr, Any, list[Position]]]) -> Element:
        """The value at its index of the first of (upper bound, value, index) whose bound is above `i`."""
        ...
