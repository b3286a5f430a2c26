"""Where few rows stream a B that lies as it is (`gemv.py`), and the launch of the kernel."""

from __future__ import annotations

from dataclasses import replace

from dhlo.codegen.families.box import cycles_from_memory, l3_is_slow, wake_cycles
from dhlo.codegen.families.gemm.gemv import (
    BESIDE,
    FROM_MEMORY,
    PART_DEPTH,
    STREAM_FACTS,
    STREAM_ROWS,
    STRIP_ROWS,
    WHOLE_ROWS,
    emit_stream_kernel,
    narrow_columns,
    stream_scratch_bytes,
    waiting_sums,
)
from dhlo.codegen.families.gemm.operands import Operands
from dhlo.codegen.families.gemm.parts import count_stream_parts, emit_store_part, launch_join, store_part_args
from dhlo.codegen.families.gemm.plan_cost import call_cycles
from dhlo.codegen.families.gemm.register_tile import BF16, F16, TileSpec
from dhlo.codegen.kernel_ir.builder import BITS, F32, F64, I1, Fn, V
from dhlo.codegen.kernel_ir.launch import HostContext

__all__ = ["column_splits", "launch_stream", "streams"]

# More rows than so many are streamed up to so many where k is so long at least, as tiles take a panel of all rows of B, each of
# which may lie in another page; and those of f32 and f64 where B stays in one part in so many of the second-level cache, as packing
# it costs more than reading it for each group of rows. Found on a Granite Rapids, with vectors of 512 and of 256 bits. Where the
# third-level cache is slow, less depth will do, least where B has few columns: 58 of 21 x 199 x 387 take 0.66 of the time. Rows of
# bf16 are that many more than tiles of a chunk of k would be summed in one set for (`in_one_set`). Found on a Zen 4: 5 x 8,399 x
# 6,466 takes 0.16 of the time, 6 x 2,000 x 2,000 1.15.
_FLAT_ROWS = {F32: 12, F64: 12, F16: 12, BF16: 4}
_DEEP_ROWS, _STREAM_DEPTH = {F32: 24, F64: 24, F16: 36, BF16: 6}, {F32: 1024, F64: 1024, F16: 384, BF16: 2048}
_FEW_COLUMNS, _SLOW_DEPTH, _KEPT_SHARE = 512, (48, 256), 2

# Rows of B shorter than so many of the narrowest passes are read whole, one after the other, as from memory: passes over pieces of
# them would fetch each line several times.
_PASSES_OF_SHORT_ROWS = 4
# Sums of up to 4 rows wait in strips where B takes more than one part in so many of the second-level cache, and an item has so many
# columns for each row, but no more than so many, at least: from the caches strips are as fast as passes then, from memory faster.
# Found on a Zen 4: no fact of the machine says from which length on a stream has paid for its start.
_KEPT_BY_PASSES, _COLUMNS_OF_ROW, _COLUMNS_OF_STRIPS = 2, 512, 1024
# Where the third-level cache is as slow as memory B is read as from memory where it takes more than so many eighths of that cache,
# alone or in groups; or in columns of at least so many elements more than so many eighths of the second-level one, more than it
# holds, or in longer ones of what it could hold; for up to so many rows: those alone, few, more, and the most. Found on a Granite
# Rapids: 11 x 500 x 500 takes 0.78 of the time where B comes from the third, 1.12 where it's still in the second; in batches 29 of
# 12 x 251 x 1,692 take 0.61, 24 of 6 x 48 x 6,763 0.70, but 4 of 5 x 42 x 15,768 1.29.
_KEPT_EIGHTHS, _KEPT_OF_GROUPS = 3, 1
_SLOW_KEPT = 12, 1
_SLOW_ROWS = {STRIP_ROWS: (1024, None), 7: (48, None), _FLAT_ROWS[F32]: (48, 384), max(STREAM_ROWS.values()): (16, 16)}
# Where that cache is slow, passes fetch what the next one reads there from so many rows on, two vectors each: 12 x 76 x 3,325
# takes 0.5 of the time where B comes from the third-level cache, 0.9 where it's in the second, fewer rows 1.2. Elsewhere all do
# whose sums don't wait in strips.
_BESIDE_ROWS = 8
# Few rows wake another thread for so much less work than others: most of their time is of calls and stores that cycles don't count.
# Found on a Zen 4.
_EAGER_WAKES = 4


