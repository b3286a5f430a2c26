"""What cutting a product's rows in blocks costs: the host program's model, in multiply-adds of whole vectors."""

from __future__ import annotations

from dataclasses import dataclass

from dhlo.codegen.families.box import (
    copy_cycles,
    cycles_from_l3,
    cycles_from_memory,
    l3_is_slow,
    passes_caches,
    product_wake_cycles,
)
from dhlo.codegen.families.gemm.pack import may_stream
from dhlo.codegen.families.gemm.register_tile import TileSpec, depth
from dhlo.codegen.kernel_ir.builder import F32, I1, Fn, V
from dhlo.codegen.kernel_ir.launch import HostContext

__all__ = ["BlockCosts", "Cut", "RightSide", "call_cycles", "shared_copies"]

# So many packings of B, each to a panel that stays in the cache, are cheaper than one by a launch before, all of B to memory.
_FEW_USES = 2
# Cycles of a call of micro-kernel and epilogue and in it of each vector of the tile.
_CALL_CYCLES, _VECTOR_CYCLES = 16, 3
# How many chunks the runtime gives each thread; where k is cut, A is packed anew for each. Where that would take more than one part
# in so many of the time, half as many, if they balance as well.
_CHUNKS_PER_THREAD, _PACK_SHARE, _MIN_HALVED = 4, 16, 6
# Where tiles pack it on the way, stores of a step take so many beside its products. Any number of blocks may do so, each of which
# then reads B, where it stays in a part of the third-level cache (`_B_SHARE`), and would come from memory in no more than one part
# in so many of the time of their products. Found on a Zen 5: two stores in the first cache take as long as 2.2 of the 28
# multiply-adds of a step there; of a B from memory a tile that packs takes 1.6 to 2.3 times as long as others.
_STORED_CYCLES, _STREAM_SHARE = 2, 4
# A B of so many times what would be stored past the caches is packed beforehand for more than so many row panels.
_FAR_EXCESS, _FEW_PANELS = 2, 12
# Where the third-level cache is slow, a block alone of up to so many row panels packs such a B for itself. Found on a Granite
# Rapids: 200 rows by 4,000 x 4,000 take 0.80 of the time, 531 by 5,714 x 6,521 0.95, 600 by 1,500 x 7,000 1.02.
_ONCE_PANELS = 40
# Where B is packed beforehand, its panels cost so many of these in all. Where its rows crowd few sets of a cache, that spares short
# chunks of k, in each of which A is packed anew; it pays where products take so many times as long as B through memory. Found on a
# Zen 4: 300 rows and more.
_PACKED_COPIES, _CROWDED_SHARE = 3, 12
# Of several threads each takes so many more: lines that another core has read are taken back by the one that packs them, and come
# from its cache to the others. Found on a virtual Zen 5: a thread packs 165 KB in 3 us alone, and of two in 20 in an hour in which
# the cores were far from each other (in 3 in the next one).
_SHARED_COPIES = 4
# Tiles below each other write pieces of rows of C that are far apart, those beside each other go on where the last one ended:
# cycles of a row of a tile, at least, or in which the third-level cache delivers so many bytes, in a matrix of so many panels and
# more (fewer where that cache is slow). One row panel a block then pays where all of B stays in one part in so many of the
# third-level cache, or in half of the second, and the row panel of A in the first.
_APART_CYCLES, _APART_BYTES, _WIDE_PANELS, _B_SHARE = 20, 256, (16, 8), 4
# Where rows of A don't stay in the second-level cache, they come from the third. Of a step's products one part in so many is lost,
# or what that takes longer than one part in so many.
# What each block reads of B is lost in part, too, where it isn't in the second-level cache: fetching it takes instructions.
_UNCACHED_SHARE, _HIDDEN_SHARE = 16, 8


def call_cycles(spec: TileSpec) -> int:
    """Cost of the calls for some rows of a panel of B."""
    return (_CALL_CYCLES + _VECTOR_CYCLES * spec.mr * spec.vectors) * spec.per_panel


def shared_copies(host: HostContext) -> V:
    """How many copies' time packing beforehand takes each of several threads more than one alone."""
    return host.fn.select(host.fn.cmp("gt", host.num_threads, 1), host.fn.i64(_SHARED_COPIES), 0)


