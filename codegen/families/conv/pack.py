"""Packs im2col panels of an input on the fly: [kernel point][channel][width] for consecutive output positions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dhlo.codegen.families.conv.gates import StepGates, gated, load_step_gates
from dhlo.codegen.families.conv.image import Bounds, load_column_pairs, load_elements, load_pairs
from dhlo.codegen.families.conv.params import ConvParams
from dhlo.codegen.kernel_ir.builder import I32, I64, PTR, Fn, V, vec

__all__ = [
    "CACHE_LINE",
    "KERNEL_TYPES",
    "Geometry",
    "emit_coords",
    "emit_pack",
    "emit_pack_pointwise",
    "load_gates",
    "load_bounds",
    "load_geometry",
    "load_last",
]

_FIELDS = (
    "x",
    "w",
    "epilogue",
    "eargs",
    "id",
    "ih",
    "iw",
    "od",
    "oh",
    "ow",
    "positions",
    "sxb",
    "sxc",
    "sxd",
    "sxh",
    "panels",
    "blocks",
    "flat",
)
_POINTERS = {"x", "w", "epilogue", "eargs"}
KERNEL_TYPES = tuple(PTR if n in _POINTERS else I64 for n in _FIELDS)
CACHE_LINE = 64
# Tail lanes get this input column, which is outside of every image.
_OUTSIDE = -(1 << 30)
# Input channels up to which the loop over them is unrolled.
_FEW_CHANNELS = 4
# Where planes are a multiple of so many bytes, a position's channels share few sets of the first cache: as many channels, as a set
# has lines, are then packed for all kernel points before the next ones. Elsewhere all are, since masks are computed for each point.
_CONFLICT, _TOGETHER = 1024, 8


@dataclass(frozen=True)
class Geometry:
    """What the kernels of one launch share: pointers, input sizes i*, output sizes o*, input strides sx* in elements.

    `positions` = od*oh*ow, in `panels`, and these in `blocks`, balanced; `flat` is 1 if the input address of a
    kernel point is the output position plus a constant.
    """

    x: V
    w: V
    epilogue: V
    eargs: V
    id: V
    ih: V
    iw: V
    od: V
    oh: V
    ow: V
    positions: V
    sxb: V
    sxc: V
    sxd: V
    sxh: V
    panels: V
    blocks: V
    flat: V


def load_geometry(f: Fn, args: V) -> Geometry:
    """Loads the argument array; what a function doesn't use is removed by LLVM."""
    values = []
    for i, ty in enumerate(KERNEL_TYPES):
        v = f.load(f.gep(args, i, I64), I64)
        values.append(f.int_to_ptr(v) if ty == PTR else v)
    return Geometry(*values)


def load_gates(p: ConvParams, f: Fn, args: V) -> V:
    """Address of the gates [image][channel] of a launch that has them, of the image's type in memory."""
    return f.int_to_ptr(f.load(f.gep(args, len(KERNEL_TYPES) + p.bounded, I64), I64))


def load_bounds(p: ConvParams, f: Fn, args: V) -> Bounds:
    """Where the image of a launch begins and ends, for kernels that must know it."""
    first, last = (f.load(f.gep(args, i, I64), I64) for i in (0, len(KERNEL_TYPES))) if p.bounded else (args, args)
    return (first, last) if p.bounded else None


def load_last(p: ConvParams, f: Fn, args: V) -> tuple[V, V, V, V]:
    """The last arguments of a launch: what prefetches the memory of an epilogue, null if nothing does; how many images there are,
    and in how many blocks; what workers keep of blocks."""
    first = len(KERNEL_TYPES) + p.bounded + p.gated
    touch, batch, blocks, kept = (f.load(f.gep(args, first + i, I64), I64) for i in range(4))
    return f.int_to_ptr(touch), batch, blocks, f.int_to_ptr(kept)


def _split_row(f: Fn, geo: Geometry, row: V) -> tuple[V, V]:
    """Output plane and row within it of a flattened row number."""
    od = f.divu(row, geo.oh)
    return od, f.sub(row, f.mul(od, geo.oh))


