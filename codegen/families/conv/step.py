"""Convolutions of groups: weights packed beforehand or at each call, and the epilogue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import sympy

from dhlo.codegen.elementwise.emit import Emitter
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.conv.conv import Conv
from dhlo.codegen.families.conv.layout import Array
from dhlo.codegen.families.conv.quantised_weights import code_of
from dhlo.codegen.families.conv.transposed import ConvTranspose
from dhlo.codegen.families.conv.winograd_transforms import SIDES
from dhlo.codegen.families.epilogue import Epilogue, epilogue_args, lower_epilogue, touch_of
from dhlo.codegen.families.family import ChoiceFamily
from dhlo.codegen.families.gemm.register_tile import TileSpec
from dhlo.codegen.families.kernel import where
from dhlo.codegen.families.lowering import GroupHost, Lowering, anchor_of, view_pointer
from dhlo.codegen.kernel_ir.builder import V
from dhlo.errors import CompileError
from dhlo.ir.coded import stored_image, takes_narrow
from dhlo.ir.dialect import Kind, attr, defining
from dhlo.ir.gates import gate_of, product_of
from dhlo.ir.handles import Value
from dhlo.ir.nans import with_plain_nans
from dhlo.ir.ops.control import Group
from dhlo.ir.symbols import is_static
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.buffers import aligned
from dhlo.shape_infer.cost import Cost

__all__ = ["ConvFamily", "image_of", "parameters"]


class ConvFamily(ChoiceFamily):
    """A convolution, transposed or not, with its epilogue."""

    anchor = Kind.CONVOLUTION.value

    def __init__(self, low: Lowering, group: Group) -> None:
        super().__init__(low, group)
        self.op = op = anchor_of(group, Kind.CONVOLUTION)
        self.x, w = (from_mlir(v) for v in op.operands)
        image, stored = image_of(group, op)
        found = gate_of(op) if self._makes(product_of(op)) else None
        self.gates = None if found is None else low.view(group, found[1])
        self.out = from_mlir(op.results[0])
        if self.x.dtype.name not in ("f32", "f64") or not w.is_static or not is_static(self.x.shape[1]):
            raise CompileError(
                f"convolution of {self.x} with {w} has no kernel yet",
                where=where(op),
                hint="channels and kernel must be static, elements f32 or f64",
            )
        self.view = low.view(group, image if found is None else found[0])
        kept = low.kept_codes(op.operands[1]) if self.x.dtype.name == "f32" and takes_narrow(op, 1) else None
        code = "" if kept is None else code_of(*kept)
        self.weight = kept[1] if kept is not None and code else low.constant_value(op.operands[1])
        # Weights that are packed at each call are read by this target alone.
        tiles = low.tiles if self.weight is not None else low.tiles.alone
        self.conv = parameters(op, tiles, SIDES if low.winograd else (), code, found is not None, stored)
        self.phases: sympy.Expr = sympy.Integer(0)  # bytes of a transposed convolution's outputs before they are interleaved
        if isinstance(self.conv, ConvTranspose) and self.conv.interleaves:
            elements = self.conv.kept_elements(self.out.shape[0], self.out.shape[2:])
            self.phases = aligned(elements * self.out.dtype.bits // 8)
        self.workspace = self.phases + (0 if self.weight is not None else self.conv.workspace_bytes)

    def emit_kernels(self) -> None:
        low, op, conv = self.low, self.op, self.conv
        conv.emit_kernels(low.module)
        if self.weight is None:
            conv.emit_pack_kernel(low.module)
        self.epilogue: Epilogue = low.once(
            self.group, "epilogue", lambda: lower_epilogue(low.module, self.group, op, low.checks, self._place)
        )
        if self.weight is not None:
            weight = self.weight.detach().contiguous()
            key = ("packed_conv", *conv.layouts, low.constant_key(op.operands[1]))

            def pack() -> Array:
                if conv.code:
                    return conv.pack_codes(weight)
                return conv.pack_weight(with_plain_nans(weight).numpy())

            self.packed = low.constants.add((*key, conv.code), conv.workspace_bytes, pack)

    def cost(self) -> Cost:
        """Winograd's kernels multiply less, and add instead."""
        cost = super().cost()
        shares = self.conv.winograd_shares(self.low.module)
        return replace(cost, variants={kernel: cost.flops * share for kernel, share in shares.items()})

    def _place(self, em: Emitter, batch: Index, row: Index, column: Index) -> list[Index]:
        column = Index(column.base, column.step, column.vec)  # positions may start anywhere
        return [batch, row, *em.split(column, self.out.shape[2:])]

    def emit_launch(self, host: GroupHost) -> None:
        sizes = [host.size(s) for s in (self.x.shape[0], *self.x.shape[2:])]
        w, x = self._weights(host), view_pointer(host, self.view)
        epilogue, eargs = epilogue_args(host, self.epilogue)
        if isinstance(self.conv, ConvTranspose):
            memory = host.workspace() if self.phases != 0 else x
            self.conv.emit_launch(host, x=x, w=w, sizes=sizes, epilogue=epilogue, epilogue_args=eargs, workspace=memory)
        else:
            gates = [] if self.gates is None else [view_pointer(host, self.gates)]
            self.conv.emit_launch(
                host,
                x=x,
                w=w,
                sizes=sizes,
                epilogue=epilogue,
                epilogue_args=eargs,
                gates=gates,
                touch=touch_of(host, self.epilogue),
            )

    def _makes(self, op: Any) -> bool:
        """Whether an op is one of the group's."""
        return op is not None and op.operation.block == self.group.operation.regions[0].blocks[0]

    def _weights(self, host: GroupHost) -> V:
        """Address of the packed weights."""
        if self.weight is not None:
            return host.constant(self.packed)
        packed = host.fn.gep(host.workspace(), host.size(self.phases), "i8")
        view = self.low.view(self.group, self.op.operands[1])
        self.conv.emit_pack(host, weight=view_pointer(host, view), packed=packed)
        return packed


