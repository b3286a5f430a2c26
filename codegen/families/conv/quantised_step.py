"""Convolutions of bytes of groups: constant weights, units of the image in the workspace, and the epilogue."""

from __future__ import annotations

from dataclasses import replace

from dhlo.codegen.elementwise.emit import Emitter
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.conv.quantised import ByteConv
from dhlo.codegen.families.epilogue import Epilogue, epilogue_args, lower_epilogue, touch_of
from dhlo.codegen.families.family import ChoiceFamily
from dhlo.codegen.families.kernel import where
from dhlo.codegen.families.lowering import GroupHost, Lowering, anchor_of, view_pointer
from dhlo.errors import CompileError
from dhlo.ir.dialect import Kind, attr
from dhlo.ir.ops.compute import ConvBytes
from dhlo.ir.ops.control import Group
from dhlo.ir.symbols import product
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.buffers import aligned
from dhlo.shape_infer.cost import Cost

__all__ = ["ConvBytesFamily"]


class ConvBytesFamily(ChoiceFamily):
    """A convolution of bytes with its epilogue."""

    anchor = Kind.CONVOLUTION.value

    @classmethod
    def matches(cls, group: Group) -> bool:
        inside = group.operation.regions[0].blocks[0].operations
        return attr(group, "anchor") == cls.anchor and any(isinstance(op, ConvBytes) for op in inside)

    def __init__(self, low: Lowering, group: Group) -> None:
        super().__init__(low, group)
        op = anchor_of(group, Kind.CONVOLUTION)
        assert isinstance(op, ConvBytes)
        self.op = op
        self.x, w = (from_mlir(v) for v in op.operands)
        self.out = from_mlir(op.results[0])
        self.view = low.view(group, op.operands[0])
        self.weight = low.constant_value(op.operands[1])
        if self.weight is None:
            raise CompileError(f"{op.OPERATION_NAME} of weights that aren't constant has no kernel", where=where(op))
        self.conv = ByteConv(
            int(self.x.shape[1]),
            int(w.shape[0]),
            tuple(int(s) for s in w.shape[2:]),
            tuple(attr(op, "stride")),
            tuple(op.pads),
            tuple(attr(op, "dilation")),
            attr(op, "groups"),
            attr(op, "zero"),
            replace(low.tiles, unsigned=self.x.dtype.name == "ui8"),
        )
        width = (self.out if self.conv.by_columns else self.x).shape[-1]
        positions = product([*self.x.shape[:1], *self.x.shape[2:-1], width])
        self.workspace = aligned(4 * self.conv.groups * self.conv.units * positions)

    def emit_kernels(self) -> None:
        low, op, conv = self.low, self.op, self.conv
        conv.emit_kernels(low.module)
        self.epilogue: Epilogue = low.once(
            self.group, "epilogue", lambda: lower_epilogue(low.module, self.group, op, low.checks, self._place)
        )
        weight = self.weight
        assert weight is not None
        key = ("packed_conv_bytes", conv.key, low.constant_key(op.operands[1]))
        self.packed = low.constants.add(key, conv.weight_bytes, lambda: conv.pack_weight(weight.detach().contiguous().numpy()))

    def cost(self) -> Cost:
        """Winograd's kernel multiplies less, and adds instead."""
        cost, shares = super().cost(), self.conv.conv.winograd_shares(self.low.module)
        return replace(cost, variants={kernel: cost.flops * share for kernel, share in shares.items()})

    def _place(self, em: Emitter, batch: Index, row: Index, column: Index) -> list[Index]:
        column = Index(column.base, column.step, column.vec)  # positions may start anywhere
        return [batch, row, *em.split(column, self.out.shape[2:])]

    def emit_launch(self, host: GroupHost) -> None:
        sizes = [host.size(s) for s in (self.x.shape[0], *self.x.shape[2:])]
        epilogue, eargs = epilogue_args(host, self.epilogue)
        self.conv.emit_launch(
            host,
            x=view_pointer(host, self.view),
            w=host.constant(self.packed),
            sizes=sizes,
            workspace=host.workspace(),
            epilogue=epilogue,
            epilogue_args=eargs,
            touch=touch_of(host, self.epilogue),
        )
