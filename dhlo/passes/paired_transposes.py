"""Arithmetic between a transposition and one that turns its values back is done as these lie: transpose of functions of transpose
-> functions. Loops transpose what they read block by block, and would gather what is turned twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dhlo.ir.dialect import Kind, attr, build, defining
from dhlo.ir.handles import Module, Value
from dhlo.ir.ops.movement import Broadcast, Full, Reshape, Transpose
from dhlo.ir.types import from_mlir
from dhlo.passes.late_transposes import in_operand_order
from dhlo.passes.replace import replace_each
from dhlo.shape_infer.views import reshape_groups

__all__ = ["paired_transposes"]


def paired_transposes(module: Module) -> None:
    """transpose of elementwise and reshape of transpose -> these, where the last dim stays."""
    replace_each(module, Transpose, _paired)


def _paired(op: Transpose) -> Value | None:
    v, between = op.operands[0], list[Any]()
    while not isinstance(made_by := defining(v), Transpose):
        if made_by is None or len(list(v.uses)) > 1:
            return None
        moving = made_by.operands[0] if isinstance(made_by, Reshape) else _moving_operand(made_by)
        if moving is None:
            return None
        between.append(made_by)
        v = moving
    perm, shape = list(attr(made_by, "perm")), list(from_mlir(made_by.operands[0]).shape)
    if not between or perm[-1] == len(perm) - 1:
        return None
    between.reverse()
    perms, shapes = list[list[int]](), list[list[Any]]()  # of each step how its result is transposed, and its shape as it lies
    for f in between:
        if isinstance(f, Reshape):
            found = _regrouped(f, perm)
            if found is None:
                return None
            perm, shape = found
        perms.append(perm)
        shapes.append(shape)
    whole = [perm[d] for d in attr(op, "perm")]
    if whole[-1] != len(whole) - 1:
        return None
    y = made_by.operands[0]
    for f, turn, lies in zip(between, perms, shapes, strict=True):
        y = _applied(f, y, turn, lies)
    turned: Value = y if whole == sorted(whole) else build(Transpose, [y], {"perm": whole}).results[0]
    return turned


def _moving_operand(op: Any) -> Value | None:
    """Of a function of one value beside numbers, and vectors along a dim, that value."""
    if op.kind is not Kind.ELEMENTWISE:
        return None
    moving = [x for x in op.operands if not _is_still(defining(x))]
    return moving[0] if len(moving) == 1 else None


def _is_still(op: Any) -> bool:
    return isinstance(op, Full) or isinstance(op, Broadcast) and len(attr(op, "dims")) <= 1


def _regrouped(op: Reshape, perm: Sequence[int]) -> tuple[list[int], list[Any]] | None:
    """How the result is transposed, and its shape as it lies, where the operand is transposed by `perm`; None where dims that
    become one, or one becomes, don't lie beside each other."""
    out = from_mlir(op.results[0]).shape
    groups = [(list(a), list(b)) for a, b in reshape_groups(from_mlir(op.operands[0]).shape, out)]
    if sorted(d for _, b in groups for d in b) != list(range(len(out))) or any(not a for a, _ in groups):
        return None
    order, at = list[int](), dict[int, list[int]]()
    for a, b in groups:
        places = [perm[d] for d in a]
        if places != list(range(places[0], places[0] + len(places))):
            return None
        at[places[0]] = b
    for place in sorted(at):
        order += at[place]
    return [order.index(d) for d in range(len(out))], [out[d] for d in order]


def _applied(f: Any, y: Value, perm: Sequence[int], shape: Sequence[Any]) -> Value:
    """A function of y as it lies, whose result of this shape is `f`'s, transposed by `perm`."""
    out = from_mlir(f.results[0])
    if isinstance(f, Reshape):
        reshaped: Value = build(Reshape, [y], results=[out.with_shape(shape)]).results[0]
        return reshaped
    operands = []
    for x in f.operands:
        still, t = defining(x), from_mlir(x)
        if not _is_still(still):
            operands.append(y)
            continue
        lies = t.with_shape(in_operand_order(perm, t.shape))
        attrs = {"value": attr(still, "value")} if isinstance(still, Full) else {"dims": [perm[d] for d in attr(still, "dims")]}
        operands.append(build(type(still), list(still.operands), attrs, results=[lies]).results[0])
    kept = {k: f.attributes[k] for k in f.attributes}
    result: Value = build(type(f), operands, kept, results=[out.with_shape(shape)]).results[0]
    return result
