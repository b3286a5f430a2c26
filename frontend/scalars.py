"""Arithmetic of symbolic Python numbers in an exported graph: every call becomes a size expression, never an op."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions as tsf

from dhlo.errors import CompileError
from dhlo.frontend.dims import static_value
from dhlo.frontend.promotion import is_boolean
from dhlo.ir.symbols import BitAnd, BitOr, BitXor, as_expr

__all__ = ["SCALAR_FUNCTIONS", "scalar_call"]


def _integers(*xs: Any) -> bool:
    return all(is_boolean(x) or x.is_integer for x in xs)


def _int(x: Any) -> Any:
    """Booleans count as 0 and 1 in arithmetic."""
    return sympy.Piecewise((1, x), (0, True)) if is_boolean(x) else x


def _floordiv(a: Any, b: Any) -> Any:
    return tsf.FloorDiv(a, b) if _integers(a, b) else sympy.floor(a / b)


def _mod(a: Any, b: Any) -> Any:
    if _integers(a, b):
        return tsf.Mod(a, b) if a.is_nonnegative and b.is_positive else tsf.PythonMod(a, b)
    exact = b.is_integer or b.is_number and (float(b) * 2**20) % 1 == 0
    if not b.is_positive or not exact:
        raise CompileError(f"the remainder of a size by {b}", hint="compute it of tensors, or of whole numbers")
    # Of few digits, so that its multiples are exact; what divides may have been rounded up to the next one.
    rest = a - b * tsf.ToFloat(tsf.FloorToInt(tsf.FloatTrueDiv(_float(a), _float(b))))
    return sympy.Piecewise((rest + b, rest < 0), (rest, True))


def _truediv(a: Any, b: Any) -> Any:
    return tsf.IntTrueDiv(a, b) if _integers(a, b) else tsf.FloatTrueDiv(_float(a), _float(b))


def _pow(a: Any, b: Any) -> Any:
    if _integers(a, b) and not b.is_negative:  # a float where torch met a negative one; what isn't known it took for natural
        return tsf.PowByNatural(a, b)
    return tsf.FloatPow(_float(a), _float(b))


def _float(a: Any) -> Any:
    a = _int(a)
    if a.is_number:
        return sympy.Float(float(a))
    return tsf.ToFloat(a) if a.is_integer else a


def _truncate(a: Any) -> Any:
    a = _int(a)
    return a if a.is_integer else tsf.TruncToInt(a)


def _ite(c: Any, a: Any, b: Any) -> Any:
    return sympy.Piecewise((a, c), (b, True))


def _bool(a: Any) -> Any:
    return a if is_boolean(a) else sympy.Ne(a, 0)


def _bits(truth: Callable[[Any, Any], Any], bits: Any) -> Callable[[Any, Any], Any]:
    """An operator on truths, which on numbers goes bit by bit."""
    return lambda a, b: truth(a, b) if is_boolean(a) and is_boolean(b) else bits(_int(a), _int(b))


def _round(a: Any, digits: Any = None) -> Any:
    if digits is not None:
        raise CompileError("a size is rounded to decimal places", hint="compute it of tensors: torch.round(x, decimals=1)")
    return a if a.is_integer else tsf.RoundToInt(a)


def _eq(a: Any, b: Any) -> Any:
    if is_boolean(a) != is_boolean(b):
        a, b = _int(a), _int(b)
    return sympy.Equivalent(a, b) if is_boolean(a) else sympy.Eq(a, b)


def _arith(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: f(_int(a), _int(b))


SCALAR_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    operator.add: _arith(operator.add),
    operator.sub: _arith(operator.sub),
    operator.mul: _arith(operator.mul),
    operator.floordiv: _arith(_floordiv),
    operator.mod: _arith(_mod),
    operator.truediv: _arith(_truediv),
    operator.pow: _arith(_pow),
    operator.neg: lambda a: -_int(a),
    operator.pos: _int,
    operator.abs: lambda a: sympy.Abs(_int(a)),
    operator.eq: _eq,
    operator.ne: lambda a, b: sympy.Not(_eq(a, b)),
    operator.lt: _arith(sympy.Lt),
    operator.le: _arith(sympy.Le),
    operator.gt: _arith(sympy.Gt),
    operator.ge: _arith(sympy.Ge),
    operator.and_: _bits(sympy.And, BitAnd),
    operator.or_: _bits(sympy.Or, BitOr),
    operator.xor: _bits(lambda a, b: sympy.Not(_eq(a, b)), BitXor),
    operator.not_: lambda a: sympy.Not(_bool(a)),
    operator.invert: lambda a: sympy.Not(a) if is_boolean(a) else -a - 1,
    operator.lshift: _arith(tsf.LShift),
    operator.rshift: _arith(tsf.RShift),
    math.trunc: _truncate,
    math.floor: lambda a: a if a.is_integer else tsf.FloorToInt(a),
    math.ceil: lambda a: a if a.is_integer else tsf.CeilToInt(a),
    round: _round,
    math.sqrt: lambda a: tsf.OpaqueUnaryFn_sqrt(_float(a)),
    torch.sym_sqrt: lambda a: tsf.OpaqueUnaryFn_sqrt(_float(a)),
    torch.sym_float: _float,
    torch.sym_int: _truncate,
    torch.sym_not: lambda a: sympy.Not(_bool(a)),
    torch.sym_ite: _ite,
    torch.sym_max: sympy.Max,
    torch.sym_sum: lambda *xs: sympy.Add(*map(_int, xs)),
    torch.sym_min: sympy.Min,
    float: _float,
    int: _truncate,
    bool: _bool,
    min: lambda *xs: sympy.Min(*xs),
    max: lambda *xs: sympy.Max(*xs),
}


def scalar_call(target: Any, args: Any, kwargs: Any) -> Any:
    """The value of a call on Python and symbolic numbers."""
    if target is round and args[1:] == (None,):
        args = args[:1]
    if target is torch.sym_sum:  # it takes a list
        return static_value(SCALAR_FUNCTIONS[target](*[as_expr(a) for a in args[0]]))
    if kwargs or not any(isinstance(a, sympy.Basic) for a in args):
        return static_value(target(*args, **kwargs))
    return static_value(sympy.sympify(SCALAR_FUNCTIONS[target](*[as_expr(a) for a in args])))
