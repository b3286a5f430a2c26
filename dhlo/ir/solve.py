"""Which symbols arguments' sizes tell the values of, and how."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from dhlo.ir.symbols import symbols_of

__all__ = ["solve_sizes"]


def solve_sizes(sizes: Sequence[sympy.Expr]) -> list[tuple[str, int, sympy.Expr, sympy.Expr]]:
    """Symbols in the order in which values follow: each with the number of a size, and with a and b such that the size is
    `a * symbol + b`, a is a whole number other than 0, and b has symbols before it alone. Sizes that are just symbols go first."""
    out, told = list[tuple[str, int, sympy.Expr, sympy.Expr]](), set[str]()

    def tell(name: str, k: int, a: sympy.Expr, b: sympy.Expr) -> None:
        out.append((name, k, a, b))
        told.add(name)

    for k, e in enumerate(sizes):
        if e.is_Symbol and e.name not in told:
            tell(e.name, k, sympy.Integer(1), sympy.Integer(0))
    before = -1
    while before != len(out):
        before = len(out)
        for k, e in enumerate(sizes):
            unknown = symbols_of(e) - told
            if len(unknown) != 1:
                continue
            s = next(x for x in e.free_symbols if x.name in unknown)
            a, b = e.coeff(s, 1), e.coeff(s, 0)
            if a.is_Integer and a != 0 and (e - a * s - b).expand() == 0:
                tell(s.name, k, a, b)
    return out
