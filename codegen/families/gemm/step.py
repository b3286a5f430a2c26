"""Matrix products of groups: operands as views or packed constants, and the epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import sympy

from dhlo.codegen.elementwise.emit import Emitter
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.epilogue import epilogue_args, lower_epilogue, touch_of
from dhlo.codegen.families.family import ChoiceFamily
from dhlo.codegen.families.gemm.matmul import Matmul, workspace_bytes
from dhlo.codegen.families.gemm.operands import Operands
from dhlo.codegen.families.gemm.packed_constant import coded_constant, packed_constant
from dhlo.codegen.families.gemm.parts import may_split, parts_bytes
from dhlo.codegen.families.gemm.quantised import QuantisedMatrix
from dhlo.codegen.families.gemm.quantised_product import QuantisedMatmul, rounded_steps
from dhlo.codegen.families.gemm.register_tile import BF16, F16, result_type, unit
from dhlo.codegen.families.kernel import where
from dhlo.codegen.families.lowering import GroupHost, Lowering, anchor_of, view_pointer
from dhlo.codegen.kernel_ir.builder import BITS, F32, F64, I8
from dhlo.errors import CompileError
from dhlo.ir.dialect import Kind, Op, attr, defining
from dhlo.ir.handles import Value
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.movement import Broadcast
from dhlo.ir.symbols import exact_floors, product
from dhlo.ir.types import TensorType, from_mlir
from dhlo.shape_infer.views import View

__all__ = ["GemmFamily"]


class GemmFamily(ChoiceFamily):
    """A matrix product [batch..., m, k] x [batch..., k, n] or [..., k] x [k, n] with its epilogue. A constant right side is packed
    beforehand."""

    anchor = Kind.MATMUL.value

    def __init__(self, low: Lowering, group: Group) -> None:
        super().__init__(low, group)
        self.op = op = anchor_of(group, Kind.MATMUL)
        self.a_type, self.b_type = (from_mlir(v) for v in op.operands)
        self.out = from_mlir(op.results[0])
        elem = self.a_type.dtype.name
        if elem not in (F32, F64, BF16, F16, I8, "ui8"):
            raise CompileError(f"matmul of {elem} has no kernel yet", where=where(op))
        of_bytes = elem in (I8, "ui8") and self.b_type.dtype.name == I8
        tiles = low.tiles.of_bytes(unsigned=elem == "ui8") if of_bytes else low.tiles
        elem = self.b_type.dtype.name
        rest = self.b_type.shape[-1] % tiles.nr(elem)
        self.matmul = Matmul(elem, tiles, narrow=not rest.is_Integer or 0 < int(rest) <= tiles.lanes(elem))
        self.a = low.view(group, op.operands[0])
        self.coded = None if elem == F64 else low.quantised(op.operands[1])
        if self.coded is None and self.a_type.dtype.name == I8 and not of_bytes:
            raise CompileError(f"product of bytes with {self.b_type} that is no codes has no kernel", where=where(op))
        self.matrices, dims = _repeated(op.operands[1])
        self.weight = None if self.coded is not None else low.constant_value(self.matrices)
        if self.weight is not None:
            self.matmul = replace(self.matmul, beside=low.weight_bytes)
        self.b = None if self.coded is not None or self.weight is not None else low.view(group, op.operands[1])
        b_strides = self._b_batch_strides(dims)
        # All leading dims of the left side are rows where one matrix serves them all.
        self.flat = self.b_type.rank == 2 or not any(b_strides) and len(_row_dims(self.out, self.a)) <= 1
        self.batch = [] if self.flat else _batch_dims(self.out.shape[:-2], self.a.strides[:-2], b_strides, op)
        if self.flat and self.coded is None:
            rows, (k, n) = product(self.out.shape[:-1]), self.b_type.shape[-2:]
            self.matmul = replace(self.matmul, splits=may_split(rows, n, k, elem, tiles))

    def emit_kernels(self) -> None:
        low = self.low
        form = "flat epilogue" if self.flat else "epilogue"
        self.epilogue = low.once(self.group, form, lambda: lower_epilogue(low.module, self.group, self.op, low.checks, self._place))
        if self.coded is not None:
            self._emit_coded(self.coded)
            return
        self.matmul.emit_kernels(low.module, packed=self.weight is not None)
        if self.weight is not None:
            self.packed = packed_constant(low, self.matrices, self.weight, self.matmul.spec)
        elif self.b is not None:
            k, n = self.b_type.shape[-2:]
            batch = product(n for n, s in zip(self.b_type.shape[:-2], self.b.strides[:-2], strict=True) if s != 0)
            self.workspace = exact_floors(workspace_bytes(batch, n, k, self.matmul.elem, self.matmul.spec))
        if self.matmul.splits:
            self.workspace += parts_bytes(self.matmul.elem, self.matmul.spec)

    def _emit_coded(self, matrix: QuantisedMatrix) -> None:
        """Kernels for codes, and these as a constant."""
        elem, steps, beside = self.a_type.dtype.name, rounded_steps(self.op), self.low.weight_bytes
        self.product = QuantisedMatmul(elem, self.matmul.spec, matrix, self.matmul.narrow, steps, beside)
        self.product.emit_kernels(self.low.module)
        self.packed = coded_constant(self.low, self.op.operands[1], matrix)
        self.workspace = self.product.workspace_bytes(product(self.a_type.shape[:-1]))

    def _place(self, em: Emitter, batch: Index, row: Index, column: Index) -> list[Index]:
        shape = self.out.shape
        if self.flat:
            return [*em.split(row, shape[:-1]), column]
        return [*em.split(batch, shape[:-2]), row, column]

    def emit_launch(self, host: GroupHost) -> None:
        shape, zero = self.out.shape, sympy.Integer(0)
        m = product(shape[:-1]) if self.flat else shape[-2]
        k = self.a_type.shape[-1]
        rows = _row_dims(self.out, self.a) if self.flat else ()
        row = rows[-1][1] if rows else self.a.strides[-2]
        one = (sympy.Integer(1), zero, zero)
        batch, a_batch, b_batch = zip(*([one] * (2 - len(self.batch)) + self.batch), strict=True)
        strides = [host.size(s) for s in (*a_batch, row, self.a.strides[-1])]
        b_strides = [host.size(s) for s in (*b_batch, *(() if self.b is None else self.b.strides[-2:]))]
        epilogue, eargs = epilogue_args(host, self.epilogue)
        b = view_pointer(host, self.b) if self.b is not None else host.constant(self.packed)
        operands = Operands(
            a=view_pointer(host, self.a),
            b=b,
            m=host.size(m),
            n=host.size(shape[-1]),
            k=host.size(k),
            a_strides=strides,
            b_strides=b_strides,
            batch=[host.size(n) for n in batch],
            epilogue=epilogue,
            epilogue_args=eargs,
            touch=touch_of(host, self.epilogue),
            workspace=host.workspace() if self.b is not None or self.coded is not None else None,
            parts=host.workspace() if self.matmul.splits else None,
            result=host.pointer(self.group.results[0]) if self.epilogue.stores == result_type(self.matmul.elem) else None,
        )
        (self.matmul if self.coded is None else self.product).emit_launch(host, operands)

    def _b_batch_strides(self, dims: Sequence[int | None]) -> Sequence[sympy.Expr]:
        """Of the right side's batch dims: in elements of its view, in panel units where it is packed, in bytes of codes. `dims`
        says which of the packed matrices' each is, None where they are repeated."""
        if self.b is not None:
            return self.b.strides[:-2]
        shape = self.b_type.shape if self.coded is not None else from_mlir(self.matrices).shape
        k, n = (int(s) for s in shape[-2:])
        units = int(workspace_bytes(1, n, k, self.matmul.elem, self.matmul.spec)) * 8 // BITS[unit(self.matmul.elem)]
        out = [sympy.Integer(units if self.coded is None else self.coded.matrix_bytes)]
        for s in reversed(shape[1:-2]):
            out.append(out[-1] * s)
        dense = out[::-1]
        return [sympy.Integer(0) if d is None else dense[d] for d in dims]


