"""A convolution and the depthwise one that alone reads its result, in one group: what inverted residuals begin with."""

from __future__ import annotations

from math import prod

import numpy as np
import torch

from dhlo.codegen.elementwise.emit import Emitter
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.box import even_blocks, wake_cycles
from dhlo.codegen.families.conv.chain_expand import Rows, lower_rows
from dhlo.codegen.families.conv.chain_kernel import emit_chain_kernel, scratch_bytes
from dhlo.codegen.families.conv.chain_window import First, Window
from dhlo.codegen.families.conv.conv import Conv
from dhlo.codegen.families.conv.layout import Array, WeightLayout
from dhlo.codegen.families.conv.quantised_weights import code_of, coded_bytes, pack_codes
from dhlo.codegen.families.conv.step import image_of, parameters
from dhlo.codegen.families.epilogue import Epilogue, epilogue_args, lower_epilogue
from dhlo.codegen.families.family import ChoiceFamily
from dhlo.codegen.families.gemm.register_tile import BF16
from dhlo.codegen.families.lowering import GroupHost, Lowering, view_pointer
from dhlo.codegen.kernel_ir.builder import BITS
from dhlo.errors import InternalError
from dhlo.ir.dialect import Kind, Op, attr
from dhlo.ir.nans import with_plain_nans
from dhlo.ir.ops.control import Group
from dhlo.ir.types import from_mlir

__all__ = ["ConvChainFamily"]

Pair = tuple[int, int]

# Items of each thread at least, where bands can be cut so small.
_ITEMS_PER_THREAD = 3
# Rows of a band for each that it shares with the next, which are computed twice.
_SHARED = 4


def _convolutions(group: Group) -> list[Op]:
    return [op for op in group.operation.regions[0].blocks[0].operations if getattr(op, "kind", None) is Kind.CONVOLUTION]


