"""Steps for ops with kernels of their own: running combinations, ordering, writing by index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy

from dhlo.codegen.kernel import Launch, where
from dhlo.codegen.kernels.argreduce import lower_argreduce
from dhlo.codegen.kernels.scan import lower_scan
from dhlo.codegen.kernels.scatter import lower_copy, lower_scatter
from dhlo.codegen.kernels.search import lower_histogram, lower_search_sorted
from dhlo.codegen.kernels.sort import lower_sort, lower_topk
from dhlo.codegen.sequence import FftStep, GroupedMatmulStep, RecurrentStep
from dhlo.codegen.steps import GroupHost, LaunchStep, Lowering, Step, anchor_of
from dhlo.dialect import Kind, Op
from dhlo.errors import CompileError
from dhlo.ops.compute import ArgReduce, Scan
from dhlo.ops.lookup import Histogram, Scatter, SearchSorted, Sort, TopK
from dhlo.ops.sequence import Fft, GroupedMatmul, Gru, Lstm
from dhlo.types import from_mlir

__all__ = ["opaque_step"]

Lower = Callable[[Lowering, Any, Any], Launch]
LAUNCHES: dict[type[Op], Sequence[Lower]] = {
    ArgReduce: [lower_argreduce],
    Scan: [lower_scan],
    Histogram: [lower_histogram],
    Scatter: [lower_copy, lower_scatter],
    SearchSorted: [lower_search_sorted],
    Sort: [lower_sort],
    TopK: [lower_topk],
}

STEPS: dict[type[Op], Callable[[Lowering, Any], Step]] = {
    Fft: FftStep, GroupedMatmul: GroupedMatmulStep, Gru: RecurrentStep, Lstm: RecurrentStep,
}


class _Launches:
    """One kernel launch after the other."""

    workspace: sympy.Expr = sympy.Integer(0)

    def __init__(self, low: Lowering, group: Any, op: Any, lower: Sequence[Lower]) -> None:
        self.steps = [LaunchStep(low.once(group, f"launch{n}", lambda f=f: f(low, group, op))) for n, f in enumerate(lower)]  # type: ignore[misc]

    def emit(self, host: GroupHost) -> None:
        for step in self.steps:
            step.emit(host)


def opaque_step(low: Lowering, group: Any) -> Step:
    """The step of a group around one op of Kind.OPAQUE. Raises CompileError where there is no kernel."""
    op = anchor_of(group, Kind.OPAQUE)
    if type(op) in STEPS:
        return STEPS[type(op)](low, group)
    lower = LAUNCHES.get(type(op))
    if lower is None:
        raise CompileError(f"{op.OPERATION_NAME} has no kernel yet", where=where(op))
    if any(from_mlir(v).dtype.is_complex for v in op.operands):
        raise CompileError(f"{op.OPERATION_NAME} of complex numbers has no kernel yet", where=where(op))
    return _Launches(low, group, op, lower)
