"""What is computed between a transposition and one that turns its values back is computed as these lie: transpose of functions of
transpose -> functions. Loops transpose what they read block by block, and would gather what is turned twice.

Products with constants are such functions, whose rows become columns: x.T @ w is the transpose of w.T @ x (token mixing in
MLP-Mixer, linear forecasts of time series). Each matrix is then packed as the right side, and the constant is the left one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dhlo.ir.dialect import Kind, attr, build, defining
from dhlo.ir.handles import Module, Value
from dhlo.ir.ops.compute import Matmul
from dhlo.ir.ops.movement import Broadcast, Full, Reshape, Transpose, Weight
from dhlo.ir.symbols import is_static
from dhlo.ir.types import TensorType, from_mlir
from dhlo.passes.late_transposes import in_operand_order
from dhlo.passes.replace import replace_each
from dhlo.shape_infer.views import reshape_groups

__all__ = ["paired_transposes"]

# Rows of a product fill tiles of any height, columns whole vectors: as columns they may be so much more, of vectors of so many.
_COLUMNS, _MOST_WASTE = 16, 1.08


# What is computed between two transpositions is looked at so far.
_MOST_OPS = 64


@dataclass(frozen=True)
class _Turned:
    """A value as it lies: the shape there, and how it is transposed."""

    perm: list[int]
    shape: list[Any]


def paired_transposes(module: Module) -> None:
    """transpose of elementwise, reshape and products with constants of transpose -> these, where the last dim stays."""
    replace_each(module, Transpose, _paired)


def _paired(op: Transpose) -> Value | None:
    turned = _between(op.operands[0])
    if turned is None:
        return None
    end = turned[op.operands[0]]
    whole = [end.perm[d] for d in attr(op, "perm")]
    inside = [v for v in turned if not isinstance(defining(v), Transpose)]
    if not inside or whole[-1] != len(whole) - 1:
        return None
    if any(_read_elsewhere(v, op, turned) for v in inside):
        return None
    made = dict[Value, Value]()
    for v, lies in turned.items():
        f: Any = defining(v)
        made[v] = f.operands[0] if isinstance(f, Transpose) else _applied(f, made, lies)
    y = made[op.operands[0]]
    back: Value = y if whole == sorted(whole) else build(Transpose, [y], {"perm": whole}).results[0]
    return back


def _read_elsewhere(v: Value, op: Transpose, turned: Mapping[Value, _Turned]) -> bool:
    users = [u.owner.operation for u in v.uses]
    return any(user != op.operation and not any(y in turned for y in user.results) for user in users)


def _between(end: Value) -> dict[Value, _Turned] | None:
    """The values that `end` is computed from, back to transposed ones, operands first; None where others are among them."""
    out, waiting = dict[Value, _Turned](), [end]
    while waiting:
        v = waiting[-1]
        made_by: Any = defining(v)
        operands = [] if made_by is None or isinstance(made_by, Transpose) else _moving_operands(made_by)
        missing = [x for x in operands if x not in out]
        if v in out or not missing:
            waiting.pop()
            if v not in out:
                found = _as_it_lies(made_by, [out[x] for x in operands])
                if found is None or len(out) == _MOST_OPS:
                    return None
                out[v] = found
        else:
            waiting += missing
        if len(waiting) > _MOST_OPS:
            return None
    return out


def _as_it_lies(op: Any, operands: Sequence[_Turned]) -> _Turned | None:
    """The result of an op whose operands lie so; None where they don't determine it."""
    if isinstance(op, Transpose):
        perm = list(attr(op, "perm"))
        return None if perm[-1] == len(perm) - 1 else _Turned(perm, list(from_mlir(op.operands[0]).shape))
    if not operands or any(x.perm != operands[0].perm for x in operands):
        return None
    perm = operands[0].perm
    if isinstance(op, Reshape):
        return _regrouped(op, perm)
    if isinstance(op, Matmul) and perm != [*range(len(perm) - 2), len(perm) - 1, len(perm) - 2]:
        return None
    return _Turned(perm, in_operand_order(perm, from_mlir(op.results[0]).shape))


def _moving_operands(op: Any) -> list[Value]:
    """Of a function of some values beside numbers, vectors along a dim, and constants that they are multiplied by, these values;
    none of other ops."""
    if isinstance(op, Reshape) or _turns(op):
        return [op.operands[0]]
    return [x for x in op.operands if not _is_still(defining(x))] if op.kind is Kind.ELEMENTWISE else []


def _turns(op: Any) -> bool:
    """Whether it is a product with a constant whose rows are as well columns of the transposed one."""
    if not isinstance(op, Matmul):
        return False
    left, right = from_mlir(op.operands[0]), defining(op.operands[1])
    right, rows = defining(right.operands[0]) if isinstance(right, Transpose) else right, left.shape[-2]
    if not isinstance(right, Weight) or from_mlir(op.operands[1]).rank > 2 or left.rank < 3:
        return False
    if left.dtype.name not in ("f32", "f64") or not is_static(rows):
        return False
    return -(-int(rows) // _COLUMNS) * _COLUMNS <= _MOST_WASTE * int(rows)


def _is_still(op: Any) -> bool:
    return isinstance(op, Full) or isinstance(op, Broadcast) and len(attr(op, "dims")) <= 1


def _regrouped(op: Reshape, perm: Sequence[int]) -> _Turned | None:
    """The result where the operand is transposed by `perm`; None where dims that become one, or one becomes, don't lie beside each
    other."""
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
    return _Turned([order.index(d) for d in range(len(out))], [out[d] for d in order])


def _applied(f: Any, made: Mapping[Value, Value], lies: _Turned) -> Value:
    """The function `f` of what is `made` of its operands, whose result lies so."""
    out = from_mlir(f.results[0]).with_shape(lies.shape)
    if isinstance(f, Reshape):
        reshaped: Value = build(Reshape, [made[f.operands[0]]], results=[out]).results[0]
        return reshaped
    if isinstance(f, Matmul):
        return _turned_product(f, made[f.operands[0]], out)
    operands = []
    for x in f.operands:
        still, t = defining(x), from_mlir(x)
        if not _is_still(still):
            operands.append(made[x])
            continue
        there = t.with_shape(in_operand_order(lies.perm, t.shape))
        attrs = (
            {"value": attr(still, "value")} if isinstance(still, Full) else {"dims": [lies.perm[d] for d in attr(still, "dims")]}
        )
        operands.append(build(type(still), list(still.operands), attrs, results=[there]).results[0])
    kept = {k: f.attributes[k] for k in f.attributes}
    result: Value = build(type(f), operands, kept, results=[out]).results[0]
    return result


def _turned_product(f: Matmul, y: Value, lies: TensorType) -> Value:
    """The product of this type of the constant's transpose with y."""
    right = defining(f.operands[1])
    w: Value = right.operands[0] if isinstance(right, Transpose) else build(Transpose, [f.operands[1]], {"perm": [1, 0]}).results[0]
    all_of_it = lies.with_shape([*lies.shape[:-1], from_mlir(w).shape[1]])
    left = build(Broadcast, [w], {"dims": [lies.rank - 2, lies.rank - 1]}, results=[all_of_it]).results[0]
    product: Value = build(Matmul, [left, y]).results[0]
    return product
