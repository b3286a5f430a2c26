"""Lets a step of one token of each of many sequences take any number of each, where what is kept of a sequence is of fixed size.

A program of a batch of sequences [batch, 1] that updates states [batch, ...] in place becomes one of a row of tokens, one sequence
behind the other. What doesn't depend on a state is computed for all tokens at once. What lies between a state and its next
content, with what reads either up to where it is reduced, becomes the body of a `dhlo.recurrence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from dhlo.errors import CompileError
from dhlo.ir.dialect import attr, build, defining
from dhlo.ir.function import (
    argument_names,
    bodies,
    mark_argument,
    requested_pages,
    set_type,
    set_user_names,
    updates_of,
    user_names,
)
from dhlo.ir.mlir import ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.compute import Conv, Matmul, Reduce
from dhlo.ir.ops.movement import Broadcast, Concat, Reshape, Slice, Transpose
from dhlo.ir.ops.recurrence import recurrence, row
from dhlo.ir.paging import mark_paging
from dhlo.ir.symbols import symbol
from dhlo.ir.types import TensorType, from_mlir
from dhlo.passes.cse import cse, erase_dead
from dhlo.passes.recurrent_operands import Operands, Rows, clone
from dhlo.passes.simplify import simplify
from dhlo.passes.tokens import take_row
from dhlo.shape_infer.recurrence import independent_dims

__all__ = ["recurrent_states"]

_BLOCK = 16  # slots of blocks by which sequences are counted where nothing lies in any
_LANES = 16  # elements of a dim that are worth being neighbours in memory


def recurrent_states(module: Any) -> None:
    """Turns arguments marked `dhlo.page` that the program updates in place, states of sequences, into cells of pools, and what is
    computed of them token by token into recurrences.

    Raises CompileError, by the user's source line, where a state is computed by what has no such form.
    """
    requested = [block for block in bodies(module) if _states(block)]
    if requested:
        cse(module)
        simplify(module)
        cse(module)
    for block in requested:
        with ir.Location.unknown():
            _States(block).run()
        simplify(module)
        cse(module)


def _states(block: Any) -> list[int]:
    """The numbers of the arguments that are states."""
    updated = set(updates_of(block).values())
    return [k for k in requested_pages(block) if k in updated]


@dataclass(frozen=True)
class _Where:
    """The arguments that say where each sequence's states and tokens are: see `Recurrence`."""

    cells: Any
    starts: Any
    lengths: Any


class _States:
    """The rewriting of one function."""

    def __init__(self, block: Any) -> None:
        self.block, self.names = block, argument_names(block)
        self.numbers = _states(block)
        found = {from_mlir(block.arguments[k]).shape[:1] for k in self.numbers}
        self.batch = next(iter(found))[0] if len(found) == 1 and all(found) else sympy.Integer(1)
        for k in self.numbers:
            t = from_mlir(block.arguments[k])
            if not self.batch.is_Symbol or t.rank < 2 or not t.with_shape(t.shape[1:]).is_static or requested_pages(block)[k] != 1:
                raise CompileError(
                    f"pages: '{self.names[k]}' of {t} is updated in place, and no state [batch, ...] of one slot",
                    hint="export with a dynamic batch, and everything else of states static",
                )
        first = len(block.arguments)  # what grows has names of sizes below this
        self.pool, self.sequences = symbol(f"cap{first}"), symbol(f"cap{first + 1}")

    def run(self) -> None:
        where = self._add_inputs()
        for k in self.numbers:
            _Rewriting(self.block, self.batch, k, self.names[k]).run(where, self.pool)
        take_row(self.block, self.batch, {self.block.arguments[k] for k in self.numbers})
        set_type(self.block)
        roles: dict[int, str | tuple[str, int]] = {v.arg_number: n for n, v in vars(where).items()}
        mark_paging(self.block, _BLOCK, [], roles | dict.fromkeys(self.numbers, "state"))
        module = self.block.owner.parent.opview
        set_user_names(module, user_names(module) | {self.sequences.name: "sequences", self.pool.name: "cells"})

    def _add_inputs(self) -> _Where:
        made = []
        for name, size in (("cells", self.sequences), ("starts", self.sequences + 1), ("lengths", self.sequences)):
            if name in self.names:
                raise CompileError(f"pages: the program has an argument '{name}' of its own", hint="give it another name")
            made.append(self.block.add_argument(TensorType.of("i32", [size]).mlir(), ir.Location.unknown()))
            mark_argument(self.block, made[-1].arg_number, {"dhlo.name": ir.StringAttr.get(name)})
        return _Where(*made)


