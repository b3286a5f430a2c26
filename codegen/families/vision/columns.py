"""Bilinear samples at computed places, of images whose channels lie side by side: what deformable convolutions multiply."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import sympy

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import Launch, finish, vectors
from dhlo.codegen.families.lines import OpKernel
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.kernel_ir.builder import I1, I8, I64, V
from dhlo.ir.dialect import Op
from dhlo.ir.ops.control import Group
from dhlo.ir.symbols import ceil_div
from dhlo.ir.types import from_mlir

__all__ = ["lower_sampled_columns"]

_POSITIONS = 64  # of an item
_CORNERS = tuple(product(range(2), range(2)))
_WORK = 12  # of a sample's vector of channels, in simple operations


class _Columns(OpKernel):
    """Items are (image, block of positions). Of each sample of a block, weights and addresses of the four elements around it are
    found for a vector of positions at once; what lies outside of the image has the address of zeros. Then each sample is computed
    for vectors of channels."""

    def __init__(self, low: Lowering, group: Group, op: Op) -> None:
        super().__init__(low, group, op)
        self.x = from_mlir(op.operands[0])
        self.elem, self.bytes = self.x.dtype.register, self.x.dtype.bytes
        self.images, *self.spatial, channels = self.x.shape
        _, groups, taps, _, self.positions = from_mlir(op.operands[1]).shape
        self.taps, self.groups, self.channels = int(taps), int(groups), int(channels)
        self.own = self.channels // self.groups  # channels of a group
        sizes = [*[_POSITIONS * 8] * 4, *[_POSITIONS * self.bytes] * 5, max(self.own, self.fn.lanes) * self.bytes]
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        at = [self.fn.gep(self.scratch, s, I8) for s in starts]
        self.addresses, self.weights, self.factor, self.zeros = at[:4], at[4:8], at[8], at[9]
        self.scratch_bytes = sum(sizes)

    def lower(self) -> Launch:
        fn, em = self.fn, self.em
        blocks = ceil_div(self.positions, sympy.Integer(_POSITIONS))
        self.image, self.places, self.factors, self.y = *(self.operand(i) for i in range(3)), self.result(0)
        with fn.loop(self.begin, self.end) as item, em.scope():
            with fn.loop(0, self.own) as lp:
                fn.store(fn.const(0.0, self.elem), fn.gep(self.zeros, lp.iv, self.elem))
            b, block = (em.position(i) for i in em.split(Index(item.iv), [self.images, blocks]))
            first = fn.mul(block, _POSITIONS)
            count = fn.min(fn.sub(self.size(self.positions), first), _POSITIONS)
            with fn.loop(0, self.groups) as group, fn.loop(0, self.taps) as tap, em.scope():
                row = fn.add(fn.mul(fn.add(fn.mul(b, self.groups), group.iv), self.taps), tap.iv)
                self._find(b, group.iv, row, first, count)
                with fn.loop(0, count) as lp:
                    to = fn.add(fn.mul(fn.add(fn.mul(b, self.size(self.positions)), fn.add(first, lp.iv)), self.taps), tap.iv)
                    self._sample(lp.iv, fn.add(fn.mul(to, self.channels), fn.mul(group.iv, self.own)))
        work = self.groups * self.taps * -(-self.own // fn.lanes) * _POSITIONS * _WORK
        scratch = sympy.Integer(self.scratch_bytes)
        return Launch(finish(self, "sampled_columns"), self.args.slots, self.images * blocks, work, scratch)

    def _find(self, b: V, group: V, row: V, first: V, count: V) -> None:
        """Addresses and weights of a sample of each position of a block."""
        fn, positions, dtype = self.fn, self.size(self.positions), self.x.dtype
        height, width = (self.size(s) for s in self.spatial)
        starts = [fn.add(fn.mul(r, positions), first) for r in (fn.mul(row, 2), fn.add(fn.mul(row, 2), 1), row)]
        base = fn.add(fn.mul(b, fn.mul(fn.mul(height, width), self.channels)), fn.mul(group, self.own))
        start = fn.add(fn.ptr_to_int(self.image), fn.mul(base, self.bytes))

        def find(i: Index) -> None:
            at = [
                self.load(p, dtype, self.em.plus(Index(s), i))
                for p, s in zip((self.places,) * 2 + (self.factors,), starts, strict=True)
            ]
            low, weights, inside = self._around(at[:2], (height, width))
            for k, corner in enumerate(_CORNERS):
                there, y_x = inside, []
                for p, step, n in zip(low, corner, (height, width), strict=True):
                    q = fn.add(p, step)
                    there = fn.and_(there, fn.and_(fn.cmp("ge", q, 0), fn.cmp("lt", q, n)))
                    y_x.append(q)
                where = fn.mul(fn.add(fn.mul(y_x[0], fn.splat(width)), y_x[1]), self.channels * self.bytes)
                where = fn.select(there, fn.add(where, fn.splat(start)), fn.splat(fn.ptr_to_int(self.zeros)))
                self._keep(where, self.addresses[k], i)
                self._keep(fn.mul(weights[0][corner[0]], weights[1][corner[1]]), self.weights[k], i)
            self._keep(at[2], self.factor, i)

        vectors(self.em, 0, count, find)

    def _around(self, at: Sequence[V], sizes: Sequence[V]) -> tuple[list[V], list[list[V]], V]:
        """Of places: what is below them, the weights of that and of what is above, in each dim, and which are inside."""
        fn, low, weights = self.fn, [], []
        inside = fn.const(True, fn.vec(I1))
        for p, n in zip(at, sizes, strict=True):
            inside = fn.and_(inside, fn.and_(fn.cmp("gt", p, -1.0), fn.cmp("lt", p, fn.splat(fn.cast(n, self.elem)))))
        for p in at:
            q = fn.select(inside, p, 0.0)
            down = fn.unary("floor", q)
            part = fn.sub(q, down)
            low.append(fn.cast(down, I64))
            weights.append([fn.sub(1.0, part), part])
        return low, weights, inside

    def _keep(self, x: V, p: V, i: Index) -> None:
        """A vector in scratch, which has room for all lanes."""
        self.fn.store(x, self.fn.gep(p, i.base, x.elem))

    def _sample(self, i: V, to: V) -> None:
        """A sample, all channels of its group, to the result."""
        fn = self.fn
        corners = [fn.int_to_ptr(fn.load(fn.gep(p, i, I64), I64)) for p in self.addresses]
        *weights, factor = (fn.splat(fn.load(fn.gep(p, i, self.elem), self.elem)) for p in (*self.weights, self.factor))
        out, dtype = fn.gep(self.y, to, self.elem), self.x.dtype

        def channels(at: V | int, mask: V | None) -> None:
            with self.em.scope(mask):
                values = [self.load(p, dtype, Index(at, 1)) for p in corners]
                total = fn.mul(values[0], weights[0])
                for v, w in zip(values[1:], weights[1:], strict=True):
                    total = fn.fma(v, w, total)
                self.store(fn.mul(total, factor), out, dtype, Index(at, 1))

        whole = self.own // fn.lanes * fn.lanes
        if whole:
            with fn.loop(0, whole, fn.lanes) as lp:
                channels(lp.iv, None)
        if whole < self.own:
            channels(whole, fn.tail_mask(fn.i64(self.own - whole)))


def lower_sampled_columns(low: Lowering, group: Group, op: Op) -> Launch:
    """The columns of torchvision::deform_conv2d."""
    return _Columns(low, group, op).lower()
