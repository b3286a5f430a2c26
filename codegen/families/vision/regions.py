"""What kernels of regions share: rows of a region are combined for a vector of channels at once, then turned, then columns.

A cell of a region is made of some rows and some columns of the image. For each row of cells the image's rows are combined first, as
vectors along them, for as many channels as a vector has lanes. Turned, so that lanes are channels, columns are combined by
uniform loads. Results are turned back into rows of cells. The image is read as it lies, and only where a region is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import sympy

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import Launch, finish
from dhlo.codegen.families.lines import OpKernel
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.kernel_ir.builder import BITS, I8, I64, V
from dhlo.codegen.kernel_ir.transpose import transpose_block
from dhlo.ir.dialect import Op, attr
from dhlo.ir.ops.control import Group
from dhlo.ir.symbols import ceil_div
from dhlo.ir.types import DTYPES, from_mlir

__all__ = ["Regions"]

_CHANNELS = 64  # of an item, for which what a region reads is found out once
_WORK = 16  # of an element, in simple operations
_LINE = 64


class Regions(OpKernel):
    """Items are (region, block of channels). `parts` are the element types of what is known of a cell: its value is the last."""

    parts: tuple[str, ...]
    image: V  # of the region at hand
    there: V  # whether there is such one, with elements

    def __init__(self, low: Lowering, group: Group, op: Op) -> None:
        super().__init__(low, group, op)
        self.x, self.out = from_mlir(op.operands[0]), from_mlir(op.results[0])
        self.elem, self.sensitive = self.x.dtype.register, attr(op, "sensitive")
        self.images, self.planes, *spatial = self.x.shape
        self.spatial = spatial
        self.height, self.width = (self.size(s) for s in spatial)
        self.cells = [int(s) for s in self.out.shape[2:]]
        self.regions, self.channels = self.out.shape[:2]
        self.scratch_bytes = sympy.Integer(0)
        self.parts = (self.elem,)

    # ------------------------------------------------------------------ what a kernel of regions says
    @abstractmethod
    def prepare(self, region: V) -> None:
        """Finds out what a region reads, once for an item; `vectors` then knows vectors of columns."""

    @abstractmethod
    def vectors(self, column: V | None) -> tuple[V, V]:
        """The first vector of columns that the cells of a column, or of all columns, are made of, and the one behind the last."""

    @abstractmethod
    def start_of(self, vector: V) -> V:
        """The image's column at which a vector of columns begins."""

    @abstractmethod
    def combine_rows(self, row: V, start: V, at: Sequence[V]) -> list[list[V]]:
        """Of a row of cells, each part of the vector of columns from `start` on: for each channel, whose plane begins at `at`."""

    @abstractmethod
    def combine_columns(self, row: V, column: V) -> V:
        """The cells, of a vector of channels."""

    # ------------------------------------------------------------------ memory
    def room(self, count: sympy.Expr | int, elem: str) -> V:
        """Scratch memory of `count` elements."""
        p = self.fn.gep(self.scratch, self.size(self.scratch_bytes), I8)
        self.scratch_bytes += _LINE * ceil_div(sympy.sympify(count) * BITS[elem] // 8, sympy.Integer(_LINE))
        return p

    def turned_rows(self, vectors: sympy.Expr | int) -> None:
        """Memory of what rows are combined to, of so many vectors of columns."""
        lanes = self.fn.lanes
        self.turned = [self.room(vectors * lanes * lanes, elem) for elem in self.parts]

    def turned_at(self, part: int, slot: V) -> V:
        """A vector of channels, of a column by its place among the vectors of columns."""
        fn, elem = self.fn, self.parts[part]
        return fn.load(fn.gep(self.turned[part], fn.mul(slot, fn.lanes), elem), fn.vec(elem))

    def image_row(self, plane: V, row: V, start: V, mask: V) -> V:
        """A vector of columns of an image's row, in register form."""
        with self.em.scope(mask):
            at = self.fn.add(plane, self.fn.add(self.fn.mul(row, self.width), start))
            return self.load(self.pointer, self.x.dtype, Index(at, 1))

    def image_of(self, number: V) -> tuple[V, V]:
        """A region's image, and whether there is such one, with elements. One out of range fails the call."""
        fn = self.fn
        image = self.em.position(self.em.lookup(number, self.images, self.op))
        there = fn.cmp("ult", number, self.size(self.images))
        for n in (self.height, self.width):
            there = fn.and_(there, fn.cmp("gt", n, 0))
        return image, there

    # ------------------------------------------------------------------ loops
    def lower(self, name: str) -> Launch:
        """Writes the kernel."""
        fn, em = self.fn, self.em
        blocks = ceil_div(self.channels, sympy.Integer(_CHANNELS))
        self.pointer, self.y = self.operand(0), self.result(0)
        cells = self.cells[0] * self.cells[1]
        self.found = self.room(-(-cells // fn.lanes) * fn.lanes * fn.lanes, self.parts[-1])
        with fn.loop(self.begin, self.end) as item, em.scope():
            region, block = em.split(Index(item.iv), [self.regions, blocks])
            self.prepare(em.position(region))
            first = fn.mul(em.position(block), _CHANNELS)
            last = fn.min(fn.add(first, _CHANNELS), self.size(self.channels))
            with fn.loop(first, last, fn.lanes) as lp, em.scope():
                self._channels(em.position(region), lp.iv, last)
        count = self.regions * blocks
        return Launch(finish(self, name), self.args.slots, count, _CHANNELS * cells * _WORK, self.scratch_bytes, self.lookups)

    def _channels(self, region: V, first: V, last: V) -> None:
        """A vector of channels: all cells."""
        fn, (rows, columns) = self.fn, self.cells
        plane, at = fn.mul(self.height, self.width), []
        for j in range(fn.lanes):  # the last one again where there are fewer
            c = fn.min(fn.add(first, j), fn.sub(last, 1))
            c = fn.mul(c, rows * columns) if self.sensitive else c
            at.append(fn.mul(fn.add(fn.mul(self.image, self.size(self.planes)), c), plane))
        with fn.loop(0, rows) as row, self.em.scope():
            if not self.sensitive:
                self._turn(row.iv, None, at)
            with fn.loop(0, columns) as column, self.em.scope():
                cell = fn.add(fn.mul(row.iv, columns), column.iv)
                if self.sensitive:
                    self._turn(row.iv, column.iv, [fn.add(p, fn.mul(cell, plane)) for p in at])
                fn.store(self.combine_columns(row.iv, column.iv), fn.gep(self.found, fn.mul(cell, fn.lanes), self.parts[-1]))
        self._give(region, first, last)

    def _turn(self, row: V, column: V | None, at: Sequence[V]) -> None:
        """Combines rows and turns what comes of it."""
        fn, lanes = self.fn, self.fn.lanes
        lo, hi = self.vectors(column)
        with fn.loop(lo, hi) as lp, self.em.scope():
            for p, elem, values in zip(self.turned, self.parts, self.combine_rows(row, self.start_of(lp.iv), at), strict=True):
                for j, v in enumerate(transpose_block(fn, values)):
                    fn.store(v, fn.gep(p, fn.mul(fn.add(fn.mul(lp.iv, lanes), j), lanes), elem))

    def _give(self, region: V, first: V, last: V) -> None:
        """Stores a vector of channels of all cells, a row of each."""
        fn, lanes, elem, cells = self.fn, self.fn.lanes, self.parts[-1], self.cells[0] * self.cells[1]
        dtype = self.out.dtype if self.out.dtype.is_float else DTYPES["i32"]
        start = fn.mul(fn.add(fn.mul(region, self.size(self.channels)), first), cells)
        with fn.loop(0, cells, lanes) as lp, self.em.scope(fn.tail_mask(fn.sub(fn.i64(cells), lp.iv))):
            p = fn.gep(self.found, fn.mul(lp.iv, lanes), elem)
            values = [fn.load(fn.gep(p, j * lanes, elem), fn.vec(elem)) for j in range(lanes)]
            for j, v in enumerate(transpose_block(fn, values)):
                with fn.when(fn.cmp("lt", fn.add(first, j), last)):
                    self.store(v, self.y, dtype, Index(fn.add(fn.add(start, j * cells), lp.iv), 1))

    def column_mask(self, start: V) -> V:
        """The lanes of a vector of columns that are in the image."""
        return self.fn.tail_mask(self.fn.sub(self.width, start))

    def number(self, p: V, at: V) -> V:
        """An i64 of scratch."""
        return self.fn.load(self.fn.gep(p, at, I64), I64)
