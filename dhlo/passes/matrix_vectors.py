"""Products with one column, or of one row with the rows of a matrix, are sums along rows: vectors run along these, where tiles of
products would be a column wide."""

from __future__ import annotations

from dhlo.ir.coded import coded, is_constant
from dhlo.ir.dialect import attr, build, defining
from dhlo.ir.handles import Module, Value
from dhlo.ir.ops.compute import Matmul, Reduce
from dhlo.ir.ops.elementwise import Convert, Mul
from dhlo.ir.ops.movement import Broadcast, Reshape, Transpose
from dhlo.ir.types import TensorType, from_mlir
from dhlo.passes.replace import replace_each

__all__ = ["matrix_vectors"]


def matrix_vectors(module: Module) -> None:
    """matmul -> mul, reduce, where the result has one column, or one row and the right side is a transposed view. Of floats, not
    of codes."""
    replace_each(module, Matmul, _sums)


def _sums(op: Matmul) -> Value | None:
    if any(not from_mlir(v).dtype.is_float or coded(v) is not None for v in op.operands):
        return None
    return _with_column(op) or _with_row(op)


def _with_column(op: Matmul) -> Value | None:
    """[.., M, K] times [K, 1] or [.., K, 1]."""
    (a, b), out = op.operands, from_mlir(op.results[0])
    matrix, vector = from_mlir(a), from_mlir(b)
    if vector.shape[-1] != 1:
        return None
    lead = vector.shape[:-2]
    row = _reshaped(b, [*lead, 1, vector.shape[-2]] if lead else [vector.shape[-2]])
    turned = _turned(a)
    if turned is None:
        return _summed(a, row, [*range(len(lead)), len(lead), matrix.rank - 1] if lead else [matrix.rank - 1], matrix.rank - 1, out)
    if matrix.rank != 2:
        return None
    return _summed(turned, row, [0], 0, out)


def _with_row(op: Matmul) -> Value | None:
    """[.., 1, K] times a view [.., K, N] of [.., N, K] that isn't a constant, which products pack beforehand."""
    (a, b), out = op.operands, from_mlir(op.results[0])
    left, turned = from_mlir(a), _turned(b)
    if turned is None or is_constant(turned):
        return None
    matrix = from_mlir(turned)
    rows = left.shape[:-1] if matrix.rank == 2 else left.shape[-2:-1]
    if any(s != 1 for s in rows):
        return None
    row = a if matrix.rank > 2 else _reshaped(a, [left.shape[-1]])
    return _summed(turned, row, list(range(matrix.rank)) if matrix.rank > 2 else [1], matrix.rank - 1, out)


def _turned(v: Value) -> Value | None:
    """What a value is a view of whose last two dims are exchanged."""
    made = defining(v)
    if not isinstance(made, Transpose):
        return None
    *lead, a, b = range(from_mlir(v).rank)
    return made.operands[0] if attr(made, "perm") == [*lead, b, a] else None


def _reshaped(v: Value, shape: list[object]) -> Value:
    t = from_mlir(v)
    return v if list(t.shape) == shape else build(Reshape, [v], results=[t.with_shape(shape)]).results[0]


def _summed(matrix: Value, row: Value, dims: list[int], along: int, out: TensorType) -> Value:
    """The sums along a dim of a matrix times a row, which lies along `dims`, as `out`. Sums and factors are of f32 or f64."""
    wide = "f64" if from_mlir(matrix).dtype.name == "f64" else "f32"
    matrix, row = (_converted(v, wide) for v in (matrix, row))
    repeated = build(Broadcast, [row], {"dims": dims}, results=[from_mlir(matrix)]).results[0]
    total = build(Reduce, [build(Mul, [matrix, repeated]).results[0]], {"how": "sum", "dims": [along]}).results[0]
    return _reshaped(_converted(total, out.dtype.name), list(out.shape))


def _converted(v: Value, dtype: str) -> Value:
    t = from_mlir(v)
    return v if t.dtype.name == dtype else build(Convert, [v], results=[t.with_dtype(dtype)]).results[0]
