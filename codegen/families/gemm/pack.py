"""Packing of matrix operands into the micro-kernel's panels: by kernels at run time, for weights at compile time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dhlo.codegen.families.gemm.microkernel import BF16, TileSpec, depth, unit
from dhlo.codegen.kernel_ir.builder import BITS, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args

__all__ = ["emit_pack_a_panel", "emit_pack_b_kernel", "emit_pack_b_panel", "emit_pack_rows", "pack_b", "pack_matrix", "units"]


def units(fn: Fn, k: V, elem: str) -> V:
    """Steps of k in a panel: k, or pairs of it rounded up."""
    return fn.ceildivu(k, depth(elem)) if depth(elem) > 1 else k


def emit_pack_rows(module: KernelModule, elem: str, spec: TileSpec) -> str:
    """Emits `pack_rows_{elem}(src, row_stride, k_stride, rows, k, dst, ld)` once and returns its symbol.

    dst[kk * ld + r] = src[r * row_stride + kk * k_stride] for r < rows, 0 for rows <= r < min(ld, lanes), where lanes is
    the vector length and rows <= lanes; for bf16 each dst[kk][r] is the pair of k = 2 kk and 2 kk + 1. Strides are in
    elements, `ld` in panel units. Steps write up to `lanes` units in ascending order of k, so that with ld < lanes a
    step overwrites the padding of the one before, and up to lanes - ld units past the panel are clobbered.
    """
    name = f"pack_rows_{elem}"
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

    def transposed(high: int = max(1, lanes // 4)) -> list[V]:
        """By the height of blocks: padding isn't transposed where a next step overwrites it."""

        def block() -> list[V]:
            return [_emit_transposed(fn, elem, lanes, high, src, row_stride, rows, k, dst, ld, mask)]

        dense = fn.and_(fn.cmp("le", rows, high), fn.cmp("eq", ld, rows)) if high < lanes else None
        return block() if dense is None else fn.if_else(dense, block, lambda: transposed(high * 2), [I64])

    transpose = fn.and_(fn.cmp("eq", k_stride, 1), fn.cmp("gt", rows, 0))
    done = fn.if_else(transpose, transposed, lambda: [fn.const(0, I64)], [I64])[0]

    def contiguous(kk: V) -> V:
        return fn.masked_load(fn.gep(src, fn.mul(kk, k_stride), elem), mask, zero)

    def gathered(kk: V) -> V:
        offsets = fn.mul(fn.iota(I64, lanes), row_stride)
        return fn.gather(fn.gep(fn.gep(src, fn.mul(kk, k_stride), elem), offsets, elem), mask, zero)

    def remaining(load: Callable[[V], V]) -> list[V]:
        with fn.loop(done, units(fn, k, elem)) as loop:
            fn.store(_load_unit(fn, elem, load, loop.iv, k), fn.gep(dst, fn.mul(loop.iv, ld), unit(elem)))
        return []

    fn.if_else(fn.cmp("eq", row_stride, 1), lambda: remaining(contiguous), lambda: remaining(gathered), [])
    fn.done()
    return name


def _memory(elem: str) -> str:
    """The type that single elements are moved as: bf16 as integers, which are never converted."""
    return "i16" if elem == BF16 else elem


def _load_unit(fn: Fn, elem: str, load: Callable[[V], V], step: V, k: V) -> V:
    """A vector of panel units from loads of single k; the pair of an odd k's last element is completed by 0."""
    if depth(elem) == 1:
        return load(step)
    first = fn.mul(step, 2)
    second = fn.add(first, 1)
    low = fn.cast(load(first), I32, signed=False)
    high = fn.shl(fn.cast(load(fn.min(second, fn.sub(k, 1))), I32, signed=False), 16)
    return fn.or_(low, fn.select(fn.cmp("lt", second, k), high, fn.const(0, high.type)))


