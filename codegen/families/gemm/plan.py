"""How a product is blocked (MC, KC and NC in BLIS's terms), and the split of rows in the kernels."""

from __future__ import annotations

from dhlo.codegen.families.gemm.pack_rows import widened_row
from dhlo.codegen.families.gemm.plan_cost import BlockCosts, Cut, RightSide
from dhlo.codegen.families.gemm.register_tile import F16, TileSpec, accumulator, in_one_set, unit
from dhlo.codegen.kernel_ir.builder import BITS, Fn, V
from dhlo.codegen.kernel_ir.launch import HostContext

__all__ = ["Plan", "RowSplit"]

# The rows of A in a block should fit one part in so many of a core's second-level cache (the rest holds panels of B), and
# never exceed it more than so many times (they may be packed to scratch). A single block's chunk takes so much of it at most,
# where a chunk of B is copied for it alone.
_A_BLOCK_SHARE, _A_BLOCK_EXCESS, _ALONE_SHARE = 2, 8, (3, 4)
# Products are deep where a panel of B takes more than one part in so many of the second-level cache: beside the rows of A there
# must be room for the panel that is read and the one that is fetched. Chunks of k take no more than that; half of it where they are
# copies, which leaves room for more rows to share one; of a lone panel more. They are at least so many units deep.
_PANEL_SHARE, _COPY_SHARE, _LONE_SHARE, _LEAST_KC = 8, 16, 2, 128
# Rows of B at a distance that is a multiple of a power of two share few sets of that cache. Where all of B takes more than half of
# it, chunks of k are so short that a panel's lines take one part in so many of these sets, but no shorter than so many steps: those
# of the next panel, which are prefetched, are found there then. Found on a Granite Rapids (16 ways).
_SETS_SHARE, _CROWDED_KC = 4, 64
# Where each panel of a B is best packed once (`RightSide.once`), and there are so many of them, chunks are so short that a copy
# takes no more than the first cache. Found on a Granite Rapids.
_NEAR_PANELS = 5
# The sums that wait for the next chunk may take so many times that cache (they are prefetched), and are of at least so many panels.
_WAITING_EXCESS, _LEAST_NC = 2, 4
# Chunks are multiples of this many units.
_KC_UNIT = 16
# How many row splits the host compares, from one and from what the cache asks for: the number of threads, within these.
_MIN_CANDIDATES, _MAX_CANDIDATES = 4, 16


