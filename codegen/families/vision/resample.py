"""Images of bytes of another size along one dim: sums of neighbours times whole weights, a pair of products an instruction."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.gemm.multiply_add import add_pair_products, as_vector_of
from dhlo.codegen.families.kernel import Launch, finish, rows, vectors
from dhlo.codegen.families.lines import OpKernel
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.kernel_ir.builder import I8, I32, I64, V
from dhlo.codegen.kernel_ir.transpose import transpose_block
from dhlo.ir.dialect import Op, attr
from dhlo.ir.ops.control import Group
from dhlo.ir.symbols import ceil_div, product
from dhlo.ir.types import from_mlir

__all__ = ["lower_resampled_bytes"]

_SIDE_BY_SIDE = 4  # vectors that are summed at once
_CHUNK = 1024  # positions of an item


class _Resampled(OpKernel):
    """Vectors run along what follows the dim, and pairs of neighbours along it are interleaved. Of the last dim an item is a block
    of rows, which is transposed on its way to scratch, and so are its sums on their way to the result."""

    def __init__(self, low: Lowering, group: Group, op: Op) -> None:
        super().__init__(low, group, op)
        self.x, first, weights, _ = op.operands
        self.d, self.shape = attr(op, "dim"), from_mlir(self.x).shape
        (self.out,), self.taps = from_mlir(first).shape, from_mlir(weights).shape[1]
        self.n, self.dtype = self.shape[self.d], from_mlir(self.x).dtype
        self.block = _SIDE_BY_SIDE * self.fn.lanes

    def lower(self) -> Launch:
        self.first, self.weights, self.y = self.operand(1), self.operand(2), self.result(0)
        bits = self.fn.load(self.operand(3), I32)
        self.bits, self.half = self.fn.splat(bits), self.fn.splat(self.fn.shl(self.fn.const(1, I32), self.fn.sub(bits, 1)))
        return self.along_rows() if self.d == len(self.shape) - 1 else self.across_rows()

    # ------------------------------------------------------------------ the last dim
    def along_rows(self) -> Launch:
        fn, block, lanes = self.fn, self.block, self.fn.lanes
        count = product(self.shape[:-1])
        room = (self.n + lanes) * block  # of columns, of which the last vector may have more than there are
        columns, sums = self.scratch, fn.gep(self.scratch, self.size(room), I8)
        with fn.loop(self.begin, self.end) as item:
            first, last = fn.mul(item.iv, block), fn.sub(self.size(count), 1)
            with fn.loop(0, block, lanes) as g:
                rows_ = [fn.min(fn.add(fn.add(first, g.iv), k), last) for k in range(lanes)]
                self.turn_in(rows_, fn.gep(columns, g.iv, I8))
            with fn.loop(0, self.size(self.out)) as o, self.em.scope():
                for v, x in enumerate(
                    self.sums(columns, fn.const(0, I64), fn.const(block, I64), o.iv, fn.const(0, I64), _SIDE_BY_SIDE)
                ):
                    fn.store(fn.cast(x, I8), fn.gep(sums, fn.add(fn.mul(o.iv, block), v * lanes), I8))
            with fn.loop(0, block, lanes) as g:
                rows_ = [fn.min(fn.add(fn.add(first, g.iv), k), last) for k in range(lanes)]
                self.turn_out(fn.gep(sums, g.iv, I8), rows_)
        work = block * (self.n + self.out * (self.taps + 1)) // 2
        scratch = room + (self.out + lanes) * block
        return Launch(finish(self, "resampled_rows"), self.args.slots, ceil_div(count, block), work, scratch, self.lookups)

    def turn_in(self, rows_: Sequence[V], to: V) -> None:
        """Stores columns of a vector of rows, a block apart. Rows that aren't there are the last one."""
        em, fn = self.em, self.fn

        def columns(i: Index) -> None:
            read = [em.value(self.x, [*em.split(Index(r), self.shape[:-1]), i]) for r in rows_]
            turned = transpose_block(fn, [fn.cast(x if x.lanes else fn.splat(x), I8) for x in read])
            for k, x in enumerate(turned):
                fn.store(x, fn.gep(to, fn.mul(fn.add(i.base, k), self.block), I8))

        vectors(em, 0, self.size(self.n), columns)

    def turn_out(self, sums: V, rows_: Sequence[V]) -> None:
        """Stores a vector of rows of columns that are a block apart."""
        em, fn = self.em, self.fn

        def columns(i: Index) -> None:
            at = [fn.gep(sums, fn.mul(fn.add(i.base, k), self.block), I8) for k in range(fn.lanes)]
            for r, x in zip(rows_, transpose_block(fn, [fn.load(p, fn.vec(I8)) for p in at]), strict=True):
                em.store(fn.cast(x, "i16"), self.y, self.dtype, em.plus(Index(fn.mul(r, self.size(self.out))), i))

        vectors(em, 0, self.size(self.out), columns)

    # ------------------------------------------------------------------ any other dim
    def across_rows(self) -> Launch:
        fn, em = self.fn, self.em
        inner = product(self.shape[self.d + 1 :])
        sizes = [product(self.shape[: self.d]), self.out, ceil_div(inner, _CHUNK)]
        source = self.operand(0)
        with rows(em, self.begin, self.end, sizes) as (image, o, chunk):
            to = em.times(em.flatten([image, o], sizes[:2]), em.size(inner))
            lo = fn.mul(em.position(chunk), _CHUNK)
            hi = fn.min(fn.add(lo, _CHUNK), self.size(inner))
            plane = fn.mul(em.position(image), self.size(self.n))

            def store(i: V, count: int) -> None:
                for v, x in enumerate(self.sums(source, plane, self.size(inner), em.position(o), i, count)):
                    em.store(fn.cast(x, "i16"), self.y, self.dtype, em.plus(to, Index(fn.add(i, v * fn.lanes), 1)))

            whole = fn.add(lo, fn.mul(fn.divu(fn.sub(hi, lo), self.block), self.block))
            with fn.loop(lo, whole, self.block) as lp, em.scope():
                store(lp.iv, _SIDE_BY_SIDE)
            vectors(em, whole, hi, lambda i: store(fn.i64(i.base), 1), anywhere=True)
        work = sympy.Min(inner, _CHUNK) * self.taps
        return Launch(finish(self, "resampled_planes"), self.args.slots, product(sizes), work, lookups=self.lookups)

    # ------------------------------------------------------------------ both
    def sums(self, source: V, plane: V, inner: V, o: V, i: V, count: int) -> list[V]:
        """Element o of the result for `count` vectors from i on of `inner` positions, rounded; `plane` is the number of the first
        row of them."""
        fn = self.fn
        start = fn.max(fn.min(fn.load(fn.gep(self.first, o, I64), I64), fn.sub(self.size(self.n), 1)), 0)
        weights = fn.gep(self.weights, fn.mul(o, self.size(self.taps)), "i16")
        taps = fn.select(fn.cmp("gt", self.size(self.n), 0), self.size(self.taps), 0)  # without rows there is nothing to read
        with fn.loop(0, taps, 2, [fn.const(0, fn.vec(I32))] * count) as lp:
            w = as_vector_of(fn, "i16", fn.splat(fn.load(fn.gep(weights, lp.iv, "i16"), I32, 2)))
            places = [fn.min(fn.add(fn.add(start, lp.iv), k), fn.sub(self.size(self.n), 1)) for k in (0, 1)]
            at = [fn.gep(source, fn.add(fn.mul(fn.add(plane, p), inner), i), I8) for p in places]
            found = []
            for v in range(count):
                a, b = (self.bytes_at(fn.gep(p, v * fn.lanes, I8)) for p in at)
                pairs = fn.shuffle(a, b, [n + k * fn.lanes for n in range(fn.lanes) for k in (0, 1)])
                found.append(self.add_pairs(fn.cast(pairs, "i16", signed=False), w, lp.carried[v]))
            lp.yield_(*found)
        return [fn.min(fn.max(fn.shr(fn.add(x, self.half), self.bits), 0), 255) for x in lp.results]

    def bytes_at(self, p: V) -> V:
        fn, mask = self.fn, self.em.mask
        return fn.load(p, fn.vec(I8)) if mask is None else fn.masked_load(p, mask, fn.const(0, fn.vec(I8)))

    def add_pairs(self, x: V, w: V, sum_: V) -> V:
        """sum_ + the products of neighbours of vectors of i16."""
        fn = self.fn
        if fn.target.pair_products:
            return add_pair_products(fn, x, w, sum_)
        for k in (0, 1):
            every = list(range(k, x.lanes, 2))
            sum_ = fn.add(sum_, fn.mul(*(fn.cast(fn.shuffle(v, v, every), I32) for v in (x, w))))
        return sum_


def lower_resampled_bytes(low: Lowering, group: Group, op: Op) -> Launch:
    """One dim of aten.upsample_bilinear2d and the like, of ui8."""
    return _Resampled(low, group, op).lower()
