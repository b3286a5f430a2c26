"""Caches of a fixed size that a program keeps become arguments that a step joins to, which page-caches makes pools of.

A buffer [1, heads, slots, depth] whose rows are replaced at the positions of the new tokens, and that attention reads whole under a
mask that hides what comes later, says the same as an argument [1, heads, past, depth] joined with the new rows: what lies behind
them is never seen. transformers' modules over a StaticCache are exported so (`TorchExportableModuleForDecoderOnlyLM`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy

from dhlo.errors import CompileError
from dhlo.ir.dialect import Kind, attr, build, defining
from dhlo.ir.function import (
    bodies,
    erase_argument,
    mark_argument,
    ranges_of,
    renumber_results,
    set_ranges,
    set_type,
    updates_of,
)
from dhlo.ir.mlir import func, ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.compute import Attention, extra
from dhlo.ir.ops.lookup import Scatter
from dhlo.ir.ops.movement import Broadcast, Concat, Full, Iota, Reshape, Slice, Weight
from dhlo.ir.paging import forget_joins, requested_joins
from dhlo.ir.places import place_of
from dhlo.ir.symbols import is_static, show, symbol
from dhlo.ir.types import from_mlir
from dhlo.passes.added_masks import parts_of
from dhlo.passes.attention_heads import attention_heads
from dhlo.passes.cse import cse, erase_dead
from dhlo.passes.find_attention import find_attention
from dhlo.passes.positions import line_of, seen
from dhlo.passes.simplify import simplify

__all__ = ["join_caches"]

_KEYS = 3  # the dim of a mask along keys


def join_caches(module: Any) -> None:
    """Makes of states that `request_joins` names arguments marked `dhlo.page`, and of the argument that counts positions the length
    of the past. Raises CompileError, by the user's source line, where a state is no such cache."""
    slots = requested_joins(module)
    if not slots:
        return
    forget_joins(module)
    with ir.Location.unknown():
        _Joining(module, slots).run()


@dataclass(frozen=True)
class _Cache:
    """A state, the op that replaces its rows, and the argument that takes its place."""

    name: str
    update: Any
    argument: Any

    @property
    def whole(self) -> Any:
        return self.update.results[0]


