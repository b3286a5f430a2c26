"""Whether a program computes each token by itself, but for attention over its caches, which page-caches rests on; and its tokens as
a row."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import sympy

from dhlo.errors import CompileError
from dhlo.ir.dialect import Kind, attr, build, defining
from dhlo.ir.mlir import ir
from dhlo.ir.ops.collective import AllGather, AllReduce, AllToAll, BroadcastFrom, ReduceScatter
from dhlo.ir.ops.compute import ArgReduce, Attention, Matmul, Reduce, Scan
from dhlo.ir.ops.control import AssertTensor
from dhlo.ir.ops.lookup import Scatter, Sort, TopK
from dhlo.ir.ops.movement import Concat, Pad, Reshape, Reverse, Slice, Take
from dhlo.ir.ops.sequence import GroupedMatmul
from dhlo.ir.places import place_of
from dhlo.ir.symbols import FloorDiv
from dhlo.ir.types import from_mlir
from dhlo.passes.cache_heads import is_part

__all__ = ["Tokens", "check_tokens", "take_row"]


@dataclass(frozen=True)
class Tokens:
    """The sizes of a decoder's step: a batch of sequences, of each of which so many keys are there and so many tokens are new, a
    symbol or 1."""

    batch: sympy.Expr
    past: sympy.Symbol
    new: sympy.Expr

    @property
    def single(self) -> bool:
        """Whether each sequence has one new token, so that the batch is what becomes a row of tokens."""
        return bool(self.new == 1)

    @property
    def row(self) -> sympy.Symbol:
        """The dim along which all tokens lie."""
        return self.batch if self.single else self.new

    def along(self, size: sympy.Expr) -> bool:
        """Whether a dim runs along the tokens or keys of one sequence. One along those of all sequences at once doesn't: the
        program treats them alike, or its results would depend on what else is in the batch."""
        free = size.free_symbols
        return bool(free & {self.new, self.past}) and self.batch not in free

    def in_context(self, size: sympy.Expr) -> bool:
        """Whether a dim is as long as what is there and what is new."""
        return bool((size - self.past - self.new).expand() == 0)


def take_row(block: Any, batch: sympy.Symbol, besides: Collection[Any]) -> None:
    """Arguments [batch, 1, ...] of a step of one token, but for those of `besides`, become a row [1, tokens, ...]."""
    for argument in list(block.arguments):
        t = from_mlir(argument)
        if argument in besides or t.rank < 2 or t.shape[:2] != (batch, 1) or any(s.free_symbols for s in t.shape[2:]):
            continue
        users = [(use.owner.operation, use.operand_number) for use in argument.uses]
        argument.set_type(t.with_shape([1, batch, *t.shape[2:]]).mlir())
        with ir.InsertionPoint.at_block_begin(block):
            column = build(Reshape, [argument], None, results=[t]).results[0]
        for user, number in users:
            user.operands[number] = column


def check_tokens(block: Any, tokens: Tokens, joins: Collection[Any]) -> None:
    """Raises CompileError, by the user's source line, for an op through which tokens of a sequence meet that is neither one of the
    `joins` nor attention over two of them."""
    joined = {join.results[0] for join in joins}
    for op in list(block.operations)[:-1]:
        if op.operation in {join.operation for join in joins} or _attends(op, joined, tokens):
            continue
        for operand, dims in _mixed(op):
            shape = from_mlir(op.operands[operand]).shape
            bad = next((d for d in dims if tokens.along(shape[d])), None)
            if bad is not None:
                t = from_mlir(op.operands[operand])
                raise CompileError(
                    f"pages: tokens of a sequence meet in {op.OPERATION_NAME}, along dim {bad} of {t}",
                    where=str(place_of(op)),
                    hint="tokens of many sequences lie in one row: each may depend on others by attention over the caches alone",
                )
        if any(_splits(s, tokens) for v in op.results for s in from_mlir(v).shape):
            raise CompileError(f"pages: {op.OPERATION_NAME} cuts up the tokens of a sequence", where=str(place_of(op)))


def _attends(op: Any, joined: Collection[Any], tokens: Tokens) -> bool:
    """Whether an op is attention over caches, or over keys that aren't of these sequences' tokens."""
    if not isinstance(op, Attention):
        return False
    if is_part(op.operands[1], joined) and not attr(op, "causal"):
        return is_part(op.operands[2], joined, columns=True)  # values may be columns of what keys are
    return not tokens.along(from_mlir(op.operands[1]).shape[2])


def _splits(size: sympy.Expr, tokens: Tokens) -> bool:
    along = {tokens.new, tokens.past}
    return any(e.free_symbols & along for e in size.atoms(FloorDiv, sympy.Mod))


def _asserted(op: Any) -> bool:
    """Whether nothing depends on the result but whether the call fails."""
    return all(isinstance(use.owner.operation.opview, AssertTensor) for use in op.results[0].uses)


def _mixed(op: Any) -> Iterator[tuple[int, list[int]]]:
    """Of each operand, the dims along which elements of a result depend on more than those at their own place."""
    shapes = [from_mlir(v).shape for v in op.operands]
    every = [(k, list(range(len(s)))) for k, s in enumerate(shapes)]
    match op:
        case Reduce():
            if not _asserted(op):
                yield 0, attr(op, "dims")
        case ArgReduce() | Scan() | Sort() | TopK():
            yield 0, [attr(op, "dim")]
        case Matmul():
            yield 0, [len(shapes[0]) - 1]
            yield 1, [len(shapes[1]) - 2]
        case GroupedMatmul():
            yield from [(0, [0, 1]), (1, [0, 1, 2]), (2, [0])]
        case Concat():
            yield from ((k, [attr(op, "dim")]) for k in range(len(shapes)))
        case Slice():
            out = from_mlir(op.results[0]).shape
            steps = attr(op, "steps")
            yield 0, [d for d, s in enumerate(shapes[0]) if s != out[d] or steps[d] != 1]
        case Reverse():
            yield 0, attr(op, "dims")
        case Pad():
            out = from_mlir(op.results[0]).shape
            yield 0, [d for d, s in enumerate(shapes[0]) if s != out[d]]
        case Take():
            if not _given(list(op.operands)[1:]):
                yield 0, attr(op, "dims")
        case Scatter():
            yield 0, attr(op, "dims")
        case AllGather() | ReduceScatter() | AllToAll():
            yield 0, [0]
        case AllReduce() | BroadcastFrom():
            pass  # of the same token in other processes
        case Reshape():
            pass  # what it may cut up is looked at in its result
        case _ if getattr(op, "kind", None) is not None and op.kind.pullable or op.kind in (Kind.WEIGHT, Kind.HOST):
            pass
        case _:
            yield from every


def _given(index: list[Any]) -> bool:
    """Whether a lookup's indices are an argument's numbers alone: the caller says which tokens it wants."""
    work, seen = list(index), set(index)
    while work:
        op = defining(work.pop())
        if op is None:
            continue
        if not op.operands or not op.kind.pullable:
            return False
        new = [v for v in op.operands if v not in seen]
        seen.update(new)
        work += new
    return True
