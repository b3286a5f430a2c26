"""Convolutions of groups: weights packed beforehand or at each call, and the epilogue."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.conv.conv import Conv
from dhlo.codegen.families.conv.transposed import ConvTranspose
from dhlo.codegen.families.epilogue import epilogue_args, lower_epilogue
from dhlo.codegen.families.family import Family
from dhlo.codegen.families.kernel import where
from dhlo.codegen.families.lowering import GroupHost, anchor_of, view_pointer
from dhlo.errors import CompileError
from dhlo.ir.dialect import Kind, attr
from dhlo.ir.symbols import is_static
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.buffers import aligned

__all__ = ["ConvFamily"]


class ConvFamily(Family):
    """A convolution, transposed or not, with its epilogue."""

    anchor = Kind.CONVOLUTION.value

    def emit_kernels(self) -> None:
        low, group = self.low, self.group
        op = anchor_of(group, Kind.CONVOLUTION)
        self.x, w = (from_mlir(v) for v in op.operands)
        self.out = from_mlir(op.results[0])
        if self.x.dtype.name not in ("f32", "f64") or not w.is_static or not is_static(self.x.shape[1]):
            raise CompileError(
                f"convolution of {self.x} with {w} has no kernel yet",
                where=where(op),
                hint="channels and kernel must be static, elements f32 or f64",
            )
        self.view = low.view(group, op.operands[0])

        def get(n: str) -> Any:
            return attr(op, n)

        channels, kernel, groups = int(self.x.shape[1]), tuple(int(s) for s in w.shape[2:]), get("groups")
        self.conv: Conv | ConvTranspose
        self.workspace = sympy.Integer(0)
        if get("transposed"):
            self.conv = ConvTranspose(
                channels,
                int(w.shape[1]) * groups,
                kernel,
                tuple(get("stride")),
                tuple(get("padding")),
                tuple(get("output_padding")),
                tuple(get("dilation")),
                groups,
                self.x.dtype.name,
                spec=low.tiles,
            )
            self.workspace = aligned(self.out.bytes)
        else:
            self.conv = Conv(
                channels,
                int(w.shape[0]),
                kernel,
                tuple(get("stride")),
                tuple(op.pads),
                tuple(get("dilation")),
                groups,
                self.x.dtype.name,
                spec=low.tiles,
            )
        self.phases = self.workspace
        self.conv.emit_kernels(low.module)
        self.epilogue = low.once(group, "epilogue", lambda: lower_epilogue(low.module, group, op, low.checks, self._place))
        value = low.constant_value(op.operands[1])
        self.packed: int | None = None
        if value is not None:
            conv, weight = self.conv, value.detach().contiguous()
            self.packed = low.constants.add(
                ("packed_conv", conv.layout, low.constant_key(op.operands[1])),
                conv.workspace_bytes,
                lambda: np.ascontiguousarray(conv.pack_weight(weight.numpy())),
            )
        else:
            self.w = low.view(group, op.operands[1])
            self.workspace = self.workspace + self.conv.workspace_bytes

    def _place(self, em: Any, batch: Any, row: Any, column: Any) -> list[Any]:
        column = Index(column.base, column.step, column.vec)  # positions may start anywhere
        return [batch, row, *em.split(column, self.out.shape[2:])]

    def emit_launch(self, host: GroupHost) -> None:
        sizes = [host.size(s) for s in (self.x.shape[0], *self.x.shape[2:])]
        if self.packed is not None:
            w = host.constant(self.packed)
        else:
            w = host.fn.gep(host.workspace(), host.size(self.phases), "i8")
            self.conv.emit_pack(host, weight=view_pointer(host, self.w), packed=w)
        epilogue, eargs = epilogue_args(host, self.epilogue)
        x = view_pointer(host, self.view)
        if isinstance(self.conv, ConvTranspose):
            self.conv.emit_launch(
                host,
                x=x,
                w=w,
                sizes=sizes,
                epilogue=epilogue,
                epilogue_args=eargs,
                workspace=host.workspace() if self.phases != 0 else x,
            )
        else:
            self.conv.emit_launch(host, x=x, w=w, sizes=sizes, epilogue=epilogue, epilogue_args=eargs)