def _emit_transposed(fn: Fn, elem: str, lanes: int, high: int, src: V, row_stride: V, rows: V, k: V, dst: V, ld: V, mask: V) -> V:
    """Blocks of `high` rows by `lanes` units, read along k and transposed in registers; returns how many units of k are done."""
    main = fn.mul(fn.divu(k, lanes * depth(elem)), lanes)
    pointers = [fn.gep(src, fn.mul(fn.min(fn.sub(rows, 1), r), row_stride), elem) for r in range(high)]
    ty = vec(unit(elem), lanes)
    zero = fn.const(0, ty)
    first = [x for i in range(lanes // 2) for x in (i, lanes + i)]
    second = [x + lanes // 2 for x in first]
    with fn.loop(0, main, lanes) as loop:
        at = fn.mul(loop.iv, depth(elem))
        block = [fn.load(fn.gep(p, at, elem), ty, BITS[elem] // 8) for p in pointers]
        for _ in range(high.bit_length() - 1):  # a perfect shuffle of the block brings one bit of the row's number to the end
            block = [fn.shuffle(block[i // 2], block[i // 2 + high // 2], second if i % 2 else first) for i in range(high)]
        for i in range(lanes):
            x, part = block[i * high // lanes], i * high % lanes
            x = fn.select(mask, x, zero) if high == lanes else fn.shuffle(x, x, list(range(part, part + high)))
            fn.store(x, fn.gep(dst, fn.mul(fn.add(loop.iv, i), ld), unit(elem)))
    return main


def emit_pack_a_panel(fn: Fn, elem: str, spec: TileSpec, src: V, row_stride: V, k_stride: V, rows: V, k: V, dst: V) -> None:
    """Emits the packing of `rows` rows of A to a panel [k][rows]; up to lanes - 1 units past it are clobbered."""
    lanes = spec.lanes(elem)
    pack = emit_pack_rows(fn.module, elem, spec)
    for first in reversed(range(0, spec.rows(elem), lanes)):  # the padding of a group is overwritten by the one before
        left = fn.min(fn.sub(rows, first), lanes)
        with fn.when(fn.cmp("gt", left, 0)):
            fn.call(
                pack,
                [fn.gep(src, fn.mul(row_stride, first), elem), row_stride, k_stride, left, k, fn.gep(dst, first, unit(elem)), rows],
            )


def emit_pack_b_panel(module: KernelModule, elem: str, spec: TileSpec) -> str:
    """Emits `pack_b_panel_{elem}(src, k_stride, n_stride, width, k, dst)` once and returns its symbol.

    Packs `width` columns of B, 1 to panel(elem), to a panel padded with zeros. Strides are in elements.
    """
    name = f"pack_b_panel_{elem}{spec.suffix}"
    if name in module.functions:
        return name
    pack = emit_pack_rows(module, elem, spec)
    fn = Fn(
        module, name, [("src", PTR), ("k_stride", I64), ("n_stride", I64), ("width", I64), ("k", I64), ("dst", PTR)], noinline=True
    )
    src, k_stride, n_stride, width, k, dst = fn.args
    lanes, columns = spec.lanes(elem), spec.panel(elem)
    zero = fn.const(0, vec(_memory(elem), lanes))

    def copy_rows() -> list[V]:
        masks = [fn.tail_mask(fn.max(fn.sub(width, v * lanes), 0), lanes) for v in range(columns // lanes)]
        with fn.loop(0, units(fn, k, elem)) as loop:
            for v, mask in enumerate(masks):

                def load(kk: V, v: int = v, mask: V = mask) -> V:
                    return fn.masked_load(fn.gep(fn.gep(src, fn.mul(kk, k_stride), elem), v * lanes, elem), mask, zero)

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
    batch 1, n, k, destination; the packed batches are dense.
    """
    name = f"pack_b_{elem}{spec.suffix}"
    if name in module.functions:
        return name
    pack = emit_pack_b_panel(module, elem, spec)
    fn = kernel_fn(module, name)
    src, s0, s1, sk, sn, batch1, n, k, dst = load_args(fn, [PTR, *[I64] * 7, PTR])
    columns = spec.panel(elem)
    panels, panel = fn.max(fn.ceildivu(n, columns), 1), fn.mul(units(fn, k, elem), columns)
    with fn.loop(fn.args[1], fn.args[2]) as loop:
        batch, n0 = fn.divu(loop.iv, panels), fn.mul(fn.remu(loop.iv, panels), columns)
        base = fn.add(fn.mul(fn.divu(batch, batch1), s0), fn.mul(fn.remu(batch, batch1), s1))
        fn.call(
            pack,
            [
                fn.gep(src, fn.add(base, fn.mul(n0, sn)), elem),
                sk,
                sn,
                fn.min(fn.sub(n, n0), columns),
                k,
                fn.gep(dst, fn.mul(loop.iv, panel), unit(elem)),
            ],
        )
    fn.done()
    return name


def pack_b(weight: npt.NDArray[np.generic], transposed: bool, columns: int, *, pairs: bool = False) -> npt.NDArray[np.generic]:
    """Packs a weight (..., K, N), or (..., N, K) if `transposed`, into panels of P = `columns` (..., ceil(N/P), K, P), zero-padded.

    With `pairs` (bf16, passed as any 16-bit type) the result is (..., ceil(N/P), ceil(K/2), P, 2), K padded to even.
    """
    x = torch.from_numpy(np.require(weight, requirements=["C", "W"]))
    if not transposed:
        x = x.transpose(-1, -2)
    step = 2 if pairs else 1
    if x.shape[-1] % step:
        x = torch.cat([x, torch.zeros((*x.shape[:-1], 1), dtype=x.dtype)], dim=-1)
    n, k = x.shape[-2], x.shape[-1] // step
    lead, panels, full = x.shape[:-2], -(-n // columns), n // columns
    out = torch.empty((*lead, panels, k, columns, step), dtype=x.dtype)
    out[..., :full, :, :, :] = x[..., : full * columns, :].reshape(*lead, full, columns, k, step).transpose(-2, -3)
    if full < panels:
        out[..., full, :, :, :] = 0
        tail = n - full * columns
        out[..., full, :, :tail, :] = x[..., full * columns :, :].reshape(*lead, tail, k, step).transpose(-2, -3)
    return out.numpy() if pairs else out.squeeze(-1).numpy()


def pack_matrix(m: torch.Tensor, columns: int) -> Any:
    """Packs [K, N] into panels of `columns`; the usual case of a transposed weight is packed from its own rows."""
    pairs = m.dtype == torch.bfloat16
    if pairs:
        m = m.view(torch.int16)
    if m.stride(0) == 1 and m.stride(1) != 1:
        return pack_b(m.t().numpy(), True, columns, pairs=pairs)
    return pack_b(m.contiguous().numpy(), False, columns, pairs=pairs)
