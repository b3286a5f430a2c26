"""Products of rows with the two small matrices of an adapter, which each row chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dhlo.codegen.elementwise.rules import narrow
from dhlo.codegen.families.box import grain_of
from dhlo.codegen.families.family import ChoiceFamily
from dhlo.codegen.families.kernel import where
from dhlo.codegen.families.lowering import GroupHost, Lowering, anchor_of, view_pointer
from dhlo.codegen.kernel_ir.builder import F32, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args
from dhlo.errors import CompileError
from dhlo.ir.dialect import Kind, attr
from dhlo.ir.ops.adapters import LowRank
from dhlo.ir.ops.control import Group
from dhlo.ir.types import from_mlir

__all__ = ["LowRankFamily"]

_ROWS = 4  # that one pass over an adapter's matrices serves, where they follow one another
_FEW_SUMS = 8  # registers of sums that hide the time of a multiply-add, and leave room for what is multiplied
_MOST_ROWS = 16  # of a chunk of work, at least: many rows are divided finely, so that threads end together
_ADDS_PER_OPERATION = 5  # see `box`


@dataclass(frozen=True)
class LowRankKernel:
    """Items are rows: x A B of each row that has an adapter, for `parts` products side by side. Arguments: x, weights, adapters, y;
    the elements of a row of x, of weights and of y; and for each product the place of its matrices in a row of weights, and its
    columns. The sums between the two matrices are scratch."""

    elem: str
    rank: int
    parts: int

    @property
    def symbol(self) -> str:
        return f"low_rank_{self.elem}_{self.rank}_{self.parts}"

    @property
    def scratch_bytes(self) -> int:
        return 4 * _ROWS * self.rank

    def emit(self, module: KernelModule) -> None:
        """Emits the kernel, once."""
        if self.symbol in module.functions:
            return
        fn = kernel_fn(module, self.symbol)
        x, weights, adapters, y, k, whole, columns, *places = load_args(fn, [PTR] * 4 + [I64] * (3 + 2 * self.parts))
        begin, end = fn.args[1], fn.args[2]

        def adapter(t: V) -> V:
            return fn.load(fn.gep(adapters, t, I32), I32)

        with fn.loop(begin, end, 1, [begin]) as lp:
            t, done = lp.iv, lp.carried[0]
            own = adapter(t)
            due = fn.and_(fn.cmp("ge", t, done), fn.cmp("ge", own, 0))

            def alike() -> list[V]:
                same = fn.cmp("eq", adapter(fn.add(t, 1)), own)
                for i in range(2, _ROWS):
                    same = fn.and_(same, fn.cmp("eq", adapter(fn.add(t, i)), own))
                return [same]

            several = fn.if_else(fn.and_(due, fn.cmp("le", fn.add(t, _ROWS), end)), alike, lambda: [fn.const(False, "i1")], ["i1"])[
                0
            ]
            row = fn.gep(weights, fn.mul(fn.cast(own, I64), whole), self.elem)

            def rows(count: int) -> list[V]:
                first = 0 if self.parts == 1 else fn.i64(0)
                for at, n in zip(places[::2], places[1::2], strict=True):
                    a = fn.gep(row, at, self.elem)
                    self._shrink(fn, count, fn.gep(x, fn.mul(t, k), self.elem), k, a)
                    to = fn.gep(y, fn.add(fn.mul(t, columns), first), self.elem)
                    self._expand(fn, count, fn.gep(a, fn.mul(k, self.rank), self.elem), n, to, columns)
                    first = fn.add(first, n)
                return [fn.add(t, count)]

            def one() -> list[V]:
                return fn.if_else(due, lambda: rows(1), lambda: [done], [I64])

            lp.yield_(fn.if_else(several, lambda: rows(_ROWS), one, [I64])[0])
        fn.done()

    def _load(self, fn: Fn, p: V, i: V | int, lanes: int = 0) -> V:
        """Elements as f32."""
        return fn.cast(fn.load(fn.gep(p, i, self.elem), vec(self.elem, lanes) if lanes else self.elem), F32)

    def _shrink(self, fn: Fn, count: int, x: V, k: V, a: V) -> None:
        """The sums of `count` rows with A [k, rank], to scratch [count, rank]."""
        lanes = min(fn.lanes, self.rank)
        whole = self.rank // lanes
        width = min(whole, max(_FEW_SUMS // count, 1))
        while whole % width:
            width -= 1
        steps = max(_FEW_SUMS // (count * width), 1)
        zero = fn.const(0, vec(F32, lanes))
        for c in range(0, whole, width):

            def multiply(at: V, sums: Sequence[V], steps: int, c: int = c) -> list[V]:
                out = list(sums)
                for s in range(steps):
                    i = fn.add(at, s)
                    vectors = [self._load(fn, a, fn.add(fn.mul(i, self.rank), (c + v) * lanes), lanes) for v in range(width)]
                    for r in range(count):
                        factor = fn.splat(self._load(fn, x, fn.add(fn.mul(k, r), i)), lanes)
                        for v in range(width):
                            j = (s * count + r) * width + v
                            out[j] = fn.fma(factor, vectors[v], out[j])
                return out

            bulk = fn.mul(fn.divu(k, steps), steps)
            with fn.loop(0, bulk, steps, [zero] * (steps * count * width)) as lp:
                lp.yield_(*multiply(lp.iv, lp.carried, steps))
            sums = list(lp.results)
            for s in range(1, steps):
                for j in range(count * width):
                    sums[j] = fn.add(sums[j], sums[s * count * width + j])
            sums = sums[: count * width]
            if steps > 1:
                with fn.loop(bulk, k, 1, sums) as lp:
                    lp.yield_(*multiply(lp.iv, lp.carried, 1))
                sums = list(lp.results)
            for r in range(count):
                for v in range(width):
                    fn.store(sums[r * width + v], fn.gep(fn.args[4], r * self.rank + (c + v) * lanes, F32))

    def _expand(self, fn: Fn, count: int, b: V, n: V, y: V, columns: V) -> None:
        """The products of scratch [count, rank] with B [rank, n], to rows of y that lie `columns` apart."""
        width = max(_FEW_SUMS // count, 1)
        zero = fn.const(0, fn.vec(F32))

        def block(first: V, width: int, mask: V | None = None) -> None:
            with fn.loop(0, self.rank, 1, [zero] * (count * width)) as lp:
                p = fn.gep(b, fn.add(fn.mul(lp.iv, n), first), self.elem)
                if mask is None:
                    vectors = [self._load(fn, p, v * fn.lanes, fn.lanes) for v in range(width)]
                else:
                    vectors = [fn.cast(fn.masked_load(p, mask, fn.const(0, fn.vec(self.elem))), F32)]
                out = []
                for r in range(count):
                    factor = fn.splat(fn.load(fn.gep(fn.args[4], fn.add(lp.iv, r * self.rank), F32), F32))
                    out += [fn.fma(factor, vectors[v], lp.carried[r * width + v]) for v in range(width)]
                lp.yield_(*out)
            for r in range(count):
                for v in range(width):
                    to = fn.gep(y, fn.add(fn.add(fn.mul(columns, r), first), v * fn.lanes), self.elem)
                    value = narrow(fn, lp.results[r * width + v], self.elem)
                    if mask is None:
                        fn.store(value, to)
                    else:
                        fn.masked_store(value, to, mask)

        wide = fn.mul(fn.divu(n, width * fn.lanes), width * fn.lanes)
        with fn.loop(0, wide, width * fn.lanes) as lp:
            block(lp.iv, width)
        whole = fn.mul(fn.divu(n, fn.lanes), fn.lanes)
        with fn.loop(wide, whole, fn.lanes) as lp:
            block(lp.iv, 1)
        with fn.when(fn.cmp("lt", whole, n)):
            block(whole, 1, fn.tail_mask(fn.sub(n, whole)))


class LowRankFamily(ChoiceFamily):
    """Low-rank products of the rows that have an adapter, in one launch; in none, where no row has one."""

    anchor = Kind.OPAQUE.value
    ops = (LowRank,)

    def __init__(self, low: Lowering, group: Group) -> None:
        """Raises CompileError for elements that have no kernel."""
        super().__init__(low, group)
        self.op = anchor_of(group, Kind.OPAQUE)
        self.type = from_mlir(self.op.operands[0])
        if self.type.dtype.name not in ("f32", "f16", "bf16"):
            raise CompileError(f"adapters of rows {self.type} have no kernel", where=where(self.op))
        self.views = [low.view(group, v) for v in self.op.operands]
        self.at, self.columns = attr(self.op, "at"), attr(self.op, "columns")
        self.kernel = LowRankKernel(self.type.dtype.name, attr(self.op, "rank"), len(self.at))

    def emit_kernels(self) -> None:
        self.kernel.emit(self.low.module)

    def emit_launch(self, host: GroupHost) -> None:
        fn, (x, weights, adapters) = host.fn, self.views
        rows, k, whole = (host.size(n) for n in (x.shape[-2], x.shape[-1], weights.shape[1]))
        chosen = view_pointer(host, adapters)
        host.mark_data_dependent()

        def last() -> V:
            with fn.loop(0, rows, 1, [fn.i64(-1)]) as lp:
                lp.yield_(fn.max(lp.carried[0], fn.cast(fn.load(fn.gep(chosen, lp.iv, I32), I32), I64)))
            return lp.results[0]

        most, there = host.unless_planning(last, fn.i64(0)), host.size(weights.shape[0])
        host.require(fn.cmp("lt", most, there), self.low.checks.index_check(self.op), there, most)
        with fn.when(fn.cmp("ge", most, 0)):
            places = [fn.i64(n) for pair in zip(self.at, self.columns, strict=True) for n in pair]
            out = host.pointer(self.group.results[0])
            args = [view_pointer(host, x), view_pointer(host, weights), chosen, out, k, whole, fn.i64(sum(self.columns)), *places]
            adds = self.kernel.rank * (len(self.at) * int(self.type.shape[-1]) + sum(self.columns))
            pays = grain_of(host, adds // _ADDS_PER_OPERATION)
            share = fn.min(fn.divu(rows, host.num_threads), _MOST_ROWS)
            host.launch(self.kernel.symbol, args, rows, fn.max(pays, share), self.kernel.scratch_bytes)
