"""Part of `page_caches`: positions of tokens, which programs count from the length of the past, become those of a row of tokens of
many sequences; what is required of how many keys there are becomes a bound of each sequence's positions."""

from __future__ import annotations

from typing import Any

import sympy

from dhlo.errors import CompileError
from dhlo.ir.dialect import attr, build
from dhlo.ir.mlir import ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.control import Assert
from dhlo.ir.ops.movement import Broadcast, Full, Iota
from dhlo.ir.places import place_of
from dhlo.ir.symbols import parse, show
from dhlo.ir.types import TensorType, from_mlir
from dhlo.passes.cse import erase_dead
from dhlo.passes.positions import line_of
from dhlo.passes.tokens import Tokens

__all__ = ["take_bounds", "take_positions"]


def take_positions(block: Any, tokens: Tokens, positions: Any) -> None:
    """Positions that the program counts from the length of the past become the argument."""
    for op in list(block.operations)[:-1]:
        if tokens.past.name not in op.mentions() or isinstance(op, Assert):  # of the new sizes, what is required holds too
            continue
        if isinstance(op, Iota) and _count(op, tokens, positions):
            continue
        if not isinstance(op, Full):
            raise CompileError(f"pages: {op.OPERATION_NAME} depends on how long the past is", where=str(place_of(op)))
        for use in list(op.results[0].uses):
            _count_on(use.owner.operation.opview, use.operand_number, parse(attr(op, "value")), tokens, positions)
    erase_dead(block)
    for op in list(block.operations)[:-1]:
        counts = isinstance(op, Iota) and from_mlir(op.results[0]).shape[attr(op, "dim")] == tokens.new
        if counts or tokens.new.name in op.mentions() and not isinstance(op, Assert):
            raise CompileError(
                f"pages: {op.OPERATION_NAME} depends on how many tokens are new, or on a token's place among them",
                where=str(place_of(op)),
                hint="they are those of all sequences: count positions from the length of the past",
            )


def _count(op: Any, tokens: Tokens, positions: Any) -> bool:
    """Gives the argument, and what is added to it, in place of a count of the tokens from the length of the past; whether an op
    is one."""
    t, along = from_mlir(op.results[0]), attr(op, "dim")
    more = (parse(attr(op, "start")) - tokens.past).expand()
    if t.shape[along] != tokens.new or t.dtype.name != "i64" or attr(op, "step") != "1" or more.free_symbols:
        return False
    with ir.InsertionPoint(op.operation), op.location:
        op.results[0].replace_all_uses_with(_more(positions, along, more, t))
    return True


def _count_on(user: Any, k: int, value: sympy.Expr, tokens: Tokens, positions: Any) -> None:
    """Gives the argument, and what is added to it, in place of a sum of `value`, operand k, and a count of the tokens."""
    line = line_of(user.operands[1 - k]) if isinstance(user, ew.Add) else None
    along, first = line or (0, tokens.past)
    more = (value + first - tokens.past).expand()
    t = None if line is None else from_mlir(user.results[0])
    if t is None or t.shape[along] != tokens.new or t.dtype.name != "i64" or more.free_symbols:
        raise CompileError("pages: a number depends on how long the past is, and is no token's position", where=str(place_of(user)))
    with ir.InsertionPoint(user.operation), user.location:
        user.results[0].replace_all_uses_with(_more(positions, along, more, t))


def take_bounds(block: Any, tokens: Tokens) -> int:
    """What is required of how many keys there are bounds each sequence's positions: blocks may have room for more."""
    bounds, others = list[int](), list[tuple[int, Any]]()
    for op in list(block.operations)[:-1]:
        condition = parse(attr(op, "condition")) if isinstance(op, Assert) else None
        if not isinstance(condition, (sympy.Le, sympy.Lt, sympy.Ne)):
            continue
        end = (tokens.past + tokens.new - condition.lhs + condition.rhs).expand()
        if not end.is_Integer:
            continue
        if isinstance(condition, sympy.Ne):
            others.append((int(end), op))
            continue
        bounds.append(int(end) - isinstance(condition, sympy.Lt))
        op.operation.erase()
    longest = min(bounds, default=0)
    for end, op in sorted(others, key=lambda x: -x[0]):
        if longest and end >= longest:  # one that no sequence has
            longest -= end == longest
            op.operation.erase()
    return longest


def _more(positions: Any, along: int, by: sympy.Expr, t: TensorType) -> Any:
    """Positions, along a dim of t, and a number."""
    at = build(Broadcast, [positions], {"dims": [along]}, results=[t]).results[0]
    return at if by == 0 else build(ew.Add, [at, build(Full, [], {"value": show(by)}, results=[t]).results[0]]).results[0]
