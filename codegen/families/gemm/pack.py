"""Packing of matrix operands into the micro-kernel's panels: by kernels at run time, for weights at compile time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from dhlo.codegen.families.gemm.matrix_microkernel import emit_pack_matrix_rows
from dhlo.codegen.families.gemm.multiply_add import widened_pair
from dhlo.codegen.families.gemm.register_tile import BF16, F16, SIGN_BITS, TileSpec, depth, unit
from dhlo.codegen.kernel_ir.builder import BITS, F32, I8, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args

__all__ = [
    "PACK_AHEAD",
    "emit_pack_a_panel",
    "emit_pack_b_kernel",
    "emit_pack_b_panel",
    "emit_pack_rows",
    "pack_b",
    "pack_matrix",
    "units",
]


PACK_AHEAD: Final = "ahead_one"
"""How far ahead a panel's piece of each row of B is prefetched, which is too short for the hardware to see a stream: packing does
as little beside reading as a product of one row."""
# To the second level: rows that are a power of two apart share sets of the first.
_PREFETCH_LOCALITY = 2
# A whole B is packed by so many bytes of so many rows at a time, panel after panel of them: each row may be another page, and the
# processor's first store of page addresses has room for so many.
_PIECE_BYTES, _PIECE_ROWS = 1024, 64
_LINE_BYTES = 64


def units(fn: Fn, k: V, elem: str) -> V:
    """Steps of k in a panel: k, or groups of it rounded up."""
    return fn.ceildivu(k, depth(elem)) if depth(elem) > 1 else k


def emit_pack_rows(module: KernelModule, elem: str, spec: TileSpec, *, flip: bool = False, wide: bool = False) -> str:
    """Emits `pack_rows_{elem}(src, row_stride, k_stride, rows, k, dst, ld)` once and returns its symbol.

    dst[kk * ld + r] = src[r * row_stride + kk * k_stride] for r < rows, 0 for rows <= r < min(ld, lanes), where lanes is
    the vector length and rows <= lanes; for bf16 each dst[kk][r] is the pair of k = 2 kk and 2 kk + 1, for i8 it is four,
    with their sign bits flipped if `flip` (the variant `pack_rows_{elem}_flipped`, which leaves padding undefined). If `wide`
    (`pack_rows_bf16_wide`) dst[2 kk][r] and dst[2 kk + 1][r] are the numbers of the pair as f32.
    Strides are in elements, `ld` in panel units. Steps write up to `lanes` units in ascending order of k, so that with
    ld < lanes a step overwrites the padding of the one before, and up to lanes - ld units past the panel are clobbered.
    """
    name = f"pack_rows_{elem}{'_flipped' if flip else ''}{'_wide' if wide else ''}"
    if name in module.functions:
        return name
    lanes = spec.lanes(elem)
    fn = Fn(
        module,
        name,
        [("src", PTR), ("row_stride", I64), ("k_stride", I64), ("rows", I64), ("k", I64), ("dst", PTR), ("ld", I64)],
        noinline=True,
    )
    src, row_stride, k_stride, rows, k, dst, ld = fn.args
    mask = fn.tail_mask(fn.max(rows, 0), lanes)
    zero = fn.const(0, vec(_memory(elem), lanes))

    def put(x: V, kk: V) -> None:
        """Stores a vector of units."""
        if not wide:
            fn.store(x, fn.gep(dst, fn.mul(kk, ld), unit(elem)))
            return
        for i, part in enumerate(widened_pair(fn, x)):
            fn.store(part, fn.gep(dst, fn.mul(fn.add(fn.mul(kk, depth(elem)), i), ld), F32))

    def transposed(high: int = max(1, lanes // 4)) -> list[V]:
        """By the height of blocks: padding isn't transposed where a next step overwrites it."""

        def block() -> list[V]:
            return [_emit_transposed(fn, elem, lanes, high, src, row_stride, rows, k, mask, flip, put)]

        dense = fn.and_(fn.cmp("le", rows, high), fn.cmp("eq", ld, rows)) if high < lanes else None
        return block() if dense is None else fn.if_else(dense, block, lambda: transposed(high * 2), [I64])

    transpose = fn.and_(fn.cmp("eq", k_stride, 1), fn.cmp("gt", rows, 0))
    done = fn.if_else(transpose, transposed, lambda: [fn.const(0, I64)], [I64])[0]

    def contiguous(kk: V) -> V:
        return fn.masked_load(fn.gep(src, fn.mul(kk, k_stride), elem), mask, zero)

    def gathered(kk: V) -> V:
        offsets = fn.mul(fn.iota(I64, lanes), row_stride)
        return fn.gather(fn.gep(fn.gep(src, fn.mul(kk, k_stride), elem), offsets, elem), mask, zero)

    def whole_units() -> list[V]:
        """Where k is contiguous: all but a last one that isn't whole. Returns how many."""
        whole = fn.divu(k, depth(elem))
        offsets = fn.mul(fn.iota(I64, lanes), row_stride)
        with fn.loop(done, whole) as loop:
            pointers = fn.gep(fn.gep(src, fn.mul(loop.iv, depth(elem)), elem), offsets, elem)
            x = fn.gather(pointers, mask, fn.const(0, vec(unit(elem), lanes)), BITS[elem] // 8)
            put(_flipped(fn, x, flip), loop.iv)
        return [whole]

    def remaining(load: Callable[[V], V], first: V) -> list[V]:
        with fn.loop(first, units(fn, k, elem)) as loop:
            put(_flipped(fn, _load_unit(fn, elem, load, loop.iv, k), flip), loop.iv)
        return []

    def from_anywhere() -> list[V]:
        if depth(elem) == 1:
            return remaining(gathered, done)
        return remaining(gathered, fn.if_else(transpose, whole_units, lambda: [done], [I64])[0])

    fn.if_else(fn.cmp("eq", row_stride, 1), lambda: remaining(contiguous, done), from_anywhere, [])
    fn.done()
    return name


def _memory(elem: str) -> str:
    """The type that single elements are loaded as: bf16 and f16 as integers, which every target moves."""
    return "i16" if elem in (BF16, F16) else elem


def _flipped(fn: Fn, units: V, flip: bool) -> V:
    return fn.xor(units, SIGN_BITS) if flip else units


def _as_unit(fn: Fn, elem: str, x: V) -> V:
    """What elements that are units by themselves are in panels."""
    return fn.cast(fn.bitcast(x, F16), F32) if elem == F16 else x


def _load_unit(fn: Fn, elem: str, load: Callable[[V], V], step: V, k: V) -> V:
    """A vector of panel units from loads of single k; the last unit is completed by zeros."""
    if depth(elem) == 1:
        return _as_unit(fn, elem, load(step))
    if elem == I8:
        return _load_bytes(fn, load, fn.mul(step, depth(elem)), k)
    first = fn.mul(step, 2)
    second = fn.add(first, 1)
    low = fn.cast(load(first), I32, signed=False)
    high = fn.shl(fn.cast(load(fn.min(second, fn.sub(k, 1))), I32, signed=False), 16)
    return fn.or_(low, fn.select(fn.cmp("lt", second, k), high, fn.const(0, high.type)))


def _load_bytes(fn: Fn, load: Callable[[V], V], first: V, k: V) -> V:
    """A vector of units of the bytes at `first` and the next three k."""
    x = [load(first)]
    for i in range(1, depth(I8)):
        at = fn.add(first, i)
        byte = load(fn.min(at, fn.sub(k, 1)))
        x.append(fn.select(fn.cmp("lt", at, k), byte, fn.const(0, byte.type)))
    return _interleaved(fn, x)


def _interleaved(fn: Fn, x: list[V]) -> V:
    """A vector of units from vectors of their four bytes."""
    lanes = x[0].lanes
    turns = [i for lane in range(lanes) for i in (lane, lanes + lane)]
    low, high = (_as_lanes(fn, fn.shuffle(a, b, turns), "i16") for a, b in (x[:2], x[2:]))
    return _as_lanes(fn, fn.shuffle(low, high, turns), I32)


def _zips(fn: Fn, a: V, b: V) -> list[V]:
    """Elements of two vectors in turn, as two vectors."""
    half = a.lanes // 2
    return [fn.shuffle(a, b, [i for lane in range(at, at + half) for i in (lane, a.lanes + lane)]) for at in (0, half)]


def _zipped(fn: Fn, x: list[V]) -> list[V]:
    """The same as four vectors in turn: shuffles that every target has for 16 bytes."""
    low, high = ([_as_lanes(fn, y, "i16") for y in _zips(fn, a, b)] for a, b in (x[:2], x[2:]))
    return [_as_lanes(fn, y, I32) for a, b in zip(low, high, strict=True) for y in _zips(fn, a, b)]


def _as_lanes(fn: Fn, x: V, elem: str) -> V:
    ty = vec(elem, x.lanes * BITS[x.elem] // BITS[elem])
    return fn.op(ty, f"vector.bitcast {x.name} : {x.type} to {ty}")


def _emit_transposed(
    fn: Fn, elem: str, lanes: int, high: int, src: V, row_stride: V, rows: V, k: V, mask: V, flip: bool, put: Callable[[V, V], None]
) -> V:
    """Blocks of `high` rows by `lanes` units, read along k, transposed in registers and `put`; the last one begins inside the one
    before. Returns how many units of k are done: all whole ones, or none where they make up no block."""
    whole = fn.divu(k, depth(elem))
    last = fn.sub(whole, lanes)
    main = fn.select(fn.cmp("ge", last, 0), whole, 0)
    pointers = [fn.gep(src, fn.mul(fn.min(fn.sub(rows, 1), r), row_stride), elem) for r in range(high)]
    ty = vec(unit(elem), lanes)
    zero = fn.const(0, ty)
    first = [x for i in range(lanes // 2) for x in (i, lanes + i)]
    second = [x + lanes // 2 for x in first]
    with fn.loop(0, main, lanes) as loop:
        begin = fn.min(loop.iv, last)
        at = fn.mul(begin, depth(elem))
        if elem == I8:  # whose rows are short: those of the next call
            for p in pointers:
                fn.prefetch(fn.gep(fn.gep(p, fn.mul(row_stride, lanes), elem), at, elem), _PREFETCH_LOCALITY)
        memory = ty if depth(elem) > 1 else vec(_memory(elem), lanes)
        block = [fn.load(fn.gep(p, at, elem), memory, BITS[elem] // 8) for p in pointers]
        block = [_as_unit(fn, elem, _flipped(fn, x, flip)) for x in block]
        for _ in range(high.bit_length() - 1):  # a perfect shuffle of the block brings one bit of the row's number to the end
            block = [fn.shuffle(block[i // 2], block[i // 2 + high // 2], second if i % 2 else first) for i in range(high)]
        for i in range(lanes):
            x, part = block[i * high // lanes], i * high % lanes
            x = fn.select(mask, x, zero) if high == lanes else fn.shuffle(x, x, list(range(part, part + high)))
            put(x, fn.add(begin, i))
    return main


def emit_pack_a_panel(fn: Fn, elem: str, spec: TileSpec, src: V, row_stride: V, k_stride: V, rows: V, k: V, dst: V) -> None:
    """Emits the packing of `rows` rows of A to a panel [k][rows] (see `TileSpec`); up to lanes - 1 units past it are clobbered."""
    if spec.matrices:
        fn.call(emit_pack_matrix_rows(fn.module), [src, row_stride, k_stride, rows, k, dst])
        return
    lanes = spec.lanes(elem)
    pack = emit_pack_rows(fn.module, elem, spec, flip=spec.flips(elem), wide=spec.left_parts(elem) > 1)
    for first in reversed(range(0, spec.rows(elem), lanes)):  # the padding of a group is overwritten by the one before
        left = fn.min(fn.sub(rows, first), lanes)
        with fn.when(fn.cmp("gt", left, 0)):
            fn.call(
                pack,
                [fn.gep(src, fn.mul(row_stride, first), elem), row_stride, k_stride, left, k, fn.gep(dst, first, unit(elem)), rows],
            )


def emit_pack_b_panel(module: KernelModule, elem: str, spec: TileSpec, *, ahead: bool = False) -> str:
    """Emits `pack_b_panel_{elem}(src, k_stride, n_stride, width, k, dst, steps_ahead)` once and returns its symbol.

    Packs `width` columns of B, 1 to panel(elem), to a panel padded with zeros. Strides are in elements. The variant `ahead`
    (`..._ahead`) prefetches contiguous rows so many units of k ahead, where no one else has; that of bytes always does.
    """
    fetches = ahead and elem != I8
    name = f"pack_b_panel_{elem}{spec.suffix}{'_ahead' if fetches else ''}"
    if name in module.functions:
        return name
    pack = emit_pack_rows(module, elem, spec)
    sizes = [(x, I64) for x in ("k_stride", "n_stride", "width", "k")]
    fn = Fn(module, name, [("src", PTR), *sizes, ("dst", PTR), ("steps_ahead", I64)], noinline=True)
    src, k_stride, n_stride, width, k, dst, steps_ahead = fn.args
    rows_ahead = fn.mul(steps_ahead, depth(elem))
    lanes, columns = spec.lanes(elem), spec.panel(elem)
    zero = fn.const(0, vec(_memory(elem), lanes))

    def copy_whole_rows() -> list[V]:
        """Of bytes, whose tails take more than loading them."""
        whole = fn.divu(k, depth(elem))
        with fn.loop(0, whole) as loop:
            starts = [fn.gep(src, fn.mul(fn.add(fn.mul(loop.iv, depth(elem)), i), k_stride), elem) for i in range(depth(elem))]
            to = fn.gep(dst, fn.mul(loop.iv, columns), unit(elem))
            for p in starts:
                fn.prefetch(fn.gep(p, fn.mul(k_stride, rows_ahead), elem), _PREFETCH_LOCALITY)
            for first in range(0, columns, 16):
                rows = [fn.load(fn.gep(p, first, elem), vec(elem, 16)) for p in starts]
                for i, x in enumerate(_zipped(fn, rows)):
                    fn.store(x, fn.gep(to, first + i * 4, unit(elem)))
        return [whole]

    def copy_whole_pairs() -> list[V]:
        """Of bf16, a line of each of two rows at a time."""
        whole, halves = fn.divu(k, depth(elem)), min(columns, 2 * lanes)
        with fn.loop(0, whole) as loop:
            starts = [fn.gep(src, fn.mul(fn.add(fn.mul(loop.iv, depth(elem)), i), k_stride), elem) for i in range(depth(elem))]
            for p in starts if fetches else []:
                later = fn.gep(p, fn.mul(k_stride, rows_ahead), elem)
                fn.prefetch(fn.gep(later, columns * BITS[elem] // 8 - 1, I8), _PREFETCH_LOCALITY)
            to = fn.gep(dst, fn.mul(loop.iv, columns), unit(elem))
            for first in range(0, columns, halves):
                rows = [fn.load(fn.gep(p, first, elem), vec(_memory(elem), halves), BITS[elem] // 8) for p in starts]
                for at, pairs in enumerate(_zips(fn, *rows)):
                    fn.store(_as_lanes(fn, pairs, I32), fn.gep(to, first + at * halves // 2, unit(elem)))
        return [whole]

    def copy_rows() -> list[V]:
        done, whole_rows = fn.i64(0), {I8: copy_whole_rows, BF16: copy_whole_pairs}.get(elem)
        if whole_rows is not None:
            done = fn.if_else(fn.cmp("ge", width, columns), whole_rows, lambda: [fn.i64(0)], [I64])[0]
        vectors = range(columns // lanes)
        if spec.target.mask_registers:
            return copy_vectors(vectors, done, [tail(v) for v in vectors])
        return fn.if_else(fn.cmp("ge", width, columns), lambda: copy_vectors(vectors, done), lambda: copy_each(done), [])

    def tail(v: int) -> V:
        return fn.tail_mask(fn.max(fn.sub(width, v * lanes), 0), lanes)

    def copy_each(done: V) -> list[V]:
        """Vector by vector, where masks are dear: at most one needs a mask."""
        for v in range(columns // lanes):
            whole = fn.cmp("ge", fn.sub(width, v * lanes), lanes)
            fn.if_else(whole, partial(copy_vectors, [v], done), partial(copy_part, v, done), [])
        return []

    def copy_part(v: int, done: V) -> list[V]:
        def none() -> list[V]:
            with fn.loop(done, units(fn, k, elem)) as loop:
                to = fn.gep(dst, fn.add(fn.mul(loop.iv, columns), v * lanes), unit(elem))
                fn.store(fn.const(0, vec(unit(elem), lanes)), to)
            return []

        return fn.if_else(fn.cmp("gt", width, v * lanes), lambda: copy_vectors([v], done, [tail(v)]), none, [])

    def copy_vectors(vectors: Sequence[int], done: V, masks: Sequence[V | None] = ()) -> list[V]:
        ty = vec(_memory(elem), lanes)
        with fn.loop(done, units(fn, k, elem)) as loop:
            for v, mask in zip_longest(vectors, masks):

                def load(kk: V, v: int = v, mask: V | None = mask) -> V:
                    if fetches and v * lanes * BITS[elem] // 8 % _LINE_BYTES == 0:
                        later = fn.gep(src, fn.mul(fn.add(kk, rows_ahead), k_stride), elem)
                        fn.prefetch(fn.gep(fn.gep(later, v * lanes, elem), _LINE_BYTES - 1, I8), _PREFETCH_LOCALITY)
                    at = fn.gep(fn.gep(src, fn.mul(kk, k_stride), elem), v * lanes, elem)
                    return fn.load(at, ty, BITS[elem] // 8) if mask is None else fn.masked_load(at, mask, zero)

                to = fn.gep(dst, fn.add(fn.mul(loop.iv, columns), v * lanes), unit(elem))
                fn.store(_load_unit(fn, elem, load, loop.iv, k), to)
        return []

    def transpose() -> list[V]:
        for first in range(0, columns, lanes):
            left = fn.max(fn.min(fn.sub(width, first), lanes), 0)
            fn.call(
                pack,
                [
                    fn.gep(src, fn.mul(n_stride, first), elem),
                    n_stride,
                    k_stride,
                    left,
                    k,
                    fn.gep(dst, first, unit(elem)),
                    fn.i64(columns),
                ],
            )
        return []

    fn.if_else(fn.cmp("eq", n_stride, 1), copy_rows, transpose, [])
    fn.done()
    return name


def emit_pack_b_kernel(module: KernelModule, elem: str, spec: TileSpec) -> str:
    """Emits the kernel `pack_b_{elem}` (and `spec.suffix`) that packs B of run-time strides into panels; returns its symbol.

    Items are (batch 0, batch 1, panel). Arguments: source, its strides (batch 0, batch 1, k, n) in elements, size of
    batch 1, n, k, units of k to prefetch ahead, destination; the packed batches are dense.
    """
    name = f"pack_b_{elem}{spec.suffix}"
    if name in module.functions:
        return name
    pack = emit_pack_b_panel(module, elem, spec, ahead=True)
    fn = kernel_fn(module, name)
    src, s0, s1, sk, sn, batch1, n, k, ahead, dst = load_args(fn, [PTR, *[I64] * 8, PTR])
    columns, steps = spec.panel(elem), units(fn, k, elem)
    panels, panel = fn.max(fn.ceildivu(n, columns), 1), fn.mul(steps, columns)
    # Where rows are contiguous; else a panel reads its columns along k.
    by_rows = fn.cmp("eq", sn, 1)
    together = fn.select(by_rows, fn.i64(_PIECE_BYTES * 8 // (columns * BITS[elem])), 1)
    piece = fn.select(by_rows, fn.i64(_PIECE_ROWS // depth(elem)), fn.max(steps, 1))
    begin, end = fn.args[1], fn.args[2]
    with fn.loop(fn.divu(begin, panels), fn.divu(fn.add(end, fn.sub(panels, 1)), panels)) as batch:
        before = fn.mul(batch.iv, panels)
        p0, p1 = fn.max(fn.sub(begin, before), 0), fn.min(fn.sub(end, before), panels)
        base = fn.add(fn.mul(fn.divu(batch.iv, batch1), s0), fn.mul(fn.remu(batch.iv, batch1), s1))
        matrix, to = fn.gep(src, base, elem), fn.gep(dst, fn.mul(before, panel), unit(elem))
        with fn.loop(p0, p1, together) as group, fn.loop(0, steps, piece) as first:
            count, at = fn.min(fn.sub(steps, first.iv), piece), fn.mul(first.iv, depth(elem))
            rows = fn.min(fn.sub(k, at), fn.mul(count, depth(elem)))
            with fn.loop(group.iv, fn.min(fn.add(group.iv, together), p1)) as p:
                n0 = fn.mul(p.iv, columns)
                place = fn.add(fn.mul(p.iv, panel), fn.mul(first.iv, columns))
                source = fn.gep(matrix, fn.add(fn.mul(n0, sn), fn.mul(at, sk)), elem)
                fn.call(pack, [source, sk, sn, fn.min(fn.sub(n, n0), columns), rows, fn.gep(to, place, unit(elem)), ahead])
    fn.done()
    return name


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
