"""Which views of memory the kernels of an op take as operands."""

from __future__ import annotations

from typing import Any

from dhlo.ir.dialect import Kind
from dhlo.ir.ops.paged import PagedAttention
from dhlo.ir.ops.recurrence import LEAST, Recurrence
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.views import View, same

__all__ = ["acceptable_view", "irregular_steps", "joins_rows"]


def irregular_steps(view: View) -> set[int]:
    """Batch dims of a product's operand that can't be counted as one with the dim before."""
    dims = [d for d, n in enumerate(view.shape[:-2]) if n != 1]
    return {d for c, d in zip(dims, dims[1:], strict=False) if not same(view.strides[c], view.strides[d] * view.shape[d])}


def joins_rows(view: View) -> bool:
    """Whether all dims but the last step as one."""
    rows = [r for r in zip(view.shape[:-1], view.strides[:-1], strict=True) if r[0] != 1]
    return all(same(a[1], b[1] * b[0]) for a, b in zip(rows, rows[1:], strict=False))


def acceptable_view(op: Any, k: int, view: View) -> bool:
    """Whether operand k of an op that reads memory may be this view."""
    kind = getattr(op, "kind", Kind.CONTROL)
    if kind is Kind.ATTENTION:
        if k > 2 and isinstance(op, PagedAttention) or len(view.shape) == 1:
            return view.is_dense
        return k > 2 or bool(view.strides[-1] == 1 or view.shape[-1] == 1)
    if kind is Kind.MATMUL:
        if k == 1 or len(view.shape) == 2 or len(from_mlir(op.operands[1]).shape) > 2:
            return True
        return joins_rows(view)
    return view.is_dense or isinstance(op, Recurrence) and k >= LEAST