@dataclass(frozen=True)
class RightSide:
    """A product's B: whether blocks may pack it for themselves, and what its panels cost.

    copying, own   a step of a panel that is packed by a launch before, and by each block
    stream, again  a step from memory, and one that another block has read before
    inside         all of B stays in half of the second-level cache
    near           all of B stays in a part of the third-level cache, or of the second where that is slow, and what is `beside`
    wide           rows of the result are long enough for tiles beside each other to pay
    few_rows       few blocks pack for themselves, as B is no larger than the caches, or rows are few
    once           a single block does, of fewer rows than would make up for B's way to memory and back where the third-level cache
                   is slow
    by_tiles       any number may, whose tiles pack on the way; None where they never do
    always         any number must, as nothing else does
    """

    fn: Fn
    spec: TileSpec
    copied: bool
    copying: V
    own: V
    stream: V
    again: V
    inside: V
    near: V
    wide: V
    few_rows: V
    once: V
    by_tiles: V | None
    always: bool

    @classmethod
    def of(
        cls,
        host: HostContext,
        spec: TileSpec,
        elem: str,
        m: V,
        k: V,
        columns: V,
        *,
        copied: bool,
        by_tiles: V | None,
        always: bool,
        beside: int,
    ) -> RightSide:
        """`columns` panels of `k` units; `copied`: they aren't packed yet; `by_tiles`: tiles may pack them on the way;
        `always`: each block makes them for itself; `beside`: bytes of constants that go through the caches between two calls."""
        fn, row_bytes = host.fn, spec.row_bytes(elem)
        slow, (most_wide, least_wide) = l3_is_slow(host), _WIDE_PANELS
        wide = fn.cmp("ge", columns, fn.select(slow, fn.i64(least_wide), most_wide))
        stream, copying = cycles_from_memory(host, row_bytes), copy_cycles(host, row_bytes) if copied else fn.i64(0)
        own = copying if by_tiles is None else fn.select(by_tiles, fn.min(copying, _STORED_CYCLES), copying)
        with fn.wrapping():
            nbytes = fn.mul(fn.mul(k, columns), row_bytes * _B_SHARE)
        inside = fn.cmp("le", nbytes, fn.mul(host.l2_bytes, _B_SHARE // 2))  # of the second-level cache
        near = fn.and_(fn.cmp("le", nbytes, host.machine("l3_bytes")), fn.cmp("le", beside, host.machine("l3_bytes")))
        near = fn.or_(inside, fn.and_(near, fn.not_(slow)))
        # Rows of a B from memory are read at half the rate while they are multiplied, or less.
        far = passes_caches(host, fn.divu(nbytes, _B_SHARE * _FAR_EXCESS))
        far = fn.and_(far, fn.cmp("gt", m, _FEW_PANELS * spec.rows(elem)))
        few_rows = fn.not_(far) if depth(elem) == 1 and may_stream(spec) else fn.const(1, I1)
        once = fn.and_(slow, fn.cmp("le", m, _ONCE_PANELS * spec.rows(elem)))
        by_tiles = None if by_tiles is None else fn.and_(by_tiles, near)
        stays = fn.and_(inside, fn.cmp("ge", host.l2_bytes, beside))
        again = fn.select(stays, 0, stream)
        return cls(fn, spec, copied, copying, own, stream, again, inside, near, wide, few_rows, once, by_tiles, always)

    def outweighs_copies(self, rows: V) -> V:
        """Whether products of so many rows take much longer than a B that is packed beforehand and comes from memory each time."""
        copies = self.fn.mul(self.stream, _PACKED_COPIES * _CROWDED_SHARE)
        return self.fn.cmp("ge", rows, self.fn.divu(copies, self.spec.vectors * self.spec.per_panel))

    def packs_own(self, uses: V, rows: V) -> V:
        """Whether each of a panel's uses, blocks of so many rows, packs it to scratch: no second launch, no way through memory."""
        if self.always:
            return self.fn.const(1, I1)
        fn = self.fn
        few_rows = self.few_rows
        if self.spec.per_panel == 1:  # found of tiles as wide as panels
            few_rows = fn.or_(few_rows, fn.and_(self.once, fn.cmp("le", uses, 1)))
        few = fn.and_(fn.cmp("le", uses, _FEW_USES), few_rows)
        if self.by_tiles is None:
            return few
        work = fn.mul(rows, self.spec.vectors * self.spec.per_panel)
        return fn.or_(few, fn.and_(self.by_tiles, fn.cmp("ge", work, fn.mul(self.stream, _STREAM_SHARE))))


@dataclass(frozen=True)
class Cut:
    """A number of row blocks: what the thread that has most to do takes, how few items are worth a thread, rows of a block."""

    cost: V
    grain: V
    blocks: V
    rows: V

    @property
    def values(self) -> tuple[V, ...]:
        """All of them, for a loop to carry."""
        return self.cost, self.grain, self.blocks, self.rows


@dataclass(frozen=True)
class BlockCosts:
    """What a product of m rows by `columns` panels of each matrix, `cells` in all, costs by its number of row blocks.

    least      blocks whose rows of A fit the second-level cache
    fits_once  whether rows of A in a single block do, too, beside a chunk of B that is copied for it alone
    packs_once whether a thread packs a block's rows of A once, if at all
    a_bytes    of an element of A, as it is multiplied
    """

    host: HostContext
    spec: TileSpec
    elem: str
    m: V
    k: V
    columns: V
    cells: V
    packs_once: V
    right: RightSide
    least: V
    fits_once: V
    a_bytes: int

    def of(self, blocks: V) -> Cut:
        """Of so many blocks; modulo 2^64."""
        fn, spec, threads = self.host.fn, self.spec, self.host.num_threads
        rows = fn.divu(fn.add(self.m, fn.sub(blocks, 1)), blocks)
        item, pack = self._item(blocks, rows), fn.mul(fn.max(rows, spec.lanes(F32) // 2), self.k)  # transposed a vector at a time
        share = fn.divu(fn.add(fn.mul(self.cells, blocks), fn.sub(threads, 1)), threads)
        dear = fn.cmp("gt", fn.mul(pack, _PACK_SHARE * _CHUNKS_PER_THREAD), fn.mul(share, item))
        halved = fn.and_(fn.and_(dear, fn.not_(self.packs_once)), fn.cmp("ge", share, _MIN_HALVED))
        chunks = fn.select(halved, fn.i64(_CHUNKS_PER_THREAD // 2), _CHUNKS_PER_THREAD)
        runs = fn.add(fn.divu(share, self.columns), fn.select(self.packs_once, 1, chunks))
        cut = fn.add(fn.mul(share, item), fn.mul(runs, pack))
        blocks_each = fn.divu(fn.add(fn.mul(fn.divu(self.cells, self.columns), blocks), fn.sub(threads, 1)), threads)
        whole = fn.mul(blocks_each, fn.add(fn.mul(self.columns, item), pack))
        use_whole = fn.and_(fn.cmp("lt", whole, cut), fn.not_(self.packs_once))
        grain = fn.add(fn.divu(product_wake_cycles(self.host), fn.max(item, 1)), 1)
        grain = fn.max(grain, fn.select(halved, fn.divu(share, chunks), 1))
        return Cut(fn.min(whole, cut), fn.select(use_whole, self.columns, grain), blocks, rows)

    def _item(self, blocks: V, rows: V) -> V:
        """A block's products by a panel."""
        fn, spec, host, right = self.host.fn, self.spec, self.host, self.right
        in_block = fn.ceildivu(rows, spec.rows(self.elem))
        work = fn.mul(rows, spec.vectors * spec.per_panel * spec.left_parts(self.elem))
        uncached = fn.cmp("lt", blocks, self.least)
        if right.copied:
            uncached = fn.and_(uncached, fn.not_(fn.and_(self.fits_once, fn.cmp("eq", blocks, 1))))
        away = fn.sub(cycles_from_l3(host, fn.mul(rows, self.a_bytes)), fn.divu(work, _HIDDEN_SHARE))
        work = fn.add(work, fn.select(uncached, fn.max(fn.divu(work, _UNCACHED_SHARE), away), 0))
        step = fn.add(fn.max(work, right.again), fn.divu(right.again, _HIDDEN_SHARE))
        if right.copied:
            shared = fn.mul(shared_copies(host), host.num_threads)
            share = fn.divu(fn.mul(right.copying, fn.add(shared, _PACKED_COPIES)), blocks)
            step = fn.add(step, fn.select(right.packs_own(blocks, rows), right.own, share))
        row_apart = fn.max(cycles_from_l3(host, fn.i64(_APART_BYTES)), _APART_CYCLES)
        side_by_side = fn.and_(fn.cmp("le", in_block, 1), right.near)
        apart = fn.select(fn.and_(right.wide, fn.not_(side_by_side)), fn.mul(rows, row_apart), 0)
        return fn.add(fn.add(fn.mul(self.k, step), fn.mul(in_block, call_cycles(spec))), apart)
