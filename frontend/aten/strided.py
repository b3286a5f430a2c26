"""Memory seen in another way: other strides over the same storage, the same bits as another dtype."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import sympy
import torch

from dhlo.errors import CompileError
from dhlo.frontend.aten.indexing import scatter
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.functionalize import shares_storage
from dhlo.frontend.registry import lowers, views
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.symbols import as_expr, product
from dhlo.ir.types import DTYPES, DType


# ---------------------------------------------------------------------------------------------------- strides
def _owner(node: Any) -> Any:
    """The node whose result a view shows, itself if it isn't a view."""
    while node.op == "call_function" and isinstance(node.args[0], torch.fx.Node):
        if not shares_storage(node.args[0].meta.get("val"), node.meta.get("val")):
            break
        node = node.args[0]
    return node


def _order(b: OpBuilder, t: Any) -> list[int]:
    """The dims of an example tensor from the outermost in memory to the innermost."""
    shape, strides = ([b.importer.size_of(s) for s in v] for v in (t.shape, t.stride()))
    for perm in permutations(range(len(shape))):
        want = [product([shape[d] for d in perm[i + 1 :]]) for i in range(len(perm))]
        if all(shape[d] == 1 or b.dims.equal(strides[d], w) for d, w in zip(perm, want, strict=True)):
            return list(perm)
    raise CompileError("as_strided of a tensor whose memory has gaps", hint="call contiguous() first")


def _index(b: OpBuilder, size: Sequence[Any], stride: Sequence[Any], offset: Any) -> Value:
    """Positions in memory of the elements of a strided tensor."""
    if offset is None:
        offset = b.importer.size_of(b.node.args[0].meta["val"].storage_offset())
    at = b.full(size, offset, "i64")
    for d, s in enumerate(stride):
        at = b.add(at, b.iota(size, d, "i64", step=s))
    return at


@lowers(A.as_strided.default, A.as_strided_copy.default)
def _as_strided(b: OpBuilder, x: Value, size: Sequence[Any], stride: Sequence[Any], offset: Any = None) -> Value:
    node = b.node.args[0]
    owner = _owner(node)
    base = x if owner is node else b.importer.value_of(owner)
    flat = b.reshape(b.transpose(base, _order(b, owner.meta["val"])), [b.type(base).numel])
    return b.take(flat, [_index(b, size, stride, offset)], [0], 0)


@lowers(A.as_strided_scatter.default)
def _as_strided_scatter(
    b: OpBuilder, x: Value, src: Value, size: Sequence[Any], stride: Sequence[Any], offset: Any = None
) -> Value:
    node = b.node.args[0]
    if _owner(node) is not node:
        raise CompileError("writing through as_strided of a view", hint="apply it to the tensor itself")
    order = _order(b, node.meta["val"])
    moved = b.transpose(x, order)
    flat = b.reshape(moved, [b.type(x).numel])
    index, n = _index(b, size, stride, offset), product([as_expr(s) for s in size])
    flat = scatter(b, flat, [b.reshape(index, [n])], b.reshape(b.expand(src, size), [n]), [0], 0, "set")
    return b.transpose(b.reshape(flat, b.shape(moved)), [order.index(d) for d in range(len(order))])


@views(A.as_strided.default)
def _(b: OpBuilder, base: Value, new: Value, out: int, *args: Any) -> Value:
    return _as_strided_scatter(b, base, new, *args)


@lowers(A.resize.default)
def _resize(b: OpBuilder, x: Value, size: Sequence[Any], **_: Any) -> Value:
    """The first elements of the memory under another shape; what is added holds anything, here zeros."""
    n, want = b.type(x).numel, product([as_expr(s) for s in size])
    more = b.size(sympy.Max(want - n, 0))
    flat = b.pad(b.reshape(x, [n]), [0], [more], 0.0)
    return b.reshape(b.slice(flat, 0, 0, want), size)


@lowers(A.resize_as.default)
def _resize_as(b: OpBuilder, x: Value, template: Value, **_: Any) -> Value:
    return _resize(b, x, b.shape(template))


@views(A.resize.default, A.resize_as.default)
def _(b: OpBuilder, base: Value, new: Value, out: int, *_: Any, **__: Any) -> Value:
    n = b.size(sympy.Min(b.type(base).numel, b.type(new).numel))
    flat = b.slice(b.reshape(new, [b.type(new).numel]), 0, 0, n)
    rest = b.slice(b.reshape(base, [b.type(base).numel]), 0, n, b.type(base).numel - n)
    return b.reshape(b.concat([flat, rest], 0), b.shape(base))


@lowers(A.sym_stride.int)
def _sym_stride(b: OpBuilder, x: Value, dim: int) -> Any:
    return b.importer.size_of(b.node.args[0].meta["val"].stride(dim))


