"""Reductions with the elementwise work before and after them: sums, softmax, layer and rms norms, each in one kernel.

A group has one domain, whose dims are kept or reduced. An item is one position of the kept dims (or a vector of them, if the last
dim is kept). It runs stages: every stage is one pass over the reduced dims that finishes the reductions whose operands are known
by then; the last pass stores results of the whole domain. Costly values that several passes need are kept in scratch.

Few long items would leave threads idle: where one pass does, they can be reduced in parts by one kernel, gathered by another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import sympy

from dhlo.codegen.elementwise.emit import Slot, memory_type
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.elementwise.rules import wrap
from dhlo.codegen.families.combine import across, combine, identity_of
from dhlo.codegen.families.kernel import Checks, GroupKernel, Launch, finish, rows
from dhlo.codegen.families.merged import as_one, merged_dims
from dhlo.codegen.families.reduce.turned import Turn, TurnedStores
from dhlo.codegen.kernel_ir.builder import BITS, I64, KernelModule, V
from dhlo.ir.dialect import Kind, attr
from dhlo.ir.handles import Value
from dhlo.ir.ops.compute import Reduce
from dhlo.ir.ops.control import Group
from dhlo.ir.symbols import FloorDiv, ceil_div, is_static, least, product
from dhlo.ir.types import DTYPES, DType, from_mlir
from dhlo.shape_infer.axes import reduction_axes
from dhlo.shape_infer.cost import element_work

__all__ = ["Reduction"]

MAX_PARTS = 32  # into which an item is split at most

# Simple operations of a part, at least. Parts order sums, so that no fact of the machine may choose their size.
_PART_WORK = 1 << 16
UNROLL = 4  # independent accumulators along a row
LONG = 1024  # elements of a row that needs no others beside it
COLUMNS = 4  # vectors side by side where the last dim is kept: a row's cache lines are read together
LINE = 64  # bytes of a cache line
KEEP_COST = 6  # values cheaper than this are computed again in every pass


class Reduction:
    """One kernel: the whole reduction, `turned` if asked for and possible, or (`part`) sums of parts to the workspace, or what
    brings the parts together."""

    def __init__(self, module: KernelModule, group: Group, checks: Checks, part: str = "", *, turned: bool = False) -> None:
        self.part = part
        self.k = GroupKernel(module, group, checks, first_arg=1 if part else 0)
        self.fn, self.em = self.k.fn, self.k.em
        self.reduces = [op for op in self.k.ops if isinstance(op, Reduce)]
        self.shape = from_mlir(self.reduces[0].operands[0]).shape
        self.dims: list[int] = attr(self.reduces[0], "dims")
        solid = [d for d, s in enumerate(self.shape) if s != 1]
        self.lane = solid[-1] if solid else self.dims[-1]
        self.lane_kept = self.lane not in self.dims
        self._axes()
        self._levels()
        self._plan_cache()
        self.run = self._run()
        self.kept = [d for d in solid if d not in self.dims and d not in self.run]
        self.reduced = [d for d in self.dims if self.shape[d] != 1 and d not in self.run]
        self.turn = None if self.part or self.lane_kept or self.can_split else Turn.of(self.k, self.shape, self.dims, self.lane)
        self.stores: TurnedStores | None = None
        if turned and self.turn is not None:
            self._turn(self.turn)
        self._way = 0  # of the vectors of positions side by side, the one whose values are computed
        self.bounds: dict[int, tuple[V, V]] = {}  # of reduced dims, where a kernel covers a part of one

    def _run(self) -> tuple[int, ...]:
        """The dims that vectors run along as if they were one: the last, or with it those before, as far as all are kept, or all
        reduced, and nothing asks for a place in one of them. Dims of one element have no part in it: results may lack them."""
        size, rank = self.shape[self.lane], len(self.shape)
        if is_static(size) and size >= LONG:
            return (self.lane,)
        ends = (n for n in range(rank) if self.shape[-1 - n] == 1 or (rank - 1 - n in self.dims) is self.lane_kept)
        roots = [*(r.operands[0] for r in self.reduces), *(v for v in self.k.yields if self.lane_kept or self.whole(v))]
        first = rank - merged_dims(self.k, roots, next(ends, rank))
        return tuple(range(first, rank)) if first < self.lane else (self.lane,)

    def _spread(self, i: Index) -> dict[int, Index]:
        """The index of each dim of the run at its position `i`."""
        sizes = [self.shape[d] for d in self.run]
        return dict(zip(self.run, as_one(i, sizes) if self.stores is None else self.em.split(i, sizes), strict=True))

    def _turn(self, turn: Turn) -> None:
        """Vectors along the dims in which operands are contiguous."""
        self.run, self.lane, self.lane_kept = turn.run, turn.run[-1], True
        self.kept = [d for d in self.kept if d not in turn.run]
        self.reduced = [d for d in self.dims if self.shape[d] != 1]
        self.stores = TurnedStores(self.k, turn, self.shape, self.fn.lanes * COLUMNS)

    # ------------------------------------------------------------------ analysis
    def _axes(self) -> None:
        """Which dims of the domain each value follows; values that depend on no reduction have none."""
        kept = tuple(d for d in range(len(self.shape)) if d not in self.dims)
        self.axes: dict[Any, tuple[int | None, ...]] = {}
        for op in self.k.ops:
            if isinstance(op, Reduce):
                self.axes[op.results[0]] = kept
            elif any(v in self.axes for v in op.operands):
                new = reduction_axes(op, self.axes, self.shape)
                if new is not None:
                    self.axes[op.results[0]] = new

    def whole(self, v: Value) -> bool:
        """Has a value for every element of the domain."""
        return from_mlir(v).shape == self.shape and (v not in self.axes or any(d in self.dims for d in self.axes[v]))

    def _levels(self) -> None:
        """The pass in which a value can first be computed."""
        self.level: dict[Any, int] = {}
        for op in self.k.ops:
            lv = max((self.level.get(v, 0) for v in op.operands), default=0)
            for r in op.results:
                self.level[r] = lv + 1 if isinstance(op, Reduce) else lv
        self.last = max(self.level[r.results[0]] for r in self.reduces)

    def _roots(self, stage: int) -> list[Any]:
        return [r.operands[0] for r in self.reduces if self.level.get(r.operands[0], 0) == stage] + [
            v for v in self.k.yields if self.whole(v) and self.level.get(v, 0) == stage
        ]

    def _moved(self) -> set[Any]:
        """Values that aren't read where the domain is, but through views: of a square that is transposed, they have its shape."""
        moved = set[Any]()
        for op in reversed(self.k.ops):
            if not isinstance(op, Reduce) and (op.kind is not Kind.ELEMENTWISE or any(v in moved for v in op.results)):
                moved.update(op.operands)
        return moved

    def _plan_cache(self) -> None:
        """Values that a later pass needs again and that are dear: first pass -> kept in scratch (or read back from a result)."""
        first: dict[Any, int] = {}
        self.cached: dict[Any, int] = {}
        inside = {v: op for op in self.k.ops for v in op.results}

        moved = self._moved()
        costs: dict[Any, int] = {}
        for op in self.k.ops:  # operands first
            parts = [costs.get(x, 1) for x in op.operands] if op.kind is Kind.ELEMENTWISE else [1]
            for v in op.results:
                costs[v] = 1 if isinstance(op, Reduce) else min(KEEP_COST, op.work + sum(parts))
        for stage in range(self.last + 1):
            todo, seen = self._roots(stage)[::-1], set[Any]()
            while todo:
                v = todo.pop()
                op = inside.get(v)
                if v in seen or op is None or isinstance(op, Reduce):
                    continue
                seen.add(v)
                again = first.setdefault(v, stage) < stage
                dear = op.kind is Kind.ELEMENTWISE and costs[v] >= KEEP_COST
                if again and dear and self.whole(v) and v not in moved:
                    self.cached[v] = first[v]
                else:
                    todo += reversed(op.operands)

    # ------------------------------------------------------------------ emission
    def lower(self) -> Launch:
        fn, em, k = self.fn, self.em, self.k
        inner = [self.shape[d] for d in self._inner_dims]
        self.inner_sizes = inner
        row_elems = product(inner) * (fn.lanes * COLUMNS if self.lane_kept else 1)
        slot_bytes = ceil_div(row_elems, 64) * 64 * 8
        self.slot = {v: n for n, v in enumerate(self.cached)}
        self.slot_bytes = slot_bytes
        scratch = slot_bytes * len(self.cached)
        if self.stores is not None:
            self.stores.at = scratch
            scratch += self.stores.value_bytes * len(self.k.yields)
        sizes = self.items
        with rows(em, fn.args[1], fn.args[2], [self.parts, *sizes] if self.part == "partial" else sizes) as item:
            if self.part:
                item = self._find_part(item)
            at = dict(zip(self.kept, item, strict=False))
            if self.lane_kept:
                self._columns(at, item[-1])
            else:
                self._item([at])
        cost = element_work(k.ops)
        work = row_elems * cost
        if self.part:
            count = product(sizes) * (self.parts if self.part == "partial" else 1)
            return Launch(finish(k, f"reduce_{self.part}"), k.args.slots, count, _PART_WORK, lookups=k.lookups)
        return Launch(finish(k, "reduce"), k.args.slots, product(sizes), work, scratch, k.lookups)

    @property
    def run_size(self) -> sympy.Expr:
        """Positions that vectors run along, of an item's other dims."""
        return product(self.shape[d] for d in self.run)

    @property
    def _inner_dims(self) -> list[int]:
        """The dims that an item reduces."""
        return [*self.reduced, *(() if self.lane_kept else self.run)]

    # ------------------------------------------------------------------ splitting
    @property
    def items(self) -> list[sympy.Expr]:
        """Sizes of the space of items, each of which reduces on its own."""
        columns = [ceil_div(self.run_size, self.fn.lanes * COLUMNS)] if self.lane_kept else []
        return [*(self.shape[d] for d in self.kept), *columns]

    @property
    def can_split(self) -> bool:
        """One pass and nothing but its sums to store: parts of the reduced elements can be reduced apart."""
        plain = not any(from_mlir(r.operands[0]).dtype.is_bool for r in self.reduces)
        one_pass = self.last == 1 and not any(self.whole(v) for v in self.k.yields)
        return one_pass and plain and bool(self.reduced or not self.lane_kept)

    def _length(self, d: int) -> sympy.Expr:
        """Of a dim; of the whole run if it's the one that vectors run along."""
        return self.run_size if d == self.lane else self.shape[d]

    @property
    def _split_dim(self) -> int:
        return self.reduced[0] if self.reduced else self.lane

    @cached_property
    def parts(self) -> sympy.Expr:
        """How many parts pay; a matter of sizes alone, so that results depend on neither the threads nor the machine."""
        length, elements = self._length(self._split_dim), product(self.shape[d] for d in self.dims)
        work = elements * element_work(self.k.ops) * (self.fn.lanes * COLUMNS if self.lane_kept else 1)
        most = least(FloorDiv(work, sympy.Integer(_PART_WORK)) + 1, length + 1, sympy.Integer(MAX_PARTS))
        return sympy.Integer(1) if 1 in most.args else most

    @property
    def cell_bytes(self) -> int:
        """Workspace of a part."""
        return 8 * len(self.reduces) * (self.fn.lanes * COLUMNS if self.lane_kept else 1)

    def _find_part(self, item: list[Index]) -> list[Index]:
        """Sets the bounds of the part and its place in the workspace; returns the item."""
        fn, em = self.fn, self.em
        d, parts = self._split_dim, fn.i64(em.size(self.parts))
        number, rest = (item[0].base, item[1:]) if self.part == "partial" else (0, item)
        align = fn.lanes * UNROLL if d == self.lane else 1
        n = fn.i64(em.size(self._length(d)))
        chunk = fn.mul(fn.ceildivu(fn.divu(fn.add(n, fn.sub(parts, 1)), parts), align), align)
        start = fn.min(fn.mul(fn.i64(number), chunk), n)
        self.bounds[d] = start, fn.min(fn.add(start, chunk), n)
        at = em.flatten(rest, self.items) if self.items else em.zero
        cell = fn.add(fn.mul(fn.i64(at.base), parts), number) if self.part == "partial" else fn.mul(fn.i64(at.base), parts)
        workspace = fn.int_to_ptr(fn.load(fn.args[0], I64))
        self._cell = fn.gep(workspace, fn.mul(cell, self.cell_bytes), "i8")
        self._block = fn.mul(fn.i64(rest[-1].base), fn.lanes * COLUMNS) if self.lane_kept else None
        return rest

    def _place(self, cell: V, n: int, at: dict[int, Index]) -> V:
        """Where reduction `n` of a part lies, for the columns at `at`."""
        width = self.fn.lanes * COLUMNS if self.lane_kept else 1
        p = self.fn.gep(cell, 8 * n * width, "i8")
        if self._block is None:
            return p
        return self.fn.gep(p, self.fn.mul(self.fn.sub(self.fn.i64(at[self.lane].base), self._block), 8), "i8")

    def _gathered(self, done: list[Any], ats: list[dict[int, Index]]) -> list[list[V]]:
        """The parts' results, brought together in order."""
        fn = self.fn
        hows = [attr(r, "how") for r in done]
        types = [from_mlir(r.operands[0]).dtype for r in done]
        kinds = [fn.vec(t.register) if self.lane_kept else t.register for t in types]
        init = [fn.const(identity_of(h, t), ty) for h, t, ty in zip(hows, types, kinds, strict=True) for _ in ats]
        with fn.loop(0, fn.i64(self.em.size(self.parts)), 1, init) as lp:
            cell, new = fn.gep(self._cell, fn.mul(lp.iv, self.cell_bytes), "i8"), []
            for n, (how, ty) in enumerate(zip(hows, kinds, strict=True)):
                for w, at in enumerate(ats):
                    new.append(combine(fn, how, lp.carried[n * len(ats) + w], fn.load(self._place(cell, n, at), ty)))
            lp.yield_(*new)
        return [lp.results[n * len(ats) : (n + 1) * len(ats)] for n in range(len(done))]

    def _columns(self, at: dict[int, Index], block: Index) -> None:
        """A block of columns: COLUMNS vectors side by side, or one at a time under a mask at the edge."""
        fn, em = self.fn, self.em
        n = fn.i64(em.size(self.run_size))
        c = fn.mul(em.position(block), fn.lanes * COLUMNS)

        def place(first: V) -> dict[int, Index]:
            return {**at, **self._spread(Index(first, 1, multiple=fn.lanes))}

        def whole() -> list[V]:
            with em.scope():
                self._item([place(fn.add(c, w * fn.lanes)) for w in range(COLUMNS)], c)
            return []

        def edge() -> list[V]:
            with fn.loop(c, n, fn.lanes) as lp, em.scope(fn.tail_mask(fn.sub(n, lp.iv))):
                self._item([place(lp.iv)], lp.iv)
            return []

        fn.if_else(fn.cmp("le", fn.add(c, fn.lanes * COLUMNS), n), whole, edge, [])

    def _index(self, at: dict[int, Index]) -> list[Index]:
        return [at.get(d, self.em.zero) for d in range(len(self.shape))]

    def _item(self, ats: list[dict[int, Index]], first: V | None = None) -> None:
        """One position of the kept dims; or a few, which differ in the last ones by a vector each, from position `first` on."""
        em = self.em
        self._first = first
        saved = dict(em.leaves)
        for stage in range(self.last + 1):
            done = [r for r in self.reduces if self.level.get(r.operands[0], 0) == stage]
            stores = [v for v in self.k.yields if self.whole(v) and self.level.get(v, 0) == stage]
            keeps = [v for v, s in self.cached.items() if s == stage]
            if self.part == "partial":
                for n, xs in enumerate(self._pass(stage, done, stores, keeps, ats)):
                    for x, at in zip(xs, ats, strict=True):
                        self.fn.store(x, self._place(self._cell, n, at))
                return
            if done or stores:
                values = self._gathered(done, ats) if self.part else self._pass(stage, done, stores, keeps, ats)
                for r, xs in zip(done, values, strict=True):
                    dtype = from_mlir(r.results[0]).dtype.name
                    em.leaves[r.results[0]] = self._finished([wrap(self.fn, x, dtype) for x in xs])
            for v in keeps:
                em.leaves[v] = self._reload(v)
            for at in self._each(ats):
                self._small(stage + 1, at)
        for i, v in enumerate(self.k.yields):
            if not self.whole(v):
                for at in self._each(ats):
                    idx = self._small_index(v, at)
                    em.store(em.value(v, idx), self.k.result_pointer(i), from_mlir(v).dtype, em.flatten(idx, from_mlir(v).shape))
        em.leaves.clear()
        em.leaves.update(saved)

    def _each(self, ats: list[dict[int, Index]]) -> Iterator[dict[int, Index]]:
        """The vectors of positions, one after another."""
        for self._way, at in enumerate(ats):
            yield at

    def _finished(self, xs: list[V]) -> Callable[[Any, Sequence[Index]], V]:
        """Gives a reduction's value: one for the item, or one for each vector of columns."""
        return lambda _em, _idx: xs[self._way if self.lane_kept else 0]

    def _small_index(self, v: Value, at: dict[int, Index]) -> list[Index]:
        return [self.em.zero if d is None else at.get(d, self.em.zero) for d in self.axes[v]]

    def _small(self, level: int, at: dict[int, Index]) -> None:
        """Computes values of the kept dims once an item, as soon as they can be."""
        for op in self.k.ops:
            v = op.results[0]
            if op.kind is Kind.ELEMENTWISE and v in self.axes and not self.whole(v) and self.level[v] == level:
                self.em.value(v, self._small_index(v, at))

    def _scratch(self, v: Value) -> V:
        n = self.slot[v]
        base = self.fn.args[4]
        return base if n == 0 else self.fn.gep(base, self.fn.i64(self.em.size(self.slot_bytes * n)), "i8")

    def _scratch_at(self, idx: Sequence[Index]) -> Index:
        em, lanes = self.em, self.fn.lanes
        flat = em.flatten([idx[d] for d in self._inner_dims], self.inner_sizes)
        if not self.lane_kept:
            return flat
        at = em.offset(em.times(flat, lanes * COLUMNS), self._way * lanes)
        return em.plus(at, Index(0, 1, multiple=lanes))

    def _reload(self, v: Value) -> Callable[[Any, Sequence[Index]], V]:
        def leaf(em: Any, idx: Sequence[Index]) -> V:
            r: V = em.load_memory(self._scratch(v), _scratch_type(v), self._scratch_at(idx))
            return r

        return leaf

    @cached_property
    def _fetched(self) -> dict[int, list[tuple[Slot, DType, bool]]]:
        """What is prefetched while a pass computes: in the second what the next item reads first, before the last what this one
        writes. Only where an item is a run of memory."""
        if self.part or self.stores is not None or self.dims != list(range(len(self.shape) - len(self.dims), len(self.shape))):
            return {}
        inside = {v for op in self.k.ops for v in op.results}
        read = dict.fromkeys(v for op in self.k.ops for v in op.operands if v not in inside and self.whole(v))
        out: dict[int, list[tuple[Slot, DType, bool]]] = {1: [(("pointer", v), from_mlir(v).dtype, False) for v in read]}
        for v, result in zip(self.k.yields, self.k.group.results, strict=True):
            if self.whole(v) and self.level.get(v, 0) == self.last:
                out.setdefault(self.last - 1, []).append((("pointer", result), from_mlir(v).dtype, True))
        return out

    def _fetch(self, stage: int, idx: Sequence[Index], way: int) -> None:
        """Prefetches, to the second cache, what belongs to the elements at `idx`, once a cache line."""
        fn, em = self.fn, self.em
        for slot, dtype, write in self._fetched.get(stage, ()) if em.mask is None else ():
            if dtype.is_complex or way * fn.lanes * BITS[memory_type(dtype)] // 8 % LINE:
                continue  # of complex numbers one part is read, every second element
            at = fn.i64(em.flatten(idx, self.shape).base)
            at = at if write else fn.add(at, fn.i64(em.size(product(self.inner_sizes))))
            fn.prefetch(fn.gep(em.args.get(slot), at, memory_type(dtype)), 2, write=write)

    def _pass(self, stage: int, done: list[Any], stores: list[Any], keeps: list[Any], ats: list[dict[int, Index]]) -> list[list[V]]:
        """One sweep over the reduced dims; returns the finished reductions, of each position."""
        fn, em = self.fn, self.em
        hows = [attr(r, "how") for r in done]
        types = [from_mlir(r.operands[0]).dtype for r in done]
        ways = len(ats) if self.lane_kept else UNROLL
        init = [fn.const(identity_of(h, t), fn.vec(t.register)) for h, t in zip(hows, types, strict=True) for _ in range(ways)]

        def element(i: dict[int, Index], accs: list[V], way: int) -> list[V]:
            idx = self._index(i)
            self._way = way if self.lane_kept else 0
            out = list(accs)
            for n, r in enumerate(done):
                x = em.value(r.operands[0], idx)
                x = x if x.lanes else fn.splat(x)
                slot = n * ways + way
                if em.mask is not None and not self.lane_kept:
                    x = fn.select(em.mask, x, fn.const(identity_of(hows[n], types[n]), x.type))
                out[slot] = combine(fn, hows[n], accs[slot], x)
            for n, v in enumerate(stores):
                if self.stores is not None:
                    self.stores.keep(n, em.value(v, idx), way)
                    continue
                p = self.k.result_pointer(self.k.yields.index(v))
                em.store(em.value(v, idx), p, from_mlir(v).dtype, em.flatten(idx, self.shape))
            for v in keeps:
                em.store(em.value(v, idx), self._scratch(v), _scratch_type(v), self._scratch_at(idx))
            self._fetch(stage, idx, way)
            return out

        accs = self._sweep(self.reduced, [dict(at) for at in ats], init, ways, element, stores)
        results = []
        for n, how in enumerate(hows):
            parts = accs[n * ways : (n + 1) * ways]
            while len(parts) > 1 and not self.lane_kept:
                parts = [combine(fn, how, a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
            results.append(parts if self.lane_kept else [across(fn, how, parts[0])])
        return results

    def _range(self, d: int) -> tuple[V, V]:
        """The positions of a reduced dim that the kernel covers; a vector's multiple from 0 on."""
        return self.bounds.get(d) or (self.fn.i64(0), self.fn.i64(self.em.size(self._length(d))))

    def _sweep(
        self,
        dims: list[int],
        ats: list[dict[int, Index]],
        accs: list[V],
        ways: int,
        element: Callable[[dict[int, Index], list[V], int], list[V]],
        stores: Sequence[Value] = (),
    ) -> list[V]:
        fn, em = self.fn, self.em
        if dims and self.stores is not None and stores and dims[0] == self.stores.turn.across:
            return self._turned_blocks(self.stores, stores, ats, accs, element)
        if dims:
            start, end = self._range(dims[0])
            inner = [self.shape[d] for d in (*dims[1:], *(() if self.lane_kept else self.run))]
            for size in inner:
                if not is_static(size):  # many rows of nothing would take their time
                    end = fn.select(fn.cmp("eq", fn.i64(em.size(size)), 0), start, end)
            with fn.loop(start, end, 1, accs) as lp, em.scope():
                new = self._sweep(dims[1:], [{**at, dims[0]: Index(lp.iv)} for at in ats], lp.carried, ways, element, stores)
                lp.yield_(*new)
            return lp.results
        if self.lane_kept:
            for w, at in enumerate(ats):
                accs = element(at, accs, w)
            return accs
        (at,) = ats
        start, n = self._range(self.lane)
        length = fn.sub(n, start)
        wide, full = (fn.add(start, fn.and_(length, -step)) for step in (fn.lanes * ways, fn.lanes))
        with fn.loop(start, wide, fn.lanes * ways, accs) as lp, em.scope():
            cur = lp.carried
            for w in range(ways):
                cur = element({**at, **self._spread(Index(fn.add(lp.iv, w * fn.lanes), 1, multiple=fn.lanes))}, cur, w)
            lp.yield_(*cur)
        with fn.loop(wide, full, fn.lanes, lp.results) as lp, em.scope():
            lp.yield_(*element({**at, **self._spread(Index(lp.iv, 1, multiple=fn.lanes))}, lp.carried, 0))
        accs = lp.results

        def tail() -> list[V]:
            with em.scope(fn.tail_mask(fn.sub(n, full))):
                return element({**at, **self._spread(Index(full, 1, multiple=fn.lanes))}, accs, 0)

        return fn.if_else(fn.cmp("lt", full, n), tail, lambda: accs, [a.type for a in accs])

    def _turned_blocks(
        self,
        kept: TurnedStores,
        stores: Sequence[Value],
        ats: list[dict[int, Index]],
        accs: list[V],
        element: Callable[[dict[int, Index], list[V], int], list[V]],
    ) -> list[V]:
        """The last reduced dim where results are stored: a vector's length of it, then what is stored of that."""
        fn, em, across = self.fn, self.em, kept.turn.across
        n, first = fn.i64(em.size(self.shape[across])), self._first
        assert first is not None
        with fn.loop(0, n, fn.lanes, accs) as block, em.scope():
            with fn.loop(0, fn.min(fn.sub(n, block.iv), fn.lanes), 1, block.carried) as lp, em.scope():
                kept.row, cur = lp.iv, lp.carried
                for w, at in enumerate(ats):
                    cur = element({**at, across: Index(fn.add(block.iv, lp.iv))}, cur, w)
                lp.yield_(*cur)
            kept.write(stores, ats[0], first, len(ats), block.iv)
            block.yield_(*lp.results)
        return block.results


def _scratch_type(v: Value) -> DType:
    """Kept values stay in register precision."""
    d = from_mlir(v).dtype
    return DTYPES["f32"] if d.register == "f32" else d
