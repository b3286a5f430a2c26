"""What an expression is made of, each part of which is looked at once: replacing takes long, above all where nothing is found."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import sympy
from torch.utils._sympy.functions import Mod, PythonMod

from dhlo.ir.symbols import FloorDiv

__all__ = ["mentions", "replaced"]


def mentions(e: sympy.Basic, part: sympy.Expr) -> bool:
    """Whether `e.subs(part, ...)` may find something: all of the quotients in `part`; and of a product one with all of its factors,
    of a sum one with all of its terms, whatever else these have."""
    of, found = _parts(part), _parts(e)
    if not of.quotients <= found.quotients:
        return False
    if part.is_Mul:
        return found.powers or of.powers or any(_factors(part) <= p for p in found.products)
    if part.is_Add:
        return any(_terms(part) <= s for s in found.sums)
    return True


def replaced(e: sympy.Basic, part: sympy.Expr, value: sympy.Expr, known: dict[sympy.Basic, sympy.Basic]) -> sympy.Basic:
    """What `e.subs(part, value)` gives, with each of e's parts replaced once: `known` holds them, for this part and value. Building
    a quotient anew takes sympy milliseconds, and sizes of nested windows name each many times."""
    if not mentions(e, part):
        return e
    found = known.get(e)
    if found is None:
        if e == part:
            found = value
        elif _inside(e, part):
            found = e.func(*[replaced(a, part, value, known) for a in e.args])
        else:
            found = e.subs(part, value)
        known[e] = found
    return found


def _inside(e: sympy.Basic, part: sympy.Expr) -> bool:
    """Whether sympy looks for `part` in e's operands only: it may be some of a product's factors or of a sum's terms."""
    if e.is_Mul:
        return not (part.is_Mul and _factors(part) <= _factors(e)) and not _parts(e).powers
    if e.is_Add:
        return not (part.is_Add and _terms(part) <= _terms(e))
    return isinstance(e, FloorDiv | Mod | PythonMod | sympy.Max | sympy.Min | sympy.Rel)


@dataclass(frozen=True)
class _Parts:
    """Quotients, the factors of each product and the terms of each sum in an expression; `powers`: there are some of products or
    sums, which sympy takes apart in ways of its own."""

    quotients: frozenset[sympy.Expr] = frozenset()
    products: frozenset[frozenset[sympy.Expr]] = frozenset()
    sums: frozenset[frozenset[sympy.Expr]] = frozenset()
    powers: bool = False


_NONE = _Parts()


@functools.lru_cache(maxsize=1 << 15)
def _parts(e: sympy.Basic) -> _Parts:
    parts = [p for a in e.args if (p := _parts(a)) is not _NONE]
    is_quotient, is_power = isinstance(e, FloorDiv), e.is_Pow and not e.args[0].is_Atom and not isinstance(e.args[0], FloorDiv)
    if len(parts) == 1 and not (is_quotient or is_power or e.is_Mul or e.is_Add):
        return parts[0]
    own = _Parts(
        frozenset([e]) if is_quotient else frozenset(),
        frozenset([_factors(e)]) if e.is_Mul else frozenset(),
        frozenset([_terms(e)]) if e.is_Add else frozenset(),
        is_power,
    )
    if not parts:
        return own if own != _NONE else _NONE
    all_ = [own, *parts]
    return _Parts(
        frozenset().union(*(p.quotients for p in all_)),
        frozenset().union(*(p.products for p in all_)),
        frozenset().union(*(p.sums for p in all_)),
        any(p.powers for p in all_),
    )


def _factors(product: sympy.Expr) -> frozenset[sympy.Expr]:
    """Without numbers, and without powers."""
    return frozenset(a.args[0] if a.is_Pow else a for a in product.args if not a.is_number)


def _terms(total: sympy.Expr) -> frozenset[sympy.Expr]:
    """Without numbers and factors."""
    return frozenset(a.as_coeff_Mul()[1] for a in total.args if not a.is_number)
