"""Writes into complex tensors, and through views between them and real ones."""

from __future__ import annotations

from typing import Any

from dhlo.frontend.aten.complex import Complex, parts_of
from dhlo.frontend.builder import OpBuilder, Operand, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import COMPLEX, LOWERINGS, complex_views, views


@views(A.view_as_complex.default)
def _(b: OpBuilder, base: Value, new: Complex, out: int) -> Any:
    return COMPLEX[A.view_as_real.default](b, new)


@complex_views(A.view_as_real.default)
def _(b: OpBuilder, base: Complex, new: Value, out: int) -> Any:
    return LOWERINGS[A.view_as_complex.default](b, new)


@complex_views(A.real.default)
def _(b: OpBuilder, base: Complex, new: Value, out: int) -> Complex:
    return Complex(new, base.im)


@complex_views(A.imag.default)
def _(b: OpBuilder, base: Complex, new: Value, out: int) -> Complex:
    return Complex(base.re, new)


@complex_views(A.conj.default, A._conj.default)
def _(b: OpBuilder, base: Complex, new: Complex, out: int) -> Any:
    return COMPLEX[A.conj.default](b, new)


def _register_writes() -> None:
    def rule(op: Any, source: int) -> Any:
        def f(b: OpBuilder, x: Operand, *args: Any, **kwargs: Any) -> Any:
            def half(i: int) -> Any:
                picked = [parts_of(b, a)[i] if k + 1 == source else a for k, a in enumerate(args)]
                return LOWERINGS[op](b, parts_of(b, x)[i], *picked, **kwargs)

            return Complex(half(0), half(1)) if isinstance(x, Complex) else half(0)

        return f

    for op, source in _WRITES.items():
        COMPLEX[op] = rule(op, source)


_WRITES = {  # which argument is written into the first; numbers and tensors, real or complex
    A.zero.default: 0,
    A.copy.default: 1,
    A.fill.Scalar: 1,
    A.fill.Tensor: 1,
    A.slice_scatter.default: 1,
    A.select_scatter.default: 1,
    A.diagonal_scatter.default: 1,
    A.index_put.default: 2,
    A._unsafe_index_put.default: 2,
    A.masked_fill.Scalar: 2,
    A.masked_fill.Tensor: 2,
    A.masked_scatter.default: 2,
    A.put.default: 2,
    A.index_copy.default: 3,
    A.index_add.default: 3,
    A.index_fill.int_Scalar: 3,
    A.index_fill.int_Tensor: 3,
    A.scatter.src: 3,
    A.scatter.value: 3,
    A.scatter_add.default: 3,
}
_register_writes()
