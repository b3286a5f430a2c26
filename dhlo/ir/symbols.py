"""Symbolic sizes: sympy expressions over torch.export's symbols, with one text form that parses and prints exactly."""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

import sympy
from sympy.printing.str import StrPrinter
from torch.utils._sympy import functions as tsf

from dhlo.ir.grammar import Function, Reader

__all__ = [
    "SYMBOL",
    "SYMBOL_NAME",
    "BitAnd",
    "BitOr",
    "BitXor",
    "Expr",
    "FloorDiv",
    "Size",
    "as_expr",
    "ceil_div",
    "describe",
    "evaluate",
    "exact_floors",
    "least",
    "is_static",
    "parse",
    "product",
    "renamed",
    "show",
    "spell",
    "symbol",
    "symbols_of",
]

Expr: TypeAlias = sympy.Expr
FloorDiv: Any = tsf.FloorDiv
Size: TypeAlias = sympy.Expr | int
SYMBOL_NAME = re.compile(r"\b(s|u|zuf|f_|cap)\d+\b")  # in texts of types and attributes; the kind of symbol is the first group


SYMBOL = re.compile(r"[A-Za-z_]\w*", re.ASCII)  # any symbol's name


@functools.cache
def symbol(name: str) -> sympy.Symbol:
    """The symbol of that name: s.. a size of an input, u.. known only at run time, f.. or zuf.. a float."""
    if name.startswith(("zuf", "f_")):
        return sympy.Symbol(name, real=True)
    if name.startswith("u"):
        return sympy.Symbol(name, integer=True)
    return sympy.Symbol(name, integer=True, nonnegative=True)


