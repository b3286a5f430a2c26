"""Grouped matrix products."""

from __future__ import annotations

from dhlo.codegen.families.copy.zero import emit_zero
from dhlo.codegen.families.family import Family
from dhlo.codegen.families.gemm.factor import Factor
from dhlo.codegen.families.lowering import GroupHost, anchor_of, view_pointer
from dhlo.codegen.kernel_ir.builder import I64
from dhlo.ir.dialect import Kind
from dhlo.ir.ops.sequence import GroupedMatmul
from dhlo.ir.types import from_mlir

__all__ = ["GroupedGemmFamily"]


BYTES_GRAIN = 1 << 16


class GroupedGemmFamily(Family):
    """Rows sorted by group times the group's matrix: one product a group that has rows."""

    anchor = Kind.OPAQUE.value
    ops = (GroupedMatmul,)

    def emit_kernels(self) -> None:
        low, group = self.low, self.group
        self.op, self.group = anchor_of(group, Kind.OPAQUE), group
        self.x, self.offsets = (low.view(group, self.op.operands[i]) for i in (0, 2))
        self.w = Factor(low, group, self.op, 1, transposed=False)
        self.workspace = self.w.workspace

    def emit_launch(self, host: GroupHost) -> None:
        fn, dtype = host.fn, self.w.type.dtype
        self.w.prepare(host)
        n, k = self.w.sizes
        rows, groups = host.size(self.x.shape[0]), host.size(self.w.type.shape[0])
        x, y, offsets = (
            view_pointer(host, self.x),
            host.pointer(self.group.results[0]),
            view_pointer(host, self.offsets),
        )
        width = from_mlir(self.op.operands[2]).dtype
        host.mark_data_dependent()
        with fn.loop(0, groups, 1, [fn.const(0, I64)]) as lp:
            start = lp.carried[0]
            at = fn.gep(offsets, lp.iv, width.name)
            end = host.unless_planning(lambda: fn.cast(fn.load(at, width.name), I64), rows)
            end = fn.min(fn.max(end, start), rows)
            with fn.when(fn.cmp("lt", start, end)):
                self.w.multiply(
                    host,
                    fn.gep(x, fn.mul(start, k), dtype.name),
                    fn.sub(end, start),
                    fn.gep(y, fn.mul(start, n), dtype.name),
                    lp.iv,
                )
            lp.yield_(end)
        start = lp.results[0]
        host.launch(
            emit_zero(host.module),
            [fn.gep(y, fn.mul(start, n), dtype.name)],
            fn.mul(fn.mul(fn.sub(rows, start), n), dtype.bytes),
            BYTES_GRAIN,
        )
