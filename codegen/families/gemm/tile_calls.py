"""What the kernel of a product calls for a tile: micro-kernel, touch and epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from dhlo.codegen.families.gemm.microkernel import LEAST_FETCHING
from dhlo.codegen.families.gemm.register_tile import TileSpec, accumulator, result_type, unit
from dhlo.codegen.families.gemm.sharing import Sharing
from dhlo.codegen.kernel_ir.builder import BITS, I1, I8, I32, I64, PTR, Fn, V
from dhlo.codegen.target import LINE_BYTES

__all__ = ["TileCalls"]


@dataclass(frozen=True)
class TileCalls:
    """Emits the calls of micro-kernel and epilogue in the kernel `fn`."""

    elem: str
    spec: TileSpec
    narrow: bool
    rows: bool  # of A are read in place
    fn: Fn
    table: V
    wide: V  # the same, or those of wide tiles that share what they fetch
    packing: tuple[V, V] | None  # the micro-kernels that pack B, and what they take in its place
    steps: V  # of the chunk of k, whole ones where rows are read in place
    half: V | None  # whether one of which they have the first element alone follows; None where there is no such
    adds: V | None  # whether it adds to the tile; None where it is all of k
    last: V | None  # whether the tile is finished then
    accumulate: V  # for micro-kernels
    touches: V  # whether the tile's memory is to be prefetched
    fetches: V  # whether micro-kernels do so where they store it
    result: V | None  # where whole tiles are stored, null for none; None for chunks, whose tiles wait
    m: V
    n: V
    epilogue: V
    touch: V
    eargs: V

    def either(self, packs: V | None, variants: V, panel: V) -> tuple[V, V]:
        """The micro-kernels and their B: those of a panel, or those that pack it."""
        if packs is None or self.packing is None:
            return variants, panel
        return self.fn.select(packs, self.packing[0], variants), self.fn.select(packs, self.packing[1], panel)

    def variants(self, width: V, table: V) -> V:
        """The micro-kernels of a table by number of rows, for a tile of `width` columns."""
        fn, spec, elem = self.fn, self.spec, self.elem
        wide = self.wide if table is self.table else table
        if not self.narrow:
            return wide
        return fn.select(fn.cmp("le", width, spec.lanes(elem)), fn.gep(table, spec.rows(elem), PTR), wide)

    def emit(
        self,
        variants: V,
        a: Sequence[V],
        b: V,
        tile: V,
        place: Sequence[V],
        ld: V | int,
        fetch: Sequence[V],
        following: tuple[V, V],
    ) -> None:
        """One chunk of the sums in `tile`, which are at `place` (batch, row, column, rows, columns) of C. `fetch`: what is
        prefetched (see `emit_microkernel`). `following`: row and column of the next tile."""
        fn, acc = self.fn, accumulator(self.elem)
        ukr = fn.load(fn.gep(variants, fn.sub(place[3], 1), PTR), PTR)
        at, apart, inside, rounds = tile, fn.i64(ld), None, result_type(self.elem) != acc
        null = fn.int_to_ptr(fn.i64(0))
        to = later = null  # where sums are rounded to, and those of the next tile
        fetches = fn.const(0, I1)
        if self.result is not None:
            batch, row, column, high, width = place
            inside = fn.and_(fn.cmp("ne", fn.ptr_to_int(self.result), 0), fn.cmp("eq", width, apart))
            to = fn.select(inside, self._cell(self.result, batch, row, column), null if rounds else tile)
            at, apart = tile if rounds else to, self.n if rounds else fn.select(inside, self.n, apart)
            if rounds:
                fetches = fn.and_(inside, self.fetches)
                later = fn.select(fetches, self._cell(self.result, batch, *following), null)
            elif acc == self.elem and not self.rows:
                fetches = fn.and_(fn.and_(inside, self.fetches), fn.cmp("ge", high, LEAST_FETCHING))
        place = [self.eargs, tile, fn.i64(ld), *place]
        touches = fn.and_(self.touches, fn.not_(fetches))
        with fn.when(touches):
            fn.call_ptr(self.touch, place)
        if self.adds is not None:
            with fn.when(self.adds), fn.loop(0, fn.mul(fn.mul(place[6], ld), BITS[acc] // 8), LINE_BYTES) as line:
                fn.prefetch(fn.gep(fn.gep(tile, fn.mul(place[6], ld), acc), line.iv, I8))  # the sums that are needed next
        placed = [to, apart, later] if rounds else [apart, fn.cast(fetches, I64, signed=False)]
        fn.call_ptr(ukr, [*a, b, self.steps, at, self.accumulate, *fetch, *placed])
        hands_over = self.last if inside is None else fn.not_(inside)
        with nullcontext() if hands_over is None else fn.when(hands_over):
            fn.call_ptr(self.epilogue, place)

    def _cell(self, result: V, batch: V, row: V, column: V) -> V:
        """Where an element of C lies; where there is none, the address is good for a prefetch."""
        fn = self.fn
        with fn.wrapping():
            cell = fn.add(fn.mul(fn.add(fn.mul(batch, self.m), row), self.n), column)
        return fn.gep(result, cell, result_type(self.elem))

    def emit_across(
        self,
        a: Sequence[V],
        panel: V,
        tile: V,
        place: Sequence[V],
        fetch: Sequence[V],
        following: tuple[V, V],
        *,
        packs: V | None,
        slices: bool,
        sharing: Sharing | None,
    ) -> None:
        """The tiles of some rows across a panel that is wider than they are, one after the other in `tile` where they wait.
        They prefetch at `fetch[0]`, `fetch[1]` bytes a step of k: slices between them, or the columns of each that lie there; or
        what is theirs of a `sharing`."""
        fn, spec, elem = self.fn, self.spec, self.elem
        columns, part = spec.panel(elem), unit(elem)
        (batch, m0, n0, mr, width), (address, step, begin, pace) = place, fetch
        ld = fn.select(fn.cmp("le", mr, spec.whole_panel_rows(elem)), fn.i64(columns), spec.nr(elem))
        share = fn.divu(fn.mul(step, ld), columns) if slices else step
        onward, each = fn.mul(share, self.steps) if slices else fn.mul(ld, BITS[part] // 8), fn.i64(0)
        if sharing is not None:
            share, onward = fn.select(sharing.shares, step, share), fn.select(sharing.shares, 0, onward)
            each = fn.select(sharing.shares, sharing.each, 0)
        with fn.loop(0, width, ld, [fn.i64(0), begin]) as t:
            b, left, later = fn.gep(panel, t.iv, part), fn.min(fn.sub(width, t.iv), ld), t.carried[0]
            sums = tile if self.last is None else fn.gep(tile, fn.mul(mr, t.iv), part)
            here = [batch, m0, fn.add(n0, t.iv), mr, left]
            if spec.flips(elem):
                a = [a[0], fn.gep(a[1], t.iv, I32), a[2]]
            kernels, right = self.either(packs, self.variants(left, self.table), b)
            beside = fn.add(t.iv, ld)
            in_panel = fn.cmp("lt", beside, width)
            after = fn.select(in_panel, m0, following[0]), fn.select(in_panel, fn.add(n0, beside), following[1])
            self.emit(kernels, a, right, sums, here, ld, [fn.gep(address, later, I8), share, t.carried[1], pace], after)
            if self.packing is not None:  # the next tile's columns
                nbytes = fn.mul(ld, BITS[part] // 8)
                for i, more in ((0, nbytes), (2, nbytes), (4, fn.sub(0, ld))):
                    field = fn.gep(self.packing[1], i, I64)
                    fn.store(fn.add(fn.load(field, I64), more), field)
            t.yield_(fn.add(later, onward), fn.add(t.carried[1], each))
