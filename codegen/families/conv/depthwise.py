"""Direct convolution for one input channel a group: tiles of a few output rows by a vector of columns, in registers."""

from __future__ import annotations

import hashlib

from dhlo.codegen.families.conv.depthwise_bytes import ByteRows
from dhlo.codegen.families.conv.depthwise_rows import HELD, PaddedRows, Rows
from dhlo.codegen.families.conv.pack import CACHE_LINE, Geometry, load_bounds, load_geometry
from dhlo.codegen.families.conv.padded import emit_pad_rows
from dhlo.codegen.families.conv.params import ConvParams
from dhlo.codegen.kernel_ir.builder import PTR, Fn, V
from dhlo.codegen.kernel_ir.launch import kernel_fn

__all__ = ["COLUMNS", "TILE", "depthwise_scratch_bytes", "emit_depthwise_kernel", "tile_rows"]

# Output columns of an item, and the most elements handed to the epilogue at once.
COLUMNS, TILE = 512, 2048
# Rows of a register tile, with weights in registers and without: each row of the input that is loaded serves all output rows
# whose windows hold it.
_ROWS_HELD, _ROWS = 8, 4
# The largest copy of an item's input with zeros around it: a part of the second cache.
_PADDED_BYTES = 1 << 18


def tile_rows(p: ConvParams) -> int:
    """Most output rows of a register tile; one where neighbouring rows share nothing."""
    if p.kernel[1] == 1:
        return 1
    return _ROWS_HELD if p.window_steps <= HELD else _ROWS


def _zeros(p: ConvParams) -> int:
    """Elements read at once from a row of the input: as many zeros stand in for rows outside of the image."""
    return (p.kernel[2] - 1) * p.dilation[2] + p.lanes * max(p.stride[2], 2) + 1


def _window(p: ConvParams, d: int, outputs: V | int, f: Fn) -> V:
    """Inputs in dim `d` that the windows of neighbouring outputs span."""
    return f.add(f.mul(f.sub(outputs, 1), p.stride[d]), (p.kernel[d] - 1) * p.dilation[d] + 1)


def _padded_elements(p: ConvParams) -> int:
    """Elements of the copy of a register tile's input, and what whole vectors read and write past it."""
    rows, columns = ((n - 1) * p.stride[d] + (p.kernel[d] - 1) * p.dilation[d] + 1 for d, n in ((1, tile_rows(p)), (2, COLUMNS)))
    return rows * (columns + p.lanes) + 2 * p.lanes * (p.stride[2] + 1)


def _padded(p: ConvParams) -> bool:
    """Whether tiles read a copy of their input with zeros around it, rather than masked vectors of the input itself: where masks
    would take registers from sums and weights."""
    fits = _padded_elements(p) * p.bytes <= _PADDED_BYTES
    return not p.spec.target.mask_registers and p.kernel[0] == 1 and p.stride[2] <= 2 and fits


def depthwise_scratch_bytes(p: ConvParams) -> int:
    """Scratch of a worker: a tile, room for the last vector's tail, and zeros or the copy of the input."""
    return (max(TILE, COLUMNS * tile_rows(p)) + p.lanes + (_padded_elements(p) if _padded(p) else _zeros(p))) * p.bytes


