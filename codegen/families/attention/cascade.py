"""Keys that sequences have in common: where tables of adjacent sequences of few rows begin with the same blocks, those blocks are
read once for all of them, before each goes on with keys of its own (Hydragen, Juravsky et al. 2024; "cascade" in FlashInfer).

Tables alone tell. Sequences that follow one another and have their first blocks in common are a run; the rows of a run are those of
one sequence as far as these keys go, since their tokens follow one another, too. A first kernel attends with blocks of these rows;
maximum, total and unscaled sums of each row are what the sequence's own kernel begins with.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import partial

from dhlo.codegen.families.attention.common import Args, Spec
from dhlo.codegen.families.attention.decode import partial_floats
from dhlo.codegen.families.lowering import GroupHost
from dhlo.codegen.kernel_ir.builder import F32, I32, I64, Fn, V

__all__ = ["Batch", "Count", "begun_at", "count", "count_at", "find_runs", "number", "parts_of_runs"]

_LEAST_KEYS = 128  # that a run has in common
_KEYS_OF_PART = 256  # of a run's keys, at least
_MOST_PARTS = 8
_ANY = 1 << 40  # more keys than there are


class Count(IntEnum):
    """Rows of the table of i64 [Count, sequences + 1] that the host fills for kernels."""

    UNITS = 0  # of all sequences before this one
    PARTS = 1  # those of them that are parts of keys
    RUN_BLOCKS = 2  # blocks of rows of the runs that begin before this sequence
    TOKENS = 3  # of all sequences before this one that are in runs
    PREFIX = 4  # how many keys its run has in common; 0: it is in none
    MEMBERS = 5  # of the run that begins with it; else 0


@dataclass(frozen=True)
class Batch:
    """Where the sequences of a call are, in the host program: see `PagedAttention`. Pointers to i32, and sizes."""

    tables: V
    columns: V
    starts: V
    lengths: V
    sequences: V
    tokens: V
    blocks: V  # of a pool
    cell: V  # where kernels report an entry of a table that is no block
    partial: V  # memory of `PagedKernel.partial_bytes`
    counts: V  # memory of i64 [len(Count), sequences + 1]
    positions: V  # memory of i32 [tokens]
    begun: V  # memory of f32 [begun_rows, partial_floats]
    begun_rows: V  # as many as sequences of few rows have, at least


def number(host: GroupHost, p: V, i: V | int) -> V:
    """Element i of some i32; 0 while only sizes are known."""
    f = host.fn
    return host.unless_planning(lambda: _i32(f, p, i), f.i64(0))


def _i32(f: Fn, p: V, i: V | int) -> V:
    return f.cast(f.load(f.gep(p, i, I32), I32), I64)


def count_at(fn: Fn, counts: V, sequences: V, which: Count, b: V | int) -> V:
    """The address of a number in the table of counts."""
    return fn.gep(counts, fn.add(fn.mul(fn.add(sequences, 1), int(which)), b), I64)


def count(fn: Fn, a: Args, which: Count, b: V) -> V:
    """A number of the table of counts, in a kernel."""
    assert a.pages is not None
    return fn.load(count_at(fn, a.pages.counts, a.pages.sequences, which, b), I64)


def begun_at(fn: Fn, a: Args, spec: Spec, part: V, h: V, b: V, row: V) -> V:
    """Where the partial result of a part of a run's keys is, for a kv head and a row from sequence b's first on:
    f32 [parts, kv heads, tokens of runs * group, partial_floats]."""
    assert a.pages is not None
    of_head = fn.add(fn.mul(part, a.kv_heads), h)
    token = fn.add(fn.mul(of_head, a.pages.begun_tokens), count(fn, a, Count.TOKENS, b))
    return fn.gep(a.pages.begun, fn.mul(fn.add(fn.mul(token, a.group), row), partial_floats(spec)), F32)


def find_runs(host: GroupHost, spec: Spec, batch: Batch, group: V) -> tuple[V, V, V]:
    """Writes positions of tokens, and what `Count` says of runs. Returns blocks of rows of all runs, tokens of their sequences, and
    the most keys that one has in common."""
    f = host.fn

    def find() -> V:
        with f.wrapping():  # starts and lengths are right, and less than 2^31
            _compare_tables(f, spec, batch, group)
            _join(f, batch)
            return _sum_up(f, spec, batch, group)

    most = host.unless_planning(find, f.i64(0))
    totals = [count_at(f, batch.counts, batch.sequences, c, batch.sequences) for c in (Count.RUN_BLOCKS, Count.TOKENS)]
    blocks, tokens = (host.unless_planning(partial(f.load, at, I64), f.i64(0)) for at in totals)
    return blocks, tokens, most


def parts_of_runs(host: GroupHost, batch: Batch, kv_heads: V, group: V, blocks: V, tokens: V, most: V) -> V:
    """How many parts the keys of runs are split into, where their blocks of rows would leave threads idle and there is memory for
    their results."""
    f, threads = host.fn, host.num_threads
    items = f.mul(blocks, kv_heads)
    idle = f.and_(f.cmp("lt", items, f.mul(threads, 4)), f.cmp("ne", f.remu(items, threads), 0))
    room = f.divu(batch.begun_rows, f.max(f.mul(f.mul(tokens, group), kv_heads), 1))
    wanted = f.min(f.min(threads, _MOST_PARTS), f.min(room, f.divu(most, _KEYS_OF_PART)))
    return f.select(idle, f.max(wanted, 1), f.i64(1))


def _compare_tables(f: Fn, spec: Spec, batch: Batch, group: V) -> None:
    """Writes positions, and, as `RUN_BLOCKS` for now, how many keys a sequence has in common with the one before it: whole blocks
    that all tokens of both see, of sequences of few rows. What lies before the earlier one's window is as good as common."""
    assert spec.paging is not None
    block, window = spec.paging.block, spec.paging.window
    with f.loop(0, batch.sequences, 1, [_i32(f, batch.starts, 0), f.i64(0)]) as lp:
        b, (start, other) = lp.iv, lp.carried
        end = _i32(f, batch.starts, f.add(b, 1))
        queries = f.sub(end, start)
        past = f.max(f.sub(_i32(f, batch.lengths, b), queries), 0)  # fewer keys than tokens where these are others' keys
        if spec.has_positions:
            with f.loop(0, queries) as q:
                f.store(f.cast(f.add(past, q.iv), I32), f.gep(batch.positions, f.add(start, q.iv), I32))
        rows = f.mul(group, queries)
        able = f.select(f.and_(f.cmp("gt", rows, 0), f.cmp("le", rows, spec.few_rows)), past, f.i64(0))
        limit = f.divu(f.min(able, other), block)
        first = f.i64(0)
        if window:  # behind a run's first sequence, so that its table has what any of them sees
            limit = f.select(f.cmp("ge", able, other), limit, f.i64(0))
            first = f.divu(f.max(f.sub(other, window - 1), 0), block)
        before, own = (f.gep(batch.tables, f.mul(x, batch.columns), I32) for x in (f.max(f.sub(b, 1), 0), b))
        equal = _equal(f, before, own, first, f.min(limit, f.add(first, 1)))
        more = f.select(f.cmp("gt", equal, 0), limit, first)
        equal = f.add(equal, _equal(f, before, own, f.add(first, equal), more))
        enough = f.cmp("ge", f.mul(equal, block), _LEAST_KEYS)
        common = f.select(enough, f.mul(f.add(first, equal), block), f.i64(0))
        for which, x in ((Count.RUN_BLOCKS, common), (Count.PREFIX, f.i64(0)), (Count.MEMBERS, f.i64(0))):
            f.store(x, count_at(f, batch.counts, batch.sequences, which, b))
        lp.yield_(end, able)


