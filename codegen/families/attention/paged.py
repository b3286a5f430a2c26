"""Attention of sequences of all lengths at once, whose keys and values lie in blocks of pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dhlo.codegen.families.attention.attention import Strides, scale_bits
from dhlo.codegen.families.attention.common import Args, MaskEmitter, Paging, Rows, Spec
from dhlo.codegen.families.attention.prefill import BlockOfRows, emit_parts, prefill_scratch_bytes
from dhlo.codegen.families.box import grain_of, steps_ahead
from dhlo.codegen.families.gemm.register_tile import TileSpec
from dhlo.codegen.families.lowering import GroupHost
from dhlo.codegen.kernel_ir.builder import I32, I64, Fn, KernelModule, V
from dhlo.codegen.kernel_ir.launch import kernel_fn

__all__ = ["Batch", "PagedKernel"]

_MOST_HALVINGS = 32


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
    before: V  # memory of i64 [sequences + 1]


@dataclass(frozen=True)
class PagedKernel:
    """One kernel for all sequences of a call: items are (sequence, kv head, block of rows), so that prompts have many and steps of
    decoding one for each head. See `Attention` for the fields."""

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

    @property
    def spec(self) -> Spec:
        k, v = (x or Rows(self.elem) for x in (self.k, self.v))
        masks = self.is_causal, self.emit_mask, self.tiles
        return Spec(self.head_dim, self.value_dim, self.elem, *masks, k, v, self.paging, self.sinks, self.softcap)

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

    def emit(self, module: KernelModule) -> None:
        """Emits the kernel, once."""
        if self.symbol in module.functions:
            return
        spec = self.spec
        parts = emit_parts(module, self.symbol, spec)
        fn = kernel_fn(module, self.symbol)
        a = Args.load(fn, spec)
        rows = BlockOfRows(fn, a, spec, parts)
        with fn.loop(fn.args[1], fn.args[2]) as item:
            assert a.pages is not None
            b = _sequence_of(fn, a, fn.divu(item.iv, a.kv_heads))
            first, end = (fn.load(fn.gep(a.pages.before, i, I64), I64) for i in (b, fn.add(b, 1)))
            own, blocks = fn.sub(item.iv, fn.mul(first, a.kv_heads)), fn.sub(end, first)
            rows.attend(b, fn.divu(own, blocks), fn.mul(fn.remu(own, blocks), spec.rows))
        fn.done()

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
        extra_args: Sequence[V] = (),
    ) -> None:
        """Counts blocks of rows, which fails the call by `check` where starts or lengths aren't as they should be, and launches."""
        f, spec, zero = host.fn, self.spec, host.fn.i64(0)
        host.mark_data_dependent()
        blocks, keys, good = self._count(host, batch, group)
        host.require(good, check, zero, zero)
        args = [q, k, v, o, zero, *q_strides, *k_strides, *v_strides, *o_strides, kv_heads, group, batch.tokens, zero]
        args += [scale_bits(f, scale), steps_ahead(host, "ahead_few"), zero, zero]
        halvings = _halvings(f, batch.sequences)
        args += [*scales, batch.tables, batch.columns, batch.starts, batch.lengths, batch.before, batch.sequences, halvings]
        args += [batch.blocks, batch.cell, *sinks, *extra_args]
        usual = f.divu(keys, f.max(batch.sequences, 1))
        cycles = f.add(f.divu(f.mul(usual, (self.head_dim + self.value_dim) * 2), spec.lanes), 1)
        host.launch(self.symbol, args, f.mul(blocks, kv_heads), grain_of(host, cycles), prefill_scratch_bytes(spec))

    def _count(self, host: GroupHost, batch: Batch, group: V) -> tuple[V, V, V]:
        """Blocks of rows of all sequences, their keys, and whether starts ascend from 0 to the number of tokens, and lengths are
        those of a sequence's tokens at least and of its blocks at most. Writes how many blocks there are before each sequence."""
        f, rows = host.fn, self.spec.rows
        most = f.mul(batch.columns, self.paging.block)

        def load(p: V, i: V | int) -> V:
            return host.unless_planning(lambda: f.cast(f.load(f.gep(p, i, I32), I32), I64), f.i64(0))

        first = load(batch.starts, 0)
        begin = [f.i64(0), f.i64(0), first, f.select(f.cmp("eq", first, 0), f.i64(1), f.i64(0))]
        with f.loop(0, batch.sequences, 1, begin) as lp:
            blocks, keys, start, good = lp.carried
            host.unless_planning(lambda: _store(f, blocks, f.gep(batch.before, lp.iv, I64)), blocks)
            end, length = load(batch.starts, f.add(lp.iv, 1)), load(batch.lengths, lp.iv)
            queries = f.sub(end, start)
            fits = f.and_(f.cmp("ge", queries, 0), f.and_(f.cmp("ge", length, queries), f.cmp("le", length, most)))
            lp.yield_(
                f.add(blocks, f.ceildivu(f.mul(group, f.max(queries, 0)), rows)),
                f.add(keys, length),
                end,
                f.select(fits, good, f.i64(0)),
            )
        blocks, keys, last, good = lp.results
        host.unless_planning(lambda: _store(f, blocks, f.gep(batch.before, batch.sequences, I64)), blocks)
        all_ = f.cmp("eq", last, host.unless_planning(lambda: batch.tokens, f.i64(0)))
        return blocks, keys, f.and_(f.cmp("ne", good, 0), all_)


def _store(f: Fn, x: V, p: V) -> V:
    f.store(x, p)
    return x


def _halvings(f: Fn, n: V) -> V:
    """How often n is halved, rounding up, until it is 1 or less."""
    with f.loop(0, _MOST_HALVINGS, 1, [f.i64(0), f.i64(1)]) as lp:
        times, reach = lp.carried
        lp.yield_(f.select(f.cmp("lt", reach, n), f.add(times, 1), times), f.add(reach, reach))
    return lp.results[0]


def _sequence_of(fn: Fn, a: Args, block: V) -> V:
    """The sequence that a block of rows is of: the last with no more blocks before it."""
    assert a.pages is not None
    with fn.loop(0, a.pages.halvings, 1, [fn.i64(0), a.pages.sequences]) as lp:
        low, n = lp.carried
        half = fn.divu(n, 2)
        middle = fn.add(low, half)
        goes = fn.cmp("le", fn.load(fn.gep(a.pages.before, middle, I64), I64), block)
        lp.yield_(fn.select(goes, middle, low), fn.sub(n, half))
    return lp.results[0]