def emit_depthwise_kernel(p: ConvParams) -> str:
    """Emits the kernel; items are (image, output channel, plane, block of `panels` rows, block of COLUMNS), the last fastest.

    `blocks` is the number of row blocks.
    """
    half_lanes = p.lanes if p.columns_side_by_side else p.lanes // 2  # dot products have whole vectors alone
    full, half = (_emit_table(p, lanes) for lanes in (p.lanes, half_lanes))
    most, padded = tile_rows(p), _padded(p)
    f = kernel_fn(p.module, f"{p.name}_depthwise")
    args, begin, end, _, tile = f.args
    geo = load_geometry(f, args)
    column_blocks = f.ceildivu(geo.ow, COLUMNS)
    beyond = f.gep(tile, max(TILE, COLUMNS * most) + p.lanes, p.elem)  # what lies outside, or the copy of the input
    if not padded:
        with f.loop(0, _zeros(p)) as lp:
            f.store(f.const(p.fill, p.elem), f.gep(beyond, lp.iv, p.elem))
    with f.loop(begin, end) as items:
        rest, column_block = _split(f, items.iv, column_blocks)
        rest, row_block = _split(f, rest, geo.blocks)
        rest, plane = _split(f, rest, geo.od)
        image, m = _split(f, rest, f.i64(p.out_channels))
        c0 = f.mul(column_block, COLUMNS)
        width = f.min(f.sub(geo.ow, c0), COLUMNS)
        row0 = f.mul(row_block, geo.panels)
        rows = f.min(f.sub(geo.oh, row0), geo.panels)
        x = f.gep(geo.x, f.add(f.mul(image, geo.sxb), f.mul(f.divu(m, p.group_out), geo.sxc)), p.stored)
        w = f.gep(geo.w, f.mul(m, p.heads + p.window_steps), p.elem)
        z0 = f.sub(f.mul(plane, p.stride[0]), p.padding[0][0])
        # A rest of at most half a vector is computed as that, and first: whole vectors then overwrite what it clobbers.
        rest = f.remu(width, p.lanes)
        narrow = f.select(f.cmp("le", rest, half_lanes % p.lanes), rest, 0)
        parts = ((half, f.sub(width, narrow), narrow), (full, f.i64(0), f.sub(width, narrow)))
        with f.loop(0, rows, most) as lr:
            n = f.sub(f.min(f.sub(rows, lr.iv), most), 1)
            y0 = f.sub(f.mul(f.add(row0, lr.iv), p.stride[1]), p.padding[1][0])
            out = f.gep(tile, f.mul(lr.iv, width), p.elem)
            with f.when(f.cmp("eq", width, geo.ow)):
                offset = f.add(f.mul(z0, geo.sxd), f.mul(f.add(y0, p.kernel[1] + (most - 1) * p.stride[1]), geo.sxh))
                _prefetch(f, f.gep(x, offset, p.stored), f.mul(geo.sxh, most * p.stride[1] * p.stored_bytes))
            if padded:
                x0 = f.sub(f.mul(c0, p.stride[2]), p.padding[2][0])
                columns = _window(p, 2, width, f)
                ldx = f.and_(f.add(columns, p.lanes - 1), -p.lanes)
                height = f.select(f.cmp("ult", z0, geo.id), geo.ih, 0)
                source = f.gep(x, f.mul(z0, geo.sxd), p.stored)
                lines = _window(p, 1, f.add(n, 1), f)
                limits = load_bounds(p, f, args) or ()
                f.call(emit_pad_rows(p), [source, geo.sxh, height, geo.iw, y0, x0, lines, columns, beyond, ldx, *limits])
            for table, first, count in parts:
                with f.when(f.cmp("gt", count, 0)):
                    compute, to = f.load(f.gep(f.address_of(table), n, PTR), PTR), f.gep(out, first, p.elem)
                    if padded:
                        source = f.gep(beyond, f.mul(first, p.stride[2]), p.elem)
                        f.call_ptr(compute, [source, w, ldx, to, width, count])
                    else:
                        x0 = f.sub(f.mul(f.add(c0, first), p.stride[2]), p.padding[2][0])
                        f.call_ptr(compute, [args, x, w, beyond, z0, y0, x0, to, width, count])
        _hand_over(p, f, geo, tile, (image, m), f.add(f.mul(plane, geo.oh), row0), rows, c0, width)
    f.done()
    return f.name


def _hand_over(p: ConvParams, f: Fn, geo: Geometry, tile: V, of: tuple[V, V], row: V, rows: V, c0: V, width: V) -> None:
    """Gives the epilogue `rows` rows of `width` sums from column `c0` on, `of` an image and channel: at once if they are whole."""
    one = f.i64(1)

    def whole() -> list[V]:
        f.call_ptr(geo.epilogue, [geo.eargs, tile, width, *of, f.mul(row, geo.ow), one, f.mul(rows, width)])
        return []

    def by_row() -> list[V]:
        with f.loop(0, rows) as lr:
            n0 = f.add(f.mul(f.add(row, lr.iv), geo.ow), c0)
            line = f.gep(tile, f.mul(lr.iv, width), p.elem)
            f.call_ptr(geo.epilogue, [geo.eargs, line, width, *of, n0, one, width])
        return []

    f.if_else(f.cmp("eq", width, geo.ow), whole, by_row, [])


def _prefetch(f: Fn, start: V, size: V) -> None:
    """Fetches the next tile's rows to the second cache in order, so that the hardware goes on: they lie in few pages, in which the
    order of this tile's columns makes no stream."""
    with f.loop(0, size, CACHE_LINE) as lp:
        f.prefetch(f.gep(start, lp.iv, "i8"), 2)


def _split(f: Fn, index: V, size: V) -> tuple[V, V]:
    """Quotient and remainder."""
    q = f.divu(index, size)
    return q, f.sub(index, f.mul(q, size))


def _emit_table(p: ConvParams, lanes: int) -> str:
    """A constant table of the functions for 1 to `tile_rows` rows; convolutions of equal windows share it."""
    key = hashlib.sha256(repr((p.elem, p.kernel, p.stride[1:], p.dilation, lanes)).encode()).hexdigest()[:8]
    narrow = f"_{p.image}" if p.image and not _padded(p) else ""
    if p.columns_side_by_side:
        narrow = f"_{'ui8' if p.spec.unsigned else 'i8'}"
    name = f"conv_rows_{p.elem}_{lanes}_{key}{narrow}"
    if name not in p.module.globals:
        rows = ByteRows if p.columns_side_by_side else PaddedRows if _padded(p) else Rows
        symbols = [rows(p, f"{name}_{n}", n, lanes).emit() for n in range(1, tile_rows(p) + 1)]
        p.module.add_pointers(name, symbols)
    return name
