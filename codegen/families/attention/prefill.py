"""Attention of many query rows, which lie in the vector lanes, so that K and V are read in place.

A block of query rows (of one batch and kv head; rows of the heads of a group alternate) is transposed once. Scores
of a block of keys come out as S^T[key][query] by broadcasting elements of K; maximum, exponential and sum go lane by
lane down the keys; the product with V accumulates O^T[column][query] by broadcasting elements of V. Online softmax
after Milakov and Gimelshein (2018) and FlashAttention (Dao et al. 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dhlo.codegen.families.attention import dots
from dhlo.codegen.families.attention.common import (
    Args,
    Rows,
    Span,
    Spec,
    all_keys,
    capped,
    copy_scales,
    first_key,
    guarded,
    inverse_sum,
    load_row,
    offset,
    scale_of_queries,
    store_row,
    to_f32_rows,
    weight,
)
from dhlo.codegen.families.attention.decode import decode_scratch_bytes, emit_rows, partial_floats
from dhlo.codegen.families.attention.decode_kernels import KEYS
from dhlo.codegen.families.attention.masks import add_mask, any_hidden, hide_by_position, hide_keys
from dhlo.codegen.families.attention.pages import contiguous, copy_page_scales, each_page
from dhlo.codegen.families.attention.tiles import (
    by_dots,
    configure,
    copy_query,
    lay_rows,
    multiply_scores,
    multiply_values,
    pack_queries,
    pack_values,
    pack_weights,
    release,
    scale_scores,
    serves,
    tile_scratch,
)
from dhlo.codegen.families.combine import raised
from dhlo.codegen.families.gemm.microkernel import emit_microkernel_table
from dhlo.codegen.families.gemm.register_tile import BF16
from dhlo.codegen.kernel_ir.builder import F32, I1, I32, I64, PTR, Fn, KernelModule, V
from dhlo.codegen.kernel_ir.launch import kernel_fn
from dhlo.codegen.kernel_ir.transpose import transpose_block
from dhlo.ir.ops.paged import HIDDEN_KEYS

__all__ = ["BlockOfRows", "Part", "emit_prefill", "prefill_scratch_bytes"]


class _Scratch:
    """Offsets of a worker's buffers, in f32 elements."""

    def __init__(self, spec: Spec) -> None:
        self.size, self._align = 0, spec.lanes
        self.rows = self._take(spec.rows * max(spec.qk_pad, spec.v_pad))  # Q before, O after transposition
        self.qt = self._take(spec.rows * spec.qk_pad)
        self.scores = self._take(spec.rows * spec.keys)
        self.ot = self._take(spec.rows * spec.v_pad)
        self.maximum, self.total, self.alpha, self.query, self.own = (self._take(spec.rows) for _ in range(5))
        self.sinks = self._take(spec.rows * spec.sinks)
        self.position, self.hidden = (self._take(spec.rows * spec.hides) for _ in range(2))
        self.heads, self.bias = self._take(2 * spec.rows), self._take(spec.lanes * spec.keys)
        in_place = spec.paging is None
        self.keys = self._take(0 if spec.k.is_f32 and in_place else spec.keys * spec.qk_pad)
        self.values = self._take(0 if spec.v.is_f32 and in_place else spec.keys * spec.v_pad)
        self.scales = self._take(spec.keys if spec.k.scaled or spec.v.scaled else 0)
        for name, size in tile_scratch(spec).items():
            setattr(self, name, self._take(size))

    def _take(self, n: int) -> int:
        start = self.size
        self.size += -(-n // self._align) * self._align
        return start


def prefill_scratch_bytes(spec: Spec) -> int:
    """Scratch of a worker, in bytes."""
    return max(4 * _Scratch(spec).size, decode_scratch_bytes(spec))


def emit_prefill(module: KernelModule, name: str, spec: Spec) -> None:
    """Emits the kernel `name`; items are (batch, kv head, block of rows), `parts` is the number of blocks."""
    parts = emit_parts(module, name, spec)
    fn = kernel_fn(module, name)
    a = Args.load(fn, spec)
    _, begin, end, _, _ = fn.args
    rows = BlockOfRows(fn, a, spec, parts)
    with fn.loop(begin, end) as item:
        block, bh = fn.remu(item.iv, a.parts), fn.divu(item.iv, a.parts)
        if spec.is_causal:  # pairs cheap blocks with dear ones, so that a static split of the items is fair
            half, odd = fn.divu(block, 2), fn.cmp("ne", fn.and_(block, 1), 0)
            block = fn.select(odd, fn.sub(fn.sub(a.parts, 1), half), half)
        rows.attend(fn.divu(bh, a.kv_heads), fn.remu(bh, a.kv_heads), fn.mul(block, spec.rows))
    fn.done()


def emit_parts(module: KernelModule, name: str, spec: Spec) -> tuple[str, ...]:
    """Emits what blocks of rows need beside the kernel `name`: the functions for few rows, for more, and for these in tiles, if
    there is such a form; by dot products alone, which any call takes."""
    base = name.rpartition("_")[0]
    forms = (True,) if serves(spec) and by_dots(spec) else (False, True) if serves(spec) else (False,)
    return emit_rows(module, spec, base), *(_emit_block(module, spec, base, in_tiles=x) for x in forms)


def _emit_block(module: KernelModule, spec: Spec, name: str, *, in_tiles: bool) -> str:
    """Emits `<name>_block(args, scratch, b, several, h, row0, rows, lo, hi, partial)`, which is to more rows what `emit_rows` is to
    few, or the same `in_tiles`, and returns its symbol."""
    symbol = f"{name}_tiles" if in_tiles else f"{name}_block"
    if symbol in module.functions:
        return symbol
    of_dots = in_tiles and by_dots(spec)
    of_tiles = in_tiles and not of_dots
    table = emit_microkernel_table(module, BF16 if of_dots else F32, rows=True, spec=spec.tiles.alone)
    for _, mr in _column_chunks(spec.value_dim, spec.tiles.mr):
        (dots.emit_value_kernel if of_dots else _emit_value_kernel)(module, spec, mr)
    sizes = [(x, I64) for x in ("b", "several", "h", "row0", "rows", "lo", "hi")]
    fn = Fn(module, symbol, [("args", PTR), ("scratch", PTR), *sizes, ("partial", PTR)], noinline=True)
    _, scratch, b, several, h, row0, n, lo, hi, partial = fn.args
    a, lay = Args.load(fn, spec), vars(_Scratch(spec))
    at = {k: fn.gep(scratch, x, F32) for k, x in lay.items() if k not in ("size", "_align")}
    span = Span.of(fn, a, b, several)
    _pack_queries(fn, a, spec, at, span, h, row0, fn.mul(a.group, span.queries), in_tiles=in_tiles)
    if of_tiles:
        configure(fn, at)
    _block(fn, a, spec, at, None if of_tiles else fn.address_of(table), span, h, row0, n, lo, hi, several, of_dots)
    if of_tiles:
        release(fn)
    whole = fn.cmp("eq", fn.ptr_to_int(partial), 0)
    with fn.when(whole):
        _finish(fn, a, spec, at, span, n)
    if spec.paging is not None:
        with fn.when(fn.not_(whole)):
            _set_aside(fn, spec, at, n, partial)
    fn.done()
    return symbol


@dataclass(frozen=True)
class Part:
    """One of so many parts of the keys from `begin` on, by its number, and the address of its partial results; 0 where there is but
    one part. It goes on from those at the address `begun`, unless that is 0."""

    index: V
    parts: V
    partial: V
    begin: V
    begun: V


class BlockOfRows:
    """A block of query rows of one sequence and kv head, inside a kernel."""

    def __init__(self, fn: Fn, a: Args, spec: Spec, parts: tuple[str, ...]) -> None:
        """`parts` are those of `emit_parts`."""
        self.fn, self.a, self.spec = fn, a, spec
        self.few_rows, *self.blocks = parts

    def attend(self, b: V, h: V, row0: V, part: Part | None = None) -> None:
        """Attends with the rows from row0 on, of element b of the batch, or of sequence b, and kv head h; to a part of the keys, if
        these are few rows that are to."""
        fn, a, spec = self.fn, self.a, self.spec
        span = Span.of(fn, a, b)
        n = fn.min(fn.sub(fn.mul(a.group, span.queries), row0), spec.rows)
        first, last = fn.divu(row0, a.group), fn.divu(fn.sub(fn.add(row0, n), 1), a.group)
        lo, hi = first_key(fn, spec, span, first, last), all_keys(fn, spec, span, last)
        partial = begun = fn.i64(0)
        if part is not None:
            lo, begun, partial = fn.max(lo, part.begin), part.begun, part.partial
            share = fn.mul(fn.ceildivu(fn.max(fn.sub(hi, lo), 0), fn.mul(part.parts, KEYS)), KEYS)
            lo = fn.add(lo, fn.mul(part.index, share))
            hi = fn.min(hi, fn.add(lo, share))
        self.attend_to(b, fn.i64(1), h, row0, n, lo, hi, partial, begun)

    def attend_to(self, b: V, several: V, h: V, row0: V, n: V, lo: V, hi: V, partial: V, begun: V) -> None:
        """Attends with `n` rows from row0 on, of `several` sequences from b on, to keys lo to hi - 1. `partial`, where partial
        results go, and `begun`, where such are that few rows go on from, are addresses; 0 where there are none."""
        fn = self.fn
        head = [*fn.args[:1], fn.args[4], b, several, h, row0, n, lo, hi, fn.int_to_ptr(partial)]
        few = fn.cmp("le", n, self.spec.few_rows)
        with fn.when(few):
            fn.call(self.few_rows, [*head, fn.int_to_ptr(begun)])
        of_tiles = fn.cmp("ne", self.a.in_tiles, 0) if len(self.blocks) > 1 else fn.const(0, I1)
        for block, chosen in zip(self.blocks, (fn.not_(of_tiles), of_tiles), strict=False):
            with fn.when(fn.and_(fn.not_(few), chosen)):
                fn.call(block, head)


def _column_chunks(columns: int, most: int) -> list[tuple[int, int]]:
    """Columns of V in balanced runs of at most a micro-kernel's rows, as (start, count)."""
    count = -(-columns // most)
    bounds = [columns * i // count for i in range(count + 1)]
    return [(lo, hi - lo) for lo, hi in zip(bounds, bounds[1:], strict=False)]


def _emit_value_kernel(module: KernelModule, spec: Spec, mr: int) -> None:
    """`attn_pv_{mr}(v, ldv, p, keys, o, alpha, ahead)`: o[mr][rows] = o * alpha + sum over keys of v[key][mr] * p[key][rows]. V is
    prefetched `ahead` elements ahead."""
    name = f"attn_pv_{mr}"
    if name in module.functions:
        return
    args = [("v", PTR), ("ldv", I64), ("p", PTR), ("keys", I64), ("o", PTR), ("alpha", PTR), ("ahead", I64)]
    fn = Fn(module, name, args, explicit=True)
    v, ldv, p, keys, o, alpha, ahead = fn.args
    alphas = [fn.load(fn.gep(alpha, h * fn.lanes, F32), fn.vec(F32)) for h in range(spec.halves)]
    acc = [
        fn.mul(fn.load(fn.gep(o, i * spec.rows + h * fn.lanes, F32), fn.vec(F32)), alphas[h])
        for i in range(mr)
        for h in range(spec.halves)
    ]
    unroll = 2

    def step(key: V, u: int, acc: list[V]) -> list[V]:
        ps = [
            fn.load(fn.gep(fn.gep(p, fn.mul(key, spec.rows), F32), u * spec.rows + h * fn.lanes, F32), fn.vec(F32))
            for h in range(spec.halves)
        ]
        vk = fn.gep(v, fn.mul(fn.add(key, u) if u else key, ldv), F32)
        fn.prefetch(fn.gep(vk, ahead, F32))
        xs = [fn.splat(fn.load(fn.gep(vk, i, F32), F32)) for i in range(mr)]
        return [fn.fma(xs[i // spec.halves], ps[i % spec.halves], c) for i, c in enumerate(acc)]

    main = fn.mul(fn.divu(keys, unroll), unroll)
    with fn.loop(0, main, unroll, acc) as lp:
        acc = lp.carried
        for u in range(unroll):
            acc = step(lp.iv, u, acc)
        lp.yield_(*acc)
    with fn.loop(main, keys, 1, lp.results) as tail:
        tail.yield_(*step(tail.iv, 0, tail.carried))
    for i, x in enumerate(tail.results):
        fn.store(x, fn.gep(o, i * fn.lanes, F32))
    fn.done()


def _pack_queries(fn: Fn, a: Args, spec: Spec, at: dict[str, V], span: Span, h: V, row0: V, rows: V, *, in_tiles: bool) -> None:
    """Scaled Q^T[column][query], or Q as tiles have it, row of Q and head of each row, empty statistics; rows beyond the last
    repeat it."""
    base = fn.gep(a.q, fn.mul(span.batch, a.qs[0]), spec.elem)
    first_head, scale = fn.mul(h, a.group), fn.splat(scale_of_queries(fn, a, spec))
    with fn.loop(0, spec.rows) as r:
        row = fn.min(fn.add(row0, r.iv), fn.sub(rows, 1))
        query, head = span.row(fn, fn.divu(row, a.group)), fn.add(first_head, fn.remu(row, a.group))
        fn.store(fn.cast(query, I32), fn.gep(at["query"], r.iv, I32))
        fn.store(head, fn.gep(at["heads"], r.iv, I64))
        if spec.has_positions:
            fn.store(fn.cast(span.own(fn, fn.divu(row, a.group)), I32), fn.gep(at["own"], r.iv, I32))
        if spec.hides:
            fn.store(fn.cast(span.position(fn, fn.divu(row, a.group)), I32), fn.gep(at["position"], r.iv, I32))
            fn.store(span.hidden_keys(fn, fn.divu(row, a.group)), fn.gep(at["hidden"], r.iv, I32))
        if a.sinks is not None:
            fn.store(fn.load(fn.gep(a.sinks, head, F32), F32), fn.gep(at["sinks"], r.iv, F32))
        p = fn.gep(base, offset(fn, a.qs[1:], head, query), spec.elem)
        if in_tiles:
            copy_query(fn, spec, at, p, r.iv)
        else:
            to = fn.gep(at["rows"], fn.mul(r.iv, spec.qk_pad), F32)
            for k in range(0, spec.qk_pad, fn.lanes):
                fn.store(fn.mul(load_row(fn, p, spec.elem, spec.head_dim, k), scale), fn.gep(to, k, F32))
    if in_tiles:
        pack_queries(fn, spec, at)
    else:
        _turn_queries(fn, spec, at)
    zero = fn.const(0.0, fn.vec(F32))
    with fn.loop(0, spec.v_pad * spec.rows, fn.lanes) as z:
        fn.store(zero, fn.gep(at["ot"], z.iv, F32))
    for k in range(0, spec.rows, fn.lanes):
        fn.store(fn.const(-math.inf, fn.vec(F32)), fn.gep(at["maximum"], k, F32))
        fn.store(zero, fn.gep(at["total"], k, F32))


def _turn_queries(fn: Fn, spec: Spec, at: dict[str, V]) -> None:
    """Q^T[column][query] of the rows."""
    with fn.loop(0, spec.halves) as half, fn.loop(0, spec.qk_pad, fn.lanes) as c:
        src = fn.gep(fn.gep(at["rows"], fn.mul(half.iv, fn.lanes * spec.qk_pad), F32), c.iv, F32)
        block = transpose_block(fn, [fn.load(fn.gep(src, i * spec.qk_pad, F32), fn.vec(F32)) for i in range(fn.lanes)])
        dst = fn.gep(fn.gep(at["qt"], fn.mul(c.iv, spec.rows), F32), fn.mul(half.iv, fn.lanes), F32)
        for i, x in enumerate(block):
            fn.store(x, fn.gep(dst, i * spec.rows, F32))


def _block(
    fn: Fn,
    a: Args,
    spec: Spec,
    at: dict[str, V],
    table: V | None,
    span: Span,
    h: V,
    row0: V,
    n: V,
    lo: V,
    stop: V,
    several: V,
    of_dots: bool,
) -> None:
    """Runs over keys lo to stop - 1, with the micro-kernels of a table, perhaps those of dot products, or in tiles."""
    first, last = fn.divu(row0, a.group), fn.divu(fn.sub(fn.add(row0, n), 1), a.group)
    hides = any_hidden(fn, spec, at) if spec.hides else None
    with fn.loop(lo, stop, spec.keys) as key:
        count = fn.min(fn.sub(stop, key.iv), spec.keys)
        if table is None or of_dots:
            keys, apart = lay_rows(fn, a, spec, at, span, h, key.iv, count)
            if table is None:
                multiply_scores(fn, spec, at, count, keys, apart)
            else:
                dots.multiply_scores(fn, spec, at, table, count, keys, apart)
            scale_scores(fn, a, spec, at, count)
        else:
            k, ldk, v, ldv = _keys_and_values(fn, a, spec, at, span, h, key.iv, count)
            _score(fn, spec, at, table, k, ldk, count)
        if spec.softcap:
            with fn.loop(0, fn.mul(count, spec.rows), fn.lanes) as e:
                p = fn.gep(at["scores"], e.iv, F32)
                fn.store(capped(fn, fn.load(p, fn.vec(F32)), spec.softcap), p)
        if spec.emit_mask is not None:
            add_mask(fn, spec, at, span.batch, key.iv, count)
        if spec.is_causal:
            with fn.when(fn.cmp("gt", fn.sub(fn.add(key.iv, count), 1), span.own(fn, first))):
                hide_by_position(fn, spec, at, "le", key.iv, count)
        if hides is not None:
            own = fn.min(span.own(fn, first), stop)  # of several sequences, whose own keys are behind these
            with fn.when(fn.and_(hides, fn.cmp("ge", fn.add(key.iv, count), fn.sub(own, HIDDEN_KEYS)))):
                hide_keys(fn, spec, at, key.iv, count)
        if spec.paging is not None and spec.paging.window:
            window = spec.paging.window
            of_all = fn.cmp("gt", several, 1)  # whose positions don't ascend
            with fn.when(fn.or_(of_all, fn.cmp("le", key.iv, fn.sub(span.own(fn, last), window)))):
                hide_by_position(fn, spec, at, "gt", fn.add(key.iv, window), count)
        _softmax(fn, spec, at, count)
        if table is None:
            pack_values(fn, spec, at, count)
            pack_weights(fn, spec, at, count)
            multiply_values(fn, spec, at, count)
        elif of_dots:
            dots.pack_values(fn, spec, at, count)
            pack_weights(fn, spec, at, count)
            dots.multiply_values(fn, spec, at, count, _column_chunks(spec.value_dim, spec.tiles.mr))
        else:
            ahead = fn.mul(ldv, a.ahead)
            for c, mr in _column_chunks(spec.value_dim, spec.tiles.mr):
                to = fn.gep(at["ot"], c * spec.rows, F32)
                fn.call(f"attn_pv_{mr}", [fn.gep(v, c, F32), ldv, at["scores"], count, to, at["alpha"], ahead])


def _score(fn: Fn, spec: Spec, at: dict[str, V], table: V, k: V, ldk: V, count: V) -> None:
    """Scores of `count` keys of f32, whose rows are `ldk` apart."""
    runs = fn.ceildivu(count, spec.tiles.mr)
    with fn.loop(0, runs) as t:
        lo = fn.divu(fn.mul(t.iv, count), runs)
        size = fn.sub(fn.divu(fn.mul(fn.add(t.iv, 1), count), runs), lo)
        if spec.k.is_f32:
            _prefetch_rows(fn, spec, fn.gep(k, fn.mul(fn.add(lo, size), ldk), F32), ldk, size)
        ukr = fn.load(fn.gep(table, fn.sub(size, 1), PTR), PTR)
        fn.call_ptr(
            ukr,
            [
                fn.gep(k, fn.mul(lo, ldk), F32),
                ldk,
                at["qt"],
                fn.i64(spec.head_dim),
                fn.gep(at["scores"], fn.mul(lo, spec.rows), F32),
                fn.i64(0),
                at["qt"],  # which is near: nothing else is to be fetched
                fn.i64(spec.tiles.alone.row_bytes(F32)),
                fn.i64(0),
                fn.i64(0),
            ],
        )


@dataclass(frozen=True)
class _Gather:
    """Copies rows of K or V from blocks of a pool to dense rows of f32: what `each_page` calls."""

    fn: Fn
    rows: Rows
    base: V
    ld: V
    size: int
    pad: int
    to: V
    scales: V | None

    def __call__(self, first: V, count: V, row: V, after: V) -> None:
        fn, elem = self.fn, self.rows.elem
        src, following = (fn.gep(self.base, fn.mul(r, self.ld), elem) for r in (row, after))
        to = fn.gep(self.to, fn.mul(first, self.pad), F32)
        scales = None if self.scales is None else fn.gep(self.scales, first, F32)
        to_f32_rows(fn, src, self.ld, count, self.size, self.pad, elem, to, scales, following)


def _keys_and_values(fn: Fn, a: Args, spec: Spec, at: dict[str, V], span: Span, h: V, key0: V, count: V) -> tuple[V, V, V, V]:
    """Where the rows of K and of V of a block of keys lie as f32, and how far apart: in place if they are such and in a row."""
    sides = (
        (spec.k, a.k, a.ks, spec.head_dim, spec.qk_pad, at["keys"], a.k_scales),
        (spec.v, a.v, a.vs, spec.value_dim, spec.v_pad, at["values"], a.v_scales),
    )
    whole, row = contiguous(fn, a, spec, span, key0, count) if spec.paging is not None else (None, key0)
    found: list[V] = []
    for rows, p, strides, size, pad, to, scales in sides:
        base, ld = fn.gep(p, offset(fn, strides, span.batch, h), rows.elem), strides[2]
        there = fn.gep(base, fn.mul(row, ld), rows.elem)
        if whole is None and rows.is_f32:
            found += [there, ld]
            continue
        if scales and spec.paging is not None:
            copy_page_scales(fn, a, spec, span, scales, h, key0, count, at["scales"])
        elif scales:
            copy_scales(fn, scales, span.batch, h, key0, count, at["scales"])
        if whole is None:
            to_f32_rows(fn, there, ld, count, size, pad, rows.elem, to, at["scales"] if scales else None)
            found += [to, fn.i64(pad)]
            continue

        gather = _Gather(fn, rows, base, ld, size, pad, to, at["scales"] if scales else None)
        if not rows.is_f32:
            each_page(fn, a, spec, span, key0, count, gather, ahead=spec.keys)
            found += [to, fn.i64(pad)]
            continue
        with fn.when(fn.not_(whole)):
            each_page(fn, a, spec, span, key0, count, gather, ahead=spec.keys)
        found += [fn.select(whole, there, to), fn.select(whole, ld, fn.i64(pad))]
    k, ldk, v, ldv = found
    return k, ldk, v, ldv


def _prefetch_rows(fn: Fn, spec: Spec, k: V, ldk: V, count: V) -> None:
    """Asks for the rows of K of the next tile: 14 streams read an element at a time are beyond hardware prefetching."""
    with fn.loop(0, count) as r:
        row = fn.gep(k, fn.mul(r.iv, ldk), F32)
        for c in range(0, spec.head_dim, fn.lanes):
            fn.prefetch(fn.gep(row, c, F32))


def _softmax(fn: Fn, spec: Spec, at: dict[str, V], count: V) -> None:
    """Scores become 2^(score - maximum); updates maximum and total; `alpha` is what earlier sums are scaled by."""
    halves = range(spec.halves)

    def load(name: str) -> list[V]:
        return [fn.load(fn.gep(at[name], half * fn.lanes, F32), fn.vec(F32)) for half in halves]

    old = load("maximum")
    with fn.loop(0, count, 1, old) as j:
        row = fn.gep(at["scores"], fn.mul(j.iv, spec.rows), F32)
        j.yield_(*[raised(fn, j.carried[half], fn.load(fn.gep(row, half * fn.lanes, F32), fn.vec(F32))) for half in halves])
    top = [guarded(fn, m) for m in j.results]
    alpha = [weight(fn, fn.sub(m, t)) for m, t in zip(old, top, strict=True)]
    total = [fn.mul(x, y) for x, y in zip(load("total"), alpha, strict=True)]
    with fn.loop(0, count, 1, total) as e:
        row = fn.gep(at["scores"], fn.mul(e.iv, spec.rows), F32)
        out = []
        for half in halves:
            p = fn.gep(row, half * fn.lanes, F32)
            x = weight(fn, fn.sub(fn.load(p, fn.vec(F32)), top[half]))
            fn.store(x, p)
            out.append(fn.add(e.carried[half], x))
        e.yield_(*out)
    for half in halves:
        for name, x in (("maximum", j.results[half]), ("total", e.results[half]), ("alpha", alpha[half])):
            fn.store(x, fn.gep(at[name], half * fn.lanes, F32))


def _turn_back(fn: Fn, spec: Spec, at: dict[str, V], factor: Callable[[V], V] | None) -> None:
    """Transposes sums back to rows, which are multiplied by `factor` of each half if there is one."""
    with fn.loop(0, spec.halves) as half:
        by = None if factor is None else factor(half.iv)
        with fn.loop(0, spec.v_pad, fn.lanes) as c:
            src = fn.gep(fn.gep(at["ot"], fn.mul(c.iv, spec.rows), F32), fn.mul(half.iv, fn.lanes), F32)
            block = [fn.load(fn.gep(src, i * spec.rows, F32), fn.vec(F32)) for i in range(fn.lanes)]
            dst = fn.gep(fn.gep(at["rows"], fn.mul(half.iv, fn.lanes * spec.v_pad), F32), c.iv, F32)
            for i, x in enumerate(transpose_block(fn, block if by is None else [fn.mul(x, by) for x in block])):
                fn.store(x, fn.gep(dst, i * spec.v_pad, F32))


def _set_aside(fn: Fn, spec: Spec, at: dict[str, V], n: V, partial: V) -> None:
    """Stores partial results of `n` rows."""
    _turn_back(fn, spec, at, None)
    with fn.loop(0, n) as r:
        src, to = fn.gep(at["rows"], fn.mul(r.iv, spec.v_pad), F32), fn.gep(partial, fn.mul(r.iv, partial_floats(spec)), F32)
        for c in range(0, spec.v_pad, fn.lanes):
            fn.store(fn.load(fn.gep(src, c, F32), fn.vec(F32)), fn.gep(to, c, F32))
        for i, name in enumerate(("maximum", "total")):
            fn.store(fn.load(fn.gep(at[name], r.iv, F32), F32), fn.gep(to, spec.v_pad + i, F32))


def _finish(fn: Fn, a: Args, spec: Spec, at: dict[str, V], span: Span, n: V) -> None:
    """Divides by the totals, transposes back and stores the rows."""

    def inverse(half: V) -> V:
        names = ("total", "maximum", "sinks")[: 2 + spec.sinks]
        lanes = [fn.load(fn.gep(at[k], fn.mul(half, fn.lanes), F32), fn.vec(F32)) for k in names]
        return inverse_sum(fn, lanes[0], lanes[1], lanes[2] if spec.sinks else None)

    _turn_back(fn, spec, at, inverse)
    base = fn.gep(a.o, fn.mul(span.batch, a.os[0]), spec.elem)
    with fn.loop(0, n) as r:
        head = fn.load(fn.gep(at["heads"], r.iv, I64), I64)
        query = fn.cast(fn.load(fn.gep(at["query"], r.iv, I32), I32), I64)
        p = fn.gep(base, offset(fn, a.os[1:], head, query), spec.elem)
        src = fn.gep(at["rows"], fn.mul(r.iv, spec.v_pad), F32)
        for k in range(0, spec.value_dim, fn.lanes):
            store_row(fn, fn.load(fn.gep(src, k, F32), fn.vec(F32)), p, spec.elem, spec.value_dim, k)
