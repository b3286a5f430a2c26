"""Images for convolutions in the target's matrix registers: 32 channels of a position lie side by side, a row of a tile.

A block of an image is kept by phases of the stride, so that neighbours among the outputs read neighbours of it: of each 32 channels,
phase of a row and phase of a column, [rows][columns][32], zeros outside of the image and behind the last channel. A window's point
is a distance from there, and 16 positions from one on are a tile as they lie.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from dhlo.codegen.families.conv.image import Bounds, load_pairs
from dhlo.codegen.families.conv.params import ConvParams
from dhlo.codegen.families.gemm.tiles_microkernel import ROW_BYTES, STEP_UNITS
from dhlo.codegen.kernel_ir.builder import I8, I32, I64, PTR, Fn, V, vec
from dhlo.codegen.kernel_ir.transpose import transpose_block

__all__ = ["STEP_CHANNELS", "Phases", "emit_lay_row"]

STEP_CHANNELS: Final = 2 * STEP_UNITS
"""Channels of a step of the reduction."""


@dataclass(frozen=True)
class Phases:
    """Windows along a dim of the image, by the phase of the stride in which their points lie."""

    kernel: int
    stride: int
    before: int  # zeros before the image
    dilation: int

    @staticmethod
    def of(p: ConvParams, dim: int) -> Phases:
        return Phases(p.kernel[dim], p.stride[dim], p.padding[dim][0], p.dilation[dim])

    @property
    def all(self) -> list[int]:
        """The phases that windows read."""
        return sorted({k * self.dilation % self.stride for k in range(self.kernel)})

    @property
    def reach(self) -> int:
        """How many positions of a phase windows reach beyond as many as there are outputs."""
        return (self.kernel - 1) * self.dilation // self.stride

    def place(self, point: int) -> tuple[int, int]:
        """Where a point of the window lies: the number of its phase, and how many positions on."""
        on, phase = divmod(point * self.dilation, self.stride)
        return self.all.index(phase), on

    def first(self, f: Fn, phase: int, output: V) -> V:
        """Where a phase's position for an output lies in the image, or outside of it."""
        return f.add(f.mul(output, self.stride), phase - self.before)


def emit_lay_row(p: ConvParams) -> str:
    """Emits `lay_row(x, channels, plane, column, count, limit, to, begin, end)` once and returns its symbol.

    Writes `count` positions of 64 bytes at `to`, and up to a vector's lanes more that are undefined, from the row at `x` of 1 to 32
    channels, `plane` elements apart, every stride-th from `column` on; zeros where that is not in [0, limit). The image's memory is
    from `begin` to `end`.
    """
    step, lanes = p.stride[2], p.spec.lanes(I32)
    key = hashlib.sha256(repr((step, p.spec, p.image, p.group_in % STEP_CHANNELS)).encode()).hexdigest()[:8]
    name = f"conv_lay_row_{p.image}_{step}_{key}"
    if name in p.module.functions:
        return name
    numbers = ("plane", "column", "count", "limit")
    f = Fn(
        p.module,
        name,
        [("x", PTR), ("channels", I64), *((n, I64) for n in numbers), ("to", PTR), ("begin", PTR), ("end", PTR)],
        noinline=True,
    )
    x, channels, plane, column, count, limit, to, *ends = f.args
    bounds: Bounds = (ends[0], ends[1]) if p.bounded else None
    span = 2 * lanes if step == 2 else lanes
    distances = [i * (1 if step == 2 else step) for i in range(span)]
    far = distances[-1] + 1

    def positions(whole: bool) -> list[V]:
        with f.loop(0, count, lanes) as at:
            first = f.add(column, f.mul(at.iv, step))
            lo, hi = (f.cast(f.min(f.max(v, 0), far), I32) for v in (f.sub(0, first), f.sub(limit, first)))
            number = f.dense(distances, I32)
            mask = f.and_(f.cmp("ge", number, f.splat(lo, span)), f.cmp("lt", number, f.splat(hi, span)))
            for half in range(0, STEP_UNITS, lanes):
                units = [
                    _unit(p, f, f.gep(x, first, p.stored), plane, None if whole else channels, u, mask, bounds)
                    for u in range(half, half + lanes)
                ]
                for i, row in enumerate(transpose_block(f, units)):
                    f.store(row, f.gep(f.gep(to, f.mul(f.add(at.iv, i), ROW_BYTES), I8), half, I32))
        return []

    def zeros() -> list[V]:
        nbytes = lanes * 4
        with f.loop(0, f.mul(count, ROW_BYTES), nbytes) as at:
            f.store(f.const(0, vec(I32, lanes)), f.gep(to, at.iv, I8))
        return []

    def inside() -> list[V]:
        if p.group_in % STEP_CHANNELS == 0:
            return positions(True)
        return f.if_else(f.cmp("ge", channels, STEP_CHANNELS), lambda: positions(True), lambda: positions(False), [])

    f.if_else(f.cmp("le", limit, 0), zeros, inside, [])
    f.done()
    return name


def _unit(p: ConvParams, f: Fn, at: V, plane: V, channels: V | None, unit: int, mask: V, bounds: Bounds) -> V:
    """Positions of two channels side by side, zeros for those that there are not; all are where `channels` is None."""
    lanes, step = p.spec.lanes(I32), p.stride[2]
    both = None
    if channels is not None:
        mask = f.and_(mask, f.splat(f.cmp("lt", f.i64(2 * unit), channels), mask.lanes))
        both = f.cmp("lt", f.i64(2 * unit + 1), channels)
    first = f.gep(at, f.mul(plane, 2 * unit), p.stored)
    other = f.gep(first, plane if both is None else f.select(both, plane, f.i64(0)), p.stored)
    return load_pairs(f, first, other, lanes, step=step, mask=mask, both=both, bounds=bounds)
