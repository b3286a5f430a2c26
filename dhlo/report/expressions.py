"""Size expressions as trees that the page's script evaluates."""

from __future__ import annotations

from typing import Any

import sympy
from torch.utils._sympy import functions as tsf

from dhlo.ir.symbols import parse

__all__ = ["Expressions", "tree_of"]

_NAMES: dict[type, str] = {
    sympy.Add: "+",
    sympy.Mul: "*",
    sympy.Pow: "pow",
    tsf.FloorDiv: "floordiv",
    tsf.Mod: "mod",
    tsf.PythonMod: "mod",
    tsf.CeilDiv: "ceildiv",
    tsf.CleanDiv: "floordiv",
    tsf.IntTrueDiv: "div",
    tsf.FloatTrueDiv: "div",
    tsf.TruncToInt: "trunc",
    tsf.FloorToInt: "floor",
    tsf.CeilToInt: "ceil",
    tsf.RoundToInt: "round",
    tsf.ToFloat: "float",
    tsf.PowByNatural: "pow",
    tsf.FloatPow: "pow",
    tsf.OpaqueUnaryFn_sqrt: "sqrt",
    tsf.OpaqueUnaryFn_log2: "log2",
    tsf.LShift: "shl",
    tsf.RShift: "shr",
    sympy.Max: "max",
    sympy.Min: "min",
    sympy.Abs: "abs",
    sympy.floor: "floor",
    sympy.ceiling: "ceil",
    sympy.Eq: "eq",
    sympy.Ne: "ne",
    sympy.StrictLessThan: "lt",
    sympy.LessThan: "le",
    sympy.StrictGreaterThan: "gt",
    sympy.GreaterThan: "ge",
    sympy.And: "and",
    sympy.Or: "or",
    sympy.Not: "not",
    sympy.ITE: "ite",
}


def tree_of(e: sympy.Basic) -> Any:
    """An expression as JSON: a number, a symbol's name, or a list of a function's name and its arguments.

    Raises ValueError for what the page can't compute.
    """
    if e in (sympy.true, sympy.false):
        return int(e == sympy.true)
    if e.is_Symbol:
        return e.name
    if e.is_Integer:
        return int(e)
    if e.is_Rational:
        return ["div", int(e.p), int(e.q)]
    if e.is_Float:
        return float(e)
    if isinstance(e, sympy.Piecewise):
        (value, condition), *rest = e.args
        last = not rest or condition == sympy.true
        return tree_of(value) if last else ["ite", tree_of(condition), tree_of(value), tree_of(sympy.Piecewise(*rest))]
    name = next((n for cls, n in _NAMES.items() if isinstance(e, cls)), None)
    if name is None:
        raise ValueError(f"'{e}' has no tree")
    return [name, *map(tree_of, e.args)]


class Expressions:
    """The expressions of a page, each of them once: what `number` returns stands for one in the page's data."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []  # text and tree; null where the text is no expression
        self._known: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Texts come from files: one that isn't an expression is shown as it is."""
        if text not in self._known:
            try:
                tree = tree_of(parse(text))
            except (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError):
                tree = None
            self._known[text] = len(self.rows)
            self.rows.append([text, tree])
        return self._known[text]