class _Rewriting:
    """What is computed of one state, argument k, token by token: the body of a recurrence."""

    def __init__(self, block: Any, batch: sympy.Expr, k: int, name: str) -> None:
        self.block, self.rows = block, Rows(batch, name)
        self.end = list(block.operations)[-1]
        self.taken = Operands(self.rows, self.end)
        self.result = next(i for i, target in updates_of(block).items() if target == k)
        self.state, self.after = block.arguments[k], self.end.operands[self.result]
        self.size = self.rows.numel(self.state)
        self.region: list[Any] = []
        """What depends on the state and is computed in the body."""
        self.known: list[Any] = []
        """What of that is read elsewhere."""

    def run(self, where: Any, pool: sympy.Symbol) -> None:
        self._find()
        own = set(self.region)
        for v in self.region:
            for x in defining(v).operands:
                if x not in own and not x == self.state:
                    self.taken.plan(x)
        if self.after not in own and not self.after == self.state:
            self.taken.plan(self.after)
        t, types = from_mlir(self.state), [self.rows.type_of(from_mlir(v)) for v in self.known]
        made_by = defining(self.after)
        rows, others = ([v for v, each in self.taken.leaves.items() if each is kind] for kind in (True, False))
        operands = [self.state, where.cells, where.starts, where.lengths, *rows, *others]
        with ir.InsertionPoint(self.end.operation), self.end.location if made_by is None else made_by.location:
            order = self._order(operands, len(rows), types)
            self.state.set_type(t.with_shape([pool, *(t.shape[d] for d in order[1:])]).mlir())
            op = recurrence(operands, len(rows), types, lambda *v: self._body(v, order))
            for v, y in zip(self.known, op.results[1:], strict=True):
                y = y if from_mlir(y) == from_mlir(v) else build(Reshape, [y], None, results=[from_mlir(v)]).results[0]
                for use in list(v.uses):
                    user = use.owner.operation
                    if not any(r in own for r in user.results):
                        user.operands[use.operand_number] = y
        self.end.operation.operands[self.result] = op.results[0]
        erase_dead(self.block)
        for use in self.state.uses:
            if not use.owner.operation == op.operation:
                self.rows.fail(use.owner.operation.opview, "reads it together with what isn't of the same token")
        _sort(self.block)

    # ------------------------------------------------------------------ what the body computes
    def _find(self) -> None:
        """What the next state is computed by, and what else reads either up to where it is of fewer elements."""
        ops = list(self.block.operations)[:-1]
        depends = {self.state}
        for op in ops:
            if any(v in depends for v in op.operands):
                depends.update(op.results)
        needed = {self.after} & depends
        for op in reversed(ops):
            if any(v in needed for v in op.results):
                needed.update(v for v in op.operands if v in depends)
        inside = {self.state}
        for op in ops:
            mine = [v for v in op.operands if v in depends]
            wide = any(v in inside and self.rows.numel(v) >= self.size for v in mine)
            if mine and (any(v in needed for v in op.results) or wide and all(v in inside for v in mine)):
                self.region += op.results
                inside.update(op.results)
        own = set(self.region)
        for v in self.region:
            users = [(use.owner.operation, use.operand_number) for use in v.uses]
            if any(not any(r in own for r in u.results) and (u, k) != (self.end.operation, self.result) for u, k in users):
                self.known.append(v)

    # ------------------------------------------------------------------ the body
    def _order(self, operands: list[Any], rows: int, types: list[TensorType]) -> list[int]:
        """The order in which the state's dims lie in memory: the last is one along which elements are computed side by side."""
        shape = from_mlir(self.state).shape
        natural = list(range(len(shape)))
        op = recurrence(operands, rows, types, lambda *v: self._body(v, natural))
        dims = independent_dims(op.regions[0]).dims
        op.operation.erase()
        wide = [d for d in dims if shape[d] >= _LANES]
        last = wide[-1] if wide else max(dims, key=lambda d: int(shape[d]), default=natural[-1])
        return [*(d for d in natural if d != last), last]

    def _body(self, given: Sequence[Any], order: list[int]) -> list[Any]:
        """The next state and what is known, of the state, whose dims are in that order, and of what the body takes."""
        state, *taken = given
        leaves = [*(v for v, each in self.taken.leaves.items() if each), *(v for v, each in self.taken.leaves.items() if not each)]
        inner = dict(zip(leaves, taken, strict=True))
        inner[self.state] = _transposed(state, [order.index(d) for d in range(len(order))])
        for v, source in self.taken.narrowed.items():
            t = self.rows.one(from_mlir(v))
            inner[v] = build(Broadcast, [inner[source]], {"dims": list(range(t.rank))}, results=[t]).results[0]
        for v in [*self.taken.computed, *self.region]:
            op, t = defining(v), self.rows.one(from_mlir(v))
            operands = [inner[x] for x in op.operands]
            if isinstance(op, Conv):
                inner[v] = self._convolution(op, *operands)
            elif isinstance(op, Matmul):
                inner[v] = _product(operands[0], operands[1], t)
            elif op.kind.pullable or isinstance(op, Reduce):
                inner[v] = clone(op, operands, t)
            else:
                self.rows.fail(op, "has no form that goes from token to token")
        known = [build(Reshape, [inner[v]], None, results=[row(self.rows.type_of(from_mlir(v)))]).results[0] for v in self.known]
        return [_transposed(inner[self.after], order), *known]

    def _convolution(self, op: Any, x: Any, w: Any) -> Any:
        """A convolution of channels by themselves as sums of products."""
        image, window = from_mlir(x), from_mlir(w)
        plain = all(n == 1 for name in ("stride", "dilation") for n in attr(op, name)) and not any(map(any, op.pads))
        if image.rank != 3 or not plain or attr(op, "transposed") or not attr(op, "groups") == image.shape[1] == window.shape[0]:
            self.rows.fail(op, "isn't one of channels by themselves, in steps of one")
        channels, width = window.shape[0], window.shape[2]
        part = image.with_shape([1, channels, width])
        flat = build(Reshape, [w], None, results=[image.with_shape([channels, width])]).results[0]
        weights = build(Broadcast, [flat], {"dims": [1, 2]}, results=[part]).results[0]
        columns = []
        for at in range(int(image.shape[2] - width) + 1):
            seen = build(Slice, [x], {"starts": ["0", "0", str(at)], "steps": [1] * 3}, results=[part]).results[0]
            total = build(Reduce, [build(ew.Mul, [seen, weights]).results[0]], {"how": "sum", "dims": [2]}).results[0]
            columns.append(build(Reshape, [total], None, results=[image.with_shape([1, channels, 1])]).results[0])
        return build(Concat, columns, {"dim": 2}).results[0] if len(columns) > 1 else columns[0]


