"""Images for convolutions in the target's matrix registers: the channels of a step lie side by side, 64 bytes of a position, a row
of a tile.

A block of an image is kept by phases of the stride, so that neighbours among the outputs read neighbours of it: of each step's
channels, phase of a row and phase of a column, [rows][columns][64 bytes], filled up outside of the image and behind the last
channel. A window's point is a distance from there, and 16 positions from one on are a tile as they lie. Where channels are few, a
position has those of all columns of its window.
"""

from __future__ import annotations

import hashlib
from typing import Final

from dhlo.codegen.families.conv.gates import gated, load_gate
from dhlo.codegen.families.conv.image import Bounds, load_elements, load_pairs
from dhlo.codegen.families.conv.params import ConvParams
from dhlo.codegen.families.conv.tiles_form import TileForm
from dhlo.codegen.families.gemm.tiles_microkernel import ROW_BYTES, STEP_UNITS
from dhlo.codegen.kernel_ir.builder import I8, I32, I64, PTR, Fn, V, vec
from dhlo.codegen.kernel_ir.transpose import transpose_block

__all__ = ["INFINITY", "NUMBERS", "NUMBERS_OF_ROW", "emit_largest", "emit_lay_row"]

# Numbers of bf16 in a row of a tile, as bits; of infinity, the least of what is no number.
NUMBERS_OF_ROW: Final = ROW_BYTES // 2
NUMBERS: Final = vec("i16", NUMBERS_OF_ROW)
INFINITY: Final = 0x7F80


def emit_lay_row(form: TileForm) -> str:
    """Emits `lay_row(x, channels, plane, column, count, limit, to, begin, end)` once and returns its symbol.

    Writes `count` positions of 64 bytes at `to`, and up to a vector's lanes more that are undefined, from the row at `x` of as many
    channels as a step has or fewer, `plane` elements apart, every stride-th from `column` on; what fills up where that is not in
    [0, limit). The image's memory is from `begin` to `end`. If the convolution is gated, another argument has the gates of these
    channels.
    """
    p = form.p
    step, lanes = p.stride[2], p.spec.lanes(I32)
    few = (p.group_in, form.columns, p.dilation[2]) if form.columns > 1 else ()
    # Channels of a lone step are known, but for the last of groups together; of several the last one's may be fewer.
    channels_of = (
        form.step_groups == 1,
        form.layout.group_in if form.step_groups == 1 else form.layout.group_in % form.step_channels,
    )
    key = repr((step, p.spec, p.fill, *channels_of, *few, *(["gated"] if p.gated else []), *(["early"] if form.ends_early else [])))
    name = f"conv_lay_row_{p.stored}_{step}_{hashlib.sha256(key.encode()).hexdigest()[:8]}"
    if name in p.module.functions:
        return name
    numbers = [(n, I64) for n in ("plane", "column", "count", "limit")]
    args = [("x", PTR), ("channels", I64), *numbers, ("to", PTR), ("begin", PTR), ("end", PTR)]
    args += [("gates", PTR)] if p.gated else []
    f = Fn(p.module, name, args, noinline=True)
    x, channels, plane, column, count, limit, to, begin, end, *gates = f.args
    row = _Row(f, form, x, plane, limit, (begin, end) if p.bounded else None, gates)

    def positions(channels: V | None) -> list[V]:
        with f.loop(0, count, lanes) as at:
            first = f.add(column, f.mul(at.iv, step))
            for half in range(0, STEP_UNITS, lanes):
                units = [row.unit(first, unit, channels) for unit in range(half, half + lanes)]
                for i, line in enumerate(transpose_block(f, units)):
                    f.store(line, f.gep(f.gep(to, f.mul(f.add(at.iv, i), ROW_BYTES), I8), half, I32))
        return []

    def outside() -> list[V]:
        nbytes = lanes * 4
        with f.loop(0, f.mul(count, ROW_BYTES), nbytes) as at:
            f.store(f.const(p.fill, vec(I32, lanes)), f.gep(to, at.iv, I8))
        return []

    def inside() -> list[V]:
        whole = None if form.layout.group_in % form.step_channels == 0 else f.i64(form.layout.group_in)
        if form.ends_early:
            all_there = f.cmp("ge", channels, form.layout.group_in)
            return f.if_else(all_there, lambda: positions(whole), lambda: positions(channels), [])
        if whole is None or form.step_groups == 1:
            return positions(whole)
        return f.if_else(f.cmp("ge", channels, form.step_channels), lambda: positions(None), lambda: positions(channels), [])

    f.if_else(f.cmp("le", limit, 0), outside, inside, [])
    f.done()
    return name


