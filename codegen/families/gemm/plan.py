"""How a product is blocked (MC, KC and NC in BLIS's terms): the host program's cost model, and the split of rows in the kernels."""

from __future__ import annotations

from typing import Final

from dhlo.codegen.families.box import copy_cycles, cycles_from_l3, cycles_from_memory, l3_is_slow, passes_caches, wake_cycles
from dhlo.codegen.families.gemm.pack import may_stream
from dhlo.codegen.families.gemm.pack_rows import widened_row
from dhlo.codegen.families.gemm.register_tile import F16, TileSpec, accumulator, depth, unit
from dhlo.codegen.kernel_ir.builder import BITS, F32, I1, Fn, V
from dhlo.codegen.kernel_ir.launch import HostContext

__all__ = ["FEW_USES", "Plan", "RowSplit", "call_cycles"]

FEW_USES: Final = 2
"""So many packings of B, each to a panel that stays in the cache, are cheaper than one by a launch before, all of B to memory."""

# Cost model, in cycles: of a call of micro-kernel and epilogue and in it of each vector of the tile.
_CALL_CYCLES, _VECTOR_CYCLES = 16, 3
# The rows of A in a block should fit one part in so many of a core's second-level cache (the rest holds panels of B), and
# never exceed it more than so many times (they may be packed to scratch).
_A_BLOCK_SHARE, _A_BLOCK_EXCESS = 2, 8
# Products are deep where a panel of B takes more than one part in so many of the second-level cache: beside the rows of A there
# must be room for the panel that is read and the one that is fetched. Chunks of k take no more than that; half of it where they are
# copies, which leaves room for more rows to share one; of a lone panel more. They are at least so many units deep.
_PANEL_SHARE, _COPY_SHARE, _LONE_SHARE, _LEAST_KC = 8, 16, 2, 128
# The sums that wait for the next chunk may take so many times that cache (they are prefetched), and are of at least so many panels.
_WAITING_EXCESS, _LEAST_NC = 2, 4
# Chunks are multiples of this many units.
_KC_UNIT = 16
# How many chunks the runtime gives each thread; with each begins a run of panels, for which A is packed. Where that would take
# more than one part in so many of the time, half as many, if they balance as well.
_CHUNKS_PER_THREAD, _PACK_SHARE, _MIN_HALVED = 4, 16, 6
# Where tiles pack it on the way, stores of a step take so many beside its products. Any number of blocks may do so, each of which
# then reads B, where it stays in a part of the third-level cache (`_B_SHARE`), and would come from memory in no more than one part
# in so many of the time of their products. Found on a Zen 5: two stores in the first cache take as long as 2.2 of the 28
# multiply-adds of a step there; of a B from memory a tile that packs takes 1.6 to 2.3 times as long as others.
_STORED_CYCLES, _STREAM_SHARE = 2, 4
# A B of so many times what would be stored past the caches is packed beforehand for more than so many row panels.
_FAR_EXCESS, _FEW_PANELS = 2, 4
# Where B is packed beforehand, its panels cost so many of these in all.
_PACKED_COPIES = 3
# Tiles below each other write pieces of rows of C that are far apart, those beside each other go on where the last one ended:
# cycles of a row of a tile, at least, or in which the third-level cache delivers so many bytes, in a matrix of so many panels and
# more (fewer where that cache is slow). One row panel a block then pays where all of B stays in one part in so many of the
# third-level cache, or in half of the second, and the row panel of A in the first.
_APART_CYCLES, _APART_BYTES, _WIDE_PANELS, _B_SHARE = 20, 256, (16, 8), 4
# Where rows of A don't stay in the second-level cache, they come from the third. Of a step's products one part in so many is lost,
# or what that takes longer than one part in so many.
_UNCACHED_SHARE, _HIDDEN_SHARE = 16, 8
# One block's chunk of rows takes so much of the second-level cache at most, where a chunk of B is copied for it alone.
_ALONE_SHARE = (3, 4)
# How many row splits the host compares, from one and from what the cache asks for: the number of threads, within these.
_MIN_CANDIDATES, _MAX_CANDIDATES = 4, 16