class _Bits(sympy.Function):  # type: ignore[misc]
    """A whole number, bit by bit of two; torch's own functions don't say that theirs are whole."""

    nargs = 2
    is_integer = True
    of: ClassVar[Any]  # the operator on Python's integers

    @classmethod
    def eval(cls, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
        return sympy.Integer(cls.of(int(a), int(b))) if a.is_Integer and b.is_Integer else None


class BitAnd(_Bits):
    of = staticmethod(operator.and_)

    def _eval_is_nonnegative(self) -> bool | None:
        return True if any(a.is_nonnegative for a in self.args) else None


class BitOr(_Bits):
    of = staticmethod(operator.or_)

    def _eval_is_nonnegative(self) -> bool | None:
        return True if all(a.is_nonnegative for a in self.args) else None


class BitXor(BitOr):
    of = staticmethod(operator.xor)


def _ite(cond: sympy.Basic, a: sympy.Expr, b: sympy.Expr) -> sympy.Basic:
    return sympy.Piecewise((a, cond), (b, True))


_FUNCTIONS: dict[str, Function] = {
    "floordiv": Function(tsf.FloorDiv, 2, 2),
    "mod": Function(tsf.Mod, 2, 2),
    "pymod": Function(tsf.PythonMod, 2, 2),
    "ceildiv": Function(tsf.CeilDiv, 2, 2),
    "cleandiv": Function(tsf.CleanDiv, 2, 2),
    "max": Function(sympy.Max, 1, None),
    "min": Function(sympy.Min, 1, None),
    "ite": Function(_ite, 3, 3, truth=True),
    "truediv": Function(tsf.IntTrueDiv, 2, 2),
    "fdiv": Function(tsf.FloatTrueDiv, 2, 2),
    "trunc": Function(tsf.TruncToInt, 1, 1),
    "floor": Function(tsf.FloorToInt, 1, 1),
    "ceil": Function(tsf.CeilToInt, 1, 1),
    "float": Function(tsf.ToFloat, 1, 1),
    "round": Function(tsf.RoundToInt, 1, 1),
    "pow": Function(tsf.PowByNatural, 2, 2, grows=True),
    "fpow": Function(tsf.FloatPow, 2, 2, grows=True),
    "sqrt": Function(tsf.OpaqueUnaryFn_sqrt, 1, 1),
    "log2": Function(tsf.OpaqueUnaryFn_log2, 1, 1),
    "abs": Function(sympy.Abs, 1, 1),
    "Eq": Function(sympy.Eq, 2, 2),
    "Ne": Function(sympy.Ne, 2, 2),
    "And": Function(sympy.And, 1, None, truth=True),
    "Or": Function(sympy.Or, 1, None, truth=True),
    "Not": Function(sympy.Not, 1, 1, truth=True),
    "shl": Function(tsf.LShift, 2, 2, grows=True),
    "shr": Function(tsf.RShift, 2, 2, grows=True),
    "bitand": Function(BitAnd, 2, 2),
    "bitor": Function(BitOr, 2, 2),
    "bitxor": Function(BitXor, 2, 2),
}


class _Printer(StrPrinter):  # type: ignore[misc]
    """Calls instead of infix where Python's operators would parse to something else."""

    printmethod = "_dhlo"  # torch's functions print themselves through sympy's own hook

    def _call(self, name: str, *args: sympy.Basic) -> str:
        return f"{name}({', '.join(self._print(a) for a in args)})"

    def _print_Float(self, e: sympy.Expr) -> str:
        return repr(float(e))  # all of its digits: sizes are worked out with it

    def _print_FloorDiv(self, e: sympy.Expr) -> str:
        return self._call("floordiv", *e.args)

    def _print_Mod(self, e: sympy.Expr) -> str:
        return self._call("mod", *e.args)

    def _print_PythonMod(self, e: sympy.Expr) -> str:
        return self._call("pymod", *e.args)

    def _print_CeilDiv(self, e: sympy.Expr) -> str:
        return self._call("ceildiv", *e.args)

    def _print_CleanDiv(self, e: sympy.Expr) -> str:
        return self._call("cleandiv", *e.args)

    def _print_Max(self, e: sympy.Expr) -> str:
        return self._call("max", *sorted(e.args, key=str))

    def _print_Min(self, e: sympy.Expr) -> str:
        return self._call("min", *sorted(e.args, key=str))

    def _print_IntTrueDiv(self, e: sympy.Expr) -> str:
        return self._call("truediv", *e.args)

    def _print_FloatTrueDiv(self, e: sympy.Expr) -> str:
        return self._call("fdiv", *e.args)

    def _print_TruncToInt(self, e: sympy.Expr) -> str:
        return self._call("trunc", *e.args)

    def _print_FloorToInt(self, e: sympy.Expr) -> str:
        return self._call("floor", *e.args)

    def _print_CeilToInt(self, e: sympy.Expr) -> str:
        return self._call("ceil", *e.args)

    def _print_RoundToInt(self, e: sympy.Expr) -> str:
        return self._call("round", *e.args)

    def _print_ToFloat(self, e: sympy.Expr) -> str:
        return self._call("float", *e.args)

    def _print_PowByNatural(self, e: sympy.Expr) -> str:
        return self._call("pow", *e.args)

    def _print_FloatPow(self, e: sympy.Expr) -> str:
        return self._call("fpow", *e.args)

    def _print_OpaqueUnaryFn_sqrt(self, e: sympy.Expr) -> str:
        return self._call("sqrt", *e.args)

    def _print_OpaqueUnaryFn_log2(self, e: sympy.Expr) -> str:
        return self._call("log2", *e.args)

    def _print_LShift(self, e: sympy.Expr) -> str:
        return self._call("shl", *e.args)

    def _print_BitAnd(self, e: sympy.Expr) -> str:
        return self._call("bitand", *e.args)

    def _print_BitOr(self, e: sympy.Expr) -> str:
        return self._call("bitor", *e.args)

    def _print_BitXor(self, e: sympy.Expr) -> str:
        return self._call("bitxor", *e.args)

    # torch's own, in sizes of its trace
    _print_BitwiseFn_bitwise_and, _print_BitwiseFn_bitwise_or, _print_BitwiseFn_bitwise_xor = (
        _print_BitAnd,
        _print_BitOr,
        _print_BitXor,
    )

    def _print_RShift(self, e: sympy.Expr) -> str:
        return self._call("shr", *e.args)

    def _print_BooleanTrue(self, e: sympy.Basic) -> str:
        return "true"

    def _print_BooleanFalse(self, e: sympy.Basic) -> str:
        return "false"

    def _print_And(self, e: sympy.Basic) -> str:
        return self._call("And", *sorted(e.args, key=str))

    def _print_Or(self, e: sympy.Basic) -> str:
        return self._call("Or", *sorted(e.args, key=str))

    def _print_Not(self, e: sympy.Basic) -> str:
        return self._call("Not", *e.args)

    def _print_ITE(self, e: sympy.Basic) -> str:  # of nested choices; the grammar's is of numbers
        c, a, b = e.args
        return str(self._print(sympy.Or(sympy.And(c, a), sympy.And(sympy.Not(c), b))))

    def _print_Equality(self, e: sympy.Basic) -> str:
        return self._call("Eq", *e.args)

    def _print_Unequality(self, e: sympy.Basic) -> str:
        return self._call("Ne", *e.args)

    def _print_Abs(self, e: sympy.Expr) -> str:
        return self._call("abs", *e.args)

    def _print_ceiling(self, e: sympy.Expr) -> str:
        return self._call("ceil", *e.args)

    def _print_Infinity(self, e: sympy.Expr) -> str:
        return "inf"

    def _print_NegativeInfinity(self, e: sympy.Expr) -> str:
        return "-inf"

    def _print_Piecewise(self, e: sympy.Expr) -> str:
        (value, cond), *rest = e.args
        if not rest or cond == sympy.true:
            return str(self._print(value))
        return self._call("ite", cond, value, sympy.Piecewise(*rest))


_PRINTER = _Printer()


class _Describer(_Printer):
    """Operators as people write them in Python, where nothing has to be read back."""

    printmethod = "_dhlo_described"

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__()
        self._names = names

    def _print_Symbol(self, e: sympy.Symbol) -> str:
        return self._names.get(e.name, e.name)

    def _infix(self, sign: str, *args: sympy.Basic) -> str:
        texts = [(x, str(self._print(x))) for x in args]
        return f" {sign} ".join(t if x.is_Atom or re.fullmatch(r"\w+\([^()]*\)", t) else f"({t})" for x, t in texts)

    def _print_FloorDiv(self, e: sympy.Expr) -> str:
        return self._infix("//", *e.args)

    def _print_CleanDiv(self, e: sympy.Expr) -> str:
        return self._infix("//", *e.args)

    def _print_Mod(self, e: sympy.Expr) -> str:
        return self._infix("%", *e.args)

    def _print_PythonMod(self, e: sympy.Expr) -> str:
        return self._infix("%", *e.args)

    def _print_IntTrueDiv(self, e: sympy.Expr) -> str:
        return self._infix("/", *e.args)

    def _print_FloatTrueDiv(self, e: sympy.Expr) -> str:
        return self._infix("/", *e.args)

    def _print_Relational(self, e: sympy.Basic) -> str:
        sides: tuple[list[sympy.Expr], list[sympy.Expr]] = [], []
        for side, value in enumerate((e.lhs, e.rhs)):
            for term in sympy.Add.make_args(value):  # what is taken away on one side is added on the other
                less = bool(term.as_coeff_Mul()[0] < 0)
                sides[side ^ less].append(-term if less else term)
        left, right = (self._print(sympy.Add(*terms)) for terms in sides)
        return f"{left} {e.rel_op} {right}"

    _print_Equality = _print_Unequality = _print_Relational

    def _print_And(self, e: sympy.Basic) -> str:
        return self._infix("and", *sorted(e.args, key=str))

    def _print_Or(self, e: sympy.Basic) -> str:
        return self._infix("or", *sorted(e.args, key=str))

    def _print_Not(self, e: sympy.Basic) -> str:
        return f"not ({self._print(e.args[0])})"

    def _print_Piecewise(self, e: sympy.Expr) -> str:
        (value, cond), *rest = e.args
        if not rest or cond == sympy.true:
            return str(self._print(value))
        return f"({self._print(value)} if {self._print(cond)} else {self._print(sympy.Piecewise(*rest))})"


_READER = Reader(_FUNCTIONS, {"true": sympy.true, "false": sympy.false, "inf": sympy.oo}, symbol)


@functools.cache
def parse(text: str) -> sympy.Expr:
    """The expression that `show` printed. Raises ValueError, which names the position, on anything else."""
    return _READER.read(text)


@functools.cache
def int_expr(value: int) -> sympy.Expr:
    return sympy.Integer(value)


@functools.cache
def show(expr: sympy.Expr) -> str:
    """Text form of an expression, read back by `parse`."""
    return str(_PRINTER.doprint(expr))


@functools.cache
def _own(expr: sympy.Expr) -> sympy.Expr:
    """The same expression over our symbols (torch's carry other assumptions, e.g. positive)."""
    others = {s: symbol(s.name) for s in expr.free_symbols if s != symbol(s.name)}
    return expr.xreplace(others) if others else expr


def renamed(expr: sympy.Basic, names: Mapping[sympy.Symbol, sympy.Symbol]) -> sympy.Basic:
    """The expression with other symbols of the same kinds. Functions aren't simplified again, which would take long and change
    nothing."""
    if not names or not expr.args:
        return names.get(expr, expr)
    args = [renamed(a, names) for a in expr.args]
    if isinstance(expr, (sympy.Function, sympy.Min, sympy.Max)):
        return expr.func(*args, evaluate=False)
    return expr.func(*args)


def as_expr(x: object) -> sympy.Expr:
    """An int, SymInt/SymFloat/SymBool, sympy expression or text as an expression over our symbols."""
    if isinstance(x, bool):
        return sympy.true if x else sympy.false
    if isinstance(x, int):
        return int_expr(x)
    if isinstance(x, str):
        return parse(x)
    if isinstance(x, float):
        return sympy.Float(x) if math.isfinite(x) else sympy.sympify(x)
    if isinstance(x, sympy.Basic):
        return _own(x)
    return _own(x.node.expr)  # type: ignore[attr-defined]


def spell(e: sympy.Expr, names: Mapping[str, str]) -> str:
    """An expression for people: symbols under the names that the user gave their dims, where there are any."""
    return re.sub(r"[A-Za-z_]\w*", lambda m: names.get(m.group(), m.group()), show(e))


def describe(e: sympy.Basic, names: Mapping[str, str]) -> str:
    """A size or condition for people: as `spell`, with Python's operators in place of the grammar's functions. Isn't read back."""
    return str(_Describer(names).doprint(e))


def is_static(x: Size) -> bool:
    return isinstance(x, int) or bool(x.is_number)


def symbols_of(x: Size) -> set[str]:
    return set() if isinstance(x, int) else {s.name for s in x.free_symbols}


def product(sizes: object) -> sympy.Expr:
    """Product of sizes; 1 for none."""
    out: sympy.Expr = sympy.Integer(1)
    for s in sizes:  # type: ignore[attr-defined]
        out = out * s
    return out


def evaluate(x: Size, env: Mapping[str, int | float]) -> int:
    """The value of a size for given symbol values."""
    if isinstance(x, int):
        return x
    if x.is_Integer:
        return int(x)
    values = {s: sympy.sympify(env[s.name]) for s in x.free_symbols}
    try:
        v = x.xreplace(values)
    except (ZeroDivisionError, ValueError):  # ValueError: a quotient that isn't whole, in a Min or Max
        v = _as_host(x, values)
    if isinstance(v, (sympy.logic.boolalg.BooleanTrue, sympy.logic.boolalg.BooleanFalse)):
        return int(bool(v))
    return int(v)


_DIVISIONS = (tsf.FloorDiv, tsf.Mod, tsf.PythonMod, tsf.CleanDiv, tsf.CeilDiv, tsf.IntTrueDiv, tsf.FloatTrueDiv)


def _as_host(e: sympy.Basic, values: Mapping[sympy.Symbol, sympy.Basic]) -> sympy.Basic:
    """The value of an expression as the host program computes it where the contract excludes the sizes: division by zero divides
    by one, a quotient that isn't whole is rounded down."""
    if not e.args:
        return e.xreplace(values)
    args = [_as_host(a, values) for a in e.args]
    if len(args) == 2 and args[1] == 0 and isinstance(e, _DIVISIONS):
        args[1] = sympy.Integer(1)
    v = e.func(*args)
    return sympy.floor(v) if v.is_Rational else v


def least(*sizes: sympy.Expr) -> sympy.Expr:
    """The least of sizes. Symbolic ones are left uncompared: sympy takes long to try that."""
    numbers, others = [s for s in sizes if s.is_Integer], [s for s in sizes if not s.is_Integer]
    known = [min(numbers)] if numbers else []
    return sympy.Min(*others, *known, evaluate=False) if others else known[0]


def ceil_div(a: Size, b: int) -> sympy.Expr:
    """a / b rounded up, for a >= 0."""
    return tsf.FloorDiv(sympy.sympify(a) + (b - 1), sympy.Integer(b)) if b != 1 else sympy.sympify(a)


def exact_floors(e: sympy.Expr) -> sympy.Expr:
    """Writes sympy's floor of a quotient (what `//` gives) as an integer division."""

    def rewrite(arg: sympy.Expr) -> sympy.Expr:
        n, d = sympy.together(arg).as_numer_denom()
        return tsf.FloorDiv(n, d)

    return e.replace(sympy.floor, rewrite) if isinstance(e, sympy.Expr) else sympy.sympify(e)