def _transposed(v: Any, perm: list[int]) -> Any:
    return v if perm == sorted(perm) else build(Transpose, [v], {"perm": perm}).results[0]


def _product(a: Any, b: Any, t: TensorType) -> Any:
    """A matrix product as sums of products."""
    left, right, n = from_mlir(a), from_mlir(b), t.rank
    wide = t.with_shape([*t.shape, left.shape[-1]])
    b = _transposed(b, [*range(right.rank - 2), right.rank - 1, right.rank - 2])
    sides = ((a, [*range(n - 1), n]), (b, [*range(right.rank - 2), n - 1, n]))
    each = []
    for v, dims in sides:
        x = (
            v
            if from_mlir(v).dtype == t.dtype
            else build(ew.Convert, [v], None, results=[from_mlir(v).with_dtype(t.dtype)]).results[0]
        )
        each.append(build(Broadcast, [x], {"dims": dims}, results=[wide]).results[0])
    return build(Reduce, [build(ew.Mul, each).results[0]], {"how": "sum", "dims": [n]}).results[0]


def _sort(block: Any) -> None:
    """Puts ops behind what they read, otherwise as they stand."""
    *ops, end = list(block.operations)
    made_by = {v: k for k, op in enumerate(ops) for v in op.results}
    done, order = set[int](), list[int]()
    for first in range(len(ops)):
        todo = [first]
        while todo:
            k = todo[-1]
            missing = [made_by[v] for v in ops[k].operands if v in made_by and made_by[v] not in done] if k not in done else []
            if missing:
                todo += missing
                continue
            todo.pop()
            if k not in done:
                done.add(k)
                order.append(k)
    for k in order:
        ops[k].operation.move_before(end.operation)
