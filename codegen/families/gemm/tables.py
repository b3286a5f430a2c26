"""Tables that are right sides of products, too, as embeddings tied to a decoder's last product are: stored once, in its panels."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from dhlo.codegen.families.gemm.register_tile import BF16, depth
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.kernel_ir.builder import F32, F64
from dhlo.ir.dialect import Op, attr, build
from dhlo.ir.handles import Block, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops.compute import Matmul
from dhlo.ir.ops.movement import Take, Transpose, Weight
from dhlo.ir.ops.panels import Panels, Unpack
from dhlo.ir.types import from_mlir

__all__ = ["look_up_panels"]

# Elements of a row lie a panel apart there, each in a line of memory of its own. Beside a product with as many columns as the table
# has rows that is little where these are many.
_LEAST_ROWS = 1 << 14


def look_up_panels(low: Lowering, block: Block) -> None:
    """Lookups in a constant that else only products read, as their right side, find it in the panels of these."""
    for op in list(block.operations):
        if isinstance(op, Weight) and (tied := _tied(low, op.results[0])) is not None:
            side, takes = tied
            _replace(low, op, side, takes)


def _tied(low: Lowering, table: Value) -> tuple[Value, list[Op]] | None:
    """A constant matrix, or its transpose, as all products read it, and the lookups of its rows; None unless it has readers of both
    kinds, and no others."""
    t = from_mlir(table)
    if t.rank != 2 or t.dtype.name not in (F32, F64, BF16) or t.shape[0] < _LEAST_ROWS:
        return None
    takes, sides = list[Op](), dict[Hashable, Value]()
    for user, i in _uses(table):
        if isinstance(user, Take) and i == 0 and attr(user, "dims") == [0]:
            takes.append(user)
            continue
        side = user.results[0] if isinstance(user, Transpose) and attr(user, "perm") == [1, 0] else table
        if not all(isinstance(op, Matmul) and n == 1 for op, n in ([(user, i)] if side == table else _uses(side))):
            return None
        sides[low.constant_key(side)] = side
    if not takes or len(sides) != 1:
        return None
    (side,) = sides.values()
    return None if low.quantised(side) is not None else (side, takes)


def _uses(v: Value) -> Iterator[tuple[Op, int]]:
    """The ops that read a value, each with the number of the operand."""
    return ((use.owner.operation.opview, use.operand_number) for use in v.uses)


def _replace(low: Lowering, weight: Weight, side: Value, takes: Sequence[Op]) -> None:
    """Makes lookups read panels of `side`, which is the weight or its transpose."""
    t, transposed = from_mlir(side), side != weight.results[0]
    how = {"columns": low.tiles.panel(t.dtype.name), "step": depth(t.dtype.name), "transposed": transposed}
    with ir.InsertionPoint.after(weight.operation), weight.location:
        panels = build(Panels, [weight.results[0]], how).results[0]
    for take in takes:
        with ir.InsertionPoint(take), take.location:
            table = build(Unpack, [panels], results=[t]).results[0]
            take.operation.operands[0] = build(Transpose, [table], {"perm": [1, 0]}).results[0] if transposed else table
