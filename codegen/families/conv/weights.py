"""Packs convolution weights that are run-time values into the layout of the convolution kernels."""

from __future__ import annotations

from dataclasses import dataclass

from dhlo.codegen.families.conv.params import ConvParams, Triple
from dhlo.codegen.kernel_ir.builder import I64, PTR, V, vec
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args

__all__ = ["WeightView", "emit_pack_weights"]


@dataclass(frozen=True)
class WeightView:
    """How weights lie: strides in elements of group, output and input channel in it, and kernel point (z, y, x). Each output
    channel may stand for some `phases`, which are channels one after another and lie an element apart."""

    group: int
    out_channel: int
    in_channel: int
    point: Triple
    phases: int = 1

    @staticmethod
    def dense(p: ConvParams) -> WeightView:
        """[groups * group_out, group_in, *kernel] row-major."""
        point = (p.kernel[1] * p.kernel[2], p.kernel[2], 1)
        return WeightView(p.group_out * p.depth, p.depth, p.points, point)


def emit_pack_weights(p: ConvParams, view: WeightView, depthwise: bool) -> str:
    """Emits the kernel; args (weights, packed). Items are weight panels of all groups; depthwise: output channels."""
    numbers = (view.group, view.out_channel, view.in_channel, *view.point, *([view.phases] if view.phases > 1 else []))
    strides = "_".join(map(str, numbers)).replace("-", "m")
    name = f"{p.name}_pack_weights_{strides}"
    if name in p.module.functions:
        return name
    f = kernel_fn(p.module, name)
    src, dst = load_args(f, [PTR, PTR])
    _, begin, end, *_ = f.args

    def channels_at(channel: V) -> V:
        """Element offset of an output channel, or of each of a vector."""
        if view.phases == 1:
            return f.mul(channel, view.out_channel)
        return f.add(f.mul(f.divu(channel, view.phases), view.out_channel), f.remu(channel, view.phases))

    def at(group: V, in_channel: V, number: V) -> V:
        """Element offset of a weight of the first output channel."""
        row = f.divu(number, p.kernel[2])
        k = (f.divu(row, p.kernel[1]), f.remu(row, p.kernel[1]), f.remu(number, p.kernel[2]))
        offset = f.add(f.mul(group, view.group), f.mul(in_channel, view.in_channel))
        for step, index in zip(view.point, k, strict=True):
            offset = f.add(offset, f.mul(index, f.i64(step)))
        return offset

    with f.loop(begin, end) as items:
        if depthwise:
            group, channel = f.divu(items.iv, p.group_out), f.remu(items.iv, p.group_out)
            with f.loop(0, p.points) as point:
                offset = f.add(at(group, f.i64(0), point.iv), channels_at(channel))
                value = f.load(f.gep(src, offset, p.elem), p.elem)
                f.store(value, f.gep(dst, f.add(f.mul(items.iv, p.points), point.iv), p.elem))
        else:
            group = f.divu(items.iv, p.channel_panels)
            first = f.mul(f.remu(items.iv, p.channel_panels), p.panel)
            zero = f.const(0.0, vec(p.elem, p.lanes))
            panel = f.mul(items.iv, p.depth * p.panel)
            with f.loop(0, p.group_in, p.block_channels) as block:
                channels = f.min(f.sub(p.group_in, block.iv), p.block_channels)
                with f.loop(0, p.points) as point, f.loop(0, channels) as inner:
                    row = f.add(f.add(f.mul(block.iv, p.points), f.mul(point.iv, channels)), inner.iv)
                    for half in range(0, p.panel, p.lanes):
                        out_channel = f.add(first, half)
                        mask = f.tail_mask(f.max(f.sub(p.group_out, out_channel), 0), p.lanes)
                        start = f.gep(src, at(group, f.add(block.iv, inner.iv), point.iv), p.elem)
                        offsets = channels_at(f.add(f.iota(I64, p.lanes), out_channel))
                        value = f.gather(f.gep(start, offsets, p.elem), mask, zero)
                        f.store(value, f.gep(dst, f.add(f.add(panel, f.mul(row, p.panel)), half), p.elem))
    f.done()
    return name