class ConvChainFamily(ChoiceFamily):
    """Two convolutions with what is done to their results; `grow_epilogues` of the fusion pass says which."""

    anchor = Kind.CONVOLUTION.value

    @classmethod
    def matches(cls, group: Group) -> bool:
        return attr(group, "anchor") == cls.anchor and len(_convolutions(group)) == 2

    def __init__(self, low: Lowering, group: Group) -> None:
        super().__init__(low, group)
        self.first, self.second = _convolutions(group)
        self.x, self.out = from_mlir(self.first.operands[0]), from_mlir(self.second.results[0])
        self.expanded = from_mlir(self.first.results[0])
        image, stored = image_of(group, self.first)
        self.view = low.view(group, image)
        convolutions = [c for op in (self.first, self.second) if isinstance(c := parameters(op, low.tiles, ()), Conv)]
        kept = low.kept_codes(self.first.operands[1]) if self.x.dtype.name == "f32" else None
        code = "" if kept is None else code_of(*kept)
        expanding = kept[1] if kept is not None and code else low.constant_value(self.first.operands[1])
        mixing = low.constant_value(self.second.operands[1])
        if len(convolutions) != 2 or expanding is None or mixing is None:
            raise InternalError("a chain of convolutions that has no kernel")
        self.expansion, d = convolutions
        self.depthwise = d
        self.weights = expanding.detach().contiguous(), mixing.detach().contiguous()
        e = self.expansion
        first = First(*_of_images(self.expansion))
        pairs = stored == code == BF16 and d.spec.bf16_dot is not None and d.spec.target.tiles is None and e.in_channels > 1
        self.window = Window(*_of_images(d), d.elem, d.spec, first, code, stored, pairs)
        # In panels even of one input channel, which elsewhere is a depthwise convolution.
        self.layout = WeightLayout(1, e.in_channels, e.out_channels, e.kernel, d.spec.panel(d.elem), self.window.step)

    def emit_kernels(self) -> None:
        low, w, group = self.low, self.window, self.group
        self.kernel = emit_chain_kernel(low.module, w)
        rows = Rows(group, self.first, self.second.operands[0], low.checks, self._place_inner)
        self.inner: Epilogue = low.once(group, "inner", lambda: lower_rows(w, low.module, rows))
        self.epilogue: Epilogue = low.once(
            group, "epilogue", lambda: lower_epilogue(low.module, group, self.second, low.checks, self._place)
        )
        first, second = self.weights
        expanding = ("packed_conv", self.layout, low.constant_key(self.first.operands[1]), w.code)
        held = coded_bytes(w.code, self.layout) if w.code else prod(self.layout.shape) * w.bytes
        self.w1 = low.constants.add(expanding, held, lambda: self._pack_first(first))
        mixing = ("packed_depthwise", w.panel, low.constant_key(self.second.operands[1]))
        panels, points = -(-self.depthwise.out_channels // w.panel), w.kernel[0] * w.kernel[1]
        nbytes = panels * points * w.panel * BITS[w.elem] // 8
        self.w2 = low.constants.add(mixing, nbytes, lambda: _pack_depthwise(with_plain_nans(second).numpy(), w.panel))

    def _pack_first(self, weight: torch.Tensor) -> Array:
        code = self.window.code
        return pack_codes(code, self.layout, weight) if code else self.layout.pack(with_plain_nans(weight).numpy())

    def _place(self, em: Emitter, batch: Index, row: Index, column: Index) -> list[Index]:
        column = Index(column.base, column.step, column.vec)  # positions may start anywhere
        return [batch, row, *em.split(column, self.out.shape[2:])]

    def _place_inner(self, em: Emitter, batch: Index, channel: Index, position: Index) -> list[Index]:
        return [batch, channel, *em.split(position, self.expanded.shape[2:])]

    def emit_launch(self, host: GroupHost) -> None:
        f, w, channels = host.fn, self.window, self.depthwise.out_channels
        batch, ih, iw = (host.size(s) for s in (self.x.shape[0], *self.x.shape[2:]))
        h, width = (f.max(host.size(s), 0) for s in self.expanded.shape[2:])
        oh, ow = (f.max(host.size(s), 0) for s in self.out.shape[2:])
        ins, depth, panels = self.expansion.in_channels, self.layout.depth, -(-channels // w.panel)
        x = view_pointer(host, self.view)
        sxc = f.mul(ih, iw)
        # Bands whose rows stay in a part of the second cache, unless they would share too many with their neighbours; and enough of
        # them to keep the threads evenly busy.
        rows = f.divu(f.divu(host.l2_bytes, 2), f.mul(f.max(w.row_elements(f, depth, width), 1), w.bytes))
        fitting = f.add(f.divu(f.max(f.sub(rows, w.reach), 0), w.stride[0]), 1)
        most = f.max(fitting, _SHARED * max(w.reach - w.stride[0], 0) // w.stride[0])
        few = f.ceildivu(f.mul(host.num_threads, _ITEMS_PER_THREAD), f.max(f.mul(batch, panels), 1))
        few = f.min(few, f.ceildivu(oh, w.reach))
        bands = f.max(f.max(f.ceildivu(oh, most), few), 1)
        even = even_blocks(host, bands, f.mul(batch, panels), f.ceildivu(oh, w.reach))
        bands = f.select(f.cmp("gt", bands, 1), even, bands)
        bands = f.min(bands, oh)
        band = f.ceildivu(oh, f.max(bands, 1))
        held = f.min(w.span(band, f), h)
        inner, inner_args = epilogue_args(host, self.inner)
        epilogue, eargs = epilogue_args(host, self.epilogue)
        pointers = [x, host.constant(self.w1), inner, inner_args, host.constant(self.w2), epilogue, eargs]
        numbers = [f.i64(ins), f.i64(depth), f.i64(channels), ih, iw, h, width, oh, ow, f.mul(sxc, ins), sxc, bands, held]
        count = f.mul(f.mul(batch, bands), panels)
        vectors = w.panel // w.lanes
        cycles = f.mul(f.mul(held, width), vectors * depth)
        cycles = f.add(cycles, f.mul(f.mul(band, ow), vectors * w.kernel[0] * w.kernel[1]))
        grain = f.add(f.divu(wake_cycles(host), f.add(cycles, 1)), 1)
        end = [f.gep(x, f.mul(f.mul(sxc, ins), batch), w.stored)] if w.bounded else []
        with f.when(f.and_(f.cmp("gt", count, 0), f.cmp("gt", ow, 0))):
            args = [*pointers, *numbers, host.kept(), *end]
            host.launch(self.kernel, args, count, grain, scratch_bytes(w, f, depth, width, ow, held))


def _of_images(c: Conv) -> tuple[Pair, Pair, tuple[Pair, Pair], Pair]:
    """Kernel, stride, padding and dilation of rows and columns."""
    (kh, kw), (sh, sw), (rows, columns), (dh, dw) = c.kernel, c.stride, c.padding, c.dilation
    return (kh, kw), (sh, sw), (rows, columns), (dh, dw)


def _pack_depthwise(weight: Array, panel: int) -> Array:
    """Weights [channels, 1, *kernel] as [panels][kernel point][panel], zeros beyond the last channel."""
    channels = weight.shape[0]
    padded = np.zeros((-(-channels // panel) * panel, weight[0].size), weight.dtype)
    padded[:channels] = weight.reshape(channels, -1)
    return np.ascontiguousarray(padded.reshape(-1, panel, padded.shape[1]).transpose(0, 2, 1))
