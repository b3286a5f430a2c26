"""What each sequence remembers from token to token, for packed sequences of all lengths."""

# ruff: noqa: E704
from collections.abc import Callable, Sequence
from typing import Any

from dhlo.ir.dialect import Kind, Op, Operands, Results, attr, build, result_types, same
from dhlo.ir.mlir import ext, ir
from dhlo.ir.ops.control import Yield
from dhlo.ir.types import TensorType, from_mlir

LEAST = 4  # operands: the states, and where which is


class Recurrence(Op, name="recurrence", traits=[ext.Pure, ir.IsIsolatedFromAboveTrait]):
    """A state of fixed size of each of B sequences, taken on by their T tokens, packed one sequence behind the other.

    Operands: states [C, *S]; cells i32 [B], where each sequence's state is, another one for each; starts i32 [B + 1],
    ascending from 0 to T: its tokens are starts[b] to starts[b + 1] - 1; lengths i32 [B]: how many tokens it has had with these,
    so that one whose tokens are its first begins with zeros; then `tokens` values [T, ...], and others. The body computes a token:
    it takes the state [1, *S], the token's rows [1, ...] and the others, all of static shapes, and yields the next state and what
    is known then [1, ...]. Results: the states, of which those of other cells and of sequences without tokens stay; and what is
    known after each token [T, ...]."""

    kind = Kind.OPAQUE
    explicit = True
    x: Operands
    y: Results
    tokens: ir.IntegerAttr
    body: ext.Region

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        if len(operands) < LEAST or not results or not same(operands[0], results[0]):
            return "takes states, cells, starts and lengths, and gives states"
        states, *where = operands[:LEAST]
        if any(t.dtype.name != "i32" or t.rank != 1 for t in where):
            return "cells, starts and lengths are of i32 and rank 1"
        if not same(where[0], where[2]) or not same(where[0].with_shape([where[0].shape[0] + 1]), where[1]):
            return "there are as many lengths as cells, and one start more"
        if not 0 <= attrs["tokens"] <= len(operands) - LEAST or states.rank < 2:
            return "each of the values of tokens is an operand, and a state has a dim or more"
        if not all(t.rank and t.with_shape([1, *t.shape[1:]]).is_static for t in (states, *_rows(operands, attrs), *results[1:])):
            return "only the numbers of tokens and states are dynamic"
        rows = [*_rows(operands, attrs), *results[1:]]
        if any(not same(states.with_shape(rows[0].shape[:1]), states.with_shape(t.shape[:1])) for t in rows):
            return "values of tokens have a row for each"
        return None

    def takes(self) -> list[TensorType]:
        """The types of the body's arguments."""
        types = [from_mlir(v) for v in self.operands]
        first = LEAST + attr(self, "tokens")
        return [row(types[0]), *map(row, types[LEAST:first]), *types[first:]]

    def gives(self) -> list[TensorType]:
        """The types of what the body yields."""
        return [row(t) for t in result_types(self)]


def recurrence(operands: Sequence[Any], tokens: int, known: Sequence[TensorType], body: Callable[..., Sequence[Any]]) -> Any:
    """The op, at the current insertion point: see `Recurrence`. `known` are the types of its results behind the states; `body`
    gives what a token yields, of the values that it takes."""
    results = [from_mlir(operands[0]), *known]
    op = build(Recurrence, operands, {"tokens": tokens}, results=results, regions=1)
    block = ir.Block.create_at_start(op.regions[0], [t.mlir() for t in op.takes()])
    with ir.InsertionPoint(block):
        build(Yield, body(*block.arguments))
    return op


def row(t: TensorType) -> TensorType:
    """Of one state, or one token."""
    return t.with_shape([1, *t.shape[1:]])


def _rows(operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
    return operands[LEAST : LEAST + attrs["tokens"]]


__all__ = ["LEAST", "Recurrence", "recurrence", "row"]
