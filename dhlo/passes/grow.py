"""Arguments that are the filled part of a buffer: what the program joins to them is written behind them, and nothing is copied."""

from __future__ import annotations

from typing import Any

import sympy

from dhlo.errors import CompileError
from dhlo.ir.dialect import attr, build, defining
from dhlo.ir.function import (
    argument_names,
    bodies,
    filled_mark,
    mark_argument,
    mark_results,
    mark_sizes,
    requested_growth,
    set_type,
    sizes_of,
    updates_of,
)
from dhlo.ir.mlir import func, ir
from dhlo.ir.ops.control import Assert
from dhlo.ir.ops.elementwise import Copy
from dhlo.ir.ops.lookup import UpdateSlice
from dhlo.ir.ops.movement import Concat, Full, Reshape, Slice
from dhlo.ir.symbols import show, symbol
from dhlo.ir.types import TensorType, from_mlir

__all__ = ["grow"]

_HINT = (
    "an argument that grows comes back as one result, with something joined to its end; in all entries that have an argument of "
    "that name: one that only reads it has to call it something else"
)


def grow(module: Any) -> None:
    """Gives arguments marked `dhlo.grow` (the dim along which they grow) room behind their elements. Each must come back as a
    result with something joined to its end; in place of that result the function gives the dim's new size, and the buffer as one
    more, which is the argument's new content.

    Raises CompileError where no result is of that kind.
    """
    for block in bodies(module):
        for k, dim in requested_growth(block).items():
            with ir.Location.unknown():
                _grow(block, k, argument_names(block)[k], dim)


def _grow(block: Any, k: int, name: str, dim: int) -> None:
    arg, end = block.arguments[k], list(block.operations)[-1]
    t = from_mlir(arg)
    d = dim % max(t.rank, 1)
    if d == 0:
        raise CompileError(f"grow: '{name}' of {t} has no dim {dim} behind its first")
    results = [(i, op) for i, v in enumerate(end.operands) if (op := _joined(v, arg, d)) is not None]
    if len(results) != 1:
        raise CompileError(
            f"grow: no result is '{name}' with something joined to its dim {d}"
            if not results
            else f"grow: {len(results)} results are '{name}' with something joined to its dim {d}",
            hint=_HINT,
        )
    ((index, join),) = results
    buffer = t.with_shape([symbol(f"cap{k}") if i == d else s for i, s in enumerate(t.shape)])
    arg.set_type(buffer.mlir())
    with ir.InsertionPoint.at_block_begin(block):
        old = _first(arg, t)
    for use in list(arg.uses):
        if use.owner.operation != defining(old).operation:
            use.owner.operands[use.operand_number] = old
    with ir.InsertionPoint(join.operation), join.location:
        written = _append(arg, join, name, t.shape[d], buffer.shape[d], d)
        seen = _first(written, from_mlir(join.results[0]))
        size = build(Full, [], {"value": show(from_mlir(seen).shape[d])}, results=[TensorType.of("i64", [])]).results[0]
    join.results[0].replace_all_uses_with(seen)
    join.operation.erase()
    _return(block, index, size, written, k)
    grows = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), d)
    mark_argument(block, k, {"dhlo.grows": grows, **filled_mark(t.shape[d])}, without="dhlo.grow")


def _joined(v: Any, arg: Any, d: int) -> Any:
    """The join of `arg` with something behind it that v is, or None."""
    op = defining(v)
    while isinstance(op, (Copy, Reshape)) and from_mlir(op.operands[0]).rank == from_mlir(v).rank:
        op = defining(op.operands[0])
    return op if isinstance(op, Concat) and attr(op, "dim") == d and op.operands[0] == arg else None


def _first(v: Any, t: TensorType) -> Any:
    """The first positions of a value, of type t."""
    return build(Slice, [v], {"starts": ["0"] * t.rank, "steps": [1] * t.rank}, results=[t]).results[0]


def _append(arg: Any, join: Any, name: str, filled: sympy.Expr, capacity: sympy.Expr, d: int) -> Any:
    """The buffer with what is joined written behind what it holds."""
    added = list(join.operands)[1:]
    new = added[0] if len(added) == 1 else build(Concat, added, {"dim": d}).results[0]
    size = from_mlir(join.results[0]).shape[d]
    build(Assert, [], {"condition": show(sympy.Le(size, capacity, evaluate=False)), "message": f"the buffer of '{name}' is full"})
    starts = [filled if i == d else sympy.Integer(0) for i in range(from_mlir(arg).rank)]
    return build(UpdateSlice, [arg, new], {"starts": starts}).results[0]


def _return(block: Any, index: int, size: Any, written: Any, k: int) -> None:
    """Returns the size in place of the result, and the buffer of argument k as one more."""
    end = list(block.operations)[-1]
    values = [*end.operands, written]
    values[index] = size
    updates, sizes = updates_of(block), sizes_of(block)
    with ir.InsertionPoint(end.operation), end.location:
        func.ReturnOp(values)
    end.operation.erase()
    set_type(block)
    mark_results(block, updates | {len(values) - 1: k})
    mark_sizes(block, sizes | {index: k})
