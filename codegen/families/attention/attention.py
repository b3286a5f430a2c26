"""Attention softmax(scale * Q K^T + mask) V as tiled kernels for all run-time sizes; the scores are never stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dhlo.codegen.families.attention.common import MaskEmitter, Rows, Spec
from dhlo.codegen.families.attention.decode import (
    combine_scratch_bytes,
    decode_scratch_bytes,
    emit_combine,
    emit_decode,
    partial_floats,
)
from dhlo.codegen.families.attention.prefill import emit_prefill, prefill_scratch_bytes
from dhlo.codegen.families.attention.tiles import in_tiles
from dhlo.codegen.families.box import grain_by_cycles, grain_of, steps_ahead
from dhlo.codegen.families.gemm.register_tile import TileSpec
from dhlo.codegen.kernel_ir.builder import F32, F64, I32, I64, Fn, KernelModule, V
from dhlo.codegen.kernel_ir.launch import HostContext

__all__ = ["Attention", "Strides", "scale_bits"]

# (batch, head, row) strides in elements; columns are contiguous
Strides = Sequence[V]

_SPLIT_ITEMS = 64  # most work items when keys are split; bounds the workspace
_SPLIT_KEYS = 256  # fewest keys of a split


@dataclass(frozen=True)
class Attention:
    """One attention op: compile-time row sizes, element type and masking; everything else is a run-time size.

    Q is [batch, kv_heads * group, sq, head_dim], K [batch, kv_heads, skv, head_dim], V [batch, kv_heads, skv,
    value_dim], the output [batch, kv_heads * group, sq, value_dim], all of `elem` (f32, bf16 or f16), unless `k` or `v` say
    that keys or values are stored otherwise; query head h attends with kv head h // group. Sums are f32. Semantics are those of
    PyTorch's scaled_dot_product_attention: with `is_causal` query i sees keys j <= i + past, a query without
    any key to attend to (all masked, or skv = 0) gives zeros.

    `emit_mask(fn, batch, head, query, key0, lanes)` emits, into the kernel `fn`, the mask of a vector of keys from key0 on for
    a row: of i1 (True = attend) or of f32 to add to the scaled scores. Lanes outside `lanes` are
    beyond the keys: memory of theirs must not be read, their values don't matter. Arguments that it needs are passed to
    `emit_launch` as `extra_args` and lie in the kernel's argument array, `fn.args[0]`, from element `first_extra` on.
    `name` must tell masks apart within a module.
    """

    head_dim: int
    value_dim: int
    elem: str = F32
    is_causal: bool = False
    emit_mask: MaskEmitter | None = field(default=None, compare=False)
    name: str = "attention"
    k: Rows | None = None
    v: Rows | None = None
    sinks: bool = False
    softcap: float = 0.0
    tiles: TileSpec = field(kw_only=True)

    @property
    def spec(self) -> Spec:
        usual = Rows(self.elem)
        mask, k, v = self.emit_mask, self.k or usual, self.v or usual
        return Spec(
            self.head_dim, self.value_dim, self.elem, self.is_causal, mask, self.tiles, k, v, sinks=self.sinks, softcap=self.softcap
        )

    @property
    def first_extra(self) -> int:
        """Where arguments of masks begin."""
        return len(self.spec.arg_types)

    @property
    def symbol(self) -> str:
        spec = self.spec
        causal = "_causal" if self.is_causal else ""
        return f"{self.name}_{self.elem}_{self.head_dim}_{self.value_dim}{spec.stored}{causal}{spec.suffix}"

    @property
    def workspace_bytes(self) -> int:
        """Bytes of workspace that a launch needs, whatever the sizes: partial results of split keys."""
        return 4 * _SPLIT_ITEMS * self.spec.few_rows * partial_floats(self.spec)

    def emit_kernels(self, module: KernelModule) -> None:
        """Emits the kernels once: `<symbol>_prefill`, `<symbol>_decode`, `<symbol>_combine`."""
        for form, emit in (("prefill", emit_prefill), ("decode", emit_decode), ("combine", emit_combine)):
            if f"{self.symbol}_{form}" not in module.functions:
                emit(module, f"{self.symbol}_{form}", self.spec)

    def emit_launch(
        self,
        host: HostContext,
        *,
        q: V,
        k: V,
        v: V,
        o: V,
        workspace: V,
        batch: V,
        kv_heads: V,
        group: V,
        sq: V,
        skv: V,
        q_strides: Strides,
        k_strides: Strides,
        v_strides: Strides,
        o_strides: Strides,
        scale: float | V,
        past: V | int = 0,
        scales: Sequence[V] = (),
        sinks: Sequence[V] = (),
        extra_args: Sequence[V] = (),
    ) -> None:
        """Emits variant choice and launches. Pointers and sizes (i64) are values of the host function.

        `workspace` points to `workspace_bytes`; `scale` is a number or an f32 or f64 value; `scales` has pointer and strides
        (batch, head, row) of the scales of K and those of V, where there are any; `sinks` a pointer to
        f32, where heads have some. Few rows a kv head (group * sq) stream K and V
        once (decode), split by keys if the heads alone don't occupy the threads; more rows are tiled (prefill).
        """
        f = host.fn
        heads, rows = f.mul(batch, kv_heads), f.mul(group, sq)
        cost = f.add(f.divu(f.mul(skv, self.head_dim + self.value_dim), self.spec.lanes), 1)  # cycles of FMA a row
        head = [
            q,
            k,
            v,
            o,
            workspace,
            *q_strides,
            *k_strides,
            *v_strides,
            *o_strides,
            kv_heads,
            group,
            sq,
            skv,
            scale_bits(f, scale),
            steps_ahead(host, "ahead_few"),
        ]
        first, of_tiles = f.i64(past), in_tiles(host, self.spec)
        few = f.cmp("le", rows, self.spec.few_rows)
        with f.when(f.and_(few, f.cmp("gt", f.mul(heads, rows), 0))):
            splits = self._splits(host, heads, skv)
            args = [*head, splits, first, of_tiles, *scales, *sinks, *extra_args]
            per_item = f.divu(f.mul(cost, f.add(rows, 2)), splits)
            host.launch(
                f"{self.symbol}_decode",
                args,
                f.mul(heads, splits),
                grain_by_cycles(host, per_item),
                decode_scratch_bytes(self.spec),
            )
            with f.when(f.cmp("gt", splits, 1)):
                parts_cost = f.mul(f.add(splits, 1), self.spec.v_pad)  # operations on elements: each part once, and the result
                grain = grain_of(host, parts_cost)
                host.launch(f"{self.symbol}_combine", args, f.mul(heads, rows), grain, combine_scratch_bytes(self.spec))
        with f.when(f.and_(f.cmp("gt", rows, self.spec.few_rows), f.cmp("gt", heads, 0))):
            blocks = f.ceildivu(rows, self.spec.rows)
            host.launch(
                f"{self.symbol}_prefill",
                [*head, blocks, first, of_tiles, *scales, *sinks, *extra_args],
                f.mul(heads, blocks),
                grain_by_cycles(host, f.mul(cost, self.spec.rows)),
                prefill_scratch_bytes(self.spec),
            )

    def _splits(self, host: HostContext, heads: V, skv: V) -> V:
        """1 where the heads divide well among the threads, else splits of at least 256 keys so that they do."""
        f = host.fn
        threads = host.num_threads
        idle = f.cmp("lt", heads, f.mul(threads, 4))
        uneven = f.and_(idle, f.cmp("ne", f.remu(heads, threads), 0))
        wanted = f.select(f.cmp("lt", threads, 8), threads, f.const(8, I64))
        most = f.min(f.divu(f.const(_SPLIT_ITEMS, I64), heads), f.divu(skv, _SPLIT_KEYS))
        return f.select(uneven, f.max(f.min(wanted, most), 1), f.const(1, I64))


def scale_bits(f: Fn, scale: float | V) -> V:
    """A factor of scores as kernels take it: the bits of an f32, in an i64."""
    if not isinstance(scale, V):
        scale = f.const(float(scale), F32)
    if scale.elem == F64:
        scale = f.cast(scale, F32)
    return f.cast(f.bitcast(scale, I32), I64)