def _repeated(v: Value) -> tuple[Value, list[int | None]]:
    """The matrices that a value [batch..., k, n] repeats, and which of their dims each of its batch dims is; None for others."""
    op, rank = defining(v), from_mlir(v).rank
    identity: list[int | None] = list(range(rank - 2))
    if not isinstance(op, Broadcast):
        return v, identity
    inner, out, dims = from_mlir(op.operands[0]), from_mlir(v), attr(op, "dims")
    if dims[-2:] != [rank - 2, rank - 1] or inner.shape[-2:] != out.shape[-2:]:
        return v, identity
    source, known = _repeated(op.operands[0])
    found: list[int | None] = [None] * (rank - 2)
    for i, d in enumerate(dims[:-2]):
        if inner.shape[i] != 1:
            found[d] = known[i]
    return source, found


_Batch = tuple[sympy.Expr, sympy.Expr, sympy.Expr]


def _row_dims(out: TensorType, a: View) -> Sequence[_Batch]:
    """The dims of the left side before k, those joined that step regularly."""
    return _joined(out.shape[:-1], a.strides[:-1], [sympy.Integer(0)] * (out.rank - 1))


def _batch_dims(sizes: Sequence[sympy.Expr], a: Sequence[sympy.Expr], b: Sequence[sympy.Expr], op: Op) -> list[_Batch]:
    """The batch dims that are left where those are joined that step regularly; the kernels take two."""
    out = _joined(sizes, a, b)
    if len(out) > 2:
        raise CompileError("a product whose batch dims step in more than two irregular ways has no kernel yet", where=where(op))
    return out


def _joined(sizes: Sequence[sympy.Expr], a: Sequence[sympy.Expr], b: Sequence[sympy.Expr]) -> list[_Batch]:
    """Size and strides on both sides of dims, those joined that step regularly on both."""
    out: list[_Batch] = []
    for n, sa, sb in zip(sizes, a, b, strict=True):
        if n == 1:
            continue
        if out and (out[-1][1] - sa * n).expand() == 0 and (out[-1][2] - sb * n).expand() == 0:
            out[-1] = (out[-1][0] * n, sa, sb)
        else:
            out.append((n, sa, sb))
    return out
