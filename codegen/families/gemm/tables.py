"""Tables that are right sides of products, too, as embeddings tied to a decoder's last product are: stored once, in its panels."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dhlo.codegen.families.gemm.packed_constant import coded_constant, packed_constant
from dhlo.codegen.families.gemm.quantised import COLUMNS, QuantisedMatrix
from dhlo.codegen.families.gemm.register_tile import BF16, depth
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.kernel_ir.builder import F32, F64
from dhlo.ir.dialect import Kind, Op, attr, build
from dhlo.ir.handles import Block, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops.compute import Matmul, RoundedMatmul
from dhlo.ir.ops.elementwise import And, Convert, ShiftRight, Sub
from dhlo.ir.ops.host import Packed
from dhlo.ir.ops.movement import Concat, Full, Reshape, Slice, Take, Transpose, Weight
from dhlo.ir.ops.quantised import Dequantize
from dhlo.ir.types import TensorType, from_mlir

__all__ = ["look_up_panels"]

# Elements of a row lie a panel apart there, each in a line of memory of its own. Beside a product with as many columns as the table
# has rows that is little where these are many.
_LEAST_ROWS = 1 << 14


@dataclass(frozen=True)
class _Side:
    """A right side [k, n] of products, made of a table or, `turned`, of its transpose."""

    value: Value
    turned: bool


def look_up_panels(low: Lowering, block: Block) -> None:
    """Lookups in a constant that else only products read, as their right side, find it in the panels of these: a packed value and
    the movement that makes the table of it stand in its place."""
    for op in list(block.operations):
        if not isinstance(op, Weight) or (tied := _tied(low, op.results[0])) is None:
            continue
        side, lookups = tied
        make = _panels(low, op, side)
        if make is not None:
            for user, i in lookups:
                with ir.InsertionPoint(user), user.location:
                    user.operation.operands[i] = make.table()


def _tied(low: Lowering, table: Value) -> tuple[_Side, list[tuple[Op, int]]] | None:
    """The one right side that a constant matrix is made into, and what leads to lookups of its rows; None unless it has readers of
    both kinds, and no others."""
    t = from_mlir(table)
    if t.rank != 2 or t.shape[0] < _LEAST_ROWS:
        return None
    lookups, sides = list[tuple[Op, int]](), dict[Hashable, _Side]()
    for user, i in _uses(table):
        found = _right_sides(user, i, turned=False)
        if found is not None:
            sides |= {low.constant_key(side.value): side for side in found}
        elif _leads_to_lookups(user, i):
            lookups.append((user, i))
        else:
            return None
    return (next(iter(sides.values())), lookups) if lookups and len(sides) == 1 else None


def _uses(v: Value) -> Iterator[tuple[Op, int]]:
    """The ops that read a value, each with the number of the operand."""
    return ((use.owner.operation.opview, use.operand_number) for use in v.uses)


def _right_sides(op: Op, i: int, turned: bool) -> list[_Side] | None:
    """The right sides that an operand becomes, if it becomes nothing else."""
    if isinstance(op, (Matmul, RoundedMatmul)) and i == 1:
        return [_Side(op.operands[1], turned)]
    if isinstance(op, Transpose) and attr(op, "perm") == [1, 0]:
        turned = not turned
    elif not isinstance(op, (Convert, Dequantize)) or i != 0:
        return None
    found = [_right_sides(user, n, turned) for user, n in _uses(op.results[0])]
    sides = [side for sides in found for side in sides or ()]
    return None if not found or None in found else sides


def _leads_to_lookups(op: Op, i: int) -> bool:
    """Whether rows of an operand, computed with others, are looked up, and it is read by nothing else."""
    if isinstance(op, Take):
        return i == 0
    uses = list(_uses(op.results[0])) if op.kind in (Kind.ELEMENTWISE, Kind.MOVEMENT) else []
    return bool(uses) and all(_leads_to_lookups(user, n) for user, n in uses)


# ------------------------------------------------------------------------------------------------------------ panels
@dataclass(frozen=True)
class _Panels:
    """A table in panels; `table` writes the ops that take it from there."""

    packed: Value
    side: tuple[int, int]
    turned: bool
    matrix: QuantisedMatrix | None

    def table(self) -> Value:
        wide = self._wide() if self.matrix is None else self._codes(self.matrix)
        t = from_mlir(wide).with_shape(list(self.side))
        matrix = build(Slice, [wide], {"starts": ["0", "0"], "steps": [1, 1]}, results=[t]).results[0]
        table: Value = build(Transpose, [matrix], {"perm": [1, 0]}).results[0] if self.turned else matrix
        return table

    def _wide(self) -> Any:
        """Numbers, with the zeros beyond the matrix."""
        p, q, columns, step = from_mlir(self.packed).shape
        return _reshaped(build(Transpose, [self.packed], {"perm": [1, 3, 0, 2]}).results[0], [q * step, p * columns])

    def _codes(self, m: QuantisedMatrix) -> Any:
        """Codes, with the zeros beyond the matrix."""
        t, form = from_mlir(self.packed), m.form
        header = m.coding.header_bytes // t.dtype.bytes
        units = t.with_shape([m.panels, m.groups, int(t.shape[2]) - header])
        x = build(Slice, [self.packed], {"starts": ["0", "0", str(header)], "steps": [1, 1, 1]}, results=[units]).results[0]
        lanes = form.kind == "lanes"
        inner = [COLUMNS, 4] if lanes else [form.depth, COLUMNS]
        x = _reshaped(x, [m.panels, m.groups, m.units, *inner])
        x = build(Transpose, [x], {"perm": [1, 2, 4, 0, 3] if lanes else [1, 2, 3, 0, 4]}).results[0]
        if form.nibbles:  # of steps that are four apart
            halves = [_with(And, x, 15), _with(And, _with(ShiftRight, x, 4), 15)]
            x = build(Concat, halves, {"dim": 2}).results[0]
        x = _with(Sub, x, form.bias) if form.bias else x
        return _reshaped(x, [m.groups * m.units * form.depth, m.panels * COLUMNS])


def _panels(low: Lowering, weight: Weight, side: _Side) -> _Panels | None:
    """Of a side as products keep it; None where they keep it as other numbers than the weight's."""
    t, value = from_mlir(weight.results[0]), low.constant_value(side.value)
    k, n = (int(s) for s in from_mlir(side.value).shape)
    matrix = None if t.dtype.name == F64 else low.quantised(side.value)
    if matrix is not None and matrix.codes.dtype == t.dtype.torch:
        offset = coded_constant(low, side.value, matrix)
        row = matrix.panel_bytes // matrix.groups // t.dtype.bytes
        packed = t.with_shape([matrix.panels, matrix.groups, row])
    elif matrix is None and value is not None and t.dtype.name in (F32, F64, BF16) and from_mlir(side.value).dtype == t.dtype:
        offset = packed_constant(low, side.value, value, low.tiles)
        columns, step = low.tiles.panel(t.dtype.name), depth(t.dtype.name)
        packed = t.with_shape([-(-n // columns), -(-k // step), columns, step])
    else:
        return None
    with ir.InsertionPoint.after(weight.operation), weight.location:
        made = build(Packed, [], {"name_": attr(weight, "name_"), "offset": offset}, results=[packed]).results[0]
    return _Panels(made, (k, n), side.turned, matrix)


def _reshaped(x: Value, shape: Sequence[int]) -> Any:
    return build(Reshape, [x], results=[from_mlir(x).with_shape(list(shape))]).results[0]


def _with(op: type[Op], x: Value, number: int) -> Any:
    """An op of a value and a number."""
    t: TensorType = from_mlir(x)
    return build(op, [x, build(Full, [], {"value": str(number)}, results=[t]).results[0]]).results[0]
