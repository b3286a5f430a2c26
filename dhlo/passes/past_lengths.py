"""How long the past is, in steps of one new token of each sequence: one size for all of a batch, and another number for each token
of a row."""

from __future__ import annotations

from typing import Any

import sympy

from dhlo.errors import CompileError
from dhlo.ir.dialect import Kind, attr, build
from dhlo.ir.mlir import ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.control import Assert
from dhlo.ir.ops.movement import Broadcast, Concat, Full, Reshape, Slice, Take, Transpose
from dhlo.ir.places import place_of
from dhlo.ir.symbols import parse, show
from dhlo.ir.types import TensorType, from_mlir
from dhlo.passes.cse import erase_dead
from dhlo.passes.tokens import Tokens

__all__ = ["spread_past"]


def spread_past(block: Any, tokens: Tokens, positions: Any) -> None:
    """Computes what depends on the length of the past by `positions` [tokens] of a row, in its place.

    Raises CompileError, by the user's source line, for what isn't computed of it element by element, by views or lookups.
    """
    spread = _Spread(tokens.batch, positions)
    for op in list(block.operations)[:-1]:
        if isinstance(op, Assert):  # of the new sizes, what is required holds too
            continue
        if isinstance(op, Full) and tokens.past.name in op.mentions():
            more = parse(attr(op, "value")) - tokens.past
            if not more.is_Integer:
                _refuse(op)
            spread.take(op, lambda op=op, more=more: spread.positions_and(more, from_mlir(op.results[0])))
        elif tokens.past.name in op.mentions():
            _refuse(op)
        elif any(v in spread.rows for v in op.operands):
            spread.take(op, lambda op=op: spread.again(op))
    end = list(block.operations)[-1]
    if any(v in spread.rows for v in end.operands):
        raise CompileError(
            "pages: a result says how long the past is, which is another number for each token",
            hint="don't return it: whoever calls the step knows the lengths",
        )
    erase_dead(block)


def _refuse(op: Any) -> Any:
    raise CompileError(
        f"pages: {op.OPERATION_NAME} depends on how long the past is, and not element by element",
        where=str(place_of(op)),
        hint="let the program take positions as an argument, [batch, 1]",
    )


class _Spread:
    """Values that were the same for all of a batch, with a dim of the row before their own dims."""

    def __init__(self, row: sympy.Symbol, positions: Any) -> None:
        self.row, self.positions = row, positions
        self.rows: dict[Any, Any] = {}

    def take(self, op: Any, make: Any) -> None:
        """What `make` makes takes the place of an op's result, where that has a dim of the batch; else it is one of `rows`."""
        y = op.results[0]
        with ir.InsertionPoint(op.operation), op.location:
            made = make()
        if self._dim(from_mlir(y)) is None:
            self.rows[y] = made
        else:
            y.replace_all_uses_with(made)

    def _dim(self, t: TensorType) -> int | None:
        """The dim of the batch."""
        return next((d for d, s in enumerate(t.shape) if s == self.row), None)

    def _wide(self, t: TensorType) -> TensorType:
        return t.with_shape([self.row, *t.shape])

    def positions_and(self, more: sympy.Expr, t: TensorType) -> Any:
        """Positions and a number, where a type of them all has the batch, or before its dims."""
        at = self._dim(t)
        wide, dim = (self._wide(t), 0) if at is None else (t, at)
        x = self.positions
        if t.dtype.name != "i64":
            x = build(ew.Convert, [x], None, results=[from_mlir(x).with_dtype(t.dtype)]).results[0]
        x = build(Broadcast, [x], {"dims": [dim]}, results=[wide]).results[0]
        if more == 0:
            return x
        return build(ew.Add, [x, build(Full, [], {"value": show(more)}, results=[wide]).results[0]]).results[0]

    def again(self, op: Any) -> Any:
        """An op of which some operands have the row now."""
        t = from_mlir(op.results[0])
        if isinstance(op, Broadcast):
            return self._broadcast(op, t)
        if self._dim(t) is not None:
            _refuse(op)
        if isinstance(op, Take) and attr(op, "at") == 0 and op.operands[0] not in self.rows:
            index = [self._row(v) for v in list(op.operands)[1:]]
            return build(Take, [op.operands[0], *index], {"dims": attr(op, "dims"), "at": 0, "wrap": attr(op, "wrap")}).results[0]
        operands = [self._row(v) for v in op.operands]
        match op:
            case Reshape():
                return build(Reshape, operands, None, results=[self._wide(t)]).results[0]
            case Transpose():
                return build(Transpose, operands, {"perm": [0, *(d + 1 for d in attr(op, "perm"))]}).results[0]
            case Concat():
                return build(Concat, operands, {"dim": attr(op, "dim") + 1}).results[0]
            case Slice():
                where = {"starts": ["0", *attr(op, "starts")], "steps": [1, *attr(op, "steps")]}
                return build(Slice, operands, where, results=[self._wide(t)]).results[0]
        if op.kind is not Kind.ELEMENTWISE:
            _refuse(op)
        made = op.operation.clone()
        for k, v in enumerate(operands):
            made.operands[k] = v
        made.results[0].set_type(self._wide(t).mlir())
        return made.results[0]

    def _row(self, v: Any) -> Any:
        """A value for each token."""
        if v in self.rows:
            return self.rows[v]
        t = from_mlir(v)
        return build(Broadcast, [v], {"dims": list(range(1, t.rank + 1))}, results=[self._wide(t)]).results[0]

    def _broadcast(self, op: Any, t: TensorType) -> Any:
        x, dims, at = self.rows[op.operands[0]], list(attr(op, "dims")), self._dim(t)
        if at is None:
            return build(Broadcast, [x], {"dims": [0, *(d + 1 for d in dims)]}, results=[self._wide(t)]).results[0]
        shape = from_mlir(x).shape
        kept = [(d, s) for d, s in zip(dims, shape[1:], strict=True) if d != at]
        if any(d < at and s != 1 for d, s in kept):  # the row would stand before it
            _refuse(op)
        kept = [(d, s) for d, s in kept if d > at]
        x = build(Reshape, [x], None, results=[from_mlir(x).with_shape([self.row, *(s for _, s in kept)])]).results[0]
        return build(Broadcast, [x], {"dims": [at, *(d for d, _ in kept)]}, results=[t]).results[0]