def _equal(f: Fn, x: V, y: V, lo: V, hi: V) -> V:
    """How many entries of two tables from lo on are equal before the first that isn't, or hi."""
    with f.loop(lo, hi, 1, [f.i64(0), f.i64(1)]) as lp:
        found, so_far = lp.carried
        same = f.cmp("eq", *(f.load(f.gep(p, lp.iv, I32), I32) for p in (x, y)))
        so_far = f.select(same, so_far, f.i64(0))
        lp.yield_(f.add(found, so_far), so_far)
    return lp.results[0]


def _join(f: Fn, batch: Batch) -> None:
    """Makes runs, from the first sequence on: one joins where the keys that needn't be read again become no fewer."""

    def at(which: Count, b: V) -> V:
        return count_at(f, batch.counts, batch.sequences, which, b)

    with f.loop(1, f.add(batch.sequences, 1), 1, [f.i64(0), f.i64(_ANY)]) as lp:
        b, (begin, common) = lp.iv, lp.carried
        inside = f.cmp("lt", b, batch.sequences)
        last = f.sub(batch.sequences, 1)
        here = f.select(inside, f.load(at(Count.RUN_BLOCKS, f.min(b, last)), I64), f.i64(0))
        n, less = f.sub(b, begin), f.min(common, here)
        fewer = f.cmp("lt", f.mul(n, less), f.mul(f.sub(n, 1), common))
        joins = f.and_(f.cmp("gt", here, 0), f.not_(fewer))
        with f.when(f.and_(f.not_(joins), f.cmp("gt", n, 1))):
            f.store(n, at(Count.MEMBERS, begin))
            with f.loop(begin, b) as member:
                f.store(common, at(Count.PREFIX, member.iv))
        lp.yield_(f.select(joins, begin, b), f.select(joins, less, f.i64(_ANY)))


def _sum_up(f: Fn, spec: Spec, batch: Batch, group: V) -> V:
    """Writes `RUN_BLOCKS` and `TOKENS`. Returns the most keys that a run has in common."""

    def at(which: Count, b: V) -> V:
        return count_at(f, batch.counts, batch.sequences, which, b)

    with f.loop(0, batch.sequences, 1, [f.i64(0)] * 3) as lp:
        b, (blocks, tokens, most) = lp.iv, lp.carried
        f.store(blocks, at(Count.RUN_BLOCKS, b))
        f.store(tokens, at(Count.TOKENS, b))
        common, members = f.load(at(Count.PREFIX, b), I64), f.load(at(Count.MEMBERS, b), I64)
        start, end, last = (_i32(f, batch.starts, f.add(b, n)) for n in (0, 1, members))
        own = f.select(f.cmp("gt", common, 0), f.sub(end, start), f.i64(0))
        of_run = f.ceildivu(f.mul(group, f.sub(last, start)), spec.rows)
        lp.yield_(f.add(blocks, of_run), f.add(tokens, own), f.max(most, common))
    blocks, tokens, most = lp.results
    f.store(blocks, at(Count.RUN_BLOCKS, batch.sequences))
    f.store(tokens, at(Count.TOKENS, batch.sequences))
    return most