def emit_coords(p: ConvParams, f: Fn, geo: Geometry, p0: V, n: V, width: int, coords: V) -> None:
    """Writes the input coordinates (z, y, x as i32[width] each) of kernel point 0 for positions p0 .. p0+n; n >= 1."""
    lanes = min(width, f.target.lanes(I32))
    for lane in range(0, width, lanes):
        f.store(f.const(_OUTSIDE, vec(I32, lanes)), f.gep(coords, 2 * width + lane, I32))
    row = f.divu(p0, geo.ow)
    od, oh = _split_row(f, geo, row)
    one, zero = f.const(1, I64), f.const(0, I64)
    with f.loop(0, n, 1, [od, oh, f.sub(p0, f.mul(row, geo.ow))]) as lp:
        pos = lp.carried
        for d in range(3):
            c = f.sub(f.mul(pos[d], p.stride[d]), p.padding[d][0])
            f.store(f.cast(c, I32), f.gep(coords, f.add(lp.iv, d * width), I32))
        x = f.add(pos[2], 1)
        wrap = f.cmp("eq", x, geo.ow)
        y = f.add(pos[1], f.select(wrap, one, zero))
        wrap_y = f.cmp("eq", y, geo.oh)
        lp.yield_(f.add(pos[0], f.select(wrap_y, one, zero)), f.select(wrap_y, zero, y), f.select(wrap, zero, x))


def emit_pack(p: ConvParams, width: int) -> str:
    """`pack(args, x, channels, panel, p0, n, coords)`: fills panel[kernel point][channel][width] from channel `x` on, or of
    pairs of channels. If the convolution is gated, another argument has the gates of these channels.

    Lanes outside of the image are `fill`; lanes n and above hold numbers of the image or `fill`, and must not be used. They are
    multiplied all the same: what a worker's scratch held before may be subnormal, which costs some processors 150 cycles a vector.
    """
    # What the code depends on; convolutions that agree in it share the function.
    few = p.group_in if _unrolls(p) else 0
    key = repr((p.elem, p.spec, p.kernel, p.stride, p.padding, p.dilation, few, width, *([p.fill] if p.fill else [])))
    name = f"conv_pack_{p.elem}_{width}_{hashlib.sha256(key.encode()).hexdigest()[:8]}" + _form(p)
    if name in p.module.functions:
        return name
    f = Fn(
        p.module,
        name,
        [("args", PTR), ("x", PTR), ("channels", I64), ("panel", PTR), ("p0", I64), ("n", I64), ("coords", PTR), *_gate_args(p)],
        noinline=True,
    )
    geo, bounds = load_geometry(f, f.args[0]), load_bounds(p, f, f.args[0])
    _, x, channels, panel, p0, n, coords, *_ = f.args
    if all(s == 1 for s in p.stride) and not p.column_pairs:
        is_flat = f.cmp("ne", geo.flat, 0)
        with f.when(is_flat):
            _pack_flat(p, f, geo, width, x, channels, panel, p0, coords, bounds)
        with f.when(f.not_(is_flat)):
            _pack_rows(p, f, geo, width, x, channels, panel, p0, n, bounds)
    else:
        _pack_rows(p, f, geo, width, x, channels, panel, p0, n, bounds)
    f.done()
    return name


