"""The register tile of the convolution family: a micro-kernel whose scalar operand has a run-time row stride.

One packed weight layout, [channel panels][k][panel], then serves both operand orders, and tiles of several widths: weights as
the broadcast (scalar) operand with rows of a panel, or weights as the vector operand, NR of a panel's columns at a time, with
positions broadcast.
"""

from __future__ import annotations

from itertools import pairwise

from dhlo.codegen.families.broadcast import broadcast_each
from dhlo.codegen.families.gemm.multiply_add import multiply_add
from dhlo.codegen.families.gemm.register_tile import BF16, TileSpec
from dhlo.codegen.kernel_ir.builder import BITS, I8, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.transpose import transpose_block
from dhlo.codegen.target import LINE_BYTES

__all__ = ["emit_products", "emit_strided_microkernel", "emit_transpose", "lines_of_step", "row_splits", "share_of_fetching"]


def row_splits(rows: int, most: int, multiple: int = 1) -> list[tuple[int, int]]:
    """Splits `rows` in the fewest register tiles of at most `most` rows, and a multiple of some, balanced; (first row, rows)
    pairs."""
    units = rows // multiple
    parts = -(-units // (most // multiple))
    bounds = [units * i // parts * multiple for i in range(parts + 1)]
    return [(a, b - a) for a, b in pairwise(bounds)]


def emit_strided_microkernel(module: KernelModule, elem: str, mr: int, spec: TileSpec, ldb: int, *, pairs: bool = False) -> str:
    """tile[i*ld + j] (+)= sum over k of a[k*lda + i] * b[k*ldb + j], i < mr, j < NR = spec.nr(elem); returns the symbol.

    `conv_ukr_{spec}_{elem}_{mr}(a: ptr, lda: i64 elements, b: ptr, k: i64, tile: ptr, ld: i64 elements, accumulate:
    i64, ahead: ptr, step: i64 bytes)`; with `accumulate` 0 the tile is written without being read. Every depth step
    brings a line at `ahead`, advancing by `step`, to the second-level cache, or all of a weight panel's row where that is as long:
    weights needed next (see `share_of_fetching`). With `pairs` a and b hold pairs of bf16 in place of f32, both products of which
    are added.
    """
    of = "_pairs" if pairs else ""
    name = f"conv_ukr_{spec.name}_{elem}{of}_{mr}" + (f"_ld{ldb}" if ldb != spec.nr(elem) else "")
    if name in module.functions:
        return name
    lanes = spec.lanes(elem)
    ty = vec(elem, lanes)
    halves = range(spec.vectors)
    f = Fn(
        module,
        name,
        [
            ("a", PTR),
            ("lda", I64),
            ("b", PTR),
            ("k", I64),
            ("tile", PTR),
            ("ld", I64),
            ("accumulate", I64),
            ("ahead", PTR),
            ("step", I64),
        ],
        explicit=True,
    )
    a, lda, b, k, tile, ld, accumulate, ahead, step = f.args
    lines = lines_of_step(f, spec.panel(elem) * BITS[elem] // 8, spec.per_panel, step)
    cells = [f.gep(f.gep(tile, f.mul(ld, i), elem), h * lanes, elem) for i in range(mr) for h in halves]
    zero = f.const(0.0, ty)
    start = f.if_else(
        f.cmp("ne", accumulate, 0),
        lambda: [f.load(c, ty) for c in cells],
        lambda: [zero] * len(cells),
        [ty] * len(cells),
    )
    with f.loop(0, k, 1, [a, b, ahead, *start]) as lp:
        pa, pb, next_row, *acc = lp.carried
        for line in lines:
            f.prefetch(f.gep(next_row, line, I8), 2)
        unit = I32 if pairs else elem
        vb = [f.load(f.gep(pb, h * lanes, elem), vec(unit, lanes)) for h in halves]
        for i, x in enumerate(broadcast_each(f, pa, mr, unit, lanes)):
            for h in halves:
                at = i * spec.vectors + h
                acc[at] = multiply_add(f, BF16 if pairs else elem, spec, x, vb[h], acc[at])
        lp.yield_(f.gep(pa, lda, elem), f.gep(pb, ldb, elem), f.gep(next_row, step, I8), *acc)
    for cell, value in zip(cells, lp.results[3:], strict=True):
        f.store(value, cell)
    f.done()
    return name


def lines_of_step(f: Fn, row_bytes: int, per_panel: int, step: V) -> list[V]:
    """Offsets of the lines that a depth step fetches, `step` bytes on from the one before: of all in a row of that many bytes, else
    of the first one, several times. Tiles of which a panel has several side by side, whose steps are short, fetch their part of it.
    """
    whole = f.cmp("ge", step, row_bytes // per_panel)
    return [f.select(whole, f.i64(line), 0) for line in range(0, row_bytes // per_panel, LINE_BYTES)]


def share_of_fetching(f: Fn, row_bytes: int, ahead: V, k: V, tile: V, tiles: V) -> tuple[V, V]:
    """Where a `tile` of `tiles` that share a weight panel begins to fetch the next one of `k` rows at `ahead`, and how many bytes
    on at each depth step. A tile that fetched all of it would wait: lines from a far cache come as fast as the few buffers of
    the first one take them, which is slower than multiply-adds need them. Of many tiles the last have nothing left to fetch."""
    step = f.ceildivu(row_bytes, tiles)
    return f.gep(ahead, f.mul(f.min(f.mul(tile, step), row_bytes), k), I8), step


def emit_products(
    f: Fn, elem: str, mr: int, spec: TileSpec, a: V, lda: V | int, b: V, ldb: int, k: V, *, pairs: bool = False
) -> list[V]:
    """The sums over k of a[k*lda + i] * b[k*ldb + j], i < mr, j < NR = spec.nr(elem): row by row, vector by vector. With `pairs` a
    and b hold pairs of bf16 in place of f32."""
    lanes = spec.lanes(elem)
    ty = vec(elem, lanes)
    with f.loop(0, k, 1, [a, b, *[f.const(0.0, ty)] * (mr * spec.vectors)]) as lp:
        pa, pb, *sums = lp.carried
        unit = I32 if pairs else elem
        row = [f.load(f.gep(pb, h * lanes, elem), vec(unit, lanes)) for h in range(spec.vectors)]
        for i, x in enumerate(broadcast_each(f, pa, mr, unit, lanes)):
            for h, y in enumerate(row):
                at = i * len(row) + h
                sums[at] = multiply_add(f, BF16 if pairs else elem, spec, x, y, sums[at])
        lp.yield_(f.gep(pa, lda, elem), f.gep(pb, ldb, elem), *sums)
    return lp.results[2:]


def emit_transpose(module: KernelModule, elem: str, rows: int, spec: TileSpec) -> str:
    """dst[j*ld + i] = src[i*panel + j] for i < rows (whole vectors), j < panel; returns the symbol of `f(src, dst, ld)`."""
    columns, lanes = spec.panel(elem), spec.lanes(elem)
    name = f"conv_transpose_{elem}_{rows}x{columns}"
    if name in module.functions:
        return name
    ty = vec(elem, lanes)
    f = Fn(module, name, [("src", PTR), ("dst", PTR), ("ld", I64)], explicit=True)
    src, dst, ld = f.args
    for i0 in range(0, rows, lanes):
        for j0 in range(0, columns, lanes):
            block = [f.load(f.gep(src, (i0 + i) * columns + j0, elem), ty) for i in range(lanes)]
            for j, row in enumerate(transpose_block(f, block)):
                f.store(row, f.gep(dst, f.add(f.mul(ld, j0 + j), i0), elem))
    f.done()
    return name
