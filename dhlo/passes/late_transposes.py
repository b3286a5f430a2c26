"""Values that lie across are cut, padded, reversed and reduced as they lie, and transposed after that.

A slice of `x.transpose(1, 2)` is a slice of `x`, transposed; and its mean over the last dim is a mean of `x`. Loops transpose what
they read block by block only where it has the results' shape, and reductions of rows would gather each element from another line.
Images that tokens are seen as (`x.transpose(1, 2).reshape(b, c, h, w)`) are transposed after they are reshaped, for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dhlo.ir.dialect import Kind, attr, build, defining
from dhlo.ir.handles import Module, Value
from dhlo.ir.ops.compute import Reduce
from dhlo.ir.ops.movement import Full, Pad, Reshape, Reverse, Slice, Transpose
from dhlo.ir.types import from_mlir
from dhlo.passes.replace import replace_each
from dhlo.shape_infer.views import reshape_groups

__all__ = ["across", "in_operand_order", "late_transposes"]

Perm = list[int]


def late_transposes(module: Module) -> None:
    """slice, pad, reverse or reduce of transpose -> transpose of these."""
    for cls in (Pad, Slice, Reverse):
        replace_each(module, cls, _moved)
    replace_each(module, Reduce, _reduced)


def _moved(op: Pad | Slice | Reverse) -> Value | None:
    found = across(op.operands[0])
    if found is None:
        return None
    x, perm = found[0](), found[1]
    attrs: dict[str, Any] = {k: op.attributes[k] for k in op.attributes}
    if isinstance(op, Reverse):
        attrs["dims"] = sorted(perm[d] for d in attr(op, "dims"))
    for k in {Pad: ("low",), Slice: ("starts", "steps")}.get(type(op), ()):
        attrs[k] = in_operand_order(perm, attr(op, k))
    out = from_mlir(op.results[0])
    made = build(type(op), [x], attrs, results=[out.with_shape(in_operand_order(perm, out.shape))]).results[0]
    moved: Value = build(Transpose, [made], {"perm": perm}).results[0]
    return moved


def _reduced(op: Reduce) -> Value | None:
    v, dims = _before_reshape(op.operands[0], attr(op, "dims"))
    functions = list[Any]()
    while (moving := _moving_operand(v)) is not None:
        if len(list(v.uses)) > 1:  # several reductions of one value, as those of a norm, stay beside each other
            return None
        functions.append(defining(v))
        v = moving
    found = across(v)
    if found is None or _read_elsewhere(v):
        return None
    x, perm = found[0](), found[1]
    for f in reversed(functions):
        x = _applied(f, x)
    kept = [perm[d] for d in range(len(perm)) if d not in dims]
    y: Value = build(Reduce, [x], {"how": attr(op, "how"), "dims": sorted(perm[d] for d in dims)}).results[0]
    if kept == sorted(kept):
        return y
    turned: Value = build(Transpose, [y], {"perm": [sorted(kept).index(d) for d in kept]}).results[0]
    return turned


def _before_reshape(v: Value, dims: list[int]) -> tuple[Value, list[int]]:
    """Of a value whose `dims` are reduced, what it is reshaped from, and which of its dims they are, if others stay as they are."""
    op = defining(v)
    if not isinstance(op, Reshape) or len(list(v.uses)) > 1:
        return v, dims
    pairs = reshape_groups(from_mlir(op.operands[0]).shape, from_mlir(v).shape)
    reduced = [(a, set(b) <= set(dims)) for a, b in pairs if set(b) & set(dims)]
    kept = [(a, b) for a, b in pairs if not set(b) & set(dims)]
    if not all(whole for _, whole in reduced) or any(len(a) != 1 or len(b) != 1 for a, b in kept):
        return v, dims
    before = [d for a, _ in reduced for d in a]
    return (op.operands[0], before) if before else (v, dims)


def _moving_operand(v: Value) -> Value | None:
    """Of a function of one value and numbers, that value."""
    op = defining(v)
    if op is None or op.kind is not Kind.ELEMENTWISE:
        return None
    moving = [x for x in op.operands if not isinstance(defining(x), Full)]
    return moving[0] if len(moving) == 1 else None


def _applied(f: Any, x: Value) -> Value:
    """A function of one value and numbers, of another value, which has its own dims."""
    shape = from_mlir(x).shape
    operands = []
    for v in f.operands:
        number = defining(v)
        if isinstance(number, Full):
            operands.append(build(Full, [], {"value": attr(number, "value")}, results=[from_mlir(v).with_shape(shape)]).results[0])
        else:
            operands.append(x)
    attrs = {k: f.attributes[k] for k in f.attributes}
    y: Value = build(type(f), operands, attrs, results=[from_mlir(f.results[0]).with_shape(shape)]).results[0]
    return y


def _read_elsewhere(v: Value) -> bool:
    """Does anything else read a transposed value, or what it is reshaped from?"""
    made_by: Any = defining(v)
    return len(list(v.uses)) > 1 or isinstance(made_by, Reshape) and _read_elsewhere(made_by.operands[0])


def across(v: Value) -> tuple[Callable[[], Value], Perm] | None:
    """What makes the value that v is a transposed view of, and how it is transposed; None if v isn't, or has the same last dim."""
    op: Any = defining(v)
    if isinstance(op, Transpose):
        perm = list(attr(op, "perm"))
        return None if perm[-1:] == [len(perm) - 1] else (lambda: op.operands[0], perm)
    inner: Any = defining(op.operands[0]) if isinstance(op, Reshape) else None
    if not isinstance(inner, Transpose):
        return None
    out, perm, x = from_mlir(v), list(attr(inner, "perm")), inner.operands[0]
    pairs = [(list(a), list(b)) for a, b in reshape_groups(from_mlir(op.operands[0]).shape, out.shape)]
    if any(len(a) != 1 for a, _ in pairs):
        return None
    parts = {perm[a]: b for (a,), b in pairs}
    order = [d for k in range(len(perm)) for d in parts[k]]  # dims of v as they follow each other in x
    if order[-1] == out.rank - 1:
        return None
    shape = out.with_shape([out.shape[d] for d in order])
    return lambda: build(Reshape, [x], results=[shape]).results[0], [order.index(d) for d in range(out.rank)]


def in_operand_order(perm: Sequence[int], items: Sequence[Any]) -> list[Any]:
    """What belongs to each dim of a transposed value, in the order of the operand's dims."""
    found = dict(zip(perm, items, strict=True))
    return [found[d] for d in range(len(found))]