def emit_pack_pointwise(p: ConvParams, width: int) -> str:
    """`pack(x, panels, channel_stride, channels, panel_stride, n)`: panels[i][channel][width] of consecutive positions. If the
    convolution is gated, another argument has the gates of these channels.

    Positions 0 .. n of each channel, contiguous, are cut in panels `panel_stride` elements apart; lanes beyond the last are 0.
    Prefetches the n positions after them.
    """
    name = f"conv_pack_pointwise_{p.elem}_{width}" + _form(p)
    if name in p.module.functions:
        return name
    numbers = ("channel_stride", "channels", "panel_stride", "n")
    bounds = [("begin", I64), ("end", I64)] if p.bounded else []
    f = Fn(p.module, name, [("x", PTR), ("panels", PTR), *((n, I64) for n in numbers), *bounds, *_gate_args(p)], noinline=True)
    x, panels, channel_stride, channels, panel_stride, n, *_ = f.args
    starts = range(0, width, p.lanes)
    limits = (f.args[6], f.args[7]) if p.bounded else None
    full = f.divu(n, width)
    rest = f.sub(n, f.mul(full, width))
    masks = [f.tail_mask(f.max(f.sub(rest, s), 0), p.lanes) for s in starts]
    with f.loop(0, p.steps(f, channels)) as channel:
        row = f.gep(x, f.mul(f.mul(channel.iv, p.step), channel_stride), p.stored)
        out = f.gep(panels, f.mul(channel.iv, width), p.elem)
        both = _both(p, f, channel.iv, channels)
        gates = load_step_gates(f, p, f.args[-1], channel.iv, both) if p.gated else ()

        def load(at: V, mask: V | None = None, both: V | None = both, gates: StepGates = gates) -> V:
            if p.pairs:
                other = _other(p, f, at, channel_stride, both)
                return gated(f, p, load_pairs(f, at, other, p.lanes, mask=mask, both=both, bounds=limits), gates)
            return gated(f, p, load_elements(f, p, at, p.lanes, mask=mask, bounds=limits), gates)

        with f.loop(0, full) as lp:
            src, dst = f.gep(row, f.mul(lp.iv, width), p.stored), f.gep(out, f.mul(lp.iv, panel_stride), p.elem)
            for at in range(0, width * p.stored_bytes, CACHE_LINE):
                f.prefetch(f.gep(f.gep(src, n, p.stored), at, "i8"), 2)
                if p.pairs:
                    f.prefetch(f.gep(f.gep(src, f.add(n, channel_stride), p.stored), at, "i8"), 2)
            for s in starts:
                f.store(load(f.gep(src, s, p.stored)), f.gep(dst, s, p.elem))
        with f.when(f.cmp("gt", rest, 0)):
            src, dst = f.gep(row, f.mul(full, width), p.stored), f.gep(out, f.mul(full, panel_stride), p.elem)
            for s, mask in zip(starts, masks, strict=True):
                f.store(load(f.gep(src, s, p.stored), mask), f.gep(dst, s, p.elem))
    f.done()
    return name


def _form(p: ConvParams) -> str:
    """What tells names of functions apart by how they read the image."""
    return (
        ("_gated" if p.gated else "")
        + (f"_{p.image}" if p.image else "")
        + ("_column" if p.column_pairs else "")
        + ("_pairs" if p.pairs else "")
        + ("_odd" if p.channel_pairs and p.group_in % 2 else "")
    )


def _both(p: ConvParams, f: Fn, step: V | int, channels: V | int) -> V | None:
    """Whether a step of pairs has a second channel, where it may have none."""
    return f.cmp("lt", f.add(f.mul(f.i64(step), 2), 1), channels) if p.channel_pairs and p.group_in % 2 else None


def _other(p: ConvParams, f: Fn, at: V, channel_stride: V, both: V | None) -> V:
    """Where the second channel of a pair lies, or the first where there is none."""
    return f.gep(at, channel_stride if both is None else f.select(both, channel_stride, f.i64(0)), p.stored)


def _gate_args(p: ConvParams) -> list[tuple[str, str]]:
    return [("gates", PTR)] if p.gated else []


def _unrolls(p: ConvParams) -> bool:
    """Few channels, always all of them: copied without a loop."""
    return p.group_in <= _FEW_CHANNELS and p.depth_blocks == 1


