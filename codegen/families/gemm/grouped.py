"""Grouped matrix products."""

from __future__ import annotations

from dhlo.codegen.families.box import COPY_WORK, grain_of
from dhlo.codegen.families.family import ChoiceFamily
from dhlo.codegen.families.gemm.factor import Factor
from dhlo.codegen.families.gemm.quantised_factor import CodedFactor
from dhlo.codegen.families.gemm.quantised_product import rounded_steps
from dhlo.codegen.families.lowering import GroupHost, Lowering, anchor_of, view_pointer
from dhlo.codegen.kernel_ir.builder import I8, I64, PTR, KernelModule
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args
from dhlo.ir.dialect import Kind
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.sequence import GroupedMatmul, RoundedGroupedMatmul
from dhlo.ir.types import from_mlir

__all__ = ["GroupedGemmFamily"]


class GroupedGemmFamily(ChoiceFamily):
    """Rows [s, k] sorted by group times the group's matrix of [e, k, n]: one product a group that has rows, and zeros in the rows
    after the last."""

    anchor = Kind.OPAQUE.value
    ops = (GroupedMatmul, RoundedGroupedMatmul)

    def __init__(self, low: Lowering, group: Group) -> None:
        super().__init__(low, group)
        op = anchor_of(group, Kind.OPAQUE)
        self.x, self.offsets = (low.view(group, op.operands[i]) for i in (0, 2))
        self.offset_type = from_mlir(op.operands[2]).dtype
        coded = CodedFactor.of(low, op.operands[1], self.x.shape[0], rounded_steps(op))
        self.w = Factor(low, group, op, 1, transposed=False) if coded is None else coded

    def emit_kernels(self) -> None:
        self.w.emit_kernels()
        self.workspace = self.w.workspace
        self.zero = _emit_zero(self.low.module)

    def emit_launch(self, host: GroupHost) -> None:
        fn, dtype = host.fn, self.w.type.dtype
        self.w.prepare(host)
        n, k = self.w.sizes
        rows, groups = host.size(self.x.shape[0]), host.size(self.w.type.shape[0])
        x, y, offsets = view_pointer(host, self.x), host.pointer(self.group.results[0]), view_pointer(host, self.offsets)
        host.mark_data_dependent()
        with fn.loop(0, groups, 1, [fn.const(0, I64)]) as lp:
            start = lp.carried[0]
            at = fn.gep(offsets, lp.iv, self.offset_type.name)
            end = host.unless_planning(lambda: fn.cast(fn.load(at, self.offset_type.name), I64), rows)
            end = fn.min(fn.max(end, start), rows)
            with fn.when(fn.cmp("lt", start, end)):
                a, out = fn.gep(x, fn.mul(start, k), dtype.name), fn.gep(y, fn.mul(start, n), dtype.name)
                self.w.multiply(host, a, fn.sub(end, start), out, lp.iv)
            lp.yield_(end)
        start = lp.results[0]
        rest = fn.mul(fn.mul(fn.sub(rows, start), n), dtype.bytes)
        host.launch(self.zero, [fn.gep(y, fn.mul(start, n), dtype.name)], rest, grain_of(host, COPY_WORK))


def _emit_zero(module: KernelModule) -> str:
    """Emits (once) a kernel that clears bytes: (to), item = one byte."""
    name = "zero_flat"
    if name not in module.functions:
        fn = kernel_fn(module, name)
        (to,) = load_args(fn, [PTR])
        n, first, zero = fn.sub(fn.args[2], fn.args[1]), fn.gep(to, fn.args[1], I8), fn.const(0, I8)
        operands = f"{first.name}, {zero.name}, {n.name}"
        fn.raw(f'"llvm.intr.memset"({operands}) <{{isVolatile = false}}> : (!llvm.ptr, i8, i64) -> ()')
        fn.done()
    return name
