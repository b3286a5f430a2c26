"""Says which arguments are copied to dense memory, and where new content of arguments and state is written back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import sympy

from dhlo.ir.dialect import Kind, attr, build, defining
from dhlo.ir.function import bodies, grown_dims, updates_of
from dhlo.ir.handles import Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops.compute import Attention
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.host import CONTRACT, Stage, Stride, UpdateArgument, UpdateState
from dhlo.ir.ops.movement import Broadcast, Reshape, Slice, Transpose, Weight
from dhlo.ir.symbols import symbol, symbols_of
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.operand_views import acceptable_view, irregular_steps, joins_rows
from dhlo.shape_infer.views import View, free_strides, memory_strides, strided

__all__ = ["stage_inputs"]

# Of an argument with more dims, none is free: there are two to the power of so many choices.
_MOST_RANK = 6


def stage_inputs(module: Any) -> None:
    """Behind the checks of @main, stages each argument that may have gaps; those that only products and attention read keep the
    strides that these take. Updates stand at the function's end, behind all checks, so that a failed call changes nothing."""
    for block in bodies(module)[:1]:
        ops = list(block.operations)
        if any(isinstance(op, (Stage, UpdateArgument, UpdateState)) for op in ops):
            continue  # done before
        grown, updates = grown_dims(block), updates_of(block)
        taken = {s for v in block.arguments for e in from_mlir(v).shape for s in symbols_of(e)}
        with ir.InsertionPoint(next(op for op in ops if not isinstance(op, CONTRACT))), ir.Location.unknown():
            for k, v in enumerate(block.arguments):
                if from_mlir(v).rank and k not in grown:  # a buffer that grows is dense, or the call has failed
                    _stage(v, k, () if k in updates.values() else _free_dims(v), taken)
        with ir.InsertionPoint(ops[-1]), ir.Location.unknown():
            for i, target in updates.items():
                v = ops[-1].operands[i]
                if isinstance(target, int):
                    build(UpdateArgument, [v], {"input": target})
                else:
                    build(UpdateState, [v], {"name_": target})


def _stage(v: Value, k: int, free: Sequence[int], taken: set[str]) -> None:
    """Stages argument k, and names the strides of its free dims."""
    build(Stage, [v], {"input": k, "free": list(free)})
    for d in free:
        name = f"stride{k}_{d}"
        while name in taken:
            name += "_"
        build(Stride, [v], {"dim": d, "symbol": name})


_Reader = tuple[Any, int]  # an op, and which of its operands


def _free_dims(v: Value) -> Sequence[int]:
    """The most dims of an argument whose strides may be any for all that read it."""
    readers, t = _readers(v), from_mlir(v)
    if readers is None or t.rank > _MOST_RANK:
        return ()
    for count in range(t.rank, 0, -1):
        for free in combinations(range(t.rank), count):
            strides = free_strides(t.shape, {d: symbol(f"stride{d}") for d in free})
            if all(_takes(op, i, v, strides) for op, i in readers):
                return free
    return ()


def _readers(v: Value) -> list[_Reader] | None:
    """The products and attention that read an argument, perhaps through views in their groups; None if anything else does."""
    found: list[_Reader] = []
    for use in v.uses:
        op, i = use.owner.operation.opview, use.operand_number
        if isinstance(op, CONTRACT):
            continue
        if not isinstance(getattr(op.operation.parent, "opview", None), Group):
            return None
        if op.kind is Kind.MATMUL or isinstance(op, Attention) and i < 3:
            found.append((op, i))
        elif isinstance(op, (Reshape, Transpose, Slice, Broadcast)) and (behind := _readers(op.results[0])) is not None:
            found += behind
        else:
            return None
    return found


def _takes(op: Any, i: int, v: Value, strides: tuple[sympy.Expr, ...]) -> bool:
    """Whether operand i of an op may be the view of an argument that it is, if the argument has these strides."""

    def seen(x: Value) -> View | None:
        block = op.operation.block

        def outside(y: Value) -> bool:
            made = defining(y)
            return made is None or made.operation.block != block or isinstance(made, Weight)

        return strided(x, outside, lambda y: strides if y == v else memory_strides(y))

    view = seen(op.operands[i])
    if view is None or not acceptable_view(op, i, view):
        return False
    if op.kind is Kind.ATTENTION:
        return True
    views = [x for x in (view, seen(op.operands[1 - i])) if x is not None]
    if len({d for x in views for d in irregular_steps(x)}) > 1:  # kernels take two batch dims
        return False
    # Rows of one product are faster than a batch of products with the same right side.
    return i == 1 or not _serves_all(op.operands[1]) or joins_rows(view)


def _serves_all(v: Value) -> bool:
    """Whether one matrix is the right side of all of a batch."""
    op, rank = defining(v), from_mlir(v).rank
    return isinstance(op, Broadcast) and all(
        d >= rank - 2 or n == 1 for d, n in zip(attr(op, "dims"), from_mlir(op.operands[0]).shape, strict=True)
    )