def _copy_channels(
    p: ConvParams,
    f: Fn,
    geo: Geometry,
    channels: V,
    src: V,
    dst: V,
    width: int,
    moves: Sequence[tuple[int, V, V | None]],
    strided: bool,
    bounds: Bounds,
    beside: tuple[V, V | None] | None = None,
) -> None:
    """For each channel, or pair of them: loads `moves` (lane offset, load mask, store mask) from src and stores them to dst. Of
    pairs of columns `beside` is the mask of the second ones, and whether the window has them."""
    lanes = p.lanes
    step = p.stride[2] if strided else 1

    def move(s: V, d: V, channel: V | int) -> None:
        both = _both(p, f, channel, channels)
        gates = load_step_gates(f, p, f.args[-1], channel, both) if p.gated else ()
        for at, mask, store_mask in moves:
            source = f.gep(s, at, p.stored)
            if beside is not None and mask is not None:
                other_mask, has = beside
                value = load_column_pairs(f, source, lanes, step=step, mask=mask, other_mask=other_mask, both=has, bounds=bounds)
            elif p.pairs:
                other = _other(p, f, source, geo.sxc, both)
                value = gated(f, p, load_pairs(f, source, other, lanes, step=step, mask=mask, both=both, bounds=bounds), gates)
            else:
                value = gated(f, p, load_elements(f, p, source, lanes, step=step, mask=mask, fill=p.fill, bounds=bounds), gates)
            if store_mask is None:
                f.store(value, f.gep(d, at, p.elem))
            else:
                f.masked_store(value, f.gep(d, at, p.elem), store_mask)

    if _unrolls(p):
        for c in range(p.layout.units):
            move(f.gep(src, f.mul(geo.sxc, c * p.step), p.stored), f.gep(dst, c * width, p.elem), c)
        return
    with f.loop(0, p.steps(f, channels), 1, [src, dst]) as lp:
        s, d = lp.carried
        move(s, d, lp.iv)
        lp.yield_(f.gep(s, f.mul(geo.sxc, p.step), p.stored), f.gep(d, width, p.elem))