def emit_largest(p: ConvParams) -> str:
    """Emits `conv_largest(x, count, to)` once and returns its symbol: to[32] of numbers of bf16 as bits without their signs becomes
    as large as those of `count` rows of 64 bytes are at least."""
    name = "conv_largest"
    if name in p.module.functions:
        return name
    f = Fn(p.module, name, [("x", PTR), ("count", I64), ("to", PTR)], noinline=True)
    x, count, to = f.args
    without_sign = f.const(0x7FFF, NUMBERS)
    with f.loop(0, count, 1, [f.load(to, NUMBERS)]) as row:
        bits = f.and_(f.load(f.gep(x, f.mul(row.iv, ROW_BYTES), I8), NUMBERS), without_sign)
        row.yield_(f.max(row.carried[0], bits))
    f.store(row.results[0], to)
    f.done()
    return name


class _Row:
    """A row of an image, and which of its columns there are."""

    def __init__(self, f: Fn, form: TileForm, x: V, plane: V, limit: V, bounds: Bounds, gates: list[V]) -> None:
        self.f, self.p, self.form, self.x, self.plane, self.limit, self.bounds = f, form.p, form, x, plane, limit, bounds
        self.gates = gates
        self.lanes, self.step = form.p.spec.lanes(I32), form.p.stride[2]
        span = 2 * self.lanes if self.step == 2 else self.lanes
        self.distances = [i * (1 if self.step == 2 else self.step) for i in range(span)]

    def unit(self, first: V, unit: int, channels: V | None) -> V:
        """A unit, two channels side by side or one, of every stride-th column from `first` on, what fills up for channels that
        there are not; all are where `channels` is None."""
        f, p, step = self.f, self.p, self.form.layout.step
        (at, mask), *others = (self._channel(first, step * unit + i, channels) for i in range(step))
        if not others:
            return load_elements(f, p, at, self.lanes, step=self.step, mask=mask, fill=p.fill)
        ((other, other_mask),) = others
        pairs = load_pairs(f, at, other, self.lanes, step=self.step, mask=mask, other_mask=other_mask, bounds=self.bounds)
        return gated(f, p, pairs, [self._gate(gates, step * unit + i, channels) for gates in self.gates for i in range(step)])

    def _gate(self, gates: V, channel: int, channels: V | None) -> V:
        """The gate of a channel, of images of 1 x 1 windows."""
        f = self.f
        return load_gate(f, self.p, gates, channel, None if channels is None else f.cmp("lt", f.i64(channel), channels))

    def _channel(self, first: V, channel: int, channels: V | None) -> tuple[V, V]:
        """Where a channel's columns lie, and which there are."""
        f, p = self.f, self.p
        column, number = divmod(channel, p.group_in) if self.form.columns > 1 else (0, channel)
        start = f.add(first, column * p.dilation[2])
        mask = self._inside(start)
        if channels is not None:
            mask = f.and_(mask, f.splat(f.cmp("lt", f.i64(channel), channels), mask.lanes))
        return f.gep(f.gep(self.x, start, p.stored), f.mul(self.plane, number), p.stored), mask

    def _inside(self, start: V) -> V:
        """Which of the columns from `start` on are."""
        f, far = self.f, self.distances[-1] + 1
        lo, hi = (f.cast(f.min(f.max(x, 0), far), I32) for x in (f.sub(0, start), f.sub(self.limit, start)))
        number, span = f.dense(self.distances, I32), len(self.distances)
        return f.and_(f.cmp("ge", number, f.splat(lo, span)), f.cmp("lt", number, f.splat(hi, span)))
