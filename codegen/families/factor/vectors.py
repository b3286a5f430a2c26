"""What factorisations do to rows of numbers, a vector at a time: the first level of BLAS, for scripts.

Rows are work memory: f64 side by side, complex numbers as pairs. As Python, the functions work on numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dhlo.codegen.elementwise.script import Array, Complex, Matrix, Script, Value, operation, script
from dhlo.codegen.kernel_ir.builder import F64, I64, PTR, Fn, KernelModule, V

__all__ = [
    "abs1",
    "add_scaled",
    "conj",
    "copy",
    "dot",
    "imag",
    "is_complex",
    "matrix",
    "number",
    "real",
    "rotate",
    "rotate_complex",
    "scale",
    "squares",
    "swap",
]

Numbers = Any  # numpy arrays as Python, `Array` in scripts


# ---------------------------------------------------------------------- numbers
def real(x: Any) -> float:
    """The real part."""
    return float(x.real)


def imag(x: Any) -> float:
    """The imaginary part."""
    return float(x.imag)


def conj(x: Any) -> Any:
    """The complex conjugate."""
    return x.conjugate()


def abs1(x: Any) -> float:
    """|re| + |im|, by which LAPACK chooses complex pivots."""
    return float(abs(x.real) + abs(x.imag))


def is_complex(x: Numbers) -> bool:
    """Are the elements complex numbers? Known when the script is translated."""
    return bool(x.dtype.kind == "c")


def number(x: Numbers, re: float, im: float) -> Any:
    """A number of the elements' kind; of real ones, re."""
    return complex(re, im) if is_complex(x) else re