def image_of(group: Group, op: Any) -> tuple[Value, str]:
    """A convolution's image as it lies in memory, and its type where the group's kernels widen it, else ""."""
    image, made = stored_image(op), defining(op.operands[0])
    if image is None or made is None or made.operation.block != group.operation.regions[0].blocks[0]:
        return op.operands[0], ""
    return image, from_mlir(image).dtype.name


def parameters(
    op: Any, spec: TileSpec, winograd: tuple[int, ...], code: str = "", gated: bool = False, image: str = ""
) -> Conv | ConvTranspose:
    """The static parameters of a dhlo.convolution; `winograd` are the sides of tiles that it may choose from, `code` is the form of
    weights that are kept as codes; `gated`: its kernels multiply its image by gates; `image`: its type in memory, where the kernels
    widen it."""
    x, w = (from_mlir(v) for v in op.operands)
    groups, stride, dilation = attr(op, "groups"), tuple(attr(op, "stride")), tuple(attr(op, "dilation"))
    channels, kernel, elem = int(x.shape[1]), tuple(int(s) for s in w.shape[2:]), x.dtype.name
    if not attr(op, "transposed"):
        pads, outs = tuple(op.pads), int(w.shape[0])
        form: Any = {"spec": spec, "winograd": winograd, "code": code, "gated": gated, "image": image}
        return Conv(channels, outs, kernel, stride, pads, dilation, groups, elem, **form)
    padding, output_padding = tuple(attr(op, "padding")), tuple(attr(op, "output_padding"))
    outs = int(w.shape[1]) * groups
    pads = (padding, output_padding)
    own: Any = {"spec": spec, "winograd": winograd, "code": code, "image": image}
    return ConvTranspose(channels, outs, kernel, stride, *pads, dilation, groups, elem, **own)
