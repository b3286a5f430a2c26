"""Arguments that are the filled part of a buffer: what the program joins to them is written behind them, and nothing is copied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import sympy

from dhlo.errors import CompileError
from dhlo.frontend.program import Mutation, Program
from dhlo.ir.dialect import attr, build, defining
from dhlo.ir.mlir import func, ir
from dhlo.ir.ops.control import Assert
from dhlo.ir.ops.elementwise import Copy
from dhlo.ir.ops.lookup import UpdateSlice
from dhlo.ir.ops.movement import Concat, Full, Reshape, Slice
from dhlo.ir.symbols import show, symbol
from dhlo.ir.types import TensorType, from_mlir

__all__ = ["grow_arguments", "grown_dims"]


def grow_arguments(program: Program, grow: Mapping[str, int]) -> None:
    """Gives arguments (by name or pattern, with the dim along which they grow) room behind their elements. Each must come back as a
    result with something joined to its end; in place of that result the program gives the dim's new size.

    Raises CompileError where no argument has the name, or no result is of that kind.
    """
    names = [s.name for s in program.inputs if s.type is not None]
    with program.context, ir.Location.unknown():
        for pattern, dim in grow.items():
            found = [k for k, name in enumerate(names) if fnmatchcase(name, pattern)]
            if not found:
                raise CompileError(f"grow: no argument is called '{pattern}'", hint=f"the arguments are {', '.join(names)}")
            for k in found:
                _grow(program, k, names[k], dim)


def grown_dims(block: Any) -> dict[int, int]:
    """The dim along which each of a function's arguments grows, of those that do."""
    attributes = block.owner.attributes
    if "arg_attrs" not in attributes:
        return {}
    marks = enumerate(map(ir.DictAttr, attributes["arg_attrs"]))
    return {k: m["dhlo.grows"].value for k, m in marks if "dhlo.grows" in m}


def _grow(program: Program, k: int, name: str, dim: int) -> None:
    main = program.module.body.operations[0]
    block = main.operation.regions[0].blocks[0]
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
            else f"grow: {len(results)} results are '{name}' with something joined to its dim {d}"
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
    _return(program, block, index, size, written)
    program.outputs = [replace(s, grown=(k, d)) if s.index == index else s for s in program.outputs]
    program.mutations.append(Mutation("input", name, len(list(end_of(block).operands)) - 1))
    marks = [
        dict(m.items()) if hasattr(m, "items") else {e.name: e.attr for e in m}
        for m in map(ir.DictAttr, main.attributes["arg_attrs"])
    ]
    marks[k]["dhlo.grows"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), d)
    main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(m) for m in marks])


def end_of(block: Any) -> Any:
    return list(block.operations)[-1]


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


def _return(program: Program, block: Any, index: int, size: Any, written: Any) -> None:
    """Returns the size in place of the result, and the buffer as one more."""
    end = end_of(block)
    values = [*end.operands, written]
    values[index] = size
    with ir.InsertionPoint(end.operation), end.location:
        func.ReturnOp(values)
    end.operation.erase()
    main = program.module.body.operations[0]
    main.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get([v.type for v in block.arguments], [v.type for v in values])
    )
