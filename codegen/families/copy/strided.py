"""Copies tensors with arbitrary strides into dense row-major memory, and back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, TypeVar

from dhlo.codegen.kernel_ir.builder import I64, PTR, KernelModule, V, vec
from dhlo.codegen.kernel_ir.interleave import load_spaced
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args
from dhlo.codegen.kernel_ir.transpose import transpose_block

__all__ = ["BLOCK_ROWS", "emit_copy_strided"]

BLOCK_ROWS: Final = 64
"""Rows of an item: where memory runs along them, a piece of so many elements lies in few lines and one page."""
# Elements of a row that are copied before the next one's of BLOCK_ROWS, as many as a line has of most types; more of fewer rows.
_CHUNK: Final = 16
# Elements of a row that lie so far apart are read by whole vectors: channels of an image whose pixels hold them side by side.
_SPACES: Final = (2, 3, 4)
# The cache to which memory is prefetched.
_AHEAD: Final = 2
T = TypeVar("T")
_TYPES: Final = {1: "i8", 2: "i16", 4: "i32", 8: "i64", 16: "i128"}


def emit_copy_strided(module: KernelModule, itemsize: int, copies_out: bool) -> str:
    """Emits (once) a kernel for elements of `itemsize` bytes and returns its symbol.

    Arguments: source, destination, sizes, strides (elements; of the source, or of the destination if it `copies_out`), rank >= 1,
    and a dim. Rows run along the last dim; an item is BLOCK_ROWS of them along the given one, or one row where that is the last.
    Where memory runs along that dim, blocks are transposed in registers, unless it takes few elements there.
    """
    name = f"copy_{'out' if copies_out else 'in'}_{itemsize}"
    if name not in module.functions:
        _Kernel(module, name, itemsize, copies_out).emit()
    return name


class _Kernel:
    """The kernel under construction."""

    def __init__(self, module: KernelModule, name: str, itemsize: int, copies_out: bool) -> None:
        self.elem, self.align, self.copies_out = _TYPES[itemsize], min(itemsize, 8), copies_out
        self.lanes = min(module.target.vector_bits // (8 * itemsize), _CHUNK)
        self.spaces = not copies_out and itemsize <= 8
        self.fn = fn = kernel_fn(module, name)
        src, dst, self.sizes, self.strides, rank, self.dim = load_args(fn, [PTR, PTR, PTR, PTR, I64, I64])
        self.there, self.here = (dst, src) if copies_out else (src, dst)  # the strided memory, and the dense one
        self.last = fn.sub(rank, 1)
        self.columns, self.step = self._of(self.last)
        several = fn.cmp("lt", self.dim, self.last)
        rows, apart = self._of(self.dim)
        self.rows, self.apart = fn.select(several, rows, 1), fn.select(several, apart, 0)

    def _of(self, dim: V) -> tuple[V, V]:
        """Size and stride of a dim."""
        fn = self.fn
        return fn.load(fn.gep(self.sizes, dim, I64), I64), fn.load(fn.gep(self.strides, dim, I64), I64)

    def emit(self) -> None:
        fn = self.fn
        blocks = fn.max(fn.ceildivu(self.rows, BLOCK_ROWS), 1)
        with fn.loop(fn.args[1], fn.args[2]) as item:
            begin = [fn.divu(item.iv, blocks), fn.i64(0), fn.i64(0), self.columns, fn.i64(0)]
            with fn.loop(0, self.last, 1, begin) as lp:
                rest, there, here, dense, dense_apart = lp.carried
                d = fn.sub(fn.sub(self.last, 1), lp.iv)
                size, stride = self._of(d)
                mine = fn.cmp("eq", d, self.dim)
                at = fn.select(mine, 0, fn.remu(rest, size))
                lp.yield_(
                    fn.select(mine, rest, fn.divu(rest, size)),
                    fn.add(there, fn.mul(at, stride)),
                    fn.add(here, fn.mul(at, dense)),
                    fn.mul(dense, size),
                    fn.select(mine, dense, dense_apart),
                )
            _, there, here, _, dense_apart = lp.results
            first = fn.mul(fn.remu(item.iv, blocks), BLOCK_ROWS)
            count = fn.min(fn.sub(self.rows, first), BLOCK_ROWS)
            there, here = fn.add(there, fn.mul(first, self.apart)), fn.add(here, fn.mul(first, dense_apart))
            self._block(fn.gep(self.there, there, self.elem), fn.gep(self.here, here, self.elem), dense_apart, count)
        fn.done()

    def _block(self, there: V, here: V, dense_apart: V, count: V) -> None:
        """`count` rows, which begin at these places: by vectors, and what these leave by elements."""
        fn, lanes = self.fn, self.lanes
        whole = fn.mul(fn.divu(self.columns, lanes), lanes)

        def lines() -> list[V]:
            with fn.loop(0, count) as r, fn.loop(0, whole, lanes) as c:
                self._move(self._at(there, r.iv, c.iv), fn.gep(here, fn.add(fn.mul(r.iv, dense_apart), c.iv), self.elem))
            return [count, whole]

        def turned() -> list[V]:
            high = fn.mul(fn.divu(count, lanes), lanes)
            with fn.loop(0, whole, lanes) as c, fn.loop(0, high, lanes) as r:
                self._turn(
                    self._at(there, r.iv, c.iv), fn.gep(here, fn.add(fn.mul(r.iv, dense_apart), c.iv), self.elem), dense_apart
                )
            return [high, whole]

        def nothing() -> list[V]:
            return [fn.i64(0), fn.i64(0)]

        def others() -> list[V]:
            return fn.if_else(fn.cmp("eq", self.apart, 1), turned, nothing, [I64, I64])

        def spaced(spaces: Sequence[int]) -> list[V]:
            if not spaces:
                return others()
            step, *more = spaces
            here_ = partial(self._spaced, there, here, dense_apart, count, step)
            return fn.if_else(fn.cmp("eq", self.step, step), here_, partial(spaced, more), [I64, I64])

        def apart() -> list[V]:
            return spaced(_SPACES) if self.spaces else others()

        high, wide = others() if lanes == 1 else fn.if_else(fn.cmp("eq", self.step, 1), lines, apart, [I64, I64])
        self._elements(there, here, dense_apart, (fn.i64(0), high), wide)
        self._elements(there, here, dense_apart, (high, count), fn.i64(0))

    def _spaced(self, there: V, here: V, dense_apart: V, count: V, step: int) -> list[V]:
        """Rows whose elements lie so far apart; returns how many rows and columns are done."""
        fn = self.fn
        whole = fn.mul(fn.divu(self.columns, fn.lanes), fn.lanes)
        with fn.loop(0, count) as r, fn.loop(0, whole, fn.lanes) as c:
            x = load_spaced(fn, self._at(there, r.iv, c.iv), step, self.elem)
            fn.store(x, fn.gep(here, fn.add(fn.mul(r.iv, dense_apart), c.iv), self.elem), self.align)
        return [count, whole]

    def _elements(self, there: V, here: V, dense_apart: V, rows: tuple[V, V], column: V) -> None:
        """Some rows from a column on, a chunk of all of them at a time."""
        fn = self.fn
        chunk = fn.divu(fn.i64(_CHUNK * BLOCK_ROWS), fn.max(fn.sub(rows[1], rows[0]), 1))
        with fn.loop(column, self.columns, chunk) as c:
            end = fn.min(fn.add(c.iv, chunk), self.columns)
            with fn.loop(*rows) as r, fn.loop(c.iv, end) as x:
                dense = fn.gep(here, fn.add(fn.mul(r.iv, dense_apart), x.iv), self.elem)
                source, to = self._directed(self._at(there, r.iv, x.iv), dense)
                fn.store(fn.load(source, self.elem, self.align), to, self.align)

    def _at(self, there: V, row: V, column: V) -> V:
        fn = self.fn
        return fn.gep(there, fn.add(fn.mul(row, self.apart), fn.mul(column, self.step)), self.elem)

    def _directed(self, there: T, here: T) -> tuple[T, T]:
        """What is read, and what is written."""
        return (here, there) if self.copies_out else (there, here)

    def _move(self, there: V, here: V) -> None:
        """A vector of a row."""
        source, to = self._directed(there, here)
        self.fn.store(self.fn.load(source, vec(self.elem, self.lanes), self.align), to, self.align)

    def _turn(self, there: V, here: V, dense_apart: V) -> None:
        """A square block, whose rows are columns of the strided memory."""
        fn, ty = self.fn, vec(self.elem, self.lanes)
        (source, source_step), (to, to_step) = self._directed((there, self.step), (here, dense_apart))
        # The next block, pieces of rows that hardware doesn't expect, to the second-level cache (see `Turned.blocks`).
        for i in range(self.lanes):
            fn.prefetch(fn.gep(there, fn.mul(self.step, self.lanes + i), self.elem), _AHEAD)
            fn.prefetch(fn.gep(fn.gep(here, fn.mul(dense_apart, i), self.elem), 2 * self.lanes - 1, self.elem), _AHEAD)
        block = [fn.load(fn.gep(source, fn.mul(source_step, i), self.elem), ty, self.align) for i in range(self.lanes)]
        for i, x in enumerate(transpose_block(fn, block)):
            fn.store(x, fn.gep(to, fn.mul(to_step, i), self.elem), self.align)
