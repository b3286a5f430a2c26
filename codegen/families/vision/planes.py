"""Bilinear samples at computed places, of images whose channels are planes: places are found once, for all channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import Launch, finish, rows, vectors
from dhlo.codegen.families.lines import OpKernel
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.kernel_ir.builder import F32, I64, V, vec
from dhlo.ir.dialect import Op
from dhlo.ir.ops.control import Group
from dhlo.ir.symbols import ceil_div, is_static, product
from dhlo.ir.types import from_mlir

__all__ = ["lower_sampled_planes"]

_BLOCK = 256  # positions of an item
_WORK = 16  # of a sample, in simple operations


@dataclass(frozen=True)
class _Side:
    """A dim of a vector of places: what is below them, whether that and what is above are inside, and the weights of both."""

    low: V
    there: tuple[V, V]
    weights: tuple[V, V]


class _Planes(OpKernel):
    """Items are blocks of positions of a row; a vector of positions reads the four elements around each in one plane after the
    other. Where rows have two elements, both of a row are gathered at once."""

    def __init__(self, low: Lowering, group: Group, op: Op) -> None:
        super().__init__(low, group, op)
        x, *self.places = op.operands
        self.dtype = from_mlir(x).dtype
        self.images, self.channels, self.height, self.width = from_mlir(x).shape
        self.out = from_mlir(self.places[0]).shape[1:]

    def lower(self) -> Launch:
        fn, em = self.fn, self.em
        last = self.out[-1:]
        by_rows = bool(last) and not (is_static(last[0]) and last[0] < fn.lanes)
        outer, lane = (self.out[:-1], last[0]) if by_rows else ((), product(self.out))
        self.image, self.y = self.operand(0), self.result(0)
        sizes = [self.images, *outer, ceil_div(lane, _BLOCK)]
        with rows(em, self.begin, self.end, sizes) as (b, *row, block):
            lo = fn.mul(em.position(block), _BLOCK)
            hi = fn.min(fn.add(lo, _BLOCK), self.size(lane))

            def at(i: Index) -> None:
                index = [*row, i] if by_rows else em.split(i, self.out)
                self.sample(b, index, em.flatten(index, self.out))

            vectors(em, lo, hi, at)
        work = _BLOCK * _WORK * self.channels
        return Launch(finish(self, "sampled_planes"), self.args.slots, product(sizes), work, lookups=self.lookups)

    def sample(self, b: Index, index: Sequence[Index], to: Index) -> None:
        """A vector of positions, `to` among those of a plane of the result, of all channels."""
        em, fn = self.em, self.fn
        y, x = (
            self.side(em.value(v, [b, *index]), self.size(n)) for v, n in zip(self.places, (self.height, self.width), strict=True)
        )
        first, channels = fn.mul(em.position(b), self.size(self.channels)), self.size(self.channels)
        area, out = fn.mul(self.size(self.height), self.size(self.width)), self.size(product(self.out))

        def over_channels(read: Callable[[V], list[list[V]]]) -> None:
            with fn.loop(0, channels) as c, em.scope():
                plane = fn.add(first, c.iv)
                values = read(fn.gep(self.image, fn.mul(plane, area), self.dtype.name))
                total: V | None = None
                for row, weight in zip(values, y.weights, strict=True):
                    for value, w in zip(row, x.weights, strict=True):
                        both = fn.mul(weight, w)
                        total = fn.mul(value, both) if total is None else fn.fma(value, both, total)
                assert total is not None
                em.store(total, self.y, self.dtype, em.plus(to, Index(fn.mul(plane, out))))

        if self.dtype.name != F32:
            over_channels(self.alone(y, x))
            return
        wide = fn.cmp("ge", self.size(self.width), 2)
        with fn.when(wide):
            over_channels(self.in_pairs(y, x))
        with fn.when(fn.not_(wide)):
            over_channels(self.alone(y, x))

    def side(self, at: V, n: V) -> _Side:
        fn = self.fn
        at = at if at.lanes else fn.splat(at)
        down = fn.unary("floor", at)
        part = fn.sub(at, down)
        inside = fn.and_(fn.cmp("ge", at, -1.0), fn.cmp("lt", at, fn.splat(fn.cast(n, at.elem))))
        low = fn.cast(fn.select(inside, down, -1.0), I64)
        there = fn.and_(inside, fn.cmp("ge", low, 0)), fn.and_(inside, fn.cmp("lt", low, fn.splat(fn.sub(n, 1))))
        return _Side(low, there, (fn.sub(1.0, part), part))

    def rows_of(self, y: _Side) -> list[V]:
        """Where the two rows begin; of one that isn't there, another."""
        fn = self.fn
        last, width = fn.splat(fn.sub(self.size(self.height), 1)), fn.splat(self.size(self.width))
        return [fn.mul(fn.max(fn.min(fn.add(y.low, step), last), 0), width) for step in (0, 1)]

    def alone(self, y: _Side, x: _Side) -> Callable[[V], list[list[V]]]:
        """Reads each element by itself."""
        fn = self.fn
        zero = fn.const(0.0, fn.vec(self.dtype.name))
        where = [
            [(fn.add(row, fn.add(x.low, step)), self.active(fn.and_(yes, x.there[step]))) for step in (0, 1)]
            for row, yes in zip(self.rows_of(y), y.there, strict=True)
        ]
        return lambda p: [[fn.gather(fn.gep(p, at, self.dtype.name), there, zero) for at, there in row] for row in where]

    def in_pairs(self, y: _Side, x: _Side) -> Callable[[V], list[list[V]]]:
        """Reads neighbours of a row as one word."""
        fn, half = self.fn, self.fn.lanes // 2
        before, behind = fn.cmp("lt", x.low, 0), fn.cmp("gt", x.low, fn.splat(fn.sub(self.size(self.width), 2)))
        left = fn.max(fn.min(x.low, fn.splat(fn.sub(self.size(self.width), 2))), 0)
        none, zero = fn.const(0, vec(I64, half)), fn.const(0.0, fn.vec(F32))
        everywhere = self.active(fn.splat(fn.cmp("gt", self.size(self.height), 0)))  # without rows there is nothing to read
        halves = [list(range(half)), list(range(half, fn.lanes))]
        masks = [fn.shuffle(everywhere, everywhere, h) for h in halves]
        starts = []
        for row in self.rows_of(y):
            at = fn.add(row, left)
            starts.append([fn.shuffle(at, at, h) for h in halves])
        inside = [[fn.and_(a, b) for b in x.there] for a in y.there]

        def read(p: V) -> list[list[V]]:
            out = []
            for at, (there, next_there) in zip(starts, inside, strict=True):
                low, high = (self.apart(fn.gather(fn.gep(p, i, F32), m, none, 4)) for i, m in zip(at, masks, strict=True))
                one, two = (fn.shuffle(low, high, list(range(k, 2 * fn.lanes, 2))) for k in (0, 1))
                out.append(
                    [
                        fn.select(there, fn.select(behind, two, one), zero),
                        fn.select(next_there, fn.select(before, one, two), zero),
                    ]
                )
            return out

        return read

    def apart(self, x: V) -> V:
        """The numbers that words hold."""
        ty = vec(F32, 2 * x.lanes)
        return self.fn.op(ty, f"vector.bitcast {x.name} : {x.type} to {ty}")

    def active(self, mask: V) -> V:
        return mask if self.em.mask is None else self.fn.and_(mask, self.em.mask)


def lower_sampled_planes(low: Lowering, group: Group, op: Op) -> Launch:
    """Bilinear aten.grid_sampler of few channels, or any number of them."""
    return _Planes(low, group, op).lower()
