"""Kernels that work on the lines of a dense tensor along one dim: addresses, loads and stores in register form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sympy

from dhlo.codegen.elementwise.emit import Slot, memory_type
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import GroupKernel
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.kernel_ir.builder import Fn, V
from dhlo.ir.dialect import Op
from dhlo.ir.ops.control import Group
from dhlo.ir.symbols import ceil_div, product
from dhlo.ir.types import DTYPES, DType, TensorType, from_mlir
from dhlo.shape_infer.views import View

__all__ = [
    "Lines",
    "OpKernel",
    "block_count",
    "blocks_across",
    "lanes_at",
    "prefix",
    "register_of",
    "while_loop",
]


@dataclass(frozen=True)
class Lines:
    """A dense tensor as [outer, n, inner] around one dim."""

    outer: sympy.Expr
    n: sympy.Expr
    inner: sympy.Expr

    @staticmethod
    def of(t: TensorType, dim: int) -> Lines:
        return Lines(product(t.shape[:dim]), t.shape[dim], product(t.shape[dim + 1 :]))

    @property
    def contiguous(self) -> bool:
        return bool(self.inner == 1)


class OpKernel(GroupKernel):
    """The kernel of a group that holds one op; its operands are dense views of memory."""

    def __init__(
        self, low: Lowering, group: Group, op: Op, first_arg: int = 0, slots: Sequence[Slot] = (), noinline: bool = False
    ) -> None:
        super().__init__(low.module, group, low.checks, first_arg=first_arg, slots=slots, noinline=noinline)
        self.low, self.op = low, op
        self.begin, self.end, self.scratch = self.fn.args[1], self.fn.args[2], self.fn.args[4]

    def operand(self, i: int) -> V:
        """Address of operand i."""
        view: View = self.low.view(self.group, self.op.operands[i])
        p = self.args.get(("pointer", view.base))
        offset = self.em.size(view.offset)
        return self.fn.gep(p, offset, memory_type(from_mlir(view.base).dtype))

    def result(self, i: int) -> V:
        """Address of the op's result i."""
        return self.result_pointer(self.yields.index(self.op.results[i]))

    def size(self, e: sympy.Expr | int) -> V:
        return self.fn.i64(self.em.size(e))

    def line_start(self, item: V, lines: Lines) -> V:
        """Position of the first element of line `item` of outer * inner lines."""
        fn = self.fn
        if lines.contiguous:
            return fn.mul(item, self.size(lines.n))
        inner = self.size(lines.inner)
        outer, c = fn.divu(item, inner), fn.remu(item, inner)
        return fn.add(fn.mul(fn.mul(outer, self.size(lines.n)), inner), c)

    def elements(self, start: V, i: V | int, lines: Lines) -> Index:
        """Positions of a vector of elements of a line from i on."""
        em, fn = self.em, self.fn
        if lines.contiguous:
            return Index(em.add(start, i), 1)
        at = fn.mul(fn.add(fn.splat(fn.i64(i)), fn.iota()), fn.splat(self.size(lines.inner)))
        return Index(0, vec=fn.add(at, fn.splat(start)))

    def load(self, p: V, dtype: DType, at: Index) -> V:
        """Elements in register form, bools as i8."""
        if dtype.is_bool:
            return self.em.load_memory(p, _BYTE, at)
        return self.em.load_memory(p, dtype, at)

    def store(self, x: V, p: V, dtype: DType, at: Index) -> None:
        self.em.store(x, p, _BYTE if dtype.is_bool else dtype, at)


_BYTE = DTYPES["i8"]


def register_of(dtype: DType) -> str:
    """The register type that `OpKernel.load` gives."""
    return "i8" if dtype.is_bool else dtype.register


def lanes_at(k: OpKernel, lo: V | int, hi: V, init: Sequence[V], body: Callable[[V, Sequence[V]], Sequence[V]]) -> list[V]:
    """Runs `body(i, carried)` for vectors of positions from i on of [lo, hi), the last perhaps under `k.em.mask`."""
    fn, em = k.fn, k.em
    lo = fn.i64(lo)
    full = fn.add(lo, fn.and_(fn.max(fn.sub(hi, lo), 0), -fn.lanes))
    with fn.loop(lo, full, fn.lanes, init) as lp, em.scope():
        lp.yield_(*body(lp.iv, lp.carried))

    def tail() -> Sequence[V]:
        with em.scope(fn.tail_mask(fn.sub(hi, full))):
            return body(full, lp.results)

    return fn.if_else(fn.cmp("lt", full, hi), tail, lambda: lp.results, [v.type for v in init])


def blocks_across(k: OpKernel, lines: Lines, body: Callable[[V, V], None]) -> None:
    """Runs `body` for the kernel's items, each a vector of neighbouring lines, with the position of element 0 of
    the first of them and the number of that line; lanes past the last line are masked."""
    fn, em = k.fn, k.em
    inner = k.size(lines.inner)
    per_row = fn.ceildivu(inner, fn.lanes)
    with fn.loop(k.begin, k.end) as item:
        outer, block = fn.divu(item.iv, per_row), fn.remu(item.iv, per_row)
        c = fn.mul(block, fn.lanes)
        start = fn.add(fn.mul(fn.mul(outer, k.size(lines.n)), inner), c)

        first = fn.add(fn.mul(outer, inner), c)
        left = fn.sub(inner, c)

        def run(mask: V | None) -> list[V]:
            with em.scope(mask):
                body(start, first)
            return []

        fn.if_else(fn.cmp("ge", left, fn.lanes), lambda: run(None), lambda: run(fn.tail_mask(left)), [])


def block_count(lines: Lines, lanes: int) -> sympy.Expr:
    """Items of `blocks_across`."""
    return lines.outer * ceil_div(lines.inner, lanes)


def prefix(fn: Fn, x: V, identity: V, combine: Callable[[V, V], V]) -> V:
    """Inclusive running combination of a vector's lanes, in log2(lanes) steps."""
    step = 1
    while step < x.lanes:
        moved = fn.shuffle(x, identity, [x.lanes + i if i < step else i - step for i in range(x.lanes)])
        x = combine(moved, x)
        step *= 2
    return x


def while_loop(fn: Fn, init: Sequence[V], going: Callable[[Sequence[V]], V], body: Callable[[Sequence[V]], Sequence[V]]) -> list[V]:
    """Repeats `body` on carried values as long as `going` holds; returns the last ones."""
    n, types = len(init), ", ".join(v.type for v in init)
    name = fn.fresh(types).name
    inside, after = ([fn.fresh(v.type) for v in init] for _ in range(2))
    heads = ", ".join(f"{a.name} = {v.name}" for a, v in zip(inside, init, strict=True))
    fn.raw(f"{name}{f':{n}' if n > 1 else ''} = scf.while ({heads}) : ({types}) -> ({types}) {{")
    fn.raw(f"scf.condition({going(inside).name}) {', '.join(v.name for v in inside)} : {types}")
    fn.raw(f"}} do {{\n^bb0({', '.join(f'{v.name}: {v.type}' for v in after)}):")
    fn.raw(f"scf.yield {', '.join(v.name for v in body(after))} : {types}\n}}")
    return [V(name if n == 1 else f"{name}#{k}", v.type) for k, v in enumerate(init)]
