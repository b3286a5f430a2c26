"""The right side of products that a host program repeats, kept as codes."""

from __future__ import annotations

from typing import Any

import sympy

from dhlo.codegen.families.epilogue import emit_store_rows
from dhlo.codegen.families.gemm.operands import Operands
from dhlo.codegen.families.gemm.packed_constant import coded_constant
from dhlo.codegen.families.gemm.quantised import QuantisedMatrix
from dhlo.codegen.families.gemm.quantised_product import QuantisedMatmul
from dhlo.codegen.families.gemm.register_tile import BF16
from dhlo.codegen.families.lowering import GroupHost, Lowering
from dhlo.codegen.kernel_ir.builder import F32, V
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.buffers import aligned

__all__ = ["CodedFactor"]


class CodedFactor:
    """Constant matrices [k, n] of codes: `Factor` of another form, for products with `rows` rows at most."""

    def __init__(self, low: Lowering, v: Any, matrix: QuantisedMatrix, rows: sympy.Expr, block: int) -> None:
        self.low, self.value, self.type, self.matrix = low, v, from_mlir(v), matrix
        self.product = QuantisedMatmul(self.type.dtype.name, low.tiles, matrix, block=block)
        self.workspace = aligned(self.product.workspace_bytes(rows))

    @staticmethod
    def of(low: Lowering, v: Any, rows: sympy.Expr, block: int = 0) -> CodedFactor | None:
        """None where a value isn't codes, or its type has no kernel for them. `block`: see `QuantisedMatmul`."""
        matrix = low.quantised(v) if from_mlir(v).dtype.name in (F32, BF16) else None
        return None if matrix is None else CodedFactor(low, v, matrix, rows, block)

    def emit_kernels(self) -> None:
        """Adds kernels and the codes to the module."""
        self.product.emit_kernels(self.low.module)
        self.store = emit_store_rows(self.low.module, self.type.dtype)
        self.packed = coded_constant(self.low, self.value, self.matrix)

    def prepare(self, host: GroupHost) -> None:
        """Computes what launches need; call it outside loops."""
        self.sizes = host.size(self.matrix.n), host.size(self.matrix.k)
        self.base, self.memory = host.constant(self.packed), host.workspace()

    def multiply(self, host: GroupHost, a: V, rows: V, out: V, which: V) -> None:
        """out [rows, n] = a [rows, k] times the matrix number `which`."""
        fn, (n, k) = host.fn, self.sizes
        zero, one = fn.i64(0), fn.i64(1)
        operands = Operands(
            a=a,
            b=fn.gep(self.base, fn.mul(which, self.matrix.matrix_bytes), "i8"),
            m=rows,
            n=n,
            k=k,
            a_strides=[zero, zero, k, one],
            b_strides=[zero, zero],
            batch=[one, one],
            epilogue=fn.address_of(self.store),
            epilogue_args=host.array([out, n]),
            workspace=self.memory,
        )
        self.product.emit_launch(host, operands)