def call_cycles(spec: TileSpec) -> int:
    """Cost of the calls for some rows of a panel of B."""
    return (_CALL_CYCLES + _VECTOR_CYCLES * spec.mr * spec.vectors) * spec.per_panel


class Plan:
    """The host's choice of the number of row blocks and of the chunks of k, and what follows from it.

    Where a panel of B and the rows of A that it meets would leave the second-level cache, k is taken in `kc` units at a time, as
    equal as their multiples allow, by groups of at most `nc` panels whose sums wait in scratch, added to in order of k: what the
    caches hold doesn't change a bit of them. One row panel alone has nothing to gain: it reads B once.

    More blocks balance threads and keep their rows of A in cache; fewer stream B less often. The candidates are few and
    more, what the cache asks for and more, and one for each row panel; the cheapest by the cost model wins. Where A is packed,
    threads may take whole blocks only, each of which is then packed once. `copied`: B isn't in panels; `by_tiles`: whether tiles
    pack it on the way.
    """

    def __init__(
        self,
        spec: TileSpec,
        elem: str,
        host: HostContext,
        m: V,
        k: V,
        panels: V,
        cells: V,
        in_place: V,
        *,
        copied: bool,
        by_tiles: V | None = None,
    ) -> None:
        fn = host.fn
        self.fn, self.spec, self.elem = fn, spec, elem

        lone = fn.cmp("le", panels, 1)  # rows of A meet no second panel: they needn't stay in a cache

        def most(share: int) -> V:
            share_of = fn.mul(fn.select(lone, fn.i64(min(share, _LONE_SHARE)), share), spec.row_bytes(elem))
            return fn.max(fn.divu(host.l2_bytes, share_of), _LEAST_KC)

        most_kc = most(_COPY_SHARE if copied else _PANEL_SHARE)
        deep = fn.and_(fn.cmp("gt", k, most(_PANEL_SHARE)), fn.cmp("gt", m, spec.rows(elem)))
        chunks = fn.divu(fn.add(k, fn.sub(most_kc, 1)), most_kc)
        equal = fn.divu(fn.add(k, fn.sub(chunks, 1)), fn.max(chunks, 1))
        self.kc = fn.select(deep, fn.mul(fn.ceildivu(equal, _KC_UNIT), _KC_UNIT), fn.max(k, 1))
        waiting, tile_bytes = fn.mul(host.l2_bytes, _WAITING_EXCESS), spec.panel(elem) * BITS[accumulator(elem)] // 8

        def group(rows: V) -> V:
            at_most = fn.max(fn.divu(waiting, fn.mul(fn.max(rows, 1), tile_bytes)), _LEAST_NC)
            return fn.select(deep, fn.min(at_most, columns), columns)

        row_panels = fn.max(fn.ceildivu(m, spec.rows(elem)), 1)
        a_bytes = spec.left_parts(elem) * BITS[unit(elem)] // 8
        nbytes, room = fn.mul(fn.mul(m, self.kc), a_bytes), fn.divu(host.l2_bytes, _A_BLOCK_SHARE)
        nbytes = fn.select(fn.and_(lone, in_place), 0, nbytes)
        least = fn.min(fn.add(fn.divu(nbytes, room), 1), row_panels)
        threads, columns = host.num_threads, fn.max(panels, 1)
        slow, (most_wide, least_wide) = l3_is_slow(host), _WIDE_PANELS
        wide = fn.cmp("ge", columns, fn.select(slow, fn.i64(least_wide), most_wide))
        most_alone = fn.divu(fn.mul(host.l2_bytes, _ALONE_SHARE[0]), _ALONE_SHARE[1])
        wake, stream = wake_cycles(host), cycles_from_memory(host, spec.row_bytes(elem))
        copying = copy_cycles(host, spec.row_bytes(elem)) if copied else fn.i64(0)
        own = copying if by_tiles is None else fn.select(by_tiles, fn.min(copying, _STORED_CYCLES), copying)

        with fn.wrapping():
            b_bytes = fn.mul(fn.mul(k, columns), spec.row_bytes(elem) * _B_SHARE)
        inside = fn.cmp("le", b_bytes, fn.mul(host.l2_bytes, _B_SHARE // 2))  # of the second-level cache
        near = fn.or_(inside, fn.and_(fn.cmp("le", b_bytes, host.machine("l3_bytes")), fn.not_(slow)))
        again = fn.select(inside, 0, stream)
        # Rows of a B from memory are read at half the rate while they are multiplied, or less.
        far = fn.and_(passes_caches(host, fn.divu(b_bytes, _B_SHARE * _FAR_EXCESS)), fn.cmp("gt", m, _FEW_PANELS * spec.rows(elem)))
        self._few_rows = fn.not_(far) if may_stream(elem, spec) else fn.const(1, I1)
        self._stream, self._by_tiles = stream, None if by_tiles is None else fn.and_(by_tiles, near)

        row_apart = fn.max(cycles_from_l3(host, fn.i64(_APART_BYTES)), _APART_CYCLES)

        def cost(blocks: V) -> tuple[V, V, V, V]:
            rows = fn.divu(fn.add(m, fn.sub(blocks, 1)), blocks)
            in_block = fn.ceildivu(rows, spec.rows(elem))
            work = fn.mul(rows, spec.vectors * spec.per_panel * spec.left_parts(elem))
            uncached = fn.cmp("lt", blocks, least)
            if copied:  # one block's chunk, met by a chunk of B that is packed once and for it alone, may fill the cache
                fits = fn.and_(fn.and_(deep, fn.cmp("eq", blocks, 1)), fn.cmp("le", nbytes, most_alone))
                uncached = fn.and_(uncached, fn.not_(fits))
            away = fn.sub(cycles_from_l3(host, fn.mul(rows, a_bytes)), fn.divu(work, _HIDDEN_SHARE))
            work = fn.add(work, fn.select(uncached, fn.max(fn.divu(work, _UNCACHED_SHARE), away), 0))
            work = fn.max(work, again)
            apart = fn.select(fn.and_(wide, fn.cmp("gt", in_block, 1)), fn.mul(rows, row_apart), 0)
            step = work
            if copied:
                share = fn.divu(fn.mul(copying, _PACKED_COPIES), blocks)
                step = fn.add(work, fn.select(self.packs_own(blocks, rows), own, share))
            item = fn.add(fn.add(fn.mul(k, step), fn.mul(in_block, call_cycles(spec))), apart)
            pack = fn.mul(fn.max(rows, spec.lanes(F32) // 2), k)  # a row each, but transposed a vector at a time
            share = fn.divu(fn.add(fn.mul(cells, blocks), fn.sub(threads, 1)), threads)
            dear = fn.cmp("gt", fn.mul(pack, _PACK_SHARE * _CHUNKS_PER_THREAD), fn.mul(share, item))
            halved = fn.and_(fn.and_(dear, fn.not_(in_place)), fn.cmp("ge", share, _MIN_HALVED))
            chunks = fn.select(halved, fn.i64(_CHUNKS_PER_THREAD // 2), _CHUNKS_PER_THREAD)
            cut = fn.add(fn.mul(share, item), fn.mul(fn.add(fn.divu(share, columns), fn.select(in_place, 1, chunks)), pack))
            blocks_each = fn.divu(fn.add(fn.mul(fn.divu(cells, columns), blocks), fn.sub(threads, 1)), threads)
            whole = fn.mul(blocks_each, fn.add(fn.mul(columns, item), pack))
            use_whole = fn.and_(fn.cmp("lt", whole, cut), fn.not_(in_place))
            grain = fn.add(fn.divu(wake, fn.max(item, 1)), 1)
            grain = fn.max(grain, fn.select(halved, fn.divu(share, chunks), 1))
            return fn.min(whole, cut), fn.select(use_whole, columns, grain), blocks, rows

        tries = fn.min(fn.max(threads, _MIN_CANDIDATES), _MAX_CANDIDATES)
        fewest = fn.max(fn.divu(least, _A_BLOCK_EXCESS), 1)
        # One panel of rows is one block, whose cost there is nothing to compare with.
        several = fn.cmp("gt", row_panels, 1)
        turns = fn.select(several, fn.mul(tries, 2), 1)
        panel_bytes = fn.mul(k, spec.rows(elem) * a_bytes)
        stays = fn.and_(near, fn.cmp("le", panel_bytes, host.machine("l1d_bytes")))
        alone = fn.select(fn.and_(fn.and_(several, wide), stays), fn.i64(1), 0)
        none = (fn.i64((1 << 63) - 1), *[fn.i64(1)] * 3)
        with fn.wrapping(), fn.loop(0, fn.add(turns, alone), 1, none) as loop:
            few, many = fn.add(fewest, loop.iv), fn.add(least, fn.sub(loop.iv, tries))
            some = fn.min(fn.select(fn.cmp("lt", loop.iv, tries), few, many), row_panels)
            other = cost(fn.select(fn.cmp("lt", loop.iv, turns), some, row_panels))
            better = fn.cmp("lt", other[0], loop.carried[0])
            loop.yield_(*(fn.select(better, x, y) for x, y in zip(other, loop.carried, strict=True)))
        _, self.grain, self.blocks, self.rows = loop.results
        fn.assume(self.blocks, 1, fn.interval(row_panels)[1])
        fn.assume(self.rows, 0, fn.interval(m)[1])
        self.nc = group(self.rows)
        kept = fn.mul(fn.mul(self.rows, self.nc), spec.panel(elem))
        self.tiles = fn.select(deep, kept, spec.tile_elements(elem))

    def packs_own(self, uses: V, rows: V | None = None) -> V:
        """Whether each of a panel's uses, blocks of so many rows, packs it to scratch: no second launch, no way through memory."""
        fn, few = self.fn, self.fn.and_(self.fn.cmp("le", uses, FEW_USES), self._few_rows)
        if self._by_tiles is None:
            return few
        work = fn.mul(self.rows if rows is None else rows, self.spec.vectors * self.spec.per_panel)
        return fn.or_(few, fn.and_(self._by_tiles, fn.cmp("ge", work, fn.mul(self._stream, _STREAM_SHARE))))

    def scratch_bytes(self, *, rows: bool, copied: bool) -> V:
        """Scratch of a kernel variant: tiles, a chunk of a panel of B that is `copied`, one of a block of A unless its `rows` are
        read in place, of which a last unit may be packed (those of f16 are copied), and a vector of padding (see
        `emit_pack_rows`)."""
        fn, spec, elem = self.fn, self.spec, self.elem
        elements = fn.add(self.tiles, spec.lanes(elem))
        if copied:
            elements = fn.add(elements, fn.mul(self.kc, spec.panel(elem)))
        if elem == F16 and rows:
            elements = fn.add(elements, fn.mul(self.rows, widened_row(fn, self.kc, spec)))
        elif not rows or depth(elem) > 1:
            packed = fn.i64(1) if rows else spec.left_steps(fn, self.kc)
            elements = fn.add(elements, fn.mul(fn.mul(self.rows, packed), spec.left_parts(elem)))
        return fn.mul(elements, BITS[unit(self.elem)] // 8)


class RowSplit:
    """M rows in blocks of nearly equal size, so that threads with as many blocks have as much to do; each in panels of nearly
    equal height, none above `mr`."""

    def __init__(self, fn: Fn, m: V, blocks: V, block: V, mr: int) -> None:
        self.fn = fn
        self.first, after = (fn.divu(fn.mul(x, m), blocks) for x in (block, fn.add(block, 1)))
        self.size = fn.sub(after, self.first)
        self.panels = fn.max(fn.ceildivu(self.size, mr), 1)
        self._height = fn.divu(self.size, self.panels)
        self._higher = fn.sub(self.size, fn.mul(self._height, self.panels))  # so many panels have a row more

    def panel(self, i: V) -> tuple[V, V]:
        """First row, counted from the block's, and number of rows of a panel."""
        fn = self.fn
        row = fn.add(fn.mul(i, self._height), fn.min(i, self._higher))
        return row, fn.add(self._height, fn.select(fn.cmp("lt", i, self._higher), fn.i64(1), 0))
