"""Factorisations of matrices: one launch, a matrix an item."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy

from dhlo.codegen.elementwise.script import Array, Matrix, Script
from dhlo.codegen.families.factor import general, indefinite, orthogonal, spectral, triangular
from dhlo.codegen.families.family import KernelFamily
from dhlo.codegen.families.kernel import Launch, finish
from dhlo.codegen.families.lines import OpKernel
from dhlo.codegen.families.lowering import Lowering, anchor_of
from dhlo.codegen.kernel_ir.builder import F64, I64, PTR, Fn, KernelModule, V
from dhlo.ir.dialect import Kind, attr
from dhlo.ir.ops import factor
from dhlo.ir.ops.control import Group
from dhlo.ir.symbols import product
from dhlo.ir.types import TensorType, from_mlir

__all__ = ["FactorFamily"]

Sizes = list[sympy.Expr]


@dataclass(frozen=True)
class Routine:
    """How an op is computed.

    call    writes the call of its script: (script, sizes, operands, results, work memory, real work memory, attributes)
    sizes   the sizes that it takes, of the operands' last two sizes and attributes
    work    how many numbers of work memory it needs, of `sizes`
    reals   how many f64s besides
    wide    works in complex numbers whatever the operands are
    """

    call: Callable[[Script, list[V], list[Any], list[Any], Array, Array, dict[str, Any]], Any]
    sizes: Callable[[list[Sizes], dict[str, Any]], Sizes]
    work: Callable[..., Any]
    reals: Callable[..., Any] = lambda *_: 0
    wide: bool = False


def _eigh(s: Script, n: list[V], x: list[Any], y: list[Any], work: Array, reals: Array, a: dict[str, Any]) -> None:
    s.call(spectral.eigh, *n, *x, y[0], y[-2], y[-1], work, reals, a["upper"], a["vectors"])


def _svd(s: Script, n: list[V], x: list[Any], y: list[Any], work: Array, reals: Array, a: dict[str, Any]) -> None:
    u, values, vh, info = y if a["vectors"] else (y[0], y[0], y[0], y[-1])
    (rows, cols, most, least, columns), fn = n, s.fn
    s.call(spectral.svd, most, least, columns, *x, u, values, vh, info, work, reals, fn.cmp("lt", rows, cols), a["vectors"])


def _svd_sizes(shapes: list[Sizes], a: dict[str, Any]) -> Sizes:
    rows, cols = shapes[0]
    most, least = sympy.Max(rows, cols), sympy.Min(rows, cols)
    return [rows, cols, most, least, most if a["full"] else least]


ROUTINES: dict[Any, Routine] = {
    factor.Lu: Routine(
        lambda s, n, x, y, work, reals, a: s.call(triangular.lu, *n, *x, *y, work),
        lambda shapes, a: shapes[0],
        lambda rows, cols: rows * cols,
    ),
    factor.Determinant: Routine(
        lambda s, n, x, y, work, reals, a: s.call(triangular.determinant, *n, *x, *y, work, reals),
        lambda shapes, a: shapes[0][:1],
        lambda n: n * n,
        lambda n: n,
    ),
    factor.Cholesky: Routine(
        lambda s, n, x, y, work, reals, a: s.call(triangular.cholesky, *n, *x, *y, work),
        lambda shapes, a: shapes[0][:1],
        lambda n: n * n,
    ),
    factor.Ldl: Routine(
        lambda s, n, x, y, work, reals, a: s.call(indefinite.ldl, *n, *x, *y, work, a["hermitian"]),
        lambda shapes, a: shapes[0][:1],
        lambda n: n * n,
    ),
    factor.LdlSolve: Routine(
        lambda s, n, x, y, work, reals, a: s.call(indefinite.ldl_solve, *n, *x, *y, work, a["hermitian"]),
        lambda shapes, a: shapes[2],
        lambda n, m: n * m,
    ),
    factor.TriangularSolve: Routine(
        lambda s, n, x, y, work, reals, a: s.call(triangular.triangular_solve, *n, *x, *y, work, a["upper"], a["unit"]),
        lambda shapes, a: shapes[1],
        lambda n, m: n * m,
    ),
    factor.Qr: Routine(
        lambda s, n, x, y, work, reals, a: s.call(orthogonal.qr, *n, *x, *y, work),
        lambda shapes, a: shapes[0],
        lambda rows, cols: rows * cols,
    ),
    factor.HouseholderProduct: Routine(
        lambda s, n, x, y, work, reals, a: s.call(orthogonal.householder_product, *n, *x, *y, work),
        lambda shapes, a: [*shapes[0], shapes[1][-1]],
        lambda rows, cols, count: rows * cols + rows,
    ),
    factor.Eigh: Routine(
        _eigh,
        lambda shapes, a: shapes[0][:1],
        lambda n: 3 * n * n + 3 * n,
        lambda n: 2 * n,
    ),
    factor.Svd: Routine(
        _svd,
        _svd_sizes,
        lambda rows, cols, most, least, columns: most * (least + columns + 1) + 2 * least * (least + 1),
        lambda rows, cols, most, least, columns: 2 * least,
    ),
    factor.Eig: Routine(
        lambda s, n, x, y, work, reals, a: s.call(general.eig, *n, *x, y[0], y[-2], y[-1], work, reals, a["vectors"]),
        lambda shapes, a: shapes[0][:1],
        lambda n: 3 * n * n + 3 * n,
        lambda n: 2 * n,
        wide=True,
    ),
}


class FactorFamily(KernelFamily):
    """A factorisation of each matrix of a batch, by one thread, in f64."""

    anchor = Kind.OPAQUE.value
    ops = tuple(ROUTINES)

    def __init__(self, low: Lowering, group: Group) -> None:
        super().__init__(low, group)
        self.op: Any = anchor_of(group, Kind.OPAQUE)

    def lower(self) -> Launch:
        op, routine = self.op, ROUTINES[type(self.op)]
        attrs = {name: attr(op, name) for name in type(op).flags()}
        operands, results = ([from_mlir(v) for v in values] for values in (op.operands, op.results))
        lead = operands[0].rank - 2
        step = 2 if type(op).pairs(len(operands)) else 1
        sizes = routine.sizes([list(t.shape[lead:]) for t in operands[::step]], attrs)
        pairs = step == 2 or routine.wide
        numbers, reals = (sympy.sympify(f(*sizes)) for f in (routine.work, routine.reals))

        k = OpKernel(self.low, self.group, op)
        body = _Body(type(op), routine, operands, results, lead, attrs, pairs)
        symbol, fn = body.emit(k.module), k.fn
        bases = [*(k.operand(i) for i in range(len(operands))), *(k.result(i) for i in range(len(results)))]
        given = [k.size(e) for e in sizes]
        widths = [k.size(w) for w in body.widths]
        reals_at = fn.gep(k.scratch, k.size(numbers * (2 if pairs else 1)), F64)
        with fn.loop(k.begin, k.end) as item:
            at = [
                fn.gep(p, fn.mul(item.iv, k.size(product(t.shape[lead:]))), t.dtype.name)
                for p, t in zip(bases, [*operands, *results], strict=True)
            ]
            fn.call(symbol, [*given, *widths, *at, k.scratch, reals_at])
        count = product(operands[0].shape[:lead])
        work = operands[0].shape[-2] * operands[0].shape[-1] * operands[0].shape[-1]
        scratch = 8 * (numbers * (2 if pairs else 1) + reals)
        return Launch(finish(k, "factor"), k.args.slots, count, work, scratch)


@dataclass(frozen=True)
class _Body:
    """The function that factors one matrix: (sizes, row widths, operands, results, work memory, real work memory)."""

    op: Any
    routine: Routine
    operands: list[TensorType]
    results: list[TensorType]
    lead: int
    attrs: dict[str, Any]
    pairs: bool

    @property
    def widths(self) -> Sizes:
        """The row widths of all operands and results that are matrices."""
        return [t.shape[-1] for t in [*self.operands, *self.results] if t.rank == self.lead + 2]

    def emit(self, module: KernelModule) -> str:
        """Emits (once) the function; returns its name."""
        step = 2 if self.op.pairs(len(self.operands)) else 1
        count = len(self.routine.sizes([[sympy.Integer(1)] * 2] * self.op.arity, self.attrs))
        flags = "".join(f"_{n}" for n, on in self.attrs.items() if on)
        kind = f"{'c' if step == 2 else ''}{self.operands[0].dtype.name}"
        ranks = "".join(str(t.rank - self.lead) for t in self.operands)
        name = f"factor_{self.op.OPERATION_NAME.removeprefix('dhlo.')}_{kind}_{ranks}{flags}"
        if name in module.functions:
            return name
        tensors = [*self.operands, *self.results]
        args = [(f"n{i}", I64) for i in range(count)] + [(f"w{i}", I64) for i in range(len(self.widths))]
        args += [(f"p{i}", PTR) for i in range(len(tensors))] + [("work", PTR), ("reals", PTR)]
        fn = Fn(module, name, args, noinline=True)
        sizes, widths = fn.args[:count], iter(fn.args[count : count + len(self.widths)])
        pointers = fn.args[count + len(self.widths) : -2]
        values: list[Any] = []
        kinds = [*["number"] * self.op.arity, *(kind for kind, _ in self._outputs())]
        i = 0
        for kind in kinds:
            t, pair = tensors[i], kind == "complex" or (kind == "number" and step == 2)
            x: Any = Array(pointers[i], t.dtype.name, im=pointers[i + 1] if pair else None)
            parts = [next(widths) for _ in range(2 if pair else 1)] if t.rank == self.lead + 2 else []
            values.append(Matrix(x, parts[0]) if parts else x)
            i += 2 if pair else 1
        work, reals = Array(fn.args[-2], F64, self.pairs), Array(fn.args[-1], F64)
        ins, outs = values[: self.op.arity], values[self.op.arity :]
        self.routine.call(Script(fn), list(sizes), ins, outs, work, reals, self.attrs)
        fn.ret()
        fn.done()
        return name

    def _outputs(self) -> list[tuple[str, Any]]:
        step = 2 if self.op.pairs(len(self.operands)) else 1
        made: list[tuple[str, Any]] = self.op.outputs([list(t.shape) for t in self.operands[::step]], self.attrs)
        return made