class Plan:
    """The host's choice of the number of row blocks and of the chunks of k, and what follows from it.

    Where a panel of B and the rows of A that it meets would leave the second-level cache, k is taken in `kc` units at a time, as
    equal as their multiples allow, by groups of at most `nc` panels whose sums wait in scratch, added to in order of k: what the
    caches hold doesn't change a bit of them. One row panel alone has nothing to gain: it reads B once.

    More blocks balance threads and keep their rows of A in cache; fewer stream B less often. The candidates are few and
    more, what the cache asks for and more, and one for each row panel; the cheapest by the cost model wins. Where A is packed,
    threads may take whole blocks only, each of which is then packed once. `copied`: B isn't in panels; `by_tiles`: whether tiles
    pack it on the way; `always`: each block makes panels for itself; `beside`: bytes of constants beside which B goes through the
    caches, where it is one; `distance`: the power of two that divides the bytes from one row of B to the next, where tiles pack it.
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
        always: bool = False,
        beside: int = 0,
        distance: V | None = None,
    ) -> None:
        fn = host.fn
        self.fn, self.spec, self.elem = fn, spec, elem
        lone, columns = fn.cmp("le", panels, 1), fn.max(panels, 1)  # rows of A that meet one panel needn't stay in a cache
        self.right = RightSide.of(host, spec, elem, m, k, columns, copied=copied, by_tiles=by_tiles, always=always, beside=beside)
        deep = self._cut_depth(host, m, k, columns, distance, copied=copied)

        row_panels = fn.max(fn.ceildivu(m, spec.rows(elem)), 1)
        a_bytes = spec.left_parts(elem) * BITS[unit(elem)] // 8
        nbytes, room = fn.mul(fn.mul(m, self.kc), a_bytes), fn.divu(host.l2_bytes, _A_BLOCK_SHARE)
        nbytes = fn.select(fn.and_(lone, in_place), 0, nbytes)
        least = fn.min(fn.add(fn.divu(nbytes, room), 1), row_panels)
        most_alone = fn.divu(fn.mul(host.l2_bytes, _ALONE_SHARE[0]), _ALONE_SHARE[1])
        once = fn.and_(deep, fn.cmp("le", nbytes, most_alone))
        packs_once = fn.or_(in_place, fn.not_(deep))
        costs = BlockCosts(host, spec, elem, m, k, columns, cells, packs_once, self.right, least, once, a_bytes)

        # One panel of rows is one block, whose cost there is nothing to compare with.
        several = fn.cmp("gt", row_panels, 1)
        stays = fn.cmp("le", fn.mul(k, spec.rows(elem) * a_bytes), host.machine("l1d_bytes"))
        alone = fn.and_(fn.and_(several, self.right.wide), fn.and_(self.right.near, stays))
        best = self._cheapest(host, costs, row_panels, several, alone)
        self.grain, self.blocks, self.rows = best.grain, best.blocks, best.rows
        fn.assume(self.blocks, 1, fn.interval(row_panels)[1])
        fn.assume(self.rows, 0, fn.interval(m)[1])

        waiting, tile_bytes = fn.mul(host.l2_bytes, _WAITING_EXCESS), spec.panel(elem) * BITS[accumulator(elem)] // 8
        at_most = fn.max(fn.divu(waiting, fn.mul(fn.max(self.rows, 1), tile_bytes)), _LEAST_NC)
        self.nc = fn.select(deep, fn.min(at_most, columns), columns)
        kept = fn.mul(fn.mul(self.rows, self.nc), spec.panel(elem))
        self.tiles = fn.select(deep, kept, spec.tile_elements(elem))

    def _cut_depth(self, host: HostContext, m: V, k: V, columns: V, distance: V | None, *, copied: bool) -> V:
        """Sets `kc`; returns whether there may be several chunks."""
        fn, spec, elem = self.fn, self.spec, self.elem
        lone = fn.cmp("le", columns, 1)

        def most(share: int) -> V:
            share_of = fn.mul(fn.select(lone, fn.i64(min(share, _LONE_SHARE)), share), spec.row_bytes(elem))
            return fn.max(fn.divu(host.l2_bytes, share_of), _LEAST_KC)

        most_kc = most(_COPY_SHARE if copied else _PANEL_SHARE)
        limit = most(_COPY_SHARE) if copied else most_kc
        if distance is not None:
            near = fn.and_(self.right.once, fn.cmp("ge", columns, _NEAR_PANELS))
            first_cache = fn.max(fn.divu(host.machine("l1d_bytes"), spec.row_bytes(elem)), _LEAST_KC)
            most_kc = fn.select(near, fn.min(most_kc, first_cache), most_kc)
            crowd = fn.max(fn.divu(host.l2_bytes, fn.mul(distance, _SETS_SHARE)), _CROWDED_KC)
            crowds = fn.and_(fn.not_(lone), fn.not_(self.right.inside))
            most_kc, limit = (fn.select(crowds, fn.min(x, crowd), x) for x in (most_kc, limit))
        # A copy of all of k takes rows of B from as many pages, a line of each: few rows are deep, too, whose sums are in one set.
        least = in_one_set(elem, spec) if copied else spec.rows(elem) + 1
        deep = fn.and_(fn.cmp("gt", k, limit), fn.cmp("ge", m, least))
        chunks = fn.divu(fn.add(k, fn.sub(most_kc, 1)), most_kc)
        equal = fn.divu(fn.add(k, fn.sub(chunks, 1)), fn.max(chunks, 1))
        self.kc = fn.select(deep, fn.mul(fn.ceildivu(equal, _KC_UNIT), _KC_UNIT), fn.max(k, 1))
        return deep

    def _cheapest(self, host: HostContext, costs: BlockCosts, row_panels: V, several: V, alone: V) -> Cut:
        """The cheapest number of blocks: of few, of about as many as the cache asks for, and, where a block may be `alone`, of one
        for each row panel."""
        fn = self.fn
        tries = fn.min(fn.max(host.num_threads, _MIN_CANDIDATES), _MAX_CANDIDATES)
        fewest = fn.max(fn.divu(costs.least, _A_BLOCK_EXCESS), 1)
        turns = fn.select(several, fn.mul(tries, 2), 1)
        none = (fn.i64((1 << 63) - 1), *[fn.i64(1)] * 3)
        with fn.wrapping(), fn.loop(0, fn.add(turns, fn.select(alone, fn.i64(1), 0)), 1, none) as loop:
            few, many = fn.add(fewest, loop.iv), fn.add(costs.least, fn.sub(loop.iv, tries))
            some = fn.min(fn.select(fn.cmp("lt", loop.iv, tries), few, many), row_panels)
            other = costs.of(fn.select(fn.cmp("lt", loop.iv, turns), some, row_panels))
            better = fn.cmp("lt", other.cost, loop.carried[0])
            loop.yield_(*(fn.select(better, x, y) for x, y in zip(other.values, loop.carried, strict=True)))
        return Cut(*loop.results)

    def packs_own(self, uses: V) -> V:
        """Whether each of a panel's uses packs it to scratch; see `RightSide`."""
        return self.right.packs_own(uses, self.rows)

    def scratch_bytes(self, *, rows: bool, copied: bool) -> V:
        """Scratch of a kernel variant: tiles, a chunk of a panel of B that is `copied`, one of a block of A unless its `rows` are
        read in place (those of f16 are copied), and a vector of padding (see `emit_pack_rows`)."""
        fn, spec, elem = self.fn, self.spec, self.elem
        elements = fn.add(self.tiles, spec.lanes(elem))
        if copied:
            elements = fn.add(elements, fn.mul(self.kc, spec.panel(elem)))
        if elem == F16 and rows:
            elements = fn.add(elements, fn.mul(self.rows, widened_row(fn, self.kc, spec)))
        elif not rows:
            elements = fn.add(elements, fn.mul(fn.mul(self.rows, spec.left_steps(fn, self.kc)), spec.left_parts(elem)))
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
