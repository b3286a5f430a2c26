"""Packing of B into the micro-kernel's panels: by kernels at run time, for weights at compile time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from dhlo.codegen.families.box import passes_caches
from dhlo.codegen.families.gemm.multiply_add import as_vector_of
from dhlo.codegen.families.gemm.pack_rows import emit_pack_rows, load_unit, memory_type, units
from dhlo.codegen.families.gemm.register_tile import BF16, TileSpec, depth, unit
from dhlo.codegen.kernel_ir.builder import BITS, I8, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import HostContext, kernel_fn, load_args
from dhlo.codegen.target import LINE_BYTES

__all__ = [
    "PACK_AHEAD",
    "PackItems",
    "emit_pack_b_kernel",
    "emit_pack_b_panel",
    "emit_pack_b_panels",
    "may_stream",
    "pack_b",
    "pack_matrix",
    "streams_packed",
]


PACK_AHEAD: Final = "ahead_one"
"""How far ahead a panel's piece of each row of B is prefetched, which is too short for the hardware to see a stream: packing does
as little beside reading as a product of one row."""
# To the second level: rows that are a power of two apart share sets of the first.
_PREFETCH_LOCALITY = 2
# A whole B is packed by so many bytes of so many rows at a time, panel after panel of them: each row may be another page, and the
# processor's first store of page addresses has room for so many. An item is so many pieces below one another; where columns are
# contiguous it is a panel and so many elements of each.
_PIECE_BYTES, _PIECE_ROWS, _ITEM_PIECES, _ITEM_ELEMENTS = 1024, 64, 2, 1024
# Such a B of units of several elements passes the caches where it takes so many times what others do. Found on a Granite Rapids:
# with one thread 600 rows by 3,893 x 5,060 of bf16 take 0.84 to 0.87 of the time from memory, those by 8 MB from a cache 1.09.
_UNITS_EXCESS = 4
# Of rows of bytes that are taken apart in a register of any target.
_ZIPPED_BYTES = 16
# From vectors of so many bits on, a row of a panel of bytes is spread over lanes of 128 bits, two of whose halves are taken apart.
_LANES_BITS = 512


def emit_pack_b_panel(module: KernelModule, elem: str, spec: TileSpec, *, ahead: bool = False, streams: bool = False) -> str:
    """Emits `pack_b_panel_{elem}(src, k_stride, n_stride, width, k, dst, steps_ahead)` once and returns its symbol.

    Packs `width` columns of B, 1 to panel(elem), to a panel padded with zeros. Strides are in elements. The variant `ahead`
    (`..._ahead`) prefetches contiguous rows so many units of k ahead, where no one else has; that of bytes always does. One that
    `streams` (`..._streaming`) stores contiguous rows past the caches, which wants a fence after it.
    """
    fetches = ahead and elem != I8
    name = f"pack_b_panel_{elem}{spec.suffix}{'_ahead' if fetches else ''}{'_streaming' if streams else ''}"
    if name not in module.functions:
        _PanelPacking(module, name, elem, spec, fetches, streams).emit()
    return name


class _PanelPacking:
    """The function under construction that packs a panel."""

    def __init__(self, module: KernelModule, name: str, elem: str, spec: TileSpec, fetches: bool, streams: bool) -> None:
        self.elem, self.spec, self.fetches, self.streams = elem, spec, fetches, streams
        self.lanes, self.columns = spec.lanes(elem), spec.panel(elem)
        self.pack_rows = emit_pack_rows(module, elem, spec)
        sizes = [(x, I64) for x in ("k_stride", "n_stride", "width", "k")]
        self.fn = Fn(module, name, [("src", PTR), *sizes, ("dst", PTR), ("steps_ahead", I64)], noinline=True)
        self.src, self.k_stride, self.n_stride, self.width, self.k, self.dst, steps_ahead = self.fn.args
        self.rows_ahead = self.fn.mul(steps_ahead, depth(elem))
        self.zero = self.fn.const(0, vec(memory_type(elem), self.lanes))

    def emit(self) -> None:
        fn = self.fn
        fn.if_else(fn.cmp("eq", self.n_stride, 1), self._by_rows, self._by_columns, [])
        fn.done()

    def _by_rows(self) -> list[V]:
        """Where rows are contiguous."""
        fn, vectors, done = self.fn, range(self.columns // self.lanes), self.fn.i64(0)
        whole = fn.cmp("ge", self.width, self.columns)
        if depth(self.elem) > 1:
            done = fn.if_else(whole, self._whole_units, lambda: [fn.i64(0)], [I64])[0]
        if self.spec.target.mask_registers:
            return self._vectors(vectors, done, [self._mask(v) for v in vectors])
        return fn.if_else(whole, lambda: self._vectors(vectors, done), lambda: self._each(done), [])

    def _by_columns(self) -> list[V]:
        """Any strides, a vector of columns at a time."""
        fn = self.fn
        for first in range(0, self.columns, self.lanes):
            left = fn.max(fn.min(fn.sub(self.width, first), self.lanes), 0)
            src, to = fn.gep(self.src, fn.mul(self.n_stride, first), self.elem), fn.gep(self.dst, first, unit(self.elem))
            fn.call(self.pack_rows, [src, self.n_stride, self.k_stride, left, self.k, to, fn.i64(self.columns)])
        return []

    def _whole_units(self) -> list[V]:
        """Whole rows. Returns how many units are done."""
        fn, elem = self.fn, self.elem
        last = 0 if elem == I8 else self.columns * BITS[elem] // 8 - 1
        whole = fn.divu(self.k, depth(elem))
        with fn.loop(0, whole) as loop:
            rows = [fn.mul(fn.add(fn.mul(loop.iv, depth(elem)), i), self.k_stride) for i in range(depth(elem))]
            starts = [fn.gep(self.src, row, elem) for row in rows]
            for p in starts if self.fetches or elem == I8 else []:
                later = fn.gep(p, fn.mul(self.k_stride, self.rows_ahead), elem)
                fn.prefetch(fn.gep(later, last, I8), _PREFETCH_LOCALITY)
            to = fn.gep(self.dst, fn.mul(loop.iv, self.columns), unit(elem))
            _store_unit(fn, elem, self.spec, starts, to, streams=self.streams)
        return [whole]

    def _each(self, done: V) -> list[V]:
        """Vector by vector, where masks are dear: at most one needs a mask."""
        fn = self.fn
        for v in range(self.columns // self.lanes):
            whole = fn.cmp("ge", fn.sub(self.width, v * self.lanes), self.lanes)
            fn.if_else(whole, partial(self._vectors, [v], done), partial(self._part, v, done), [])
        return []

    def _part(self, v: int, done: V) -> list[V]:
        """A vector of some columns, or of none."""
        fn, there = self.fn, self.fn.cmp("gt", self.width, v * self.lanes)
        return fn.if_else(there, lambda: self._vectors([v], done, [self._mask(v)]), partial(self._zeros, v, done), [])

    def _zeros(self, v: int, done: V) -> list[V]:
        fn, part = self.fn, unit(self.elem)
        with fn.loop(done, units(fn, self.k, self.elem)) as loop:
            to = fn.gep(self.dst, fn.add(fn.mul(loop.iv, self.columns), v * self.lanes), part)
            fn.store(fn.const(0, vec(part, self.lanes)), to)
        return []

    def _vectors(self, vectors: Sequence[int], done: V, masks: Sequence[V | None] = ()) -> list[V]:
        """Some vectors of columns of all units from `done` on."""
        fn, elem = self.fn, self.elem
        with fn.loop(done, units(fn, self.k, elem)) as loop:
            for v, mask in zip_longest(vectors, masks):
                to = fn.gep(self.dst, fn.add(fn.mul(loop.iv, self.columns), v * self.lanes), unit(elem))
                x = load_unit(fn, elem, partial(self._load, v, mask), loop.iv, self.k)
                fn.store(x, to, x.lanes * BITS[x.elem] // 8 if self.streams else None, nontemporal=self.streams)
        return []

    def _load(self, v: int, mask: V | None, k: V) -> V:
        """A vector of the row k."""
        fn, elem, ty = self.fn, self.elem, self.zero.type
        if self.fetches and v * self.lanes * BITS[elem] // 8 % LINE_BYTES == 0:
            later = fn.gep(self.src, fn.mul(fn.add(k, self.rows_ahead), self.k_stride), elem)
            fn.prefetch(fn.gep(fn.gep(later, v * self.lanes, elem), LINE_BYTES - 1, I8), _PREFETCH_LOCALITY)
        at = fn.gep(fn.gep(self.src, fn.mul(k, self.k_stride), elem), v * self.lanes, elem)
        return fn.load(at, ty, BITS[elem] // 8) if mask is None else fn.masked_load(at, mask, self.zero)

    def _mask(self, v: int) -> V:
        return self.fn.tail_mask(self.fn.max(self.fn.sub(self.width, v * self.lanes), 0), self.lanes)


def _zipped(fn: Fn, rows: Sequence[V]) -> list[V]:
    """Vectors of units from as many rows as make up one, by shuffles that every target has for 16 bytes."""
    if len(rows) == depth(I8):
        firsts, seconds = ([as_vector_of(fn, "i16", x) for x in _in_turn(fn, a, b)] for a, b in (rows[:2], rows[2:]))
        return [x for pair in zip(firsts, seconds, strict=True) for x in _zipped(fn, pair)]
    a, b = rows
    return [as_vector_of(fn, I32, x) for x in _in_turn(fn, a, b)]


def _zipped_in_lanes(fn: Fn, rows: Sequence[V]) -> list[V]:
    """The same for four rows of 32 bytes, as two vectors of 512 bits. Each lane of 128 gets four bytes of a row's first half and
    four of its second: units then come in the order of columns, though bytes are interleaved within lanes."""
    spread = [i for lane in range(4) for i in (lane, 4 + lane, lane, 4 + lane)]

    def in_turn(a: V, b: V, size: int, first: int) -> V:
        """Half of each lane, of `size` elements, from the first one on."""
        taken = [i for lane in range(0, a.lanes, size) for i in range(lane + first, lane + first + size // 2)]
        return fn.shuffle(a, b, [j for i in taken for j in (i, a.lanes + i)])

    words = [as_vector_of(fn, I32, row) for row in rows]
    r = [as_vector_of(fn, I8, fn.shuffle(x, x, spread)) for x in words]
    low, high = (as_vector_of(fn, "i16", in_turn(a, b, 16, 0)) for a, b in (r[:2], r[2:]))
    return [as_vector_of(fn, I32, in_turn(low, high, 8, first)) for first in (0, 4)]


def _in_turn(fn: Fn, a: V, b: V) -> list[V]:
    """Elements of two vectors in turn, as two vectors."""
    half = a.lanes // 2
    return [fn.shuffle(a, b, [i for lane in range(at, at + half) for i in (lane, a.lanes + lane)]) for at in (0, half)]


def emit_pack_b_panels(module: KernelModule, elem: str, spec: TileSpec) -> str:
    """Emits `pack_b_panels_{elem}(src, k_stride, n_stride, width, k, dst, pitch)` once and returns its symbol: packs `width`
    columns of B to panels whose beginnings are `pitch` units apart, with zeros behind each.

    Contiguous rows are read whole, one after the other, as hardware prefetches them; elements are units of several.
    """
    name = f"pack_b_panels_{elem}{spec.suffix}"
    if name in module.functions:
        return name
    sizes = [(x, I64) for x in ("k_stride", "n_stride", "width", "k")]
    fn = Fn(module, name, [("src", PTR), *sizes, ("dst", PTR), ("pitch", I64)], noinline=True)
    src, sk, sn, width, k, dst, pitch = fn.args
    each, columns, of, pack = depth(elem), spec.panel(elem), unit(elem), emit_pack_b_panel(module, elem, spec)
    whole, lanes = fn.divu(k, each), spec.target.lanes(of)
    elements = fn.mul(pitch, columns)

    def from_row(panel: V, row: V) -> None:
        """What is left of a panel from a row on."""
        n0, at = fn.mul(panel, columns), fn.mul(row, each)
        part = fn.gep(src, fn.add(fn.mul(n0, sn), fn.mul(at, sk)), elem)
        to = fn.gep(dst, fn.add(fn.mul(panel, elements), fn.mul(row, columns)), of)
        fn.call(pack, [part, sk, sn, fn.min(fn.sub(width, n0), columns), fn.sub(k, at), to, fn.i64(0)])

    def by_rows() -> list[V]:
        panels = fn.divu(width, columns)
        with fn.loop(0, whole) as row:
            starts = [fn.gep(src, fn.mul(fn.add(fn.mul(row.iv, each), i), sk), elem) for i in range(each)]
            to = fn.gep(dst, fn.mul(row.iv, columns), of)
            with fn.loop(0, panels) as panel:
                at = fn.mul(panel.iv, columns)
                _store_unit(fn, elem, spec, [fn.gep(p, at, elem) for p in starts], fn.gep(to, fn.mul(panel.iv, elements), of))
        with fn.when(fn.cmp("ne", fn.mul(whole, each), k)), fn.loop(0, panels) as panel:
            from_row(panel.iv, whole)
        with fn.when(fn.cmp("ne", fn.mul(panels, columns), width)):
            from_row(panels, fn.i64(0))
        return []

    def by_columns() -> list[V]:
        with fn.loop(0, fn.ceildivu(width, columns)) as panel:
            from_row(panel.iv, fn.i64(0))
        return []

    fn.if_else(fn.cmp("eq", sn, 1), by_rows, by_columns, [])
    packed = fn.mul(units(fn, k, elem), columns)
    with fn.loop(0, fn.ceildivu(width, columns)) as panel, fn.loop(packed, elements, lanes) as at:
        fn.store(fn.const(0, vec(of, lanes)), fn.gep(dst, fn.add(fn.mul(panel.iv, elements), at.iv), of))
    fn.done()
    return name


def _store_unit(fn: Fn, elem: str, spec: TileSpec, rows: Sequence[V], to: V, *, streams: bool = False) -> None:
    """A panel's columns of the rows that make up a unit, a register of each row at a time: of bytes, tails take more than loading
    them. `streams`: past the caches."""
    columns, memory = spec.panel(elem), memory_type(elem)
    wide, zipped = min(columns, 2 * spec.lanes(elem)), _zipped
    if elem == I8:
        in_lanes = spec.target.vector_bits >= _LANES_BITS
        wide, zipped = (columns, _zipped_in_lanes) if in_lanes else (_ZIPPED_BYTES, _zipped)
    for first in range(0, columns, wide):
        x = [fn.load(fn.gep(p, first, elem), vec(memory, wide), BITS[elem] // 8) for p in rows]
        for i, y in enumerate(zipped(fn, x)):
            align = y.lanes * BITS[y.elem] // 8 if streams else None
            fn.store(y, fn.gep(to, first + i * y.lanes, unit(elem)), align, nontemporal=streams)


def emit_pack_b_kernel(module: KernelModule, elem: str, spec: TileSpec) -> str:
    """Emits the kernel `pack_b_{elem}` (and `spec.suffix`) that packs B of run-time strides into panels; returns its symbol.

    Items are (batch 0, batch 1, group of panels, block of k), see `PackItems`. Arguments: source, its strides (batch 0, batch 1, k,
    n) in elements, size of batch 1, n, k, units of k to prefetch ahead, whether contiguous rows are stored past the caches (if
    `may_stream`), destination; the packed batches are dense.
    """
    name = f"pack_b_{elem}{spec.suffix}"
    if name in module.functions:
        return name
    pack = emit_pack_b_panel(module, elem, spec, ahead=True)
    fn = kernel_fn(module, name)
    src, s0, s1, sk, sn, batch1, n, k, ahead, streams, dst = load_args(fn, [PTR, *[I64] * 9, PTR])
    past = fn.cmp("ne", streams, 0)

    def call(args: Sequence[V]) -> None:
        def of(which: str) -> list[V]:
            fn.call(which, args)
            return []

        if not may_stream(spec):
            of(pack)
            return
        other = emit_pack_b_panel(module, elem, spec, ahead=True, streams=True)
        fn.if_else(past, lambda: of(other), lambda: of(pack), [])

    columns, steps = spec.panel(elem), units(fn, k, elem)
    panels, panel = fn.max(fn.ceildivu(n, columns), 1), fn.mul(steps, columns)
    items = PackItems.of(fn, elem, spec, sn, panels, steps)
    with fn.loop(fn.args[1], fn.args[2]) as item:
        block, rest = fn.remu(item.iv, items.blocks), fn.divu(item.iv, items.blocks)
        group, batch = fn.remu(rest, items.groups), fn.divu(rest, items.groups)
        base = fn.add(fn.mul(fn.divu(batch, batch1), s0), fn.mul(fn.remu(batch, batch1), s1))
        matrix, to = fn.gep(src, base, elem), fn.gep(dst, fn.mul(fn.mul(batch, panels), panel), unit(elem))
        p0, begin = fn.mul(group, items.panels), fn.mul(block, items.steps)
        p1, end = fn.min(fn.add(p0, items.panels), panels), fn.min(fn.add(begin, items.steps), steps)
        with fn.loop(begin, end, items.piece) as first:
            count, at = fn.min(fn.sub(end, first.iv), items.piece), fn.mul(first.iv, depth(elem))
            rows = fn.min(fn.sub(k, at), fn.mul(count, depth(elem)))
            with fn.loop(p0, p1) as p:
                n0 = fn.mul(p.iv, columns)
                place = fn.add(fn.mul(p.iv, panel), fn.mul(first.iv, columns))
                source = fn.gep(matrix, fn.add(fn.mul(n0, sn), fn.mul(at, sk)), elem)
                call([source, sk, sn, fn.min(fn.sub(n, n0), columns), rows, fn.gep(to, place, unit(elem)), ahead])
    if may_stream(spec):
        with fn.when(past):
            fn.raw(f'llvm.call_intrinsic "{spec.target.fence}"() : () -> ()')
    fn.done()
    return name


@dataclass(frozen=True)
class PackItems:
    """How packing a matrix B is cut: `panels` of a group and `steps` of a block are an item, and it has so many `groups` and
    `blocks`, the block fastest. An item is worked on in pieces of `piece` steps. Groups are as wide whatever the number of threads:
    narrower ones would read a few lines of each row, from another page for each."""

    panels: V
    steps: V
    piece: V
    groups: V
    blocks: V

    @classmethod
    def of(cls, fn: Fn, elem: str, spec: TileSpec, column_stride: V, panels: V, steps: V) -> PackItems:
        """Of so many panels, each of so many steps."""
        by_rows = fn.cmp("eq", column_stride, 1)
        together = fn.select(by_rows, fn.i64(_PIECE_BYTES * 8 // (spec.panel(elem) * BITS[elem])), 1)
        rows, elements = _PIECE_ROWS // depth(elem), _ITEM_ELEMENTS // depth(elem)
        piece = fn.select(by_rows, fn.i64(rows), elements)
        each = fn.select(by_rows, fn.i64(rows * _ITEM_PIECES), elements)
        return cls(together, each, piece, fn.ceildivu(panels, together), fn.max(fn.ceildivu(steps, each), 1))


def may_stream(spec: TileSpec) -> bool:
    """Whether a packed B may be stored past the caches."""
    return bool(spec.target.fence)


def streams_packed(host: HostContext, elem: str, nbytes: V) -> V:
    """Whether a packed B of so many bytes is. One of units of several elements must leave the caches by far: its product is over
    sooner than it comes from memory."""
    share = 1 if depth(elem) == 1 else _UNITS_EXCESS
    return passes_caches(host, host.fn.divu(nbytes, share))


def pack_b(weight: npt.NDArray[np.generic], transposed: bool, columns: int, *, step: int = 1) -> npt.NDArray[np.generic]:
    """Packs a weight (..., K, N), or (..., N, K) if `transposed`, into panels of P = `columns` (..., ceil(N/P), K, P), zero-padded.

    With a `step` (the `depth` of the element type; bf16 is passed as any 16-bit type) the result is
    (..., ceil(N/P), ceil(K/step), P, step), K padded with zeros to a multiple of it.
    """
    x = torch.from_numpy(np.require(weight, requirements=["C", "W"]))
    if not transposed:
        x = x.transpose(-1, -2)
    if rest := -x.shape[-1] % step:
        x = torch.cat([x, torch.zeros((*x.shape[:-1], rest), dtype=x.dtype)], dim=-1)
    n, k = x.shape[-2], x.shape[-1] // step
    lead, panels, full = x.shape[:-2], -(-n // columns), n // columns
    out = torch.empty((*lead, panels, k, columns, step), dtype=x.dtype)
    out[..., :full, :, :, :] = x[..., : full * columns, :].reshape(*lead, full, columns, k, step).transpose(-2, -3)
    if full < panels:
        out[..., full, :, :, :] = 0
        tail = n - full * columns
        out[..., full, :, :tail, :] = x[..., full * columns :, :].reshape(*lead, tail, k, step).transpose(-2, -3)
    return out.numpy() if step > 1 else out.squeeze(-1).numpy()


def pack_matrix(m: torch.Tensor, columns: int) -> Any:
    """Packs [K, N] into panels of `columns`; the usual case of a transposed weight is packed from its own rows."""
    step = depth(_ELEMENTS.get(m.dtype, ""))
    if m.dtype == torch.bfloat16:  # which NumPy doesn't know
        m = m.view(torch.int16)
    if m.stride(0) == 1 and m.stride(1) != 1:
        return pack_b(m.t().numpy(), True, columns, step=step)
    return pack_b(m.contiguous().numpy(), False, columns, step=step)


# Element types of which a unit holds several.
_ELEMENTS = {torch.bfloat16: BF16, torch.int8: I8}