def streams(host: HostContext, elem: str, spec: TileSpec, x: Operands, parts: V | None) -> V:
    """Whether the rows are few enough, and they and B's contiguous; `parts`: in how many k is taken otherwise, None if in one."""
    fn = host.fn
    few = fn.and_(fn.cmp("le", x.m, _FLAT_ROWS[elem]), fn.cmp("ge", x.n, 1))
    # More rows than that only where every thread has columns of its own, and k wouldn't be split: sums are the tiles' then.
    splits = column_splits(host, x)
    own = fn.or_(fn.cmp("eq", splits, 1), fn.cmp("ge", x.n, fn.mul(splits, narrow_columns(elem, spec))))
    depth, stays = fn.i64(_STREAM_DEPTH[elem]), fn.const(0, I1)
    if elem in (F32, F64):  # each group of rows widens others' B anew
        least, other = _SLOW_DEPTH
        slow_depth = fn.select(fn.cmp("le", x.n, _FEW_COLUMNS), fn.i64(least), other)
        depth = fn.select(l3_is_slow(host), slow_depth, depth)
        stays = fn.cmp("le", _nbytes(fn, elem, x), fn.divu(host.l2_bytes, _KEPT_SHARE))
    deep = fn.and_(fn.cmp("le", x.m, _DEEP_ROWS[elem]), fn.cmp("ge", x.k, depth))
    more = fn.and_(fn.cmp("le", x.m, STREAM_ROWS[elem]), fn.or_(deep, stays))
    more = fn.and_(fn.and_(more, own), fn.cmp("ge", x.n, 1))
    few = fn.or_(few, more if parts is None else fn.and_(more, fn.cmp("lt", parts, 2)))
    return fn.and_(fn.and_(few, fn.cmp("eq", x.a_strides[3], 1)), fn.cmp("eq", x.b_strides[3], 1))