def matrix(x: Numbers, width: int) -> Any:
    """Work memory as rows of `width`."""
    return x[: x.size // max(width, 1) * max(width, 1)].reshape(-1, max(width, 1))


@operation(real)
def _real(s: Script, x: Value) -> V:
    return x.re if isinstance(x, Complex) else s.real(x)


@operation(imag)
def _imag(s: Script, x: Value) -> V:
    return x.im if isinstance(x, Complex) else s.real(0.0)


@operation(conj)
def _conj(s: Script, x: Value) -> Value:
    return Complex(x.re, s.fn.neg(x.im)) if isinstance(x, Complex) else x


@operation(abs1)
def _abs1(s: Script, x: Value) -> V:
    parts = [x.re, x.im] if isinstance(x, Complex) else [s.real(x)]
    sizes = [s.fn.unary("fabs", p) for p in parts]
    return s.fn.add(*sizes) if len(sizes) == 2 else sizes[0]


@operation(is_complex)
def _is_complex(s: Script, x: Array | Matrix) -> bool:
    return (x.data if isinstance(x, Matrix) else x).is_complex


@operation(number)
def _number(s: Script, x: Array | Matrix, re: Value, im: Value) -> Value:
    return Complex(s.real(re), s.real(im)) if _is_complex(s, x) else s.real(re)


@operation(matrix)
def _matrix(s: Script, x: Array, width: Value) -> Matrix:
    return Matrix(x, s.value(width))


# ---------------------------------------------------------------------- rows
def dot(n: int, x: Numbers, y: Numbers) -> Any:
    """The sum of conj(x[i]) y[i]."""
    return (x[:n].conj() * y[:n]).sum()


def squares(n: int, x: Numbers) -> float:
    """The sum of |x[i]|^2."""
    return float((abs(x[:n]) ** 2).sum())


def add_scaled(n: int, a: Any, x: Numbers, y: Numbers) -> None:
    """y += a x."""
    y[:n] += a * x[:n]


def scale(n: int, a: Any, x: Numbers) -> None:
    """x *= a."""
    x[:n] *= a


def swap(n: int, x: Numbers, y: Numbers) -> None:
    """Exchanges x and y."""
    x[:n], y[:n] = y[:n].copy(), x[:n].copy()


def rotate(n: int, c: float, s: float, x: Numbers, y: Numbers) -> None:
    """(x, y) = (c x + s y, c y - s x), c and s real."""
    x[:n], y[:n] = c * x[:n] + s * y[:n], c * y[:n] - s * x[:n]


def rotate_complex(n: int, c: float, s: Any, x: Numbers, y: Numbers) -> None:
    """(x, y) = (c x + s y, c y - conj(s) x), c real."""
    x[:n], y[:n] = c * x[:n] + s * y[:n], c * y[:n] - s.conjugate() * x[:n]


@script
def copy(rows: int, cols: int, x: Any, y: Any) -> None:
    """y = x, matrices of which either may be an operand or a result of another type than work memory."""
    for i in range(rows):
        for j in range(cols):
            y[i, j] = x[i, j]


Body = Callable[[Fn, Sequence[V], Sequence[V]], Sequence[V]]


def _turned(fn: Fn, x: V) -> V:
    """Pairs (a, b) as (-b, a): times i."""
    order = [k ^ 1 for k in range(x.lanes)]
    sign = fn.dense([-1.0 if k % 2 == 0 else 1.0 for k in range(x.lanes)], F64)
    return fn.mul(fn.shuffle(x, x, order), sign)


def _steps(fn: Fn, n: V, init: Sequence[V], body: Callable[[V, V | None, Sequence[V]], Sequence[V]]) -> list[V]:
    """Runs `body(position, mask, carried)` for all vectors of n numbers, the last under a mask."""
    full = fn.and_(n, -fn.lanes)
    with fn.loop(0, full, fn.lanes, init) as lp:
        lp.yield_(*body(lp.iv, None, lp.carried))
    tail = lambda: body(full, fn.tail_mask(fn.sub(n, full)), lp.results)
    return fn.if_else(fn.cmp("lt", full, n), tail, lambda: lp.results, [x.type for x in init])


def _load(fn: Fn, p: V, at: V, mask: V | None) -> V:
    q, ty = fn.gep(p, at, F64), fn.vec(F64)
    return fn.load(q, ty) if mask is None else fn.masked_load(q, mask, fn.const(0.0, ty))


def _map(module: KernelModule, name: str, scalars: int, arrays: int, body: Body) -> str:
    """Emits (once) `name(n, scalars, arrays)`, which replaces the last arrays by what `body` makes of vectors of all."""
    if name not in module.functions:
        args = [("n", I64), *((f"s{i}", F64) for i in range(scalars)), *((f"p{i}", PTR) for i in range(arrays))]
        fn = Fn(module, name, args, noinline=True)
        n, given, pointers = fn.args[0], [fn.splat(x) for x in fn.args[1 : 1 + scalars]], fn.args[1 + scalars :]

        def step(at: V, mask: V | None, _: Sequence[V]) -> Sequence[V]:
            new = body(fn, given, [_load(fn, p, at, mask) for p in pointers])
            for x, p in zip(new, pointers[arrays - len(new) :], strict=True):
                q = fn.gep(p, at, F64)
                fn.store(x, q) if mask is None else fn.masked_store(x, q, mask)
            return []

        _steps(fn, n, [], step)
        fn.done()
    return name


def _sum(module: KernelModule, name: str, body: Callable[[Fn, V, V], V]) -> str:
    """Emits (once) `name(n, x, y)`, the sum of what `body` makes of vectors of both."""
    if name not in module.functions:
        fn = Fn(module, name, [("n", I64), ("x", PTR), ("y", PTR)], F64, noinline=True)
        n, x, y = fn.args

        def step(at: V, mask: V | None, carried: Sequence[V]) -> Sequence[V]:
            return [fn.add(carried[0], body(fn, _load(fn, x, at, mask), _load(fn, y, at, mask)))]

        (total,) = _steps(fn, n, [fn.const(0.0, fn.vec(F64))], step)
        fn.ret(fn.reduce("add", total))
        fn.done()
    return name


def _numbers(s: Script, n: Value, x: Array) -> V:
    """How many f64s n elements are."""
    count: V = s.value(n)
    return s.fn.mul(count, 2) if x.paired else count


@operation(dot)
def _dot(s: Script, n: Value, x: Array, y: Array) -> Value:
    count = _numbers(s, n, x)
    re = s.fn.call(_sum(s.fn.module, "row_dot", lambda fn, a, b: fn.mul(a, b)), [count, x.p, y.p], F64)
    if not x.paired:
        return re
    cross = _sum(s.fn.module, "row_cross", lambda fn, a, b: fn.mul(_turned(fn, a), b))
    im = s.fn.call(cross, [count, x.p, y.p], F64)
    assert re is not None and im is not None
    return Complex(re, im)


@operation(squares)
def _squares(s: Script, n: Value, x: Array) -> V:
    out = s.fn.call(_sum(s.fn.module, "row_dot", lambda fn, a, b: fn.mul(a, b)), [_numbers(s, n, x), x.p, x.p], F64)
    assert out is not None
    return out


@operation(add_scaled)
def _add_scaled(s: Script, n: Value, a: Value, x: Array, y: Array) -> None:
    count, a = _numbers(s, n, x), s.value(a)
    if isinstance(a, Complex):
        name = _map(
            s.fn.module,
            "row_add_complex",
            2,
            2,
            lambda fn, k, v: [fn.fma(k[1], _turned(fn, v[0]), fn.fma(k[0], v[0], v[1]))],
        )
        s.fn.call(name, [count, a.re, a.im, x.p, y.p])
    else:
        name = _map(s.fn.module, "row_add", 1, 2, lambda fn, k, v: [fn.fma(k[0], v[0], v[1])])
        s.fn.call(name, [count, s.real(a), x.p, y.p])


@operation(scale)
def _scale(s: Script, n: Value, a: Value, x: Array) -> None:
    count, a = _numbers(s, n, x), s.value(a)
    if isinstance(a, Complex):
        name = _map(s.fn.module, "row_scale_complex", 2, 1, lambda fn, k, v: [fn.fma(k[1], _turned(fn, v[0]), fn.mul(k[0], v[0]))])
        s.fn.call(name, [count, a.re, a.im, x.p])
    else:
        s.fn.call(_map(s.fn.module, "row_scale", 1, 1, lambda fn, k, v: [fn.mul(k[0], v[0])]), [count, s.real(a), x.p])


@operation(swap)
def _swap(s: Script, n: Value, x: Array, y: Array) -> None:
    s.fn.call(_map(s.fn.module, "row_swap", 0, 2, lambda fn, k, v: [v[1], v[0]]), [_numbers(s, n, x), x.p, y.p])


@operation(rotate)
def _rotate(s: Script, n: Value, c: Value, sine: Value, x: Array, y: Array) -> None:
    name = _map(
        s.fn.module,
        "row_rotate",
        2,
        2,
        lambda fn, k, v: [
            fn.fma(k[0], v[0], fn.mul(k[1], v[1])),
            fn.sub(fn.mul(k[0], v[1]), fn.mul(k[1], v[0])),
        ],
    )
    s.fn.call(name, [_numbers(s, n, x), s.real(c), s.real(sine), x.p, y.p])


@operation(rotate_complex)
def _rotate_complex(s: Script, n: Value, c: Value, z: Value, x: Array, y: Array) -> None:
    def body(fn: Fn, k: Sequence[V], v: Sequence[V]) -> Sequence[V]:
        c, re, im = k
        first = fn.fma(im, _turned(fn, v[1]), fn.fma(re, v[1], fn.mul(c, v[0])))
        second = fn.fma(im, _turned(fn, v[0]), fn.sub(fn.mul(c, v[1]), fn.mul(re, v[0])))
        return [first, second]

    z = s.as_(z, "complex")
    name = _map(s.fn.module, "row_rotate_complex", 3, 2, body)
    s.fn.call(name, [_numbers(s, n, x), s.real(c), z.re, z.im, x.p, y.p])
