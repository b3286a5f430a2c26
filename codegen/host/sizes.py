"""Size expressions as machine code: sympy to i64 (or f64) arithmetic in a host function, every subexpression once. Integers are
exact, or the function's overflow flag is set."""

from __future__ import annotations

from collections.abc import Callable

import sympy
from sympy.logic.boolalg import And, BooleanFalse, BooleanTrue, Not, Or
from torch.utils._sympy import functions as tsf

from dhlo.codegen.host.checked import I64_MAX, I64_MIN, CheckedFn
from dhlo.codegen.kernel_ir.builder import F64, I1, I64, V
from dhlo.errors import InternalError
from dhlo.ir.symbols import BitAnd, BitOr, BitXor, show

__all__ = ["SizeEmitter"]

_COMPARE = {
    sympy.Eq: "eq",
    sympy.Ne: "ne",
    sympy.StrictLessThan: "lt",
    sympy.LessThan: "le",
    sympy.StrictGreaterThan: "gt",
    sympy.GreaterThan: "ge",
}
_EXACT = 1 << 53  # integers up to here are f64 without rounding


class SizeEmitter:
    """Evaluates expressions over `symbols` (name -> i64 or f64 value). Conditions come out as i64 0 or 1."""

    def __init__(self, fn: CheckedFn) -> None:
        self.fn = fn
        self.symbols: dict[str, V] = {}
        self._memo: list[dict[sympy.Basic, V]] = [{}]
        self._outer: list[dict[str, V]] = []

    def push(self) -> None:
        """Opens a branch: what is computed or defined in it is forgotten by `pop`."""
        self._memo.append({})
        self.fn.push()
        self._outer.append(dict(self.symbols))

    def pop(self) -> None:
        self._memo.pop()
        self.fn.pop()
        self.symbols = self._outer.pop()

    def emit(self, e: sympy.Basic | int) -> V:
        """The value of an expression as i64, or f64 if it isn't an integer."""
        if isinstance(e, int):
            return self._integer(e)
        for memo in self._memo:
            if e in memo:
                return memo[e]
        v = self._emit(e)
        self._memo[-1][e] = v
        return v

    def whole(self, e: sympy.Basic | int) -> V:
        """The value of a size as i64; where it is written as a quotient, that is one without remainder."""
        v = self.emit(e)
        return v if v.type == I64 else self.fn.cast(self.fn.unary("roundeven", v), I64)

    def real(self, e: sympy.Basic) -> V:
        return self.fn.cast(self.emit(e), F64)

    def truth(self, e: sympy.Basic) -> V:
        """A condition as i1."""
        return self.fn.cmp("ne", self.emit(e), 0)

    def _emit(self, e: sympy.Basic) -> V:
        fn = self.fn
        if e.is_Integer:
            return self._integer(int(e))
        if e.is_Symbol:
            if e.name not in self.symbols:
                raise InternalError(f"size symbol {e} is used before it is known")
            return self.symbols[e.name]
        if isinstance(e, (BooleanTrue, BooleanFalse)):
            return fn.const(int(bool(e)), I64)
        if e.is_Number:
            return fn.const(float(e), F64)
        if isinstance(e, sympy.core.relational.Relational):
            a, b = self._same(e.args[0], e.args[1])
            return fn.cast(fn.cmp(_COMPARE[type(e)], a, b), I64)
        for cls, rule in _RULES.items():
            if isinstance(e, cls):
                return rule(self, e)
        raise InternalError(f"no code for size expression {show(e)} ({type(e).__name__})")

    def _integer(self, value: int) -> V:
        """A constant; one beyond 64 bits overflows wherever it is used."""
        fits = min(max(value, I64_MIN), I64_MAX)
        if fits != value:
            self.fn.record(self.fn.const(True, I1))
        return self.fn.const(fits, I64)

    def _same(self, *args: sympy.Basic) -> list[V]:
        """Values of one type: f64 if any is."""
        vs = [self.emit(a) for a in args]
        if any(v.type == F64 for v in vs):
            vs = [self.fn.cast(v, F64) for v in vs]
        return vs

    def _fold(self, e: sympy.Basic, op: Callable[[V, V], V]) -> V:
        first, *rest = self._same(*e.args)
        for v in rest:
            first = op(first, v)
        return first

    def _product(self, e: sympy.Basic) -> V:
        """Factors from left to right. A product with a factor of 0 fits, whatever the others come to on the way."""
        fn, factors = self.fn, self._same(*e.args)
        out = factors[0]
        with fn.capture() as flags:
            for v in factors[1:-1]:
                out = fn.mul(out, v)
            wraps_early = bool(flags)
            out = fn.mul(out, factors[-1])
        if flags:
            bad = fn.any_of(flags)
            for v in factors if wraps_early else ():  # the last product overflows only if no factor is 0
                lo, hi = fn.interval(v)
                if lo <= 0 <= hi:
                    bad = fn.and_(bad, fn.cmp("ne", v, 0))
            fn.record(bad)
        return out

    def _pow(self, e: sympy.Basic) -> V:
        base, exp = e.args
        if exp.is_Integer and int(exp) > 0:
            b = self.emit(base)
            out = b
            for _ in range(int(exp) - 1):
                out = self.fn.mul(out, b)
            return out
        if isinstance(e, tsf.PowByNatural) or (base.is_integer and exp.is_integer and exp.is_nonnegative):
            return self._natural_power(self.whole(base), self.whole(exp))
        if exp == sympy.Rational(1, 2):
            return self.fn.unary("sqrt", self.real(base))
        if exp == -1:
            return self.fn.div(self.fn.const(1.0, F64), self.real(base))
        fn = self.fn
        fn.module.declare("pow", [F64, F64], F64)
        r = fn.call("pow", [self.real(base), self.real(exp)], F64)
        assert r is not None
        return r

    def _natural_power(self, base: V, exp: V) -> V:
        """By squaring; exponents that are negative or above 63 don't fit."""
        fn = self.fn
        out = fn.const(1, I64)
        fn.record(fn.cmp("ne", fn.and_(exp, ~63), 0))
        for bit in range(6):
            taken = fn.cmp("ne", fn.and_(exp, 1 << bit), 0)
            with fn.capture() as flags:
                more = fn.mul(out, base)
            if flags:
                fn.record(fn.and_(taken, fn.any_of(flags)))
            out = fn.select(taken, more, out)
            if bit == 5:
                break
            with fn.capture() as flags:
                base = fn.mul(base, base)
            if flags:  # the square is needed for higher bits alone
                fn.record(fn.and_(fn.cmp("ge", exp, 2 << bit), fn.any_of(flags)))
        return out

    def _quotient(self, e: sympy.Basic) -> V:
        """A true quotient of integers, which are exact as f64 up to 2^53."""
        fn = self.fn
        for x in map(self.emit, e.args):
            if x.type == I64:
                lo, hi = fn.interval(x)
                if lo < -_EXACT or hi > _EXACT:
                    fn.record(fn.or_(fn.cmp("gt", x, _EXACT), fn.cmp("lt", x, -_EXACT)))
        return fn.div(self.real(e.args[0]), self.real(e.args[1]))

    def _floordiv(self, e: sympy.Basic) -> V:
        a, b = self.whole(e.args[0]), e.args[1]
        return self.fn.floordiv(a, int(b) if b.is_Integer and int(b) > 0 else self._divisor(b))

    def _divisor(self, e: sympy.Basic) -> V:
        """What to divide by: 1 for 0, which the contract excludes but code that runs before it is checked may meet."""
        v = self.whole(e)
        lo, hi = self.fn.interval(v)
        if not lo <= 0 <= hi:
            return v  # a division guards against what isn't the true value
        return self.fn.assume(self.fn.select(self.fn.cmp("eq", v, 0), self.fn.const(1, I64), v), 1 if lo == 0 else None)

    def _mod(self, e: sympy.Basic) -> V:
        a, b, fn = self.whole(e.args[0]), self._divisor(e.args[1]), self.fn
        quotient = fn.floordiv(a, b)
        with fn.wrapping():  # the remainder is less than b, even if the product should wrap
            r = fn.sub(a, fn.mul(quotient, b))
        lo, hi = fn.interval(b)
        return fn.assume(r, min(lo + 1, 0), max(hi - 1, 0))

    def _piecewise(self, e: sympy.Basic) -> V:
        """The first value whose condition holds. What overflows in the others does no harm, so each is computed for itself."""
        fn = self.fn
        out: V | None = None
        bad = fn.const(False, I1)
        for value, cond in reversed(e.args):
            self.push()
            with fn.capture() as flags:
                v = self.emit(value)
            self.pop()
            mine = fn.any_of(flags) if flags else fn.const(False, I1)
            if out is None:
                out, bad = v, mine
                continue
            if v.type != out.type:
                v, out = fn.cast(v, F64), fn.cast(out, F64)
            taken = self.truth(cond)
            out, bad = fn.select(taken, v, out), fn.select(taken, mine, bad)
        assert out is not None
        if bad is not fn.const(False, I1):
            fn.record(bad)
        return out

    def _rounded(self, e: sympy.Basic, how: str) -> V:
        x = self.emit(e.args[0])
        return x if x.type == I64 else self.fn.cast(self.fn.unary(how, x), I64)


