"""Calls of C functions from the host program."""

from __future__ import annotations

from collections.abc import Sequence

from dhlo.codegen.families.family import ChoiceFamily
from dhlo.codegen.families.kernel import where
from dhlo.codegen.families.lowering import GroupHost, Lowering, anchor_of, view_pointer
from dhlo.codegen.kernel_ir import abi
from dhlo.codegen.kernel_ir.builder import F64, I32, I64, PTR, V
from dhlo.ir.dialect import Kind, attr
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.extern import Extern
from dhlo.ir.ops.movement import number
from dhlo.ir.symbols import parse
from dhlo.ir.types import TensorType, from_mlir

__all__ = ["ExternFamily"]


class ExternFamily(ChoiceFamily):
    """One call, on the thread that runs the model."""

    anchor = Kind.OPAQUE.value
    ops = (Extern,)

    def __init__(self, low: Lowering, group: Group) -> None:
        super().__init__(low, group)
        op = anchor_of(group, Kind.OPAQUE)
        self.symbol: str = attr(op, "symbol")
        self.numbers: list[str] = attr(op, "numbers")
        self.views = [low.view(group, v) for v in op.operands]
        self.types, self.results = [from_mlir(v) for v in op.operands], list(group.results)
        self.error = f"'{self.symbol}' at {where(op)} returned an error"

    def emit_kernels(self) -> None:
        self.check = self.low.checks.add("ASSERT", self.error)
        self.low.module.declare(self.symbol, [PTR, PTR, PTR], I32)

    def emit_launch(self, host: GroupHost) -> None:
        fn = host.fn
        inputs = self._tensors(host, [view_pointer(host, v) for v in self.views], self.types)
        outputs = self._tensors(host, [host.pointer(v) for v in self.results], [from_mlir(v) for v in self.results])
        numbers = host.array([self._number(host, text) for text in self.numbers])

        def call() -> V:
            status = fn.call(self.symbol, [inputs, outputs, numbers], I32)
            assert status is not None
            return status

        status = host.unless_planning(call, fn.const(0, I32))
        zero = fn.i64(0)
        host.require(fn.cmp("eq", status, 0), self.check, zero, zero)

    def _number(self, host: GroupHost, text: str) -> V:
        value = number(text)
        return host.size(parse(text)) if value is None else host.fn.const(value, F64 if isinstance(value, float) else I64)

    def _tensors(self, host: GroupHost, pointers: Sequence[V], types: Sequence[TensorType]) -> V:
        """An array of dense dhlo_tensor on the stack."""
        fn, words = host.fn, abi.TENSOR_BYTES // 8
        array = fn.alloca(max(1, len(types)) * words, I64, 8)
        for k, (p, t) in enumerate(zip(pointers, types, strict=True)):
            sizes = host.array([host.size(s) for s in t.shape])
            kind = fn.const(t.dtype.code | t.rank << 32, I64)  # dtype and rank share a word
            for field, x in (
                ("data", p),
                ("sizes", sizes),
                ("strides", fn.i64(0)),
                ("dtype", kind),
                ("capacity", host.size(t.bytes)),
            ):
                fn.store(x, fn.gep(array, k * words + abi.TENSOR[field] // 8, I64), 8)
        return array