class _Joining:
    def __init__(self, module: Any, slots: Mapping[str, int]) -> None:
        self.module, self.slots, self.block = module, slots, bodies(module)[0]
        self.past = symbol(f"past{len(self.block.arguments)}")

    def run(self) -> None:
        self._tidy()
        caches = [self._cache(name) for name in self.slots]
        sizes = {(from_mlir(c.update.operands[2]).shape[2], from_mlir(c.whole).shape[2]) for c in caches}
        if len(sizes) != 1:
            raise CompileError(f"pages: caches are of several sizes: {', '.join(self.slots)}")
        self.new, self.length = sizes.pop()
        if not self.new.is_Symbol:
            raise CompileError(
                f"pages: the program takes {self.new} new token{'s' * (self.new != 1)} at each call, no more and no less",
                where=str(place_of(caches[0].update)),
                hint="export it with a dynamic number: dynamic_shapes={'input_ids': {1: dim}, 'cache_position': {0: dim}}",
            )
        find_attention(self.module)  # now that arguments are marked
        attention_heads(self.module)
        self._count_positions({c.update.operands[1] for c in caches})
        dropped = self._drop_counts()
        self._tidy()
        for c in caches:
            self._join(c)
        erase_dead(self.block)
        self._check_unread(dropped)
        set_type(self.block)
        ranges = ranges_of(self.module)
        least, _ = ranges.get(self.new.name, (0, None))  # the most was the cache's size
        set_ranges(self.module, ranges | {self.new.name: (least, None), self.past.name: (0, None)})

    def _tidy(self) -> None:
        for rewrite in (cse, simplify, cse):
            rewrite(self.module)

    def _cache(self, name: str) -> _Cache:
        weights = [op for op in self.block.operations if isinstance(op, Weight) and attr(op, "name_") == name]
        users = [(use.owner.operation.opview, op.results[0]) for op in weights for use in op.results[0].uses]
        if len(users) != 1 or not _replaces_rows(*users[0]):
            raise CompileError(
                f"pages: '{name}' is no cache [1, heads, slots, depth] of which rows are replaced, at the new tokens' positions, "
                "and that is read no other way",
                where=next((str(place_of(op)) for op, v in users if not _replaces_rows(op, v)), None),
            )
        (update, state), *_ = users
        t = from_mlir(state)
        argument = self.block.add_argument(t.with_shape([*t.shape[:2], self.past, t.shape[3]]).mlir(), ir.Location.unknown())
        i64 = ir.IntegerType.get_signless(64)
        marks = {"dhlo.name": ir.StringAttr.get(name), "dhlo.page": ir.IntegerAttr.get(i64, self.slots[name])}
        mark_argument(self.block, argument.arg_number, marks)
        set_type(self.block)
        return _Cache(name, update, argument)

    # ------------------------------------------------------------------ positions
    def _count_positions(self, indices: set[Any]) -> None:
        """The argument that says where rows go counts from the length of the past."""
        found = {a for v in indices for a in _arguments_of(v)}
        if len(found) != 1 or not self._is_positions(argument := found.pop()):
            op = next((defining(v) for v in indices), None)
            raise CompileError(
                "pages: rows of the caches aren't replaced at positions that one argument, of a number for each token, gives",
                where=None if op is None else str(place_of(op)),
            )
        t = from_mlir(argument)
        with ir.InsertionPoint.at_block_begin(self.block):
            first = build(Full, [], {"value": show(self.past)}, results=[t.with_shape([sympy.Integer(1)])]).results[0]
            counted = build(Iota, [], {"dim": 0, "start": "0", "step": "1"}, results=[t]).results[0]
            behind = build(Full, [], {"value": show(self.past)}, results=[t]).results[0]
            positions = build(ew.Add, [counted, behind]).results[0]
        for use in list(argument.uses):
            op = use.owner.operation.opview
            if isinstance(op, Slice) and attr(op, "starts") == ["0"] and from_mlir(op.results[0]).shape == (1,):
                op.results[0].replace_all_uses_with(first)
                op.operation.erase()
        argument.replace_all_uses_with(positions)
        erase_argument(self.block, argument.arg_number)

    def _is_positions(self, v: Any) -> bool:
        t = from_mlir(v)
        return t.shape == (self.new,) and t.dtype.name == "i64"

    def _drop_counts(self) -> set[str]:
        """Takes away what the program keeps of how many positions are filled, which positions say; their names."""
        end, updates = list(self.block.operations)[-1], updates_of(self.block)
        counts = [i for i, target in updates.items() if isinstance(target, str) and target not in self.slots]
        for i in counts:
            v = end.operands[i]
            if not from_mlir(v).dtype.is_int or _arguments_of(v) or not _is_counted(v):
                op = defining(v)
                raise CompileError(
                    f"pages: the program keeps '{updates[i]}' beside its caches",
                    where=None if op is None else str(place_of(op)),
                    hint="what is kept of a sequence, but for its keys and values, may only count its tokens",
                )
        kept = [i for i in range(len(end.operands)) if i not in counts]
        with ir.InsertionPoint(end.operation), end.location:
            func.ReturnOp([end.operands[i] for i in kept])
        end.operation.erase()
        renumber_results(self.block, kept)
        set_type(self.block)
        return {str(updates[i]) for i in counts}

    def _check_unread(self, dropped: set[str]) -> None:
        """Raises CompileError where the program reads a count that isn't kept any more."""
        for op in self.block.operations:
            if isinstance(op, Weight) and attr(op, "name_") in dropped:
                reader = next(iter(op.results[0].uses)).owner.operation.opview
                raise CompileError(
                    f"pages: the program reads '{attr(op, 'name_')}', in which it counts tokens",
                    where=str(place_of(reader)),
                    hint="compute it of the argument that says where rows of the caches go",
                )

    # ------------------------------------------------------------------ caches and masks
    def _join(self, c: _Cache) -> None:
        update, t = c.update, from_mlir(c.whole)
        if line_of(update.operands[1]) != (0, self.past):
            raise CompileError(
                f"pages: rows of '{c.name}' are replaced elsewhere than at the tokens' positions", where=str(place_of(update))
            )
        grown = t.with_shape([*t.shape[:2], self.past + self.new, t.shape[3]])
        with ir.InsertionPoint(update.operation), update.location:
            whole = build(Concat, [c.argument, update.operands[2]], {"dim": 2}, results=[grown]).results[0]
        for use in list(c.whole.uses):
            op = use.owner.operation.opview
            if isinstance(op, Attention) and c.whole in list(op.operands)[1:3]:
                self._unmask(op)
            elif use.owner.operation.name != "func.return":
                raise CompileError(
                    f"pages: '{c.name}', with what is new, is read by {op.OPERATION_NAME}, and not by attention alone",
                    where=str(place_of(op)),
                )
        c.whole.replace_all_uses_with(whole)
        update.operation.erase()

    def _unmask(self, op: Any) -> None:
        """Gives attention over a cache a mask as long as what is there and what is new. Raises CompileError unless the mask hides
        what comes later."""
        mask = extra(op, 4)
        keys = None if mask is None else from_mlir(mask).shape[_KEYS]
        if keys == self.past + self.new:
            return  # done with the other one of keys and values
        bools, _ = ([], []) if mask is None else parts_of(mask)
        if keys != self.length or attr(op, "causal") or all(found.past != self.past for found in map(seen, bools)):
            raise CompileError(
                "pages: attention over a cache of a fixed size isn't under a mask that hides what comes later",
                where=str(place_of(op)),
                hint="a mask of key position <= query position",
            )
        k = next(i for i, v in enumerate(op.operands) if v == mask)
        with ir.InsertionPoint(op.operation), op.location:
            op.operation.operands[k] = self._resized(mask, (_KEYS,), op)

    def _resized(self, v: Any, dims: tuple[int, ...], reader: Any) -> Any:
        """v with what is there and what is new in place of the cache's size, in these dims, if it has such. Raises CompileError
        for what can't be computed so."""
        t = from_mlir(v)
        if not dims or all(t.shape[d] != self.length for d in dims):
            return v
        out = t.with_shape([self.past + self.new if d in dims and s == self.length else s for d, s in enumerate(t.shape)])
        op = defining(v)
        match op:
            case Full() | Iota():
                attrs = {name: attr(op, name) for name in (("value",) if isinstance(op, Full) else ("dim", "start", "step"))}
                return build(type(op), [], attrs, results=[out]).results[0]
            case Broadcast():
                to = attr(op, "dims")
                inner = tuple(i for i, d in enumerate(to) if d in dims)
                return build(Broadcast, [self._resized(op.operands[0], inner, op)], {"dims": to}, results=[out]).results[0]
            case Reshape() if (before := _unit_dims(op, dims)) is not None:
                return build(Reshape, [self._resized(op.operands[0], before, op)], results=[out]).results[0]
            case _ if op is not None and op.kind is Kind.ELEMENTWISE:
                operands = [self._resized(x, dims, op) for x in op.operands]
                attrs = {name: attr(op, name) for name in (a.name for a in op.operation.attributes)}
                return build(type(op), operands, attrs, results=[out]).results[0]
        raise CompileError(
            f"pages: a mask as long as the cache is made by {'an argument' if op is None else op.OPERATION_NAME}",
            where=str(place_of(reader if op is None else op)),
            hint="it may compare positions, counted by torch.arange",
        )


