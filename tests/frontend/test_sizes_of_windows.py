"""Proofs about sizes that name the same quotients many times give what sympy and torch give for the whole expression."""

from __future__ import annotations

import random

import pytest
import sympy
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from dhlo.frontend.dims import Dims
from dhlo.frontend.parts import mentions, replaced
from dhlo.ir.symbols import FloorDiv, parse

SYMBOLS = [parse(n) for n in ("s0", "s1", "s2", "u3")]


def expression(chosen: random.Random, depth: int) -> sympy.Expr:
    if depth == 0:
        return chosen.choice([*SYMBOLS, sympy.Integer(chosen.randint(-3, 5))])
    a, b = expression(chosen, depth - 1), expression(chosen, chosen.randrange(depth))
    return chosen.choice([a + b, a * b, a - b, FloorDiv(a, chosen.randint(2, 4)), sympy.Max(a, b)])


@pytest.mark.parametrize("seed", range(4))
def test_parts_are_replaced_as_sympy_does(seed: int) -> None:
    """Factors of products and terms of sums, too, whatever else these have; and what isn't mentioned isn't found."""
    chosen, found = random.Random(seed), 0
    for _ in range(40):
        e = expression(chosen, 3) * expression(chosen, 2) + expression(chosen, 2)
        parts = [p.as_coeff_Mul()[1] for p in sympy.preorder_traversal(e) if p.args]
        candidates = [*chosen.sample(parts, min(3, len(parts))), expression(chosen, 2) * expression(chosen, 1)]
        for part in (p for p in candidates if p.args and p.is_Mul | p.is_Add | isinstance(p, FloorDiv)):
            value = chosen.choice([*SYMBOLS, sympy.Symbol("other", integer=True)])
            expected = e.subs(part, value)
            assert replaced(e, part, value, {}) == expected, (e, part)
            assert mentions(e, part) or expected == e
            found += expected != e
    assert found > 20


@pytest.mark.parametrize("seed", range(2))
def test_bounds_are_those_of_the_whole(seed: int) -> None:
    """Before and after a range changes."""
    chosen, dims = random.Random(seed), Dims()
    expressions = [expression(chosen, 4) for _ in range(40)]
    for lo, hi in ((0, None), (1, 40), (3, 3)):
        dims.tighten("s0", lo, hi)
        ranges = {s: ValueRanges(0 if s.name[0] == "s" else -int_oo, int_oo) for s in SYMBOLS}
        ranges[SYMBOLS[0]] = ValueRanges(lo, int_oo if hi is None else hi)
        for e in expressions:
            expected = bound_sympy(e, ranges)
            assert dims.bounds(e) == (expected.lower, expected.upper), e


def test_what_is_proved_is_so() -> None:
    """Of differences, with guards beside them: no proof of what some sizes that fulfil the guards contradict."""
    chosen, dims, proved = random.Random(5), Dims(), 0
    guards = [parse(f"{a} - {b}") for a, b in (("s0", "s1"), ("4*floordiv(s1, 2)", "s2"), ("s0*s1", "3*s2 + 1"))]
    for g in guards:
        dims.promise(sympy.Ge(g, 0))
    sizes = [s for s in SYMBOLS if s.name != "u3"]
    points = [dict(zip(sizes, (a, b, c), strict=True)) for a in range(5) for b in range(5) for c in range(8)]
    points = [p for p in points if all(g.subs(p) >= 0 for g in guards)]
    for _ in range(80):
        a, b = (expression(chosen, 2).subs(SYMBOLS[3], 2) for _ in range(2))
        if dims._is_above(a, b, 0, True):
            proved += 1
            assert all((a - b).subs(p) >= 0 for p in points), (a, b)
    assert proved > 2 and len(points) > 10
    assert dims._is_above(parse("s0 + 3*s2"), parse("s1"), 0, True)
    assert not dims._is_above(parse("s0"), parse("s1"), 0, False)
    dims.equate("s0", "s3")  # guards are about other symbols from here on
    assert dims.expr("s0") == dims.expr("s3")
    assert dims._is_above(dims.expr("s3"), parse("s1"), 0, True)


def test_a_range_that_changes_while_a_program_is_read() -> None:
    """What was proved, or wasn't, under another range is asked anew."""
    dims = Dims()
    size = parse("floordiv(s0 - 1, 2)")
    assert not dims.nonnegative(size) and dims.nonnegative(size, 1)
    dims.tighten("s0", 1, None)
    assert dims.nonnegative(size)


def test_sizes_are_shortened_by_what_comes_later() -> None:
    """A size that was asked for before an equality was checked, after it, and after that was checked anew for another value."""
    dims = Dims()
    size, product, other = (
        parse("7*floordiv(s0, 4)*floordiv(s1, 4) + s2"),
        parse("floordiv(s0, 4)*floordiv(s1, 4)"),
        parse("mod(s0, 3)"),
    )
    dims.shorten(sympy.Eq(parse("floordiv(s2, 5)*floordiv(s1, 4)*s0"), other))
    assert dims.shortened(size) == size
    dims.shorten(sympy.Eq(product, parse("s2")))
    assert dims.shortened(size) == parse("8*s2")
    dims.shorten(sympy.Eq(product, parse("s1")))
    assert dims.shortened(size) == parse("7*s1 + s2")
    dims.forget_shorter()
    assert dims.shortened(size) == size
