"""What factorisations of real matrices do to several rows of work memory at once: the second level of BLAS, for scripts.

As Python, the functions work on numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dhlo.codegen.elementwise.script import Array, Matrix, Script, Value, operation
from dhlo.codegen.families.factor.vectors import Numbers
from dhlo.codegen.kernel_ir.builder import F64, I64, PTR, Fn, KernelModule, V, vec

__all__ = ["eliminate", "subtract_above", "subtract_rows"]


def eliminate(rows: int, n: int, w: Any, k: int) -> None:
    """Of so many rows below w[k], makes w[i, k] its multiple of w[k, k], and subtracts it of the n numbers behind."""
    for i in range(k + 1, k + 1 + rows):
        w[i, k] /= w[k, k]
        w[i, k + 1 : k + 1 + n] -= w[i, k] * w[k, k + 1 : k + 1 + n]


def subtract_rows(rows: int, n: int, a: Numbers, w: Any, first: int, y: Numbers) -> None:
    """y -= the sum of a[j] w[first + j], of so many rows."""
    y[:n] -= a[:rows] @ w[first : first + rows, :n]


def subtract_above(n: int, w: Any, k: int) -> None:
    """w[k, k:] -= the sum of w[j, k] w[j, k:], of all rows above it, in n columns."""
    w[k, k : k + n] -= w[:k, k] @ w[:k, k : k + n]


def _pieces(fn: Fn, n: V, body: Callable[[V, int, V | None], None]) -> None:
    """Runs `body(position, lanes, mask)` once for each piece of n numbers: four vectors together, so that rows are read by some
    lines at once; vectors; and the rest under a mask, half as long if that holds it."""
    wide = 4 * fn.lanes
    most, full = fn.and_(n, -wide), fn.and_(n, -fn.lanes)
    rest, half = fn.sub(n, full), fn.lanes // 2
    with fn.loop(0, most, wide) as lp:
        body(lp.iv, wide, None)
    with fn.loop(most, full, fn.lanes) as lp:
        body(lp.iv, fn.lanes, None)
    with fn.when(fn.and_(fn.cmp("gt", rest, 0), fn.cmp("le", rest, half))):
        body(full, half, fn.tail_mask(rest, half))
    with fn.when(fn.cmp("gt", rest, half)):
        body(full, fn.lanes, fn.tail_mask(rest, fn.lanes))


def _read(fn: Fn, p: V, lanes: int, mask: V | None) -> V:
    ty = vec(F64, lanes)
    return fn.load(p, ty) if mask is None else fn.masked_load(p, mask, fn.const(0.0, ty))


def _write(fn: Fn, x: V, p: V, mask: V | None) -> None:
    if mask is None:
        fn.store(x, p)
    else:
        fn.masked_store(x, p, mask)


@operation(eliminate)
def _eliminate(s: Script, rows: Value, n: Value, w: Matrix, k: Value) -> None:
    name = "row_eliminate"
    if name not in s.fn.module.functions:
        fn = Fn(s.fn.module, name, [("rows", I64), ("n", I64), ("width", I64), ("top", PTR)], noinline=True)
        count, length, width, top = fn.args
        pivot = fn.load(top, F64)
        with fn.loop(1, fn.add(count, 1)) as row:
            p = fn.gep(top, fn.mul(row.iv, width), F64)
            fn.store(fn.div(fn.load(p, F64), pivot), p)

        def piece(at: V, lanes: int, mask: V | None) -> None:
            at = fn.add(at, 1)
            x = _read(fn, fn.gep(top, at, F64), lanes, mask)
            with fn.loop(1, fn.add(count, 1)) as row:
                p = fn.gep(top, fn.mul(row.iv, width), F64)
                y = fn.gep(p, at, F64)
                factor = fn.splat(fn.neg(fn.load(p, F64)), lanes)
                _write(fn, fn.fma(factor, x, _read(fn, y, lanes, mask)), y, mask)

        _pieces(fn, length, piece)
        fn.done()
    top = s.fn.gep(w.data.p, s.fn.mul(s.value(k), s.fn.add(w.width, 1)), F64)
    s.fn.call(name, [s.value(rows), s.value(n), w.width, top])


def _subtract(module: KernelModule, elem: str) -> str:
    """Emits (once) `name(rows, n, a, step, width, x, y)`: y -= the sum of a[j step] x[j], of so many rows; a is of type `elem`."""
    name = f"row_subtract_{elem}"
    if name not in module.functions:
        args = [("rows", I64), ("n", I64), ("a", PTR), ("step", I64), ("width", I64), ("x", PTR), ("y", PTR)]
        fn = Fn(module, name, args, noinline=True)
        count, length, factors, step, width, x, out = fn.args

        def piece(at: V, lanes: int, mask: V | None) -> None:
            p = fn.gep(out, at, F64)
            with fn.loop(0, count, 1, [_read(fn, p, lanes, mask)]) as row:
                factor = fn.load(fn.gep(factors, fn.mul(row.iv, step), elem), elem)
                v = _read(fn, fn.gep(x, fn.add(fn.mul(row.iv, width), at), F64), lanes, mask)
                row.yield_(fn.fma(fn.splat(fn.neg(fn.cast(factor, F64)), lanes), v, row.carried[0]))
            _write(fn, row.results[0], p, mask)

        _pieces(fn, length, piece)
        fn.done()
    return name


@operation(subtract_rows)
def _subtract_rows(s: Script, rows: Value, n: Value, a: Array, w: Matrix, first: Value, y: Array) -> None:
    x = s.fn.gep(w.data.p, s.fn.mul(s.value(first), w.width), F64)
    s.fn.call(_subtract(s.fn.module, a.elem), [s.value(rows), s.value(n), a.p, s.fn.i64(1), w.width, x, y.p])


@operation(subtract_above)
def _subtract_above(s: Script, n: Value, w: Matrix, k: Value) -> None:
    fn, k = s.fn, s.value(k)
    top = fn.gep(w.data.p, k, F64)
    y = fn.gep(top, fn.mul(k, w.width), F64)
    fn.call(_subtract(fn.module, F64), [k, s.value(n), top, w.width, w.width, top, y])