def _by_channels(
    p: ConvParams, f: Fn, geo: Geometry, x: V, channels: V, panel: V, width: int, body: Callable[[V, V, V], None]
) -> None:
    """Calls body(x, channels, panel) for some channels after others: where theirs begin in the image and in the panel's points."""
    if p.points == 1 or _unrolls(p):
        body(x, channels, panel)
        return
    conflict = f.cmp("eq", f.and_(geo.sxc, _CONFLICT // p.stored_bytes - 1), 0)
    most = f.select(conflict, f.i64(_TOGETHER), channels)
    with f.loop(0, channels, most) as lp:
        before = f.divu(lp.iv, 2) if p.channel_pairs else lp.iv
        source, to = f.gep(x, f.mul(lp.iv, geo.sxc), p.stored), f.gep(panel, f.mul(before, width), p.elem)
        body(source, f.min(f.sub(channels, lp.iv), most), to)


def _in_range(f: Fn, c: V, size: V) -> V:
    """0 <= c < size for scalars or i32 vectors, by one unsigned comparison."""
    return f.cmp("ult", c, f.splat(f.cast(size, I32), c.lanes) if c.lanes else size)


def _pack_flat(
    p: ConvParams, f: Fn, geo: Geometry, width: int, x: V, channels: V, panel: V, p0: V, coords: V, bounds: Bounds
) -> None:
    """Rows as long as output rows, stride 1: positions are consecutive in memory for every kernel point."""
    lanes = p.lanes
    starts = range(0, width, lanes)
    at = [[f.load(f.gep(coords, d * width + s, I32), vec(I32, lanes)) for s in starts] for d in range(3)]
    row = f.divu(p0, geo.ow)
    od, oh = _split_row(f, geo, row)
    origin = [
        f.sub(od, p.padding[0][0]),
        f.sub(oh, p.padding[1][0]),
        f.sub(f.sub(p0, f.mul(row, geo.ow)), p.padding[2][0]),
    ]
    strides = (geo.sxd, geo.sxh, f.const(1, I64))
    base = f.add(f.add(f.mul(origin[0], geo.sxd), f.mul(origin[1], geo.sxh)), origin[2])
    steps = p.steps(f, channels)

    def point(k: Sequence[V], source: V, some: V, to: V) -> None:
        offset = base
        masks: list[V | None] = [None for _ in starts]
        for d, size in enumerate((geo.id, geo.ih, geo.iw)):
            shift = f.mul(k[d], p.dilation[d])
            offset = f.add(offset, f.mul(shift, strides[d]))
            for i in range(len(masks)):
                ok = _in_range(f, f.add(at[d][i], f.cast(shift, I32)), size)
                before = masks[i]
                masks[i] = ok if before is None else f.and_(before, ok)
        number = f.add(f.mul(f.add(f.mul(k[0], p.kernel[1]), k[1]), p.kernel[2]), k[2])
        dst = f.gep(to, f.mul(f.mul(number, steps), width), p.elem)
        moves = [(s, m, None) for s, m in zip(starts, masks, strict=True) if m is not None]
        _copy_channels(p, f, geo, some, f.gep(source, offset, p.stored), dst, width, moves, False, bounds)

    def all_points(source: V, some: V, to: V) -> None:
        _kernel_points(p, f, lambda k: point(k, source, some, to))

    _by_channels(p, f, geo, x, channels, panel, width, all_points)


def _kernel_points(p: ConvParams, f: Fn, body: Callable[[Sequence[V]], None]) -> None:
    """Calls body((kd, kh, kw)) inside three loops; kw is a pair of columns where these are pairs."""
    with f.loop(0, p.kernel[0]) as ld, f.loop(0, p.kernel[1]) as lh, f.loop(0, p.layout.row) as lw:
        body((ld.iv, lh.iv, lw.iv))


def _pack_rows(p: ConvParams, f: Fn, geo: Geometry, width: int, x: V, channels: V, panel: V, p0: V, n: V, bounds: Bounds) -> None:
    """Any stride and size: row by output row, in vectors that overwrite one another's tails in ascending order."""
    lanes, step = p.lanes, p.stride[2]
    span = 2 * lanes if step == 2 else lanes
    steps = f.dense([i * (1 if step == 2 else step) for i in range(span)], I32)
    end, units = f.add(p0, n), p.steps(f, channels)
    last = f.divu(f.sub(end, 1), geo.ow)
    with f.loop(f.divu(p0, geo.ow), f.add(last, 1)) as rows:
        row = rows.iv
        od, oh = _split_row(f, geo, row)
        row_start = f.mul(row, geo.ow)
        lo = f.sub(f.max(row_start, p0), p0)
        hi = f.select(f.cmp("eq", row, last), width, f.sub(f.min(f.add(row_start, geo.ow), end), p0))
        z0 = f.sub(f.mul(od, p.stride[0]), p.padding[0][0])
        y0 = f.sub(f.mul(oh, p.stride[1]), p.padding[1][0])
        with f.loop(lo, hi, lanes) as chunk:
            lane = chunk.iv
            ow = f.sub(f.add(p0, lane), row_start)
            x0 = f.sub(f.mul(ow, step), p.padding[2][0])
            room = f.sub(width, lane)
            keep = f.tail_mask(room, lanes)

            def point(k: Sequence[V], source: V, some: V, to: V, store_mask: V | None) -> None:
                column = f.mul(k[2], p.layout.columns)
                c = [f.add(o, f.mul(n, p.dilation[d])) for d, (o, n) in enumerate(((z0, k[0]), (y0, k[1]), (x0, column)))]
                inside = f.and_(_in_range(f, c[0], geo.id), _in_range(f, c[1], geo.ih))
                # A column limit of 0 masks every lane where the row is outside.
                limit = f.select(inside, geo.iw, 0)
                mask = _in_range(f, f.add(steps, f.cast(c[2], I32)), limit)
                beside = None
                if p.column_pairs:
                    has = f.cmp("lt", f.add(column, 1), p.kernel[2]) if p.kernel[2] % 2 else None
                    beside = _in_range(f, f.add(steps, f.cast(f.add(c[2], 1), I32)), limit), has
                offset = f.add(f.add(f.mul(c[0], geo.sxd), f.mul(c[1], geo.sxh)), c[2])
                number = f.add(f.mul(f.add(f.mul(k[0], p.kernel[1]), k[1]), p.layout.row), k[2])
                dst = f.gep(to, f.add(f.mul(f.mul(number, units), width), lane), p.elem)
                at = f.gep(source, offset, p.stored)
                _copy_channels(p, f, geo, some, at, dst, width, [(0, mask, store_mask)], True, bounds, beside)

            def points(store_mask: V | None) -> list[V]:
                def all_points(source: V, some: V, to: V) -> None:
                    _kernel_points(p, f, lambda k: point(k, source, some, to, store_mask))

                _by_channels(p, f, geo, x, channels, panel, width, all_points)
                return []

            if f.target.mask_registers:
                points(keep)
            else:
                f.if_else(f.cmp("ge", room, lanes), lambda: points(None), lambda: points(keep), [])
