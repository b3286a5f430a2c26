"""Matrix products of groups: operands as views or packed constants, and the epilogue."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy
import torch

from dhlo.codegen.families.epilogue import epilogue_args, lower_epilogue
from dhlo.codegen.families.family import Family
from dhlo.codegen.families.gemm.matmul import Matmul, workspace_bytes
from dhlo.codegen.families.gemm.microkernel import BF16, unit
from dhlo.codegen.families.gemm.pack import pack_matrix
from dhlo.codegen.families.kernel import where
from dhlo.codegen.families.lowering import GroupHost, Lowering, anchor_of, view_pointer
from dhlo.codegen.kernel_ir.builder import BITS, F32, F64
from dhlo.errors import CompileError
from dhlo.ir.dialect import Kind
from dhlo.ir.symbols import exact_floors, product
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.views import View

__all__ = ["GemmFamily"]


class GemmFamily(Family):
    """A matrix product with its epilogue."""

    anchor = Kind.MATMUL.value

    def emit_kernels(self) -> None:
        low, group = self.low, self.group
        op = anchor_of(group, Kind.MATMUL)
        self.a_type, self.b_type = (from_mlir(v) for v in op.operands)
        self.out = from_mlir(op.results[0])
        elem = self.a_type.dtype.name
        if elem not in (F32, F64, BF16):
            raise CompileError(f"matmul of {elem} has no kernel yet", where=where(op))
        rest = self.b_type.shape[-1] % low.tiles.nr(elem)
        self.matmul = Matmul(elem, low.tiles, narrow=not rest.is_Integer or 0 < int(rest) <= low.tiles.lanes(elem))
        self.a = low.view(group, op.operands[0])
        self.flat = self.b_type.rank == 2  # all leading dims of the left side are rows
        self.epilogue = low.once(group, "epilogue", lambda: lower_epilogue(low.module, group, op, low.checks, self._place))
        value = low.constant_value(op.operands[1])
        self.packed: int | None = None
        self.workspace: sympy.Expr = sympy.Integer(0)
        if value is not None:
            self._pack(low, op.operands[1], value)
        else:
            self.b = low.view(group, op.operands[1])
            k, n = self.b_type.shape[-2:]
            self.workspace = exact_floors(workspace_bytes(product(self.b_type.shape[:-2]), n, k, elem, low.tiles))

    def _pack(self, low: Lowering, v: Any, value: torch.Tensor) -> None:
        k, n = value.shape[-2:]
        batch = value.numel() // (k * n) if k * n else 0
        nbytes, columns = int(workspace_bytes(1, n, k, self.matmul.elem, low.tiles)), low.tiles.panel(self.matmul.elem)

        def data() -> Any:
            mats = value.detach().reshape(batch, k, n)
            packed = [pack_matrix(m, columns) for m in mats]
            return packed[0] if len(packed) == 1 else np.concatenate([p.reshape(-1) for p in packed])

        self.packed = low.constants.add(("packed_b", low.constant_key(v), columns), batch * nbytes, data)
        self.packed_stride = nbytes * 8 // BITS[unit(self.matmul.elem)]

    def _place(self, em: Any, batch: Any, row: Any, column: Any) -> list[Any]:
        shape = self.out.shape
        if self.flat:
            return [*em.split(row, shape[:-1]), column]
        return [*em.split(batch, shape[:-2]), row, column]

    def emit_launch(self, host: GroupHost) -> None:
        shape, zero = self.out.shape, sympy.Integer(0)
        m = product(shape[:-1]) if self.flat else shape[-2]
        k = self.a_type.shape[-1]
        row = _row_stride(self.a) if self.flat else self.a.strides[-2]
        batch, a_batch, b_batch = [sympy.Integer(1)] * 2, [zero] * 2, [zero] * 2
        if not self.flat:
            groups = _batch_dims(
                shape[:-2], self.a.strides[:-2], self._packed_strides() if self.packed is not None else self.b.strides[:-2]
            )
            for i, (n, sa, sb) in enumerate(groups):
                batch[2 - len(groups) + i], a_batch[2 - len(groups) + i], b_batch[2 - len(groups) + i] = n, sa, sb
        strides = [host.size(s) for s in (*a_batch, row, self.a.strides[-1])]
        b_strides = [host.size(s) for s in b_batch]
        if self.packed is None:
            b_strides += [host.size(s) for s in self.b.strides[-2:]]
        epilogue, eargs = epilogue_args(host, self.epilogue)
        touch = self.epilogue.touch
        self.matmul.emit_launch(
            host,
            a=view_pointer(host, self.a),
            b=host.constant(self.packed) if self.packed is not None else view_pointer(host, self.b),
            m=host.size(m),
            n=host.size(shape[-1]),
            k=host.size(k),
            a_strides=strides,
            b_strides=b_strides,
            batch=[host.size(n) for n in batch],
            epilogue=epilogue,
            epilogue_args=eargs,
            touch=None if touch is None else host.fn.address_of(touch),
            workspace=None if self.packed is not None else host.workspace(),
            packed=self.packed is not None,
        )

    def _packed_strides(self) -> list[sympy.Expr]:
        n, out = sympy.Integer(self.packed_stride), []
        for s in reversed(self.b_type.shape[:-2]):
            out.append(n)
            n = n * s
        return list(reversed(out))


def _row_stride(view: View) -> sympy.Expr:
    """Distance of rows when all leading dims are counted as one."""
    for n, s in reversed(list(zip(view.shape[:-1], view.strides[:-1], strict=True))):
        if n != 1:
            return s
    return view.shape[-1]


def _batch_dims(sizes: Any, a: Any, b: Any) -> list[tuple[Any, Any, Any]]:
    """Joins batch dims that step regularly on both sides; the kernels take two."""
    out: list[tuple[Any, Any, Any]] = []
    for n, sa, sb in zip(sizes, a, b, strict=True):
        if n == 1:
            continue
        if out and (out[-1][1] - sa * n).expand() == 0 and (out[-1][2] - sb * n).expand() == 0:
            out[-1] = (out[-1][0] * n, sa, sb)
        else:
            out.append((n, sa, sb))
    if len(out) > 2:
        raise CompileError("a batched product whose batch dims step in more than two irregular ways has no kernel yet")
    return out