_RULES: dict[type, Callable[[SizeEmitter, sympy.Basic], V]] = {
    sympy.Add: lambda s, e: s._fold(e, s.fn.add),
    sympy.Mul: SizeEmitter._product,
    sympy.Pow: SizeEmitter._pow,
    tsf.FloorDiv: SizeEmitter._floordiv,
    tsf.CleanDiv: SizeEmitter._floordiv,
    tsf.CeilDiv: lambda s, e: s.fn.neg(s.fn.floordiv(s.fn.neg(s.whole(e.args[0])), s._divisor(e.args[1]))),
    tsf.Mod: SizeEmitter._mod,
    tsf.PythonMod: SizeEmitter._mod,
    sympy.Mod: SizeEmitter._mod,
    sympy.Max: lambda s, e: s._fold(e, s.fn.max),
    sympy.Min: lambda s, e: s._fold(e, s.fn.min),
    tsf.Max: lambda s, e: s._fold(e, s.fn.max),
    tsf.Min: lambda s, e: s._fold(e, s.fn.min),
    sympy.Abs: lambda s, e: s.fn.max(s.emit(e.args[0]), s.fn.neg(s.emit(e.args[0]))),
    sympy.Piecewise: SizeEmitter._piecewise,
    And: lambda s, e: s._fold(e, s.fn.and_),
    Or: lambda s, e: s._fold(e, s.fn.or_),
    Not: lambda s, e: s.fn.xor(s.emit(e.args[0]), 1),
    tsf.IntTrueDiv: SizeEmitter._quotient,
    tsf.FloatTrueDiv: lambda s, e: s.fn.div(s.real(e.args[0]), s.real(e.args[1])),
    tsf.ToFloat: lambda s, e: s.real(e.args[0]),
    tsf.TruncToInt: lambda s, e: s._rounded(e, "trunc"),
    tsf.FloorToInt: lambda s, e: s._rounded(e, "floor"),
    tsf.CeilToInt: lambda s, e: s._rounded(e, "ceil"),
    tsf.RoundToInt: lambda s, e: s._rounded(e, "roundeven"),
    sympy.floor: lambda s, e: s._rounded(e, "floor"),
    sympy.ceiling: lambda s, e: s._rounded(e, "ceil"),
    tsf.PowByNatural: SizeEmitter._pow,
    tsf.FloatPow: SizeEmitter._pow,
    tsf.OpaqueUnaryFn_sqrt: lambda s, e: s.fn.unary("sqrt", s.real(e.args[0])),
    tsf.LShift: lambda s, e: s.fn.shl(s.emit(e.args[0]), s.emit(e.args[1])),
    tsf.RShift: lambda s, e: s.fn.shr(s.emit(e.args[0]), s.emit(e.args[1])),
    BitAnd: lambda s, e: s._fold(e, s.fn.and_),
    BitOr: lambda s, e: s._fold(e, s.fn.or_),
    BitXor: lambda s, e: s._fold(e, s.fn.xor),
    tsf.BitwiseFn_bitwise_and: lambda s, e: s._fold(e, s.fn.and_),
    tsf.BitwiseFn_bitwise_or: lambda s, e: s._fold(e, s.fn.or_),
    tsf.BitwiseFn_bitwise_xor: lambda s, e: s._fold(e, s.fn.xor),
}
