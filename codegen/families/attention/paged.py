"""Attention of sequences of all lengths at once, whose keys and values lie in blocks of pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from dhlo.codegen.families.attention.attention import Strides, scale_bits
from dhlo.codegen.families.attention.cascade import Batch, Count, begun_at, count, count_at, find_runs, number, parts_of_runs
from dhlo.codegen.families.attention.common import Args, MaskEmitter, Paging, Rows, Span, Spec, first_key
from dhlo.codegen.families.attention.decode import combine_row, combine_scratch_bytes, partial_floats
from dhlo.codegen.families.attention.decode_kernels import KEYS
from dhlo.codegen.families.attention.prefill import BlockOfRows, Part, emit_parts, prefill_scratch_bytes
from dhlo.codegen.families.attention.tiles import in_tiles
from dhlo.codegen.families.box import grain_by_cycles, grain_of, steps_ahead
from dhlo.codegen.families.gemm.register_tile import TileSpec
from dhlo.codegen.families.lowering import GroupHost
from dhlo.codegen.kernel_ir.builder import F32, I64, Fn, KernelModule, V
from dhlo.codegen.kernel_ir.launch import kernel_fn

__all__ = ["PagedKernel"]

_MOST_HALVINGS = 32
_MOST_PARTS = 64  # of all sequences and heads, of split keys; bounds the memory of partial results
_PARTS_OF_THREAD = 8  # what a thread's share of keys is split into, at most
_LEAST_KEYS = 256  # of a part
_MOST_CYCLES = (1 << 62) - 1  # of an item, whatever has wrapped


@dataclass(frozen=True)
class PagedKernel:
    """One kernel for all sequences of a call: items are (sequence, kv head, unit), so that prompts have many and steps of decoding
    one for each head. A unit is a block of rows, or, of few rows behind many keys, a part of the keys ("flash decoding"), whose
    partial results a second kernel combines. Keys that sequences share are a kernel's before both (`cascade.py`). See `Attention`
    for the fields."""

    head_dim: int
    value_dim: int
    elem: str
    is_causal: bool
    emit_mask: MaskEmitter | None
    paging: Paging
    name: str
    tiles: TileSpec
    sinks: bool = False
    softcap: float = 0.0
    k: Rows | None = None
    v: Rows | None = None
    hides: bool = False

    @property
    def spec(self) -> Spec:
        k, v = (x or Rows(self.elem) for x in (self.k, self.v))
        masks = self.is_causal, self.emit_mask, self.tiles
        return Spec(self.head_dim, self.value_dim, self.elem, *masks, k, v, self.paging, self.sinks, self.softcap, self.hides)

    @property
    def symbol(self) -> str:
        window = f"_window{self.paging.window}" if self.paging.window else ""
        causal = "_causal" if self.is_causal else ""
        rows = f"{self.elem}_{self.head_dim}_{self.value_dim}_{self.paging.block}{self.spec.stored}"
        return f"{self.name}_{rows}{window}{causal}{self.spec.suffix}_paged"

    @property
    def first_extra(self) -> int:
        """Where arguments of masks begin."""
        return len(self.spec.arg_types)

    @property
    def partial_bytes(self) -> int:
        """Bytes of partial results, whatever the sizes."""
        return 4 * _MOST_PARTS * self._part_floats

    @property
    def _part_floats(self) -> int:
        return self.spec.few_rows * partial_floats(self.spec)

    @property
    def begun_row_bytes(self) -> int:
        """Bytes of a partial result of a row of a run."""
        return 4 * partial_floats(self.spec)

    def emit(self, module: KernelModule) -> None:
        """Emits the kernels, once: `<symbol>`, `<symbol>_runs`, `<symbol>_combine`."""
        kernels = ("", self._emit_units), ("_runs", self._emit_runs), ("_combine", self._emit_combine)
        for suffix, emit in kernels:
            if self.symbol + suffix not in module.functions:
                emit(module, self.symbol + suffix)

    def _emit_runs(self, module: KernelModule, name: str) -> None:
        """Items are (run, kv head, part of the keys, block of rows)."""
        spec = self.spec
        parts = emit_parts(module, self.symbol, spec)
        fn = kernel_fn(module, name)
        a = Args.load(fn, spec)
        assert a.pages is not None
        rows, per_block = BlockOfRows(fn, a, spec, parts), fn.mul(a.kv_heads, a.pages.begun_parts)
        with fn.loop(fn.args[1], fn.args[2]) as item:
            b = _sequence_of(fn, a, Count.RUN_BLOCKS, fn.divu(item.iv, per_block))
            before, end = (count(fn, a, Count.RUN_BLOCKS, i) for i in (b, fn.add(b, 1)))
            own, blocks = fn.sub(item.iv, fn.mul(before, per_block)), fn.sub(end, before)
            row0, rest = fn.mul(fn.remu(own, blocks), spec.rows), fn.divu(own, blocks)
            part, h = fn.remu(rest, a.pages.begun_parts), fn.divu(rest, a.pages.begun_parts)
            several = count(fn, a, Count.MEMBERS, b)
            span = Span.of(fn, a, b, several)
            n = fn.min(fn.sub(fn.mul(a.group, span.queries), row0), spec.rows)
            lo, hi = first_key(fn, spec, span, fn.i64(0), fn.i64(0)), count(fn, a, Count.PREFIX, b)
            share = fn.mul(fn.ceildivu(fn.max(fn.sub(hi, lo), 0), fn.mul(a.pages.begun_parts, KEYS)), KEYS)
            lo = fn.add(lo, fn.mul(part, share))
            to = fn.ptr_to_int(begun_at(fn, a, spec, part, h, b, row0))
            rows.attend_to(b, several, h, row0, n, lo, fn.min(hi, fn.add(lo, share)), to, fn.i64(0))
        fn.done()

    def _emit_units(self, module: KernelModule, name: str) -> None:
        spec = self.spec
        parts = emit_parts(module, name, spec)
        fn = kernel_fn(module, name)
        a = Args.load(fn, spec)
        rows, zero, one = BlockOfRows(fn, a, spec, parts), fn.i64(0), fn.i64(1)
        with fn.loop(fn.args[1], fn.args[2]) as item:
            b = _sequence_of(fn, a, Count.UNITS, fn.divu(item.iv, a.kv_heads))
            first, units = _units(fn, a, b)
            own = fn.sub(item.iv, fn.mul(first, a.kv_heads))
            h, unit = fn.divu(own, units), fn.remu(own, units)
            split = self._is_split(fn, a, b, units)
            partial = fn.select(split, fn.ptr_to_int(self._partial(fn, a, b, h, units, unit)), zero)
            index, prefix = fn.select(split, unit, zero), count(fn, a, Count.PREFIX, b)
            goes_on = fn.and_(fn.cmp("gt", prefix, 0), fn.cmp("eq", index, 0))
            begun = fn.select(goes_on, fn.ptr_to_int(begun_at(fn, a, spec, zero, h, b, zero)), zero)
            part = Part(index, fn.select(split, units, one), partial, prefix, begun)
            rows.attend(b, h, fn.select(split, zero, fn.mul(unit, spec.rows)), part)
        fn.done()

    def _emit_combine(self, module: KernelModule, name: str) -> None:
        """Items are (sequence, kv head)."""
        spec = self.spec
        fn = kernel_fn(module, name)
        a = Args.load(fn, spec)
        with fn.loop(fn.args[1], fn.args[2]) as item:
            b, h = fn.divu(item.iv, a.kv_heads), fn.remu(item.iv, a.kv_heads)
            _, units = _units(fn, a, b)
            with fn.when(self._is_split(fn, a, b, units)):
                span, first = Span.of(fn, a, b), self._partial(fn, a, b, h, units, fn.i64(0))
                with fn.loop(0, fn.mul(a.group, span.queries)) as r:
                    p = fn.gep(first, fn.mul(r.iv, partial_floats(spec)), F32)
                    combine_row(fn, a, spec, fn.args[4], span, h, r.iv, p, fn.i64(self._part_floats), units)
        fn.done()

    def _is_split(self, fn: Fn, a: Args, b: V, units: V) -> V:
        """Whether units of sequence b are parts of its keys: one block has all of its rows."""
        return fn.and_(fn.cmp("gt", units, 1), fn.cmp("le", fn.mul(a.group, Span.of(fn, a, b).queries), self.spec.rows))

    def _partial(self, fn: Fn, a: Args, b: V, h: V, units: V, unit: V) -> V:
        """Where partial results of a part of the keys are, if sequence b is split."""
        before = count(fn, a, Count.PARTS, b)
        index = fn.add(fn.mul(before, a.kv_heads), fn.add(fn.mul(h, units), unit))
        return fn.gep(a.workspace, fn.mul(index, self._part_floats), F32)

    def emit_launch(
        self,
        host: GroupHost,
        check: int,
        batch: Batch,
        *,
        q: V,
        k: V,
        v: V,
        o: V,
        kv_heads: V,
        group: V,
        q_strides: Strides,
        k_strides: Strides,
        v_strides: Strides,
        o_strides: Strides,
        scale: float,
        scales: Sequence[V] = (),
        sinks: Sequence[V] = (),
        hidden: Sequence[V] = (),
        extra_args: Sequence[V] = (),
    ) -> None:
        """Counts units, which fails the call by `check` where starts or lengths aren't as they should be, and launches."""
        f, spec, zero = host.fn, self.spec, host.fn.i64(0)
        host.mark_data_dependent()
        host.require(self._check(host, batch), check, zero, zero)
        blocks, tokens, most = find_runs(host, spec, batch, group)
        begun_parts = parts_of_runs(host, batch, kv_heads, group, blocks, tokens, most)
        keys, longest, products = self._keys(host, batch, group)
        units, parts = self._count(host, batch, group, self._keys_of_part(host, batch, kv_heads, keys, longest))
        args = [q, k, v, o, batch.partial, *q_strides, *k_strides, *v_strides, *o_strides, kv_heads, group, batch.tokens, zero]
        args += [scale_bits(f, scale), steps_ahead(host, "ahead_few"), zero, zero, in_tiles(host, spec)]
        halvings = _halvings(f, batch.sequences)
        args += [*scales, batch.tables, batch.columns, batch.starts, batch.lengths, batch.counts, batch.sequences, halvings]
        args += [batch.blocks, batch.cell, batch.positions, batch.begun, begun_parts, tokens, *sinks, *hidden, *extra_args]
        width = (self.head_dim + self.value_dim) // spec.lanes + 1  # multiply-adds of vectors of a row and a key
        with f.when(f.cmp("gt", blocks, 0)):
            cycles = f.divu(f.mul(most, spec.rows * width), begun_parts)
            items = f.mul(f.mul(blocks, kv_heads), begun_parts)
            host.launch(f"{self.symbol}_runs", args, items, grain_by_cycles(host, cycles), prefill_scratch_bytes(spec))
        with f.wrapping():
            cycles = f.and_(f.divu(f.mul(products, width), f.max(units, 1)), _MOST_CYCLES)
        host.launch(self.symbol, args, f.mul(units, kv_heads), grain_by_cycles(host, cycles), prefill_scratch_bytes(spec))
        with f.when(f.cmp("gt", parts, 0)):
            work = f.add(f.divu(f.mul(parts, spec.v_pad), f.max(batch.sequences, 1)), 1)
            items = f.mul(batch.sequences, kv_heads)
            host.launch(f"{self.symbol}_combine", args, items, grain_of(host, work), combine_scratch_bytes(spec))

    def _check(self, host: GroupHost, batch: Batch) -> V:
        """Whether starts ascend from 0 to the number of tokens, and lengths are those of a sequence's blocks at most, and of its
        tokens, where these are among its keys, at least."""
        f, most = host.fn, host.fn.mul(batch.columns, self.paging.block)
        first = number(host, batch.starts, 0)
        begin = [first, f.select(f.cmp("eq", first, 0), f.i64(1), f.i64(0))]
        with f.loop(0, batch.sequences, 1, begin) as lp:
            start, good = lp.carried
            end, length = number(host, batch.starts, f.add(lp.iv, 1)), number(host, batch.lengths, lp.iv)
            queries = f.sub(end, start)
            least = queries if self.spec.has_positions else 0
            fits = f.and_(f.cmp("ge", queries, 0), f.and_(f.cmp("ge", length, least), f.cmp("le", length, most)))
            lp.yield_(end, f.select(fits, good, f.i64(0)))
        last, good = lp.results
        all_ = f.cmp("eq", last, host.unless_planning(lambda: batch.tokens, f.i64(0)))
        return f.and_(f.cmp("ne", good, 0), all_)

    def _keys(self, host: GroupHost, batch: Batch, group: V) -> tuple[V, V, V]:
        """The keys that tokens of all sequences see but for those that runs have in common, those of the longest, and the sum of
        keys times rows of a kv head, with two more rows for what reading keys and values takes."""
        f = host.fn
        with f.loop(0, batch.sequences, 1, [*[f.i64(0)] * 3, number(host, batch.starts, 0)]) as lp:
            keys, longest, products, start = lp.carried
            end = number(host, batch.starts, f.add(lp.iv, 1))
            queries = f.sub(end, start)
            seen = self._seen(host, batch, lp.iv, queries)
            with f.wrapping():
                products = f.add(products, f.mul(seen, f.add(f.mul(group, queries), 2)))
            lp.yield_(f.add(keys, seen), f.max(longest, seen), products, end)
        return lp.results[0], lp.results[1], lp.results[2]

    def _seen(self, host: GroupHost, batch: Batch, b: V, queries: V) -> V:
        """How many keys of a sequence its tokens see by themselves, at most."""
        f = host.fn
        prefix = count_at(f, batch.counts, batch.sequences, Count.PREFIX, b)
        own = f.sub(number(host, batch.lengths, b), host.unless_planning(lambda: f.load(prefix, I64), f.i64(0)))
        return f.min(own, f.add(queries, self.paging.window)) if self.paging.window else own

    def _keys_of_part(self, host: GroupHost, batch: Batch, kv_heads: V, keys: V, longest: V) -> V:
        """How many keys a part has at least, where the items that there are would leave threads idle: they are few, or most of the
        keys are those of few sequences. A sequence of more keys than a part has less than two parts for as many, so that there are
        no more than `_MOST_PARTS` of all heads."""
        f, threads = host.fn, host.num_threads
        items = f.mul(batch.sequences, kv_heads)
        few = f.and_(f.cmp("lt", items, f.mul(threads, 4)), f.cmp("ne", f.remu(items, threads), 0))
        uneven = f.cmp("gt", f.mul(longest, batch.sequences), f.mul(keys, 2))
        splits = f.and_(f.cmp("gt", threads, 1), f.or_(few, uneven))
        pieces = f.min(f.mul(threads, _PARTS_OF_THREAD), _MOST_PARTS // 2)
        size = f.max(f.ceildivu(f.mul(keys, kv_heads), pieces), _LEAST_KEYS)
        return f.select(splits, size, f.i64(1 << 40))

    def _count(self, host: GroupHost, batch: Batch, group: V, part: V) -> tuple[V, V]:
        """Units of all sequences, and those that are parts of keys. Writes how many of either there are before each sequence."""
        f, spec = host.fn, self.spec

        def write(b: V, units: V, parts: V) -> None:
            for which, x in ((Count.UNITS, units), (Count.PARTS, parts)):
                at = count_at(f, batch.counts, batch.sequences, which, b)
                host.unless_planning(partial(_store, f, x, at), x)

        with f.loop(0, batch.sequences, 1, [f.i64(0), f.i64(0), number(host, batch.starts, 0)]) as lp:
            units, parts, start = lp.carried
            write(lp.iv, units, parts)
            end = number(host, batch.starts, f.add(lp.iv, 1))
            queries = f.max(f.sub(end, start), 0)
            rows, keys = f.mul(group, queries), self._seen(host, batch, lp.iv, queries)
            several = f.and_(f.and_(f.cmp("gt", rows, 0), f.cmp("le", rows, spec.few_rows)), f.cmp("gt", keys, part))
            own = f.select(several, f.ceildivu(keys, part), f.i64(0))
            lp.yield_(f.add(units, f.select(several, own, f.ceildivu(rows, spec.rows))), f.add(parts, own), end)
        units, parts, _ = lp.results
        write(batch.sequences, units, parts)
        return units, parts


def _units(fn: Fn, a: Args, b: V) -> tuple[V, V]:
    """How many units there are before sequence b, and how many it has."""
    first, end = (count(fn, a, Count.UNITS, i) for i in (b, fn.add(b, 1)))
    return first, fn.sub(end, first)


def _store(f: Fn, x: V, p: V) -> V:
    f.store(x, p)
    return x


def _halvings(f: Fn, n: V) -> V:
    """How often n is halved, rounding up, until it is 1 or less."""
    with f.loop(0, _MOST_HALVINGS, 1, [f.i64(0), f.i64(1)]) as lp:
        times, reach = lp.carried
        lp.yield_(f.select(f.cmp("lt", reach, n), f.add(times, 1), times), f.add(reach, reach))
    return lp.results[0]


def _sequence_of(fn: Fn, a: Args, which: Count, unit: V) -> V:
    """The sequence that a unit is of: the last with no more units before it."""
    assert a.pages is not None
    with fn.loop(0, a.pages.halvings, 1, [fn.i64(0), a.pages.sequences]) as lp:
        low, n = lp.carried
        half = fn.divu(n, 2)
        middle = fn.add(low, half)
        goes = fn.cmp("le", count(fn, a, which, middle), unit)
        lp.yield_(fn.select(goes, middle, low), fn.sub(n, half))
    return lp.results[0]
