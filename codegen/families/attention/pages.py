"""Where the keys of a sequence lie, in blocks of a pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from dhlo.codegen.families.attention.common import Args, Span, Spec, copy_scales
from dhlo.codegen.kernel_ir.builder import F32, I32, I64, Fn, V

__all__ = ["RUN_WORDS", "contiguous", "copy_page_scales", "each_page", "each_run", "page_runs", "store_run"]

RUN_WORDS: Final = 3
"""A run of keys that lie one behind the other takes so many i64: the row of its first key, how many it has, and the row of what is
read next."""


def contiguous(fn: Fn, a: Args, spec: Spec, span: Span, key0: V, count: V) -> tuple[V, V]:
    """Whether the blocks of `count` keys from key0 on lie one behind the other in the pool, and the row there of the first."""
    assert spec.paging is not None
    size = spec.paging.block
    first, end = fn.divu(key0, size), fn.ceildivu(fn.add(key0, count), size)
    block = _block_at(fn, a, span, first)
    with fn.loop(fn.add(first, 1), end, 1, [block, fn.i64(1)]) as lp:
        before, all_ = lp.carried
        here = _block_at(fn, a, span, lp.iv)
        follows = fn.cmp("eq", here, fn.add(before, 1))
        lp.yield_(here, fn.select(follows, all_, fn.i64(0)))
    return fn.cmp("ne", lp.results[1], 0), fn.add(fn.mul(block, size), fn.remu(key0, size))


def each_page(
    fn: Fn, a: Args, spec: Spec, span: Span, key0: V, count: V, body: Callable[[V, V, V, V], None], *, ahead: int
) -> None:
    """Calls `body(first, rows, row, after)` for the blocks of `count` keys from key0 on: `rows` of them from the `first` on lie
    from row `row` of the pool on. The keys `ahead` of these lie from row `after` on, or near, at the sequence's end."""
    of, pages = _pages(fn, a, spec, span, key0, count, ahead)
    with fn.loop(*pages) as page:
        body(*of(page.iv))


def page_runs(fn: Fn, a: Args, spec: Spec, span: Span, key0: V, count: V, runs: V, *, ahead: int) -> V:
    """Writes the runs of the `count` keys from key0 on to `runs` and returns how many: blocks that lie one behind the other in the
    pool are one. What is read next is the keys `ahead` of a run's first block, and blocks behind that."""
    of, pages = _pages(fn, a, spec, span, key0, count, ahead)
    none = fn.i64(-1)
    with fn.loop(*pages, 1, [none] * 4) as page:
        last, begin, end, after = page.carried
        _, rows, row, later = of(page.iv)
        follows = fn.cmp("eq", row, end)
        run = fn.select(follows, last, fn.add(last, 1))
        begin, after, end = fn.select(follows, begin, row), fn.select(follows, after, later), fn.add(row, rows)
        store_run(fn, fn.gep(runs, fn.mul(run, RUN_WORDS), I64), begin, fn.sub(end, begin), after)
        page.yield_(run, begin, end, after)
    return fn.add(page.results[0], 1)


def store_run(fn: Fn, at: V, row: V, keys: V, after: V) -> None:
    """Writes a run; see `RUN_WORDS`."""
    for i, x in enumerate((row, keys, after)):
        fn.store(x, fn.gep(at, i, I64))


def each_run(fn: Fn, runs: V, count: V, carried: Sequence[V], body: Callable[[V, V, V, V, list[V]], Sequence[V]]) -> list[V]:
    """Calls `body(first, keys, row, after, carried)` for `count` runs, `first` being how many keys are before it; returns what the
    last one returned to be `carried` on."""
    with fn.loop(0, count, 1, [fn.i64(0), *carried]) as run:
        first, *values = run.carried
        at = fn.gep(runs, fn.mul(run.iv, RUN_WORDS), I64)
        row, keys, after = (fn.load(fn.gep(at, i, I64), I64) for i in range(RUN_WORDS))
        run.yield_(fn.add(first, keys), *body(first, keys, row, after, values))
    return run.results[1:]


def copy_page_scales(fn: Fn, a: Args, spec: Spec, span: Span, scales: Sequence[V], h: V, key0: V, count: V, dst: V) -> None:
    """`copy_scales` of keys that lie in blocks of a pool."""

    def copy(first: V, rows: V, row: V, _: V) -> None:
        copy_scales(fn, scales, span.batch, h, row, rows, fn.gep(dst, first, F32))

    each_page(fn, a, spec, span, key0, count, copy, ahead=0)


def _pages(
    fn: Fn, a: Args, spec: Spec, span: Span, key0: V, count: V, ahead: int
) -> tuple[Callable[[V], tuple[V, V, V, V]], tuple[V, V]]:
    """What `each_page` gives its body for a page, and the pages [first, end) of `count` keys from key0 on."""
    assert spec.paging is not None
    size, stop = spec.paging.block, fn.add(key0, count)
    last = fn.divu(fn.sub(span.keys, 1), size)

    def of(page: V) -> tuple[V, V, V, V]:
        start = fn.mul(page, size)
        lo, hi = fn.max(start, key0), fn.min(fn.add(start, size), stop)
        inside = fn.sub(lo, start)
        row, after = (
            fn.add(fn.mul(_block_at(fn, a, span, p), size), inside) for p in (page, fn.min(fn.add(page, -(-ahead // size)), last))
        )
        return fn.sub(lo, key0), fn.sub(hi, lo), row, after

    return of, (fn.divu(key0, size), fn.ceildivu(stop, size))


def _block_at(fn: Fn, a: Args, span: Span, page: V) -> V:
    """An entry of a sequence's table. One that is no block of the pool is reported, and block 0 is read in its place."""
    assert a.pages is not None and span.table is not None
    block = fn.cast(fn.load(fn.gep(span.table, page, I32), I32), I64)
    ok = fn.cmp("ult", block, a.pages.blocks)
    with fn.when(fn.not_(ok)):
        for i, x in enumerate((block, a.pages.blocks, fn.i64(1))):
            fn.store(x, fn.gep(a.pages.cell, i, I64))
    return fn.select(ok, block, fn.i64(0))
