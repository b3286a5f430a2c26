"""Which kernels serve an op that is a group of its own: running sums, ordering, writing by index, recurrences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy

from dhlo.codegen.families.extern.extern import ExternStep
from dhlo.codegen.families.kernel import Launch, where
from dhlo.codegen.families.loops.interleave import lower_interleave
from dhlo.codegen.families.reduce.argreduce import lower_argreduce
from dhlo.codegen.families.scan.scan import lower_scan
from dhlo.codegen.families.scatter.scatter import lower_scatter
from dhlo.codegen.families.scatter.update_slice import lower_update_slice
from dhlo.codegen.families.sequence import FftStep, GroupedMatmulStep, RecurrentStep, emit_copy
from dhlo.codegen.families.sort.lexsort import lower_lexsort
from dhlo.codegen.families.sort.search import lower_histogram, lower_search_sorted
from dhlo.codegen.families.sort.sort import lower_sort, lower_topk
from dhlo.codegen.families.steps import GroupHost, LaunchStep, Lowering, Step, anchor_of, view_pointer
from dhlo.errors import CompileError
from dhlo.ir.dialect import Kind, Op
from dhlo.ir.ops.complexes import Interleave
from dhlo.ir.ops.compute import ArgReduce, Scan
from dhlo.ir.ops.extern import Extern
from dhlo.ir.ops.lookup import Histogram, LexSort, Scatter, SearchSorted, Sort, TopK, UpdateSlice
from dhlo.ir.ops.sequence import Fft, GroupedMatmul, Gru, Lstm, Rnn
from dhlo.ir.types import from_mlir

__all__ = ["opaque_step"]

Lower = Callable[[Lowering, Any, Any], Launch]
LAUNCHES: dict[type[Op], Lower] = {
    ArgReduce: lower_argreduce,
    Scan: lower_scan,
    Histogram: lower_histogram,
    Interleave: lower_interleave,
    SearchSorted: lower_search_sorted,
    LexSort: lower_lexsort,
    Sort: lower_sort,
    TopK: lower_topk,
}


class _WriteStep:
    """The operand copied to the result, unless that is the operand's own memory; then the source combined into it."""

    workspace: sympy.Expr = sympy.Integer(0)

    def __init__(self, low: Lowering, group: Any) -> None:
        op = anchor_of(group, Kind.OPAQUE)
        lower = lower_scatter if isinstance(op, Scatter) else lower_update_slice
        self.x, self.result = low.view(group, op.operands[0]), group.results[0]
        self.bytes = from_mlir(op.results[0]).bytes
        self.writes = LaunchStep(low.once(group, "kernel", lambda: lower(low, group, op)))

    def emit(self, host: GroupHost) -> None:
        if not host.is_written_over(self.result):
            emit_copy(host, view_pointer(host, self.x), host.pointer(self.result), host.size(self.bytes))
        self.writes.emit(host)


STEPS: dict[type[Op], Callable[[Lowering, Any], Step]] = {
    Extern: ExternStep,
    Fft: FftStep,
    GroupedMatmul: GroupedMatmulStep,
    Gru: RecurrentStep,
    Lstm: RecurrentStep,
    Rnn: RecurrentStep,
    Scatter: _WriteStep,
    UpdateSlice: _WriteStep,
}


def opaque_step(low: Lowering, group: Any) -> Step:
    """The step of a group around one op of Kind.OPAQUE. Raises CompileError where there is no kernel."""
    op = anchor_of(group, Kind.OPAQUE)
    if any(from_mlir(v).dtype.is_complex for v in op.operands):
        raise CompileError(f"{op.OPERATION_NAME} of complex numbers has no kernel yet", where=where(op))
    if type(op) in STEPS:
        return STEPS[type(op)](low, group)
    if type(op) not in LAUNCHES:
        raise CompileError(f"{op.OPERATION_NAME} has no kernel yet", where=where(op))
    return LaunchStep(low.once(group, "kernel", lambda: LAUNCHES[type(op)](low, group, op)))