def _replaces_rows(op: Any, state: Any) -> bool:
    if not isinstance(op, Scatter) or op.operands[0] != state or attr(op, "how") != "set" or attr(op, "dims") != [2]:
        return False
    t, rows = from_mlir(state), from_mlir(op.operands[2])
    return t.rank == 4 and rows.rank == 4 and t.shape[0] == 1 and all(is_static(s) for s in t.shape) and attr(op, "at") == 2


def _arguments_of(v: Any) -> set[Any]:
    """The arguments that v follows from."""
    found, work, known = set[Any](), [v], {v}
    while work:
        op = defining(x := work.pop())
        if op is None:
            found.add(x)
            continue
        new = [y for y in op.operands if y not in known]
        known.update(new)
        work += new
    return found


def _is_counted(v: Any) -> bool:
    """Whether v follows from sizes alone."""
    op = defining(v)
    return op is not None and not isinstance(op, Weight) and all(_is_counted(x) for x in op.operands)


def _unit_dims(op: Any, dims: tuple[int, ...]) -> tuple[int, ...] | None:
    """Dims of the operand of a reshape that only adds or takes away dims of size 1, given some of its result; None for others."""
    before, after = from_mlir(op.operands[0]).shape, from_mlir(op.results[0]).shape
    narrow, wide = ([d for d, s in enumerate(shape) if s != 1] for shape in (before, after))
    if [before[d] for d in narrow] != [after[d] for d in wide]:
        return None
    return tuple(narrow[wide.index(d)] for d in dims if d in wide)
