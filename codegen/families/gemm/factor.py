"""The right side of products that a host program repeats: packed once, multiplied often."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import sympy
import torch

from dhlo.codegen.families.epilogue import emit_store_rows
from dhlo.codegen.families.gemm.matmul import Matmul, workspace_bytes
from dhlo.codegen.families.gemm.operands import Operands
from dhlo.codegen.families.gemm.pack import pack_matrix
from dhlo.codegen.families.gemm.register_tile import result_type, unit
from dhlo.codegen.families.kernel import where
from dhlo.codegen.families.lowering import GroupHost, Lowering, view_pointer
from dhlo.codegen.kernel_ir.builder import BITS, V
from dhlo.errors import CompileError
from dhlo.ir.dialect import Op
from dhlo.ir.ops.control import Group
from dhlo.ir.symbols import as_expr, exact_floors
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.buffers import aligned

__all__ = ["Factor"]


class Factor:
    """The right side of products: one or more matrices [k, n], packed beforehand if constant, else at each use.
    `transposed` matrices are stored [n, k]."""

    def __init__(self, low: Lowering, group: Group, op: Op, i: int, *, transposed: bool) -> None:
        """Raises CompileError where elements of this dtype have no kernel."""
        self.low, v = low, op.operands[i]
        self.type = from_mlir(v)
        elem = self.type.dtype.name
        if elem not in ("f32", "f64", "bf16"):
            raise CompileError(f"{op.OPERATION_NAME} of {elem} has no kernel yet", where=where(op))
        self.matmul, self.transposed = Matmul(elem, low.tiles), transposed
        self.n, self.k = self.type.shape[-2:] if transposed else tuple(reversed(self.type.shape[-2:]))
        self.bytes = exact_floors(workspace_bytes(sympy.Integer(1), as_expr(self.n), as_expr(self.k), elem, low.tiles))
        value = low.constant_value(v)
        self.value = value if value is not None and value.numel() else None
        self.view = low.view(group, v) if self.value is None else None
        self.key = ("packed_b", low.constant_key(v), transposed, low.tiles.panel(elem)) if self.value is not None else None
        self.packed: int | None = None

    def emit_kernels(self, at: sympy.Expr | int = 0) -> None:
        """Adds kernels and constants to the module; `at` is where this factor's part of the group's workspace begins, in bytes."""
        low, value = self.low, self.value
        self.matmul.emit_kernels(low.module, packed=value is not None)
        self.store = emit_store_rows(low.module, self.type.dtype)
        self.at, self.workspace = at, aligned(self.bytes) if value is None else sympy.Integer(0)
        if value is not None:
            count = value.numel() // (value.shape[-1] * value.shape[-2])
            self.packed = low.constants.add(self.key, count * int(self.bytes), lambda: self._pack(value))

    def _pack(self, value: torch.Tensor) -> npt.NDArray[Any]:
        mats = value.detach().reshape(-1, *value.shape[-2:])
        columns = self.matmul.spec.panel(self.matmul.elem)
        return np.concatenate([pack_matrix(m.t() if self.transposed else m, columns).reshape(-1) for m in mats])

    def prepare(self, host: GroupHost) -> None:
        """Computes what launches need; call it outside loops."""
        self.sizes = host.size(self.n), host.size(self.k)
        self.memory, self.strides = None, list[V]()
        if self.view is None:
            assert self.packed is not None
            self.base, each = host.constant(self.packed), self.bytes * 8 // BITS[unit(self.matmul.elem)]
        else:
            self.base, each = view_pointer(host, self.view), self.view.strides[0]
            strides = [host.size(s) for s in self.view.strides[-2:]]
            self.strides = strides[::-1] if self.transposed else strides
            self.memory = host.fn.gep(host.workspace(), host.size(self.at), "i8")
        self.step = host.size(each) if self.type.rank == 3 else None

    def multiply(self, host: GroupHost, a: V, rows: V, out: V, which: V | None = None) -> None:
        """out [rows, n] = a [rows, k] times the matrix (number `which`)."""
        fn, elem = host.fn, self.matmul.elem
        n, k = self.sizes
        b = self.base
        if which is not None and self.step is not None:
            b = fn.gep(b, fn.mul(which, self.step), unit(elem) if self.packed is not None else elem)
        zero, one = fn.i64(0), fn.i64(1)
        operands = Operands(
            a=a,
            b=b,
            m=rows,
            n=n,
            k=k,
            a_strides=[zero, zero, k, one],
            b_strides=[zero, zero, *self.strides],
            batch=[one, one],
            epilogue=fn.address_of(self.store),
            epilogue_args=host.array([out, n]),
            workspace=self.memory,
            result=out if self.type.dtype.name == result_type(elem) else None,
        )
        self.matmul.emit_launch(host, operands)
