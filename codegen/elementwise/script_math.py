"""What scripts may call: arithmetic and functions of numbers; and scripts as vector functions, lane by lane."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dhlo.codegen.elementwise import vmath_base
from dhlo.codegen.elementwise.script import CONSTANT, OPERATIONS, Complex, Script, Value, operation
from dhlo.codegen.kernel_ir.builder import F32, F64, I64, Fn, KernelModule, V

__all__ = ["emit_scalar", "register_script"]


def _math(name: str, arity: int = 1) -> Callable[..., V]:
    """A function of f64: our own, or libm's."""

    def emit(s: Script, *args: Value) -> V:
        xs = [s.real(a) for a in args]
        if (name, F64) in vmath_base.NATIVE:
            return vmath_base.call(s.fn, name, *xs)
        s.fn.module.declare(name, [F64] * arity, F64)
        out = s.fn.call(name, xs, F64)
        assert out is not None
        return out

    return emit


for _name in ("acos", "exp", "expm1", "log", "log1p", "sin", "cos", "tan", "lgamma", "sinh", "cosh", "tanh", "erf", "erfc"):
    OPERATIONS[getattr(math, _name)] = _math(_name)
OPERATIONS[math.gamma] = _math("tgamma")


@operation(math.pow)
def _pow(s: Script, x: Value, y: Value) -> V:
    return _math("pow", 2)(s, x, y)


@operation(math.isnan)
def _isnan(s: Script, x: Value) -> V:
    return s.fn.cmp("uno", s.real(x), s.real(x))


@operation(math.isinf)
def _isinf(s: Script, x: Value) -> V:
    return s.fn.cmp("eq", s.fn.unary("fabs", s.real(x)), math.inf)


@operation(math.sqrt)
def _sqrt(s: Script, x: Value) -> V:
    return s.fn.unary("sqrt", s.real(x))


@operation(math.floor)
def _floor(s: Script, x: Value) -> V:
    """As a number, not an integer."""
    return s.fn.unary("floor", s.real(x))


@operation(math.copysign)
def _copysign(s: Script, x: Value, y: Value) -> V:
    return vmath_base.with_sign(s.fn, s.fn.unary("fabs", s.real(x)), s.real(y))


@operation(abs)
def _abs(s: Script, x: Value) -> Value:
    if isinstance(x, CONSTANT):
        return abs(x)
    if isinstance(x, Complex):
        return _hypot(s, x.re, x.im)
    return s.fn.unary("fabs", x) if x.is_float else s.fn.select(s.fn.cmp("lt", x, 0), s.fn.neg(x), x)


@operation(math.hypot)
def _hypot(s: Script, x: Value, y: Value) -> V:
    """Without overflow, by the larger one."""
    fn = s.fn
    a, b = fn.unary("fabs", s.real(x)), fn.unary("fabs", s.real(y))
    above = fn.cmp("lt", a, b)
    big, small = fn.select(above, b, a), fn.select(above, a, b)
    r = fn.div(small, fn.select(fn.cmp("eq", big, 0.0), fn.const(1.0, F64), big))
    return fn.mul(big, fn.unary("sqrt", fn.add(fn.mul(r, r), 1.0)))


def _chosen(how: str) -> Callable[..., Value]:
    def emit(s: Script, x: Value, *others: Value) -> Value:
        for y in others:
            if isinstance(x, (int, float)) and isinstance(y, (int, float)):
                x = y if (y < x) == (how == "lt") else x
            else:
                a, b = s.together(x, y)
                x = s.fn.select(s.fn.cmp(how, b, a), b, a)
        return x

    return emit


OPERATIONS[min], OPERATIONS[max] = _chosen("lt"), _chosen("gt")


@operation(float)
def _float(s: Script, x: Value) -> V:
    return s.real(x)


@operation(int)
def _int(s: Script, x: Value) -> Value:
    """Truncated; x must be in range."""
    if isinstance(x, CONSTANT):
        return int(x.real)
    return x if x.type == I64 else s.fn.cast(x, I64)


@operation(complex)
def _make_complex(s: Script, re: Value, im: Value) -> Complex:
    return Complex(s.real(re), s.real(im))


# ---------------------------------------------------------------------- functions of f64
def emit_scalar(module: KernelModule, f: Any, arity: int) -> str:
    """Emits (once) a script function of f64s as a function of the module, by the name that is returned."""
    name = f"script_{f.__name__}"
    if name not in module.functions:
        fn = Fn(module, name, [(f"x{i}", F64) for i in range(arity)], F64, noinline=True)
        s = Script(fn)
        fn.ret(s.real(s.call(f, *fn.args)))
        fn.done()
    return name


def register_script(name: str, f: Any, arity: int = 1) -> None:
    """Makes a script function of f64s the vector function `name`, lane by lane; f32 is evaluated in f64 and rounded."""

    def wide(fn: Fn, *args: V) -> V:
        return vmath_base.lane_by_lane(fn, emit_scalar(fn.module, f, arity), args)

    def narrow(fn: Fn, *args: V) -> V:
        return fn.cast(vmath_base.call(fn, name, *[fn.cast(a, F64) for a in args]), F32)

    vmath_base.register(name, F64, arity=arity)(wide)
    vmath_base.register(name, arity=arity)(narrow)
