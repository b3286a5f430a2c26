"""Attention of few query rows: keys lie along the rows of K as stored, which is read once and in place, as is V.

A block of keys is scored by dot products for up to 4 query rows at a time, normalised row by row, and multiplied with V
into O[row][column]. Long key ranges may be split over work items, whose partial results (maximum, total, unscaled
output row) a second kernel combines ("flash decoding", Dao, Haziza, Massa and Sizov 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dhlo.codegen.families.attention.common import (
    Args,
    Pages,
    Span,
    Spec,
    all_keys,
    capped,
    copy_scales,
    guarded,
    inverse_sum,
    keep_where,
    load_row,
    masked,
    offset,
    scale_of_queries,
    store_row,
    weight,
)
from dhlo.codegen.families.attention.decode_kernels import GROUP, KEYS, ROW_SCORES, emit_scores, emit_values, kernels_of
from dhlo.codegen.families.attention.pages import RUN_WORDS, copy_page_scales, page_runs, store_run
from dhlo.codegen.families.combine import raised
from dhlo.codegen.kernel_ir.builder import F32, I1, I64, PTR, Fn, KernelModule, V
from dhlo.codegen.kernel_ir.launch import kernel_fn
from dhlo.ir.ops.paged import HIDDEN_KEYS

__all__ = [
    "combine_row",
    "combine_scratch_bytes",
    "decode_scratch_bytes",
    "emit_combine",
    "emit_decode",
    "emit_rows",
    "partial_floats",
]

# How many keys ahead those of blocks of a pool are prefetched. Where blocks follow one another in no order the hardware sees no
# stream; of 16, 32, 64 and 128 this is the best on a Zen 4, by 1 to 3 %.
_AHEAD = KEYS // 2


def partial_floats(spec: Spec) -> int:
    """f32 elements of a partial result: the output row, then maximum and total in a vector of their own."""
    return spec.v_pad + spec.lanes


class _Scratch:
    """Offsets of a worker's buffers, in f32 elements."""

    def __init__(self, spec: Spec) -> None:
        self.query = 0
        self.scores = self.query + spec.few_rows * spec.qk_pad
        self.out = self.scores + spec.few_rows * ROW_SCORES
        self.maximum = self.out + spec.few_rows * spec.v_pad
        stats = -(-spec.few_rows // spec.lanes) * spec.lanes
        self.total = self.maximum + stats
        self.alpha = self.total + stats
        self.key_scales = self.alpha + stats
        self.value_scales = self.key_scales + KEYS * spec.k.scaled
        self.runs = self.value_scales + KEYS * spec.v.scaled
        runs = 1 if spec.paging is None else KEYS
        self.size = self.runs + -(-runs * RUN_WORDS * 2 // spec.lanes) * spec.lanes


def decode_scratch_bytes(spec: Spec) -> int:
    """Scratch of a worker, in bytes."""
    return 4 * _Scratch(spec).size


def emit_rows(module: KernelModule, spec: Spec, name: str) -> str:
    """Emits `<name>_rows(args, scratch, b, several, h, row0, rows, lo, hi, partial, begun)` and returns its symbol.

    It attends with at most `spec.few_rows` query rows from row0 (row = query * group + head of the group) of one batch, or of
    `several` sequences from b on, and kv head to keys lo .. hi-1. Rows go to the output, or unscaled with their statistics to
    `partial` unless that is null. They begin with the partial results from `begun` on (`cascade.py`) unless that is null.
    """
    symbol = f"{name}_rows"
    if symbol in module.functions:
        return symbol
    for rows in (1, 2, GROUP):
        emit_scores(module, spec, rows)
        emit_values(module, spec, rows)
    sizes = [(x, I64) for x in ("b", "several", "h", "row0", "rows", "lo", "hi")]
    fn = Fn(module, symbol, [("args", PTR), ("scratch", PTR), *sizes, ("partial", PTR), ("begun", PTR)], noinline=True)
    _, scratch, b, several, h, row0, rows_, lo, hi, partial, begun = fn.args
    a = Args.load(fn, spec)
    at = {k: fn.gep(scratch, x, F32) for k, x in vars(_Scratch(spec)).items() if k != "size"}
    span = Span.of(fn, a, b, several)
    block = _Rows(fn, a, spec, at, span, h, row0, rows_)
    _start(block)
    if a.pages is not None:
        with fn.when(fn.cmp("ne", fn.ptr_to_int(begun), 0)):
            _resume(block, a.pages, begun)
    kp = fn.gep(a.k, offset(fn, a.ks, span.batch, h), spec.k.elem)
    vp = fn.gep(a.v, offset(fn, a.vs, span.batch, h), spec.v.elem)
    with fn.loop(lo, hi, KEYS) as key:
        n = fn.min(fn.sub(hi, key.iv), KEYS)
        _copy_scales(block, key.iv, n)
        runs = _runs(block, key.iv, n)
        _score(block, kp, runs)
        with fn.loop(0, rows_) as r:
            _softmax_row(block, r.iv, key.iv, n)
        _add_values(block, vp, runs)
    _store(block, partial)
    fn.done()
    return symbol


def emit_decode(module: KernelModule, name: str, spec: Spec) -> None:
    """Emits the kernel `name`; items are (batch, kv head, split of the keys), `parts` is the number of splits."""
    rows_symbol = emit_rows(module, spec, name.rpartition("_")[0])
    fn = kernel_fn(module, name)
    a = Args.load(fn, spec)
    args, begin, end, _, scratch = fn.args
    rows, zero = fn.mul(a.group, a.sq), fn.i64(0)
    stop = all_keys(fn, spec, Span.of(fn, a, zero), fn.sub(a.sq, 1))
    share = fn.mul(fn.divu(fn.add(stop, fn.sub(fn.mul(a.parts, fn.lanes), 1)), fn.mul(a.parts, fn.lanes)), fn.lanes)
    size = fn.mul(rows, 4 * partial_floats(spec))
    with fn.loop(begin, end) as item:
        split, bh = fn.remu(item.iv, a.parts), fn.divu(item.iv, a.parts)
        b, h = fn.divu(bh, a.kv_heads), fn.remu(bh, a.kv_heads)
        lo = fn.mul(split, share)
        partial = fn.select(fn.cmp("gt", a.parts, 1), fn.add(fn.ptr_to_int(a.workspace), fn.mul(item.iv, size)), zero)
        hi = fn.min(fn.add(lo, share), stop)
        fn.call(rows_symbol, [args, scratch, b, fn.i64(1), h, zero, rows, lo, hi, fn.int_to_ptr(partial), fn.int_to_ptr(zero)])
    fn.done()


@dataclass(frozen=True)
class _Rows:
    """The function under construction and the rows that it works on."""

    fn: Fn
    a: Args
    spec: Spec
    at: dict[str, V]
    span: Span
    h: V
    row0: V
    rows: V

    def place(self, r: V) -> tuple[V, V]:
        """(query, head) of row `r`."""
        fn, row = self.fn, self.fn.add(self.row0, r)
        return fn.divu(row, self.a.group), fn.add(fn.mul(self.h, self.a.group), fn.remu(row, self.a.group))

    def sink(self, r: V) -> V | None:
        """That of the head of row `r`, if heads have some."""
        return None if self.a.sinks is None else self.fn.load(self.fn.gep(self.a.sinks, self.place(r)[1], F32), F32)

    def address(self, p: V, strides: Sequence[V], r: V) -> V:
        query, head = self.place(r)
        at = offset(self.fn, strides, self.span.batch, head, self.span.row(self.fn, query))
        return self.fn.gep(p, at, self.spec.elem)


def _by_groups(fn: Fn, rows: V, body: Callable[[V, int], None]) -> None:
    """Calls `body(first row, count)` for 4 rows at a time; one or two rows alone are served as such, rests as 4."""
    single, pair = fn.cmp("eq", rows, 1), fn.cmp("eq", rows, 2)
    with fn.when(single):
        body(fn.i64(0), 1)
    with fn.when(pair):
        body(fn.i64(0), 2)
    with fn.when(fn.cmp("gt", rows, 2)), fn.loop(0, rows, GROUP) as r:
        body(r.iv, GROUP)


def _start(x: _Rows) -> None:
    """Scaled f32 query rows and empty statistics; rows up to a group of 4 are zero."""
    fn, spec, at, rows = x.fn, x.spec, x.at, x.rows
    scale = fn.splat(scale_of_queries(fn, x.a, spec))
    zero = fn.const(0.0, fn.vec(F32))
    with fn.loop(0, rows) as r:
        p = x.address(x.a.q, x.a.qs, r.iv)
        to = fn.gep(at["query"], fn.mul(r.iv, spec.qk_pad), F32)
        for c in range(0, spec.qk_pad, fn.lanes):
            fn.store(fn.mul(load_row(fn, p, spec.elem, spec.head_dim, c), scale), fn.gep(to, c, F32))
    padded = fn.mul(fn.ceildivu(rows, GROUP), GROUP)
    with fn.loop(fn.mul(rows, spec.qk_pad), fn.mul(padded, spec.qk_pad), fn.lanes) as i:
        fn.store(zero, fn.gep(at["query"], i.iv, F32))
    with fn.loop(0, fn.mul(padded, spec.v_pad), fn.lanes) as i:
        fn.store(zero, fn.gep(at["out"], i.iv, F32))
    for r0 in range(0, spec.few_rows, fn.lanes):
        for name, value in (("maximum", -math.inf), ("total", 0.0), ("alpha", 0.0)):
            fn.store(fn.const(value, fn.vec(F32)), fn.gep(at[name], r0, F32))


def _copy_scales(x: _Rows, key0: V, n: V) -> None:
    """Brings the scales of `n` keys and values from `key0` on to the scratch, where these are codes."""
    fn, a, spec, at, span = x.fn, x.a, x.spec, x.at, x.span
    for scales, name in ((a.k_scales, "key_scales"), (a.v_scales, "value_scales")):
        if scales and spec.paging is not None:
            copy_page_scales(fn, a, spec, span, scales, x.h, key0, n, at[name])
        elif scales:
            copy_scales(fn, scales, span.batch, x.h, key0, n, at[name])


def _runs(x: _Rows, key0: V, n: V) -> V:
    """Writes the runs of `n` keys from key0 on to the scratch, and returns how many."""
    fn = x.fn
    if x.spec.paging is not None:
        return page_runs(fn, x.a, x.spec, x.span, key0, n, x.at["runs"], ahead=_AHEAD)
    store_run(fn, x.at["runs"], key0, n, fn.add(key0, KEYS))
    return fn.i64(1)


def _score(x: _Rows, kp: V, runs: V) -> None:
    """Scores the keys of so many runs of K at `kp`."""
    fn, spec, at = x.fn, x.spec, x.at

    def of(r: V, rows: int) -> None:
        q, to = fn.gep(at["query"], fn.mul(r, spec.qk_pad), F32), fn.gep(at["scores"], fn.mul(r, ROW_SCORES), F32)
        fn.call(kernels_of(spec, rows)[0], [kp, x.a.ks[2], at["runs"], runs, q, to])

    _by_groups(fn, x.rows, of)


def _add_values(x: _Rows, vp: V, runs: V) -> None:
    """Adds values of so many runs of V at `vp` to what was summed before, scaled by the rows' `alpha`."""
    fn, spec, at = x.fn, x.spec, x.at

    def of(r: V, rows: int) -> None:
        p, alpha = fn.gep(at["scores"], fn.mul(r, ROW_SCORES), F32), fn.gep(at["alpha"], r, F32)
        out = fn.gep(at["out"], fn.mul(r, spec.v_pad), F32)
        fn.call(kernels_of(spec, rows)[1], [vp, x.a.vs[2], at["runs"], runs, p, alpha, out])

    _by_groups(fn, x.rows, of)


def _resume(x: _Rows, pages: Pages, begun: V) -> None:
    """Rows go on from partial results of keys that were attended to before."""
    fn, spec, at, size = x.fn, x.spec, x.at, partial_floats(x.spec)
    apart = fn.mul(fn.mul(pages.begun_tokens, fn.mul(x.a.kv_heads, x.a.group)), size)
    with fn.loop(0, x.rows) as r:
        first, to = fn.gep(begun, fn.mul(r.iv, size), F32), fn.gep(at["out"], fn.mul(r.iv, spec.v_pad), F32)
        maximum, total = _merge(fn, spec, to, first, apart, pages.begun_parts)
        fn.store(maximum, fn.gep(at["maximum"], r.iv, F32))
        fn.store(total, fn.gep(at["total"], r.iv, F32))


def _softmax_row(rows: _Rows, r: V, key0: V, n: V) -> None:
    """Scores of row `r` become 2^(score - maximum), 0 beyond the `n` keys; updates its statistics. Scales of keys are multiplied to
    the scores, those of values to what values are multiplied by."""
    fn, spec, at = rows.fn, rows.spec, rows.at
    s = fn.gep(at["scores"], fn.mul(r, ROW_SCORES), F32)
    query, head = rows.place(r)
    span, own = rows.span, rows.span.own(fn, query)
    position = span.position(fn, query) if spec.windowed else own
    hidden = _hidden_of_block(fn, span.hidden_keys(fn, query), fn.sub(own, key0)) if spec.hides else None
    with fn.loop(0, n, fn.lanes, [fn.const(-math.inf, fn.vec(F32))]) as c:
        p = fn.gep(s, c.iv, F32)
        lanes = fn.tail_mask(fn.sub(n, c.iv))
        x = fn.load(p, fn.vec(F32))
        if spec.k.scaled:
            x = fn.mul(x, fn.load(fn.gep(at["key_scales"], c.iv, F32), fn.vec(F32)))
        if spec.softcap:
            x = capped(fn, x, spec.softcap)
        if spec.emit_mask is not None:
            x = masked(fn, x, spec.emit_mask(fn, span.batch, head, span.row(fn, query), fn.add(key0, c.iv), lanes))
        if spec.is_causal:
            lanes = fn.tail_mask(fn.sub(fn.min(n, fn.sub(fn.add(own, 1), key0)), c.iv))
        if spec.paging is not None and spec.paging.window:
            before = fn.sub(fn.sub(position, spec.paging.window - 1), key0)  # keys of this block that lie before the window
            lanes = fn.and_(lanes, fn.not_(fn.tail_mask(fn.max(fn.sub(before, c.iv), 0))))
        if hidden is not None:
            lanes = fn.and_(lanes, fn.not_(_lanes_of(fn, fn.shr(hidden, c.iv))))
        x = keep_where(fn, x, lanes)
        fn.store(x, p)
        c.yield_(raised(fn, c.carried[0], x))
    pm, pt = fn.gep(at["maximum"], r, F32), fn.gep(at["total"], r, F32)
    old = fn.load(pm, F32)
    new = raised(fn, old, fn.reduce("maxnumf", c.results[0]))
    top = guarded(fn, new)
    alpha = weight(fn, fn.sub(old, top))
    with fn.loop(0, n, fn.lanes, [fn.const(0.0, fn.vec(F32))]) as e:
        p = fn.gep(s, e.iv, F32)
        x = weight(fn, fn.sub(fn.load(p, fn.vec(F32)), top))
        if spec.v.scaled:
            fn.store(fn.mul(x, fn.load(fn.gep(at["value_scales"], e.iv, F32), fn.vec(F32))), p)
        else:
            fn.store(x, p)
        e.yield_(fn.add(e.carried[0], x))
    fn.store(new, pm)
    fn.store(fn.fma(fn.load(pt, F32), alpha, fn.reduce("add", e.results[0])), pt)
    fn.store(alpha, fn.gep(at["alpha"], r, F32))


def _hidden_of_block(fn: Fn, number: V, own: V) -> V:
    """Bits of the `KEYS` keys of a block, set where one is hidden from a row whose own key is `own` behind the block's first; bits
    from `own` on may be any."""
    first = fn.sub(own, HIDDEN_KEYS)  # the key of the lowest bit
    wide = fn.cast(number, I64, signed=False)
    within = fn.cmp("ult", first, KEYS)
    above = fn.shl(wide, fn.and_(first, KEYS - 1))
    below = fn.shr(wide, fn.min(fn.sub(0, fn.min(first, 0)), KEYS - 1))
    return fn.select(within, above, fn.select(fn.cmp("lt", first, 0), below, fn.i64(0)))


def _lanes_of(fn: Fn, bits: V) -> V:
    """The lowest bits, one a lane."""
    narrow = fn.op(f"i{fn.lanes}", f"arith.trunci {bits.name} : {bits.type} to i{fn.lanes}")  # no cast: i4 is no element type
    mask = fn.vec(I1)
    return fn.op(mask, f"llvm.bitcast {narrow.name} : {narrow.type} to {mask}")


def _store(x: _Rows, partial: V) -> None:
    """Final rows, or partial results where there is a place for them."""
    fn, spec, at = x.fn, x.spec, x.at
    whole = fn.cmp("eq", fn.ptr_to_int(partial), 0)
    with fn.loop(0, x.rows) as r:
        src = fn.gep(at["out"], fn.mul(r.iv, spec.v_pad), F32)
        total = fn.load(fn.gep(at["total"], r.iv, F32), F32)
        with fn.when(whole):
            inverse = fn.splat(inverse_sum(fn, total, fn.load(fn.gep(at["maximum"], r.iv, F32), F32), x.sink(r.iv)))
            p = x.address(x.a.o, x.a.os, r.iv)
            for c in range(0, spec.value_dim, fn.lanes):
                store_row(fn, fn.mul(fn.load(fn.gep(src, c, F32), fn.vec(F32)), inverse), p, spec.elem, spec.value_dim, c)
        with fn.when(fn.not_(whole)):
            p = fn.gep(partial, fn.mul(r.iv, partial_floats(spec)), F32)
            for c in range(0, spec.v_pad, fn.lanes):
                fn.store(fn.load(fn.gep(src, c, F32), fn.vec(F32)), fn.gep(p, c, F32))
            fn.store(fn.load(fn.gep(at["maximum"], r.iv, F32), F32), fn.gep(p, spec.v_pad, F32))
            fn.store(total, fn.gep(p, spec.v_pad + 1, F32))


def combine_scratch_bytes(spec: Spec) -> int:
    """Scratch of a worker of the combining kernel, in bytes."""
    return 4 * spec.v_pad


def emit_combine(module: KernelModule, name: str, spec: Spec) -> None:
    """Emits the kernel `name` that merges the partial results of `parts` splits; items are (batch, kv head, row)."""
    fn = kernel_fn(module, name)
    a = Args.load(fn, spec)
    _, begin, end, _, scratch = fn.args
    rows, size = fn.mul(a.group, a.sq), partial_floats(spec)
    with fn.loop(begin, end) as item:
        r, bh = fn.remu(item.iv, rows), fn.divu(item.iv, rows)
        b, h = fn.divu(bh, a.kv_heads), fn.remu(bh, a.kv_heads)
        first = fn.gep(a.workspace, fn.mul(fn.add(fn.mul(fn.mul(bh, a.parts), rows), r), size), F32)
        combine_row(fn, a, spec, scratch, Span.of(fn, a, b), h, r, first, fn.mul(rows, size), a.parts)
    fn.done()


def combine_row(fn: Fn, a: Args, spec: Spec, scratch: V, span: Span, h: V, r: V, first: V, stride: V, parts: V) -> None:
    """Stores row `r` of a kv head, of which `parts` partial results lie from `first` on, `stride` f32 apart."""
    top, total = _merge(fn, spec, scratch, first, stride, parts)
    place = _Rows(fn, a, spec, {}, span, h, fn.i64(0), fn.i64(1))
    inverse, out = fn.splat(inverse_sum(fn, total, top, place.sink(r))), place.address(a.o, a.os, r)
    for c in range(0, spec.value_dim, fn.lanes):
        store_row(fn, fn.mul(fn.load(fn.gep(scratch, c, F32), fn.vec(F32)), inverse), out, spec.elem, spec.value_dim, c)


def _merge(fn: Fn, spec: Spec, to: V, first: V, stride: V, parts: V) -> tuple[V, V]:
    """Adds up the sums of a row's `parts` partial results, which lie from `first` on, `stride` f32 apart, to `v_pad` f32. Returns
    their maximum and total."""
    with fn.loop(0, parts, 1, [fn.const(-math.inf, F32)]) as s:
        p = fn.gep(first, fn.mul(s.iv, stride), F32)
        s.yield_(raised(fn, s.carried[0], fn.load(fn.gep(p, spec.v_pad, F32), F32)))
    top = guarded(fn, s.results[0])
    for c in range(0, spec.v_pad, fn.lanes):
        fn.store(fn.const(0.0, fn.vec(F32)), fn.gep(to, c, F32))
    with fn.loop(0, parts, 1, [fn.const(0.0, F32)]) as t:
        p = fn.gep(first, fn.mul(t.iv, stride), F32)
        share = weight(fn, fn.sub(fn.load(fn.gep(p, spec.v_pad, F32), F32), top))
        for c in range(0, spec.v_pad, fn.lanes):
            x = fn.gep(to, c, F32)
            fn.store(fn.fma(fn.splat(share), fn.load(fn.gep(p, c, F32), fn.vec(F32)), fn.load(x, fn.vec(F32))), x)
        t.yield_(fn.fma(fn.load(fn.gep(p, spec.v_pad + 1, F32), F32), share, t.carried[0]))
    return s.results[0], t.results[0]
