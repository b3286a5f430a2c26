"""Sorted lines and their best elements: short lines by rank, long ones by radix, where few are wanted behind a filter.

Where at most a vector of elements is wanted, a bound is found first: a line's first elements fall in groups, two vectors of them,
and the k-th best of the groups' bests isn't before the line's k-th best. About as many elements as are wanted lie within it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import Launch, finish
from dhlo.codegen.families.lines import Lines, OpKernel, lanes_at
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.families.sort.radix import BUCKETS, digits, emit_radix_sort, key_of, key_type
from dhlo.codegen.kernel_ir.builder import BITS, I32, I64, PTR, V
from dhlo.ir.dialect import Op, attr
from dhlo.ir.ops.control import Group
from dhlo.ir.symbols import is_static
from dhlo.ir.types import DTYPES, from_mlir

__all__ = ["lower_sort", "lower_topk"]

SHORT = 128  # elements of a line whose ranks are counted by comparing all pairs
ROOM = 256  # candidates beyond 2 k that the filter collects before it sorts them; at least SHORT
PREFIX = 4096  # elements of a line that bound where its few best are
UNROLL = 4
SLACK_VECTORS = 2  # past the end of a buffer, which whole vectors may touch
_SHORT_VECTORS = 3  # of a line whose elements are ranked at once where a few are wanted
_GROUPS = 2  # vectors of groups of the prefix, at least twice as many as are wanted


class _Sort(OpKernel):
    """The first k elements of every line in order. Lines hold fewer than 2**31 elements."""

    def __init__(self, low: Lowering, group: Group, op: Op, descending: bool) -> None:
        super().__init__(low, group, op)
        x, y = from_mlir(op.operands[0]), from_mlir(op.results[0])
        dim = attr(op, "dim")
        self.dtype, self.lines, self.out = x.dtype, Lines.of(x, dim), Lines.of(y, dim)
        self.k = self.out.n
        self.key, self.descending = key_type(self.dtype), descending
        self.all = self.k == self.lines.n
        few = not self.all and is_static(self.k) and self.k <= self.fn.lanes
        self.short = _SHORT_VECTORS * self.fn.lanes if few else SHORT
        self.capacity = self.lines.n if self.all else sympy.Min(self.lines.n, 2 * self.k + ROOM)
        self.src, self.values, self.index = self.operand(0), self.result(0), self.result(1)
        self._buffers()

    def _buffers(self) -> None:
        fn = self.fn
        room = fn.add(self.size(self.capacity), SLACK_VECTORS * fn.lanes)
        self.counts = self.scratch
        self.keys = fn.gep(self.scratch, digits(self.key) * BUCKETS, I32)
        self.keys2 = fn.gep(self.keys, room, self.key)
        self.pos = fn.gep(self.keys2, room, self.key)
        self.pos2 = fn.gep(self.pos, room, I32)

    @property
    def scratch_bytes(self) -> sympy.Expr:
        return digits(self.key) * BUCKETS * 4 + (self.capacity + SLACK_VECTORS * self.fn.lanes) * 2 * (BITS[self.key] // 8 + 4)

    def key_at(self, start: V, i: V) -> V:
        """Keys of a vector of elements; lanes past the end come last."""
        x = self.load(self.src, self.dtype, self.elements(start, i, self.lines))
        k = key_of(self.fn, x, self.key, descending=self.descending)
        return k if self.em.mask is None else self.fn.select(self.em.mask, k, -1)

    def lower(self) -> Launch:
        fn, n = self.fn, self.lines.n
        with fn.loop(self.begin, self.end) as item:
            start, to = self.line_start(item.iv, self.lines), self.line_start(item.iv, self.out)
            if is_static(n):
                (self.by_rank if int(n) <= self.short else self.long)(start, to)
            else:

                def short() -> list[V]:
                    self.by_rank(start, to)
                    return []

                def long() -> list[V]:
                    self.long(start, to)
                    return []

                fn.if_else(fn.cmp("le", self.size(n), self.short), short, long, [])
        count = self.lines.outer * self.lines.inner
        if not is_static(self.k) or self.k == 0:
            count = count * sympy.Min(self.k, 1)
        return Launch(finish(self, "sort"), self.args.slots, count, n * 16, self.scratch_bytes)

    # ------------------------------------------------------------------ short lines
    def by_rank(self, start: V, to: V) -> None:
        """An element goes where the number of elements before it in order says."""
        fn, n = self.fn, self.size(self.lines.n)

        def collect(i: V, _: Sequence[V]) -> list[V]:
            fn.store(self.key_at(start, i), fn.gep(self.keys, i, self.key))
            return []

        lanes_at(self, 0, n, [], collect)
        self.ranks(n)
        with fn.loop(0, n) as lp:  # scalar stores beat scattering vectors
            rank = fn.cast(fn.load(fn.gep(self.pos2, lp.iv, I32), I32), I64)
            fn.store(fn.cast(lp.iv, I32), fn.gep(self.pos, rank, I32))
        self.output(start, to, self.pos)

    def ranks(self, n: V) -> None:
        """Writes to the second positions how many of the first n keys, which are padded to whole vectors, come before each."""
        fn = self.fn
        padded = fn.and_(fn.add(n, fn.lanes - 1), -fn.lanes)  # what pads the last vector comes after everything
        stop = fn.and_(fn.add(n, UNROLL - 1), -UNROLL)
        zero = fn.const(0, fn.vec(I32))

        def place(i: V) -> None:
            mine = fn.load(fn.gep(self.keys, i, self.key), fn.vec(self.key))
            position = fn.add(fn.splat(fn.cast(i, I32)), fn.iota(I32))

            def count(lo: V, hi: V, rank: V, before: Callable[[V, V], V]) -> V:
                with fn.loop(lo, hi, UNROLL, [rank]) as lp:
                    rank = lp.carried[0]
                    for u in range(UNROLL):
                        j = fn.add(lp.iv, u)
                        other = fn.splat(fn.load(fn.gep(self.keys, j, self.key), self.key))
                        rank = fn.select(before(other, j), fn.add(rank, 1), rank)
                    lp.yield_(rank)
                return lp.results[0]

            after = fn.add(i, fn.lanes)
            rank = count(fn.i64(0), i, zero, lambda o, j: fn.cmp("ule", o, mine))
            rank = count(
                i,
                fn.min(after, stop),
                rank,
                lambda o, j: fn.or_(
                    fn.cmp("ult", o, mine),
                    fn.and_(fn.cmp("eq", o, mine), fn.cmp("lt", fn.splat(fn.cast(j, I32)), position)),
                ),
            )
            rank = count(after, stop, rank, lambda o, j: fn.cmp("ult", o, mine))
            fn.store(rank, fn.gep(self.pos2, i, I32))

        with fn.loop(0, padded, fn.lanes) as lp, self.em.scope():
            place(lp.iv)

    def output(self, start: V, to: V, pos: V) -> None:
        """Writes the k elements whose positions are given."""

        def body(j: V, _: Sequence[V]) -> list[V]:
            fn, em = self.fn, self.em
            at = fn.cast(fn.load(fn.gep(pos, j, I32), fn.vec(I32)), I64)
            there = em.plus(em.times(Index(0, vec=at), em.size(self.lines.inner)), Index(start))
            x = self.load(self.src, self.dtype, there)
            here = self.elements(to, j, self.out)
            self.store(x, self.values, self.dtype, here)
            em.store(at, self.index, DTYPES["i64"], here)
            return []

        lanes_at(self, 0, self.size(self.k), [], body)

    # ------------------------------------------------------------------ long lines
    def long(self, start: V, to: V) -> None:
        """A few are looked for among what isn't beyond a bound, all others are sorted."""
        fn, k = self.fn, self.size(self.k)
        if self.all or (is_static(self.k) and int(self.k) > fn.lanes):
            self.by_radix(start, to)
            return

        def sifted() -> list[V]:
            bound = self.bound(start)
            none = fn.cmp("eq", bound, -1)  # nothing is beyond it
            fn.if_else(none, lambda: sorted_(), lambda: few(fn.add(bound, 1)), [])
            return []

        def sorted_() -> list[V]:
            self.by_radix(start, to)
            return []

        def few(bound: V) -> list[V]:
            self.by_bound(start, to, bound)
            return []

        if is_static(self.k):
            sifted()
        else:
            fn.if_else(fn.cmp("le", k, fn.lanes), sifted, sorted_, [])

    def bound(self, start: V) -> V:
        """A key that isn't before the k-th best of the line, k being at most a vector: that of the bests of as many groups of the
        line's first elements as two vectors have lanes."""
        fn, groups = self.fn, _GROUPS * self.fn.lanes
        last = fn.and_(fn.min(self.size(self.lines.n), PREFIX), -groups)
        with fn.loop(0, last, groups, [fn.const(-1, fn.vec(self.key))] * _GROUPS) as lp, self.em.scope():
            found = [self.key_at(start, fn.add(lp.iv, g * fn.lanes)) for g in range(_GROUPS)]
            lp.yield_(*(fn.select(fn.cmp("ult", x, best), x, best) for x, best in zip(found, lp.carried, strict=True)))
        for g, best in enumerate(lp.results):
            fn.store(best, fn.gep(self.keys, g * fn.lanes, self.key))
        self.ranks(fn.i64(groups))
        wanted = fn.splat(fn.cast(fn.sub(self.size(self.k), 1), I32))
        bound = fn.const(0, fn.vec(self.key))
        for g, best in enumerate(lp.results):
            rank = fn.load(fn.gep(self.pos2, g * fn.lanes, I32), fn.vec(I32))
            bound = fn.select(fn.cmp("eq", rank, wanted), best, bound)
        return fn.reduce("or", bound)

    def by_bound(self, start: V, to: V, bound: V) -> None:
        """Collects the line's keys before `bound`, at least k, and sorts these."""
        fn = self.fn
        count = self.filter(start, fn.i64(0), fn.i64(0), bound)

        def few() -> list[V]:
            fn.store(fn.const(-1, fn.vec(self.key)), fn.gep(self.keys, count, self.key))
            self.ranks(count)
            with fn.loop(0, count) as lp:
                rank = fn.cast(fn.load(fn.gep(self.pos2, lp.iv, I32), I32), I64)
                fn.store(fn.load(fn.gep(self.pos, lp.iv, I32), I32), fn.gep(self.keys2, rank, I32))
            return [self.keys2]

        def many() -> list[V]:
            return [fn.select(self.sort(count), self.pos2, self.pos)]

        self.output(start, to, fn.if_else(fn.cmp("le", count, SHORT), few, many, [PTR])[0])

    def by_radix(self, start: V, to: V) -> None:
        fn, room = self.fn, self.size(self.capacity)

        def fill(i: V, _: Sequence[V]) -> list[V]:
            fn.store(self.key_at(start, i), fn.gep(self.keys, i, self.key))
            fn.store(fn.add(fn.splat(fn.cast(i, I32)), fn.iota(I32)), fn.gep(self.pos, i, I32))
            return []

        lanes_at(self, 0, room, [], fill)
        count = room
        if not self.all:
            n = self.size(self.lines.n)

            def filtered() -> list[V]:
                return [self.filter(start, room, self.size(self.k), self.keep_best(room))]

            count = fn.if_else(fn.cmp("lt", room, n), filtered, lambda: [room], [I64])[0]
        swapped = self.sort(count)
        self.output(start, to, fn.select(swapped, self.pos2, self.pos))

    def sort(self, count: V) -> V:
        """Sorts the candidates; whether they are in the second buffers now."""
        fn = self.fn
        name = emit_radix_sort(self.module, self.key)
        r = fn.call(name, [self.keys, self.pos, self.keys2, self.pos2, self.counts, count], I64)
        assert r is not None
        return fn.cmp("ne", r, 0)

    def keep_best(self, count: V) -> V:
        """Leaves the k best candidates in the first buffers; returns the key that later elements must beat."""
        fn, k = self.fn, self.size(self.k)
        with fn.when(self.sort(count)), fn.loop(0, k, fn.lanes) as lp:
            for a, b, ty in ((self.keys2, self.keys, self.key), (self.pos2, self.pos, I32)):
                fn.store(fn.load(fn.gep(a, lp.iv, ty), fn.vec(ty)), fn.gep(b, lp.iv, ty))
        return fn.load(fn.gep(self.keys, fn.sub(k, 1), self.key), self.key)

    def filter(self, start: V, first: V, count: V, bound: V) -> V:
        """Goes through the line from element `first` on, adding what is before the bound to `count` candidates; the k-th best is
        the bound whenever these had to be sorted. Returns their number."""
        fn, k, room = self.fn, self.size(self.k), self.size(self.capacity)
        lanes = fn.alloca(fn.lanes, self.key)

        def body(i: V, carried: Sequence[V]) -> list[V]:
            count, bound = carried
            x = self.key_at(start, i)
            hit = fn.cmp("ult", x, fn.splat(bound))

            def collect() -> list[V]:
                fn.store(x, lanes)
                with fn.loop(0, fn.lanes, 1, [count]) as lp:
                    one = fn.load(fn.gep(lanes, lp.iv, self.key), self.key)
                    fn.store(one, fn.gep(self.keys, lp.carried[0], self.key))
                    fn.store(fn.cast(fn.add(i, lp.iv), I32), fn.gep(self.pos, lp.carried[0], I32))
                    lp.yield_(fn.add(lp.carried[0], fn.cast(fn.cmp("ult", one, bound), I64)))
                more = lp.results[0]
                full = fn.cmp("gt", fn.add(more, fn.lanes), room)
                return fn.if_else(full, lambda: [k, self.keep_best(more)], lambda: [more, bound], [I64, self.key])

            return fn.if_else(fn.reduce("or", hit), collect, lambda: [count, bound], [I64, self.key])

        return lanes_at(self, first, self.size(self.lines.n), [count, bound], body)[0]


def lower_sort(low: Lowering, group: Group, op: Op) -> Launch:
    """aten.sort, stable."""
    return _Sort(low, group, op, bool(attr(op, "descending"))).lower()


def lower_topk(low: Lowering, group: Group, op: Op) -> Launch:
    """aten.topk, sorted; of equal values the lower index comes first."""
    return _Sort(low, group, op, bool(attr(op, "largest"))).lower()