@lowers(A.sym_storage_offset.default)
def _sym_storage_offset(b: OpBuilder, x: Value) -> Any:
    return b.importer.size_of(b.node.args[0].meta["val"].storage_offset())


# ---------------------------------------------------------------------------------------------------- bits
def _bits(b: OpBuilder, x: Value, dtype: DType) -> Value:
    """The same bits as a dtype of the same width."""
    if b.dtype(x) == dtype:
        return x
    if b.dtype(x).is_bool or dtype.is_bool:  # bytes 0 and 1
        return _bits(b, b.convert(x, "ui8"), dtype) if b.dtype(x).is_bool else b.convert(_bits(b, x, DTYPES["ui8"]), dtype)
    return b.op(ew.Bitcast, [x], None, [b.type(x).with_dtype(dtype)])


@lowers(A.view.dtype)
def _view_dtype(b: OpBuilder, x: Value, dtype: torch.dtype) -> Value:
    src, dst = b.dtype(x), b.as_dtype(dtype)
    if src.bytes == dst.bytes:
        return _bits(b, x, dst)
    *lead, n = b.shape(x)
    if src.bytes > dst.bytes:  # little-endian: the lowest part comes first
        k = src.bytes // dst.bytes
        wide = b.unsqueeze(_bits(b, x, _integer(src.bytes)), len(lead) + 1)
        shifts = b.iota([k], 0, _integer(src.bytes), 0, 8 * dst.bytes)
        parts = b.convert(b.ew(ew.ShiftRight, wide, shifts), _integer(dst.bytes))
        return b.reshape(_bits(b, parts, dst), [*lead, n * k])
    k = dst.bytes // src.bytes
    b.require(sympy.Eq(sympy.Mod(n, k), 0), f"the last dim must be a multiple of {k} to be viewed as {dst}")
    whole = b.size(n / k)
    narrow = b.convert(_bits(b, b.reshape(x, [*lead, whole, k]), _integer(src.bytes)), _integer(dst.bytes))
    low = b.ew(ew.And, narrow, (1 << 8 * src.bytes) - 1)
    placed = b.ew(ew.ShiftLeft, low, b.iota([k], 0, _integer(dst.bytes), 0, 8 * src.bytes))
    return _bits(b, b.reduce(placed, "sum", [len(lead) + 1]), dst)


def _integer(width: int) -> DType:
    return DTYPES[f"i{8 * width}"]


@views(A.view.dtype)
def _(b: OpBuilder, base: Value, new: Value, out: int, dtype: torch.dtype) -> Value:
    return _view_dtype(b, new, b.dtype(base).torch)


@lowers(A.copysign.Tensor, A.copysign.Scalar)
def _copysign(b: OpBuilder, x: Value, y: Any) -> Value:
    d = b.result_type(x, y)
    x, y = b.together(x, y, dtype=d if d.is_float else "f32")
    y = b.select(_negative(b, y), -1.0, 1.0, dtype=b.dtype(x))
    return b.mul(b.op(ew.Abs, [x]), y)


def _negative(b: OpBuilder, x: Value) -> Value:
    """The sign bit of floats."""
    return b.ew(ew.Lt, b.op(ew.Bitcast, [x], None, [b.type(x).with_dtype(_integer(b.dtype(x).bytes))]), 0)


@lowers(A.signbit.default)
def _signbit(b: OpBuilder, x: Value) -> Value:
    if b.dtype(x).is_bool:
        return b.full(b.shape(x), False, "i1")
    return _negative(b, x) if b.dtype(x).is_float else b.ew(ew.Lt, x, 0)


@lowers(A.nextafter.default)
def _nextafter(b: OpBuilder, x: Value, y: Value) -> Value:
    """Floats of one sign are ordered like their bits."""
    x, y = b.together(x, y)
    bits = _integer(b.dtype(x).bytes)
    away = b.ew(ew.Eq, _negative(b, x), b.ew(ew.Lt, y, x))
    step = b.select(away, 1, -1, dtype=bits)
    moved = _bits(b, b.add(_bits(b, x, bits), step), b.dtype(x))
    smallest = _bits(b, b.full(b.shape(x), 1, bits), b.dtype(x))
    from_zero = b.select(b.ew(ew.Lt, y, x), b.op(ew.Neg, [smallest]), smallest)
    z = b.select(b.ew(ew.Eq, x, y), y, b.select(b.ew(ew.Eq, x, 0), from_zero, moved))
    unordered = b.ew(ew.Or, b.op(ew.IsNan, [x]), b.op(ew.IsNan, [y]))
    return b.select(unordered, float("nan"), z, dtype=b.dtype(x))
