"""Symbols of a program: their ranges, the equalities between sizes, and simple proofs over them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import sympy
from sympy.logic.boolalg import BooleanFalse, BooleanTrue

from dhlo.errors import CompileError
from dhlo.frontend.intervals import Intervals
from dhlo.frontend.parts import replaced
from dhlo.frontend.program import Range
from dhlo.frontend.promotion import is_boolean
from dhlo.ir.symbols import FloorDiv, as_expr, describe, show, symbol

__all__ = ["Contradiction", "Dims", "static_value"]

Expr: TypeAlias = sympy.Expr
_TOO_LONG = 40
_NO_BOUND = 1 << 62  # a limit that no size can reach says nothing


class Contradiction(CompileError):
    """No sizes fulfil all that is known of them. The text names sizes by their symbols."""


def static_value(x: Any) -> Any:
    """A constant sympy value as the Python number it stands for; anything else as it is."""
    if isinstance(x, sympy.Basic):
        if isinstance(x, BooleanTrue):
            return True
        if isinstance(x, BooleanFalse):
            return False
        if x.is_Integer:
            return int(x)
        if x.is_Float or (x.is_number and x.is_Rational):
            return float(x)
    return x


@dataclass
class Dims:
    """Facts collected while importing. They outlive a round: the program is imported again until a round finds
    nothing new."""

    ranges: dict[str, Range] = field(default_factory=dict)
    substitution: dict[sympy.Symbol, Expr] = field(default_factory=dict)
    unsolved: list[tuple[Expr, Expr]] = field(default_factory=list)
    not_negative: set[Expr] = field(default_factory=set)  # what conditions say of sizes beyond single bounds
    promised: set[Expr] = field(default_factory=set)  # not negative: what guards say, which are checked before anything else
    ones: set[Expr] = field(default_factory=set)  # sizes that conditions say are 1, though no renaming of a symbol does
    intrinsic: set[str] = field(default_factory=set)  # run-time symbols that are counts: never negative
    signed: dict[str, str] = field(default_factory=dict)  # the run-time symbols of arguments that may be negative
    defined: dict[str, int] = field(default_factory=dict)  # run-time symbols, in the order in which the program defines them
    asserted: set[Any] = field(default_factory=set)  # conditions on run-time symbols that this round checks already
    shorter: dict[Expr, Expr] = field(default_factory=dict)  # what this round has checked to be equal to something shorter
    check_here: Callable[[Expr, Expr], bool] = lambda a, b: False  # checks an equality at once, if it must be
    changed: bool = False
    _proofs: dict[Any, bool] = field(default_factory=dict)
    _expanded: dict[Expr, Expr] = field(default_factory=dict)
    _guards_by_term: dict[Any, dict[Expr, None]] = field(default_factory=dict)  # `promised`, as far as substitution goes
    _shortened: dict[Any, tuple[int, Any]] = field(default_factory=dict)  # by expression, and by how many of `shorter`
    _replaced: dict[tuple[Expr, Expr], dict[Any, Any]] = field(default_factory=dict)  # by what is replaced, for all rounds

    # ------------------------------------------------------------------------------------------------ symbols
    def expr(self, x: Any) -> Expr:
        """A size under the equalities known so far."""
        e = as_expr(x)
        return e.xreplace(self.substitution) if self.substitution and e.free_symbols else e

    def size(self, x: Any) -> Expr:
        """A size as an expression, in fewer words where conditions say so."""
        e = as_expr(x)
        if e in self.ones:
            return sympy.Integer(1)
        return self.shortened(e)

    def shortened(self, e: Any) -> Any:
        """An expression or condition in fewer words, by what this round has checked."""
        if not self.shorter or not e.has(FloorDiv):
            return e
        tried, short = self._shortened.get(e, (0, e))
        if tried < len(self.shorter):
            for long_and_short in itertools.islice(self.shorter.items(), tried, None):
                short = replaced(short, *long_and_short, self._replaced.setdefault(long_and_short, {}))
            self._shortened[e] = len(self.shorter), short
        return short

    def forget_shorter(self) -> None:
        """Begins a round, which checks the equalities anew."""
        self.shorter.clear()
        self._shortened.clear()

    def shorten(self, checked: Any) -> None:
        """Takes in a condition that has been checked: sizes rest on it if it is an equality of what arguments decide."""
        if not isinstance(checked, sympy.Eq) or any(s.name.startswith("u") or not s.is_integer for s in checked.free_symbols):
            return
        long, short = sorted(checked.args, key=lambda e: (e.count_ops(), str(e)), reverse=True)
        factor, long = long.as_coeff_Mul()
        short = short / factor
        if long.has(FloorDiv) and _is_whole(short) and not short.has(long):
            if long in self.shorter:  # what has been shortened by it would now be something else
                self._shortened.clear()
            self.shorter[long] = short

    def range_of(self, name: str) -> Range:
        return self.ranges.get(name, Range(None, None) if name.startswith("u") else Range(0, None))

    def declare(self, name: str, lo: int | None, hi: int | None) -> None:
        if name not in self.ranges:
            self.ranges[name] = Range(lo, None if hi is None or hi >= _NO_BOUND else hi)
            self._intervals.forget()

    def declare_signed(self, name: str, lo: int | None, hi: int | None) -> None:
        """Declares a number that may be negative, which a run-time symbol stands for: symbols of inputs are natural numbers."""
        own = self.signed.setdefault(name, f"u_{name}")
        self.substitution[symbol(name)] = symbol(own)
        self._guards_by_term.clear()
        self.declare(own, lo, hi)

    def count(self, name: str) -> None:
        """Declares a run-time symbol that counts something."""
        self.intrinsic.add(name)
        self.tighten(name, 0, None)

    def define(self, name: str) -> None:
        """Says that what the program does next knows the value of a run-time symbol."""
        self.defined.setdefault(name, len(self.defined))

    def tighten(self, name: str, lo: int | None, hi: int | None) -> None:
        """Intersects a symbol's range. Raises CompileError where nothing is left."""
        old = self.range_of(name)
        lo = max((x for x in (lo, old.lo) if x is not None), default=None)
        hi = min((x for x in (hi, old.hi) if x is not None and x < _NO_BOUND), default=None)
        if lo is not None and hi is not None and lo > hi:
            raise Contradiction(f"no value of {name} satisfies the program's conditions ({lo} <= {name} <= {hi})")
        if Range(lo, hi) != old:
            self.ranges[name] = Range(lo, hi)
            self._forget_proofs()

    # ------------------------------------------------------------------------------------------------ proofs
    def __post_init__(self) -> None:
        self._intervals = Intervals(self.range_of)

    def _forget_proofs(self) -> None:
        """What is known of symbols has changed."""
        self._proofs.clear()
        self._intervals.forget()

    def bounds(self, e: Expr, at_least: int = 0) -> tuple[Expr, Expr]:
        """Lower and upper bound of an expression; `at_least` is assumed of every size of an input."""
        values = self._intervals.of(e, at_least)
        return values.lower, values.upper

    def expanded(self, e: Expr) -> Expr:
        """An expression without brackets, as sympy's `expand` gives it, which goes through all of an expression once for each kind
        of bracket: terms recur."""
        if not e.args:
            return e
        found = self._expanded.get(e)
        if found is None:
            found = sympy.Add(*map(self.expanded, e.args)) if e.is_Add else sympy.expand(e)
            self._expanded[e] = found
        return found

    def nonnegative(self, e: Expr, at_least: int = 0) -> bool:
        """Is e >= 0 for all sizes?"""
        e = self.expanded(e)
        if e.is_number:
            return bool(e >= 0)
        key = (e, at_least)
        hit = self._proofs.get(key)
        if hit is None:
            try:
                hit = bool(self.bounds(e, at_least)[0] >= 0)
            except Exception:  # an expression that torch's bounds don't know: nothing is proved
                hit = False
            hit = hit or bool(e.is_nonnegative)
            self._proofs[key] = hit
        return hit

    def equal(self, a: Any, b: Any) -> bool:
        """Are two sizes the same expression?"""
        a, b = as_expr(a), as_expr(b)
        return bool(a == b) or (not (a.is_number and b.is_number) and self.expanded(a - b) == 0)

    def holds(self, cond: Any, at_least: int = 0) -> bool | None:
        """Truth of a relation for all sizes, or None where that isn't known."""
        cond = self.fold(cond, at_least)
        if isinstance(cond, bool | BooleanTrue | BooleanFalse):
            return bool(cond)
        if isinstance(cond, sympy.And | sympy.Or):
            parts = [self.holds(c, at_least) for c in cond.args]
            stop = isinstance(cond, sympy.Or)
            return stop if stop in parts else (None if None in parts else not stop)
        if isinstance(cond, sympy.Not):
            inner = self.holds(cond.args[0], at_least)
            return None if inner is None else not inner
        if isinstance(cond, sympy.Eq | sympy.Ne):
            same = self._same(cond.lhs - cond.rhs, at_least)
            return same if same is None or isinstance(cond, sympy.Eq) else not same
        if isinstance(cond, sympy.Ge | sympy.Gt | sympy.Le | sympy.Lt):
            d = cond.gts - cond.lts
            one = 1 if isinstance(cond, sympy.StrictGreaterThan | sympy.StrictLessThan) else 0
            if self.nonnegative(d - one, at_least):
                return True
            if self.nonnegative(-d - (1 - one), at_least):
                return False
        return None

    def _same(self, d: Expr, at_least: int) -> bool | None:
        d = self.expanded(d)
        if d.is_number:
            return bool(d == 0)
        if self.nonnegative(d - 1, at_least) or self.nonnegative(-d - 1, at_least):
            return False
        return None

    def fold(self, e: Any, at_least: int = 0, *, guarded: bool = False) -> Any:
        """Drops the branches of max and min that can be proved not to be taken; `guarded`: where the program's guards hold."""
        if not isinstance(e, sympy.Basic) or not e.has(sympy.Max, sympy.Min):
            return e
        args = [self.fold(a, at_least, guarded=guarded) for a in e.args]
        if any(a is not b for a, b in zip(args, e.args, strict=True)):  # building a max or min anew is slow
            e = e.func(*args)
        if isinstance(e, sympy.Max | sympy.Min):
            big, keep = isinstance(e, sympy.Max), list(e.args)
            for a in list(keep):
                others = [x for x in keep if x is not a]
                if any(self._is_above(*((x, a) if big else (a, x)), at_least, guarded) for x in others):
                    keep = others
            if len(keep) < len(e.args):
                e = (sympy.Max if big else sympy.Min)(*keep)
        return e

    def _is_above(self, a: Expr, b: Expr, at_least: int, guarded: bool) -> bool:
        """Is a >= b for all sizes, those that the guards admit or all that there are?"""
        d = self.expanded(a - b)
        return self.nonnegative(d, at_least) or (guarded and any(self.nonnegative(d - g, at_least) for g in self._guards_about(d)))

    def _guards_about(self, d: Expr) -> Iterable[Expr]:
        """Of what guards promise not to be negative, what may prove that of a sum that is expanded, too: what has a term in
        common with it. The bounds of other differences are those of the sum less the guard's, term by term, and the guard's upper
        one isn't negative; but where all is of one symbol, sympy looks at more than terms."""
        if not self._guards_by_term:
            for promised in self.promised:
                g = self.expanded(promised.xreplace(self.substitution))
                for key in (*_terms_of(g), frozenset(g.free_symbols)):
                    self._guards_by_term.setdefault(key, {})[g] = None
        keys = (*_terms_of(d), *([frozenset(d.free_symbols)] if len(d.free_symbols) == 1 else []))
        return {g: None for key in keys for g in self._guards_by_term.get(key, ())}

    def promise(self, relation: Any) -> None:
        """Takes in a guard of the program: sizes of its results may rest on it."""
        if isinstance(relation, sympy.Ge | sympy.Gt | sympy.Le | sympy.Lt) and all(s.is_integer for s in relation.free_symbols):
            self.promised.add(_surplus(relation))
            self._guards_by_term.clear()

    def simplify(self, e: Any) -> Expr:
        """Folds max and min by what is known. Where non-empty inputs decide, non-emptiness becomes part of the
        contract."""
        e = self.fold(as_expr(e))
        if not e.has(sympy.Max, sympy.Min):
            return e
        better = self.fold(e, 1)
        if better.has(sympy.Max, sympy.Min):
            return e
        for s in sorted(e.free_symbols, key=str):  # one symbol is enough, mostly
            if s.name.startswith("u") or not s.is_integer:
                continue
            old = self.range_of(s.name)
            self.tighten(s.name, 1, None)
            got = self.fold(e)
            if not got.has(sympy.Max, sympy.Min):
                return got
            self.ranges[s.name] = old
            self._forget_proofs()
        return e

    # ------------------------------------------------------------------------------------------------ equalities
    def same(self, a: Any, b: Any) -> Expr:
        """Records that two sizes have to be equal and gives the one to go on with (a static one if there is)."""
        a, b = self.expr(a), self.expr(b)
        if self.equal(a, b):
            return a
        if a.is_number and b.is_number:
            raise Contradiction(f"sizes {show(a)} and {show(b)} must be equal")
        self.equate(a, b)
        return b if b.is_number else a

    def equate(self, a: Any, b: Any) -> bool:
        """Learns a == b. True if that can be expressed by replacing a symbol; else the equality is kept to be
        asserted."""
        a, b = self.expr(a), self.expr(b)
        d = self.expanded(a - b)
        if d == 0:
            return True
        if d.is_number:
            raise Contradiction(f"sizes {show(a)} and {show(b)} can't be equal")
        solved = self._solve(d)
        if solved is None:
            if not self.check_here(a, b) and not any(
                self.equal(a - b, x - y) or self.equal(b - a, x - y) for x, y in self.unsolved
            ):
                self.unsolved.append((a, b))
            return False
        sym, value = solved
        self.substitution = {k: v.xreplace({sym: value}) for k, v in self.substitution.items()}
        self.substitution[sym] = value
        self._guards_by_term.clear()
        self._forget_proofs()
        if value.is_Symbol:
            r = self.range_of(sym.name)
            self.tighten(value.name, r.lo, r.hi)
        self.changed = True
        return True

    def _solve(self, d: Expr) -> tuple[sympy.Symbol, Expr] | None:
        """A symbol of d == 0 and its value, such that the value can't be negative if it can be helped."""
        best: tuple[Any, sympy.Symbol, Expr] | None = None
        for s in sorted(d.free_symbols, key=str):
            if not s.is_integer:
                continue
            c = d.coeff(s, 1)
            rest = sympy.expand(d - c * s)
            if not c.is_Integer or c == 0 or s in rest.free_symbols:
                continue
            value = sympy.expand(-rest / c)
            if not _is_whole(value):
                continue
            if value.is_Integer and value < 0:
                raise Contradiction(f"{s} would have to be {value}")
            if any(f.name.startswith("u") for f in value.free_symbols) and not s.name.startswith("u"):
                continue  # sizes of inputs come first
            if s.name in self.defined and any(self._defined_at(f.name) > self.defined[s.name] for f in value.free_symbols):
                continue  # where s is defined, which is where this is checked, f has no value yet
            signs = all(t.as_coeff_Mul()[0] >= 0 for t in sympy.Add.make_args(value))
            rank = (
                not signs and not self.nonnegative(value),
                not s.name.startswith("u"),
                not value.is_Symbol,
                -int(s.name[1:]) if s.name[1:].isdigit() else 0,
            )
            if best is None or rank < best[0]:
                best = (rank, s, value)
        return None if best is None or best[0][0] else (best[1], best[2])

    def _defined_at(self, name: str) -> float:
        """When a symbol gets its value, as in `defined`: -1 for those of inputs, infinity for those not yet defined."""
        of_input = not name.startswith("u") or name in self.signed.values()
        return -1 if of_input else self.defined.get(name, math.inf)

    def learn(self, cond: Any) -> Any:
        """Takes in a condition that the program asserts. Returns what is left of it to be checked, or None if nothing
        is."""
        cond = cond.xreplace(self.substitution) if isinstance(cond, sympy.Basic) else sympy.sympify(bool(cond))
        if cond.count_ops() > _TOO_LONG:  # proofs about it would take long and rarely succeed
            return None if isinstance(cond, BooleanTrue) else cond
        cond = self.fold(cond)
        if isinstance(cond, sympy.And):
            left = [x for x in map(self.learn, cond.args) if x is not None]
            return sympy.And(*left) if left else None
        bound = self._bound(cond)
        if bound is not None and bound[2] is not None and bound[2] >= _NO_BOUND:
            return None
        if bound is not None and bound[0].startswith("u"):
            return self._learn_bound(cond, *bound)
        if self.holds(cond):
            return None
        if isinstance(cond, sympy.Eq) and not is_boolean(cond.lhs):
            d = self.expanded(cond.lhs - cond.rhs)
            unbacked = any(s.name.startswith("u") or not s.is_integer for s in d.free_symbols)
            solved = self._solve(d) if all(s.is_integer for s in d.free_symbols) else None
            if solved:
                self.equate(cond.lhs, cond.rhs)
            elif not unbacked and cond.rhs == 1:
                self.ones.add(cond.lhs)
            return cond if unbacked or not solved else None
        if bound is not None:
            self.tighten(*bound)
            return None
        if isinstance(cond, sympy.Ge | sympy.Le):  # a <= b and b <= a: some guards come as two inequalities
            d = sympy.expand(cond.gts - cond.lts)
            if sympy.expand(-d) in self.not_negative and self.equate(cond.gts, cond.lts):
                return None
            self.not_negative.add(d)
        return cond

    def check(self, conditions: Iterable[Any]) -> None:
        """Raises Contradiction where one of the conditions is false for all sizes, by what is known of them."""
        for cond in conditions:
            if self.holds(cond.xreplace(self.substitution) if isinstance(cond, sympy.Basic) else cond) is False:
                raise Contradiction(f"{describe(cond, {})} is never true")

    def _learn_bound(self, cond: Any, name: str, lo: int | None, hi: int | None) -> Any:
        """A bound of a run-time symbol is known from here on, but has to be checked once, in every round."""
        if cond in self.asserted or (name in self.intrinsic and hi is None and (lo or 0) <= 0):
            return None
        self.asserted.add(cond)
        self.tighten(name, lo, hi)
        return cond

    @staticmethod
    def _bound(cond: Any) -> tuple[str, int | None, int | None] | None:
        """(name, lo, hi) of a relation between one symbol and a number."""
        if not isinstance(cond, sympy.Ge | sympy.Gt | sympy.Le | sympy.Lt):
            return None
        d = sympy.expand(_surplus(cond))
        if len(d.free_symbols) != 1:
            return None
        s = next(iter(d.free_symbols))
        c, rest = d.coeff(s, 1), sympy.expand(d - d.coeff(s, 1) * s)
        if not s.is_integer or not c.is_Integer or not rest.is_Integer or c == 0:
            return None
        limit = sympy.Rational(-rest, c)
        return (s.name, int(sympy.ceiling(limit)), None) if c > 0 else (s.name, None, int(sympy.floor(limit)))

    def of(self, name: str) -> Expr:
        """A symbol under the equalities known so far."""
        return self.expr(symbol(name))


def _is_whole(e: Expr) -> bool:
    """Whether all terms of a sum have whole factors: the host program divides term by term."""
    return all(t.as_coeff_Mul()[0].is_Integer for t in sympy.Add.make_args(e))


def _terms_of(e: Expr) -> set[Expr]:
    """The terms of a sum, but for a number, without their factors."""
    return {t.as_coeff_Mul()[1] for t in sympy.Add.make_args(e) if not t.is_number}


def _surplus(inequality: Any) -> Expr:
    """What isn't negative where an inequality of whole numbers holds."""
    return inequality.gts - inequality.lts - int(isinstance(inequality, sympy.StrictGreaterThan | sympy.StrictLessThan))