def _nbytes(fn: Fn, elem: str, x: Operands) -> V:
    """Bytes of all matrices of B."""
    with fn.wrapping():
        return fn.mul(fn.mul(fn.mul(x.n, x.k), fn.mul(*x.batch)), BITS[elem] // 8)


def column_splits(host: HostContext, x: Operands) -> V:
    """How many chunks of each matrix's columns give every thread one."""
    fn, some = host.fn, host.fn.max(host.fn.mul(*x.batch), 1)
    return fn.divu(fn.add(host.num_threads, fn.sub(some, 1)), some)


def launch_stream(host: HostContext, elem: str, spec: TileSpec, x: Operands, *, splits: bool) -> list[V]:
    """The few-rows kernel, of a product that may be split over k, which has no batches then, or not."""
    if splits and x.parts is not None:
        fn, memory = host.fn, x.parts
        panels, least = fn.ceildivu(x.n, spec.panel(elem)), max(narrow_columns(elem, spec) // spec.panel(elem), 1)
        parts = count_stream_parts(fn, elem, spec, x.m, x.k, panels, least)
        # The machine decides whether more rows are streamed, which mustn't change a sum.
        parts = fn.select(fn.cmp("le", x.m, _FLAT_ROWS[elem]), parts, 1)
        _launch(host, elem, spec, *_in_parts(host, elem, spec, x, memory, parts))
        with fn.when(fn.cmp("gt", parts, 1)):
            launch_join(host, elem, spec, x, memory, parts)
    else:
        _launch(host, elem, spec, x, host.fn.i64(0))
    return []


def _in_parts(host: HostContext, elem: str, spec: TileSpec, x: Operands, memory: V, parts: V) -> tuple[Operands, V]:
    """The same product as one of batches, which are parts of k, whose sums go to `memory`; and how deep they all are. If there is
    but one, as it was, and 0."""
    fn, split = host.fn, host.fn.cmp("gt", parts, 1)
    each, null = fn.ceildivu(x.k, parts), fn.int_to_ptr(fn.i64(0))
    with fn.wrapping():  # what isn't split has any strides
        b_step = fn.mul(each, x.b_strides[2])

    def either(ours: V, theirs: V) -> V:
        return fn.select(split, ours, theirs)

    y = replace(
        x,
        k=each,
        a_strides=[either(each, x.a_strides[0]), *x.a_strides[1:]],
        b_strides=[either(b_step, x.b_strides[0]), *x.b_strides[1:]],
        batch=[either(parts, x.batch[0]), x.batch[1]],
        epilogue=either(fn.address_of(emit_store_part(host.module, elem, spec)), x.epilogue),
        epilogue_args=either(store_part_args(fn, elem, spec, memory, x.m, x.n), x.epilogue_args),
        result=either(null, null if x.result is None else x.result),
    )
    return y, either(x.k, fn.i64(0))


def _launch(host: HostContext, elem: str, spec: TileSpec, x: Operands, whole: V) -> None:
    """As many chunks of columns of each batch as give every thread one; see `emit_stream_kernel` for `whole`."""
    fn, m, n, k, columns = host.fn, x.m, x.n, x.k, narrow_columns(elem, spec)
    sa, sb, batches, splits = x.a_strides, x.b_strides, fn.mul(*x.batch), column_splits(host, x)
    chunk = fn.mul(fn.divu(fn.add(n, fn.sub(fn.mul(splits, columns), 1)), fn.mul(splits, columns)), columns)
    chunks = fn.divu(fn.add(n, fn.sub(chunk, 1)), chunk)
    count = fn.select(fn.cmp("eq", m, 0), 0, fn.mul(batches, chunks))
    step = fn.max(cycles_from_memory(host, spec.row_bytes(elem)), fn.mul(m, spec.vectors * spec.per_panel))
    cycles = fn.divu(fn.mul(fn.add(fn.mul(k, step), call_cycles(spec)), chunk), spec.panel(elem))
    grain = fn.add(fn.divu(wake_cycles(host), fn.mul(cycles, _EAGER_WAKES)), 1)
    order = _order(host, elem, x, chunk, columns)
    sizes = [m, n, k, whole, fn.max(x.batch[1], 1), chunk, order, *map(host.machine, STREAM_FACTS)]
    result = fn.int_to_ptr(fn.i64(0)) if x.result is None else x.result
    host.launch(
        emit_stream_kernel(host.module, elem, spec),
        [x.a, sa[2], *sa[:2], x.b, *sb[:3], *sizes, result, x.epilogue, x.epilogue_args],
        count,
        grain,
        stream_scratch_bytes(elem, spec),
    )


def _order(host: HostContext, elem: str, x: Operands, chunk: V, columns: int) -> V:
    """How the kernel reads B, in items of `chunk` columns, by passes of `columns` at least.

    Whether B comes from memory depends on what has been in the caches since it was written. Read as from memory it takes 0.25 to
    0.8 of the time from there, and 1.0 to 1.08 (strips 1.23) from a cache (Zen 4). So it is read so where prefetches have
    somewhere to reach: for more rows than wait in strips, if B has more steps than a part, or rows that follow each other, whose
    sums wait at once, and other matrices behind them; for strips, which load and prefetch more than they multiply, if B has more
    columns than a pass, and takes more than that cache or 2 bytes for each. Where the third-level cache is as slow as memory sizes
    alone decide, as found there.
    """
    fn, m, n, k = host.fn, x.m, x.n, x.k
    nbytes = _nbytes(fn, elem, x)
    alone = fn.cmp("le", m, STRIP_ROWS)
    far_strips = fn.cmp("gt", n, columns)
    if BITS[elem] > 16:
        far_strips = fn.and_(far_strips, fn.cmp("gt", nbytes, host.l2_bytes))
    rows_follow, waiting = fn.cmp("eq", fn.min(chunk, n), x.b_strides[2]), fn.divu(waiting_sums(elem), fn.max(m, 1))
    follow = fn.and_(fn.and_(rows_follow, fn.cmp("le", n, waiting)), fn.cmp("gt", fn.mul(*x.batch), 1))
    far_groups = fn.or_(fn.cmp("gt", k, PART_DEPTH), follow)
    far = fn.select(l3_is_slow(host), _is_far_where_slow(host, m, k, nbytes), fn.select(alone, far_strips, far_groups))
    short = fn.and_(fn.cmp("gt", n, columns), fn.cmp("lt", n, columns * _PASSES_OF_SHORT_ROWS))
    long = fn.and_(alone, fn.cmp("ge", chunk, fn.min(fn.mul(m, _COLUMNS_OF_ROW), _COLUMNS_OF_STRIPS)))
    long = fn.and_(long, fn.cmp("gt", nbytes, fn.divu(host.l2_bytes, _KEPT_BY_PASSES)))
    near = fn.select(fn.cmp("ge", m, fn.select(l3_is_slow(host), fn.i64(_BESIDE_ROWS), STRIP_ROWS + 1)), fn.i64(BESIDE), 0)
    return fn.select(fn.or_(far, short), fn.i64(FROM_MEMORY), fn.select(long, fn.i64(WHOLE_ROWS), near))


def _is_far_where_slow(host: HostContext, m: V, k: V, nbytes: V) -> V:
    """Whether B is read as from memory, where the third-level cache is as slow."""
    fn = host.fn
    least, inside = fn.i64(0), fn.const(0, I1)
    for most, (depth, deep) in reversed(_SLOW_ROWS.items()):
        few = fn.cmp("le", m, most)
        least = fn.select(few, depth, least)
        inside = fn.select(few, fn.const(0, I1) if deep is None else fn.cmp("ge", k, deep), inside)
    in_l2 = fn.mul(fn.divu(host.l2_bytes, 8), fn.select(inside, fn.i64(_SLOW_KEPT[1]), _SLOW_KEPT[0]))
    eighths = fn.select(fn.cmp("le", m, STRIP_ROWS), fn.i64(_KEPT_EIGHTHS), _KEPT_OF_GROUPS)
    in_l3 = fn.max(fn.divu(fn.mul(host.machine("l3_bytes"), eighths), 8), host.l2_bytes)
    return fn.cmp("gt", nbytes, fn.select(fn.cmp("ge", k, least), in_l2, in_l3))
