"""Turns units into `dhlo.group` ops and puts everything in an order in which it is computed before it is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dhlo.ir.dialect import build
from dhlo.ir.handles import Block, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops.control import Group, Yield
from dhlo.ir.types import TensorType, from_mlir
from dhlo.passes.fuse.graph import Graph, Unit, kind_of

__all__ = ["build_groups"]


def build_groups(g: Graph, block: Block) -> None:
    """Replaces units by `dhlo.group` ops: each gets its members and copies of what it pulls in; then orders everything."""
    units = list({id(u): u for u in g.unit.values()}.values())
    order = _schedule(g, units)
    terminator = g.ops[-1]
    for item in order:
        if isinstance(item, Unit):
            _build_group(g, item, terminator)
        elif g.ops[item] != terminator:
            g.ops[item].operation.move_before(terminator.operation)
    for n in range(len(g.ops) - 1, -1, -1):  # what was pulled everywhere is used no more
        op = g.ops[n]
        if n not in g.unit and kind_of(op).pullable and not any(True for _ in op.results[0].uses):
            op.operation.erase()


Item = Unit | int
"""What is put in order: a unit, or an op that stays alone."""


def _ops(item: Item) -> list[int]:
    return item.ops if isinstance(item, Unit) else [item]


def _key(item: Item) -> int:
    """Units are compared by identity."""
    return id(item) if isinstance(item, Unit) else item


def _schedule(g: Graph, units: list[Unit]) -> list[Item]:
    """Units and lone ops in an order in which everything is computed before it is used; otherwise as in the program."""
    items: list[Item] = [*units, *_lone_ops(g, {n for u in units for n in u.ops})]
    items.sort(key=lambda item: _ops(item)[-1])
    order = _Order(g, {n: item for item in items for n in _ops(item)})
    for item in items:
        order.visit(item)
    return order.done


def _lone_ops(g: Graph, grouped: set[int]) -> list[int]:
    """Ops that are computed outside groups, and the views that they read."""
    lone = dict.fromkeys(n for n, op in enumerate(g.ops) if n not in grouped and not kind_of(op).pullable)
    todo = list(lone)
    for n in todo:
        for v in g.inputs(n):
            p = g.producer(v)
            if p is not None and p not in grouped and p not in lone and kind_of(g.ops[p]).pullable:
                lone[p] = None
                todo.append(p)
    return list(lone)


class _Order:
    """Items behind all that they need, depth first and without recursion: programs have chains of thousands of ops."""

    def __init__(self, g: Graph, item_of: dict[int, Item]) -> None:
        self._g, self._item_of = g, item_of
        self._needs: dict[int, list[Item]] = {}  # of ops
        self._begun: set[int] = set()
        self._finished: set[int] = set()
        self.done: list[Item] = []

    def visit(self, item: Item) -> None:
        """Appends an item and what it needs to `done`, where they aren't yet."""
        if _key(item) in self._begun:
            return
        stack = [self._begin(item)]
        while stack:
            current, rest = stack[-1]
            x = next((x for x in rest if _key(x) != _key(current) and _key(x) not in self._finished), None)
            if x is None:
                stack.pop()
                self._finished.add(_key(current))
                self.done.append(current)
            elif _key(x) in self._begun:
                raise AssertionError("fusion made a cycle")
            else:
                stack.append(self._begin(x))

    def _begin(self, item: Item) -> tuple[Item, Iterator[Item]]:
        self._begun.add(_key(item))
        return item, iter(_dedupe([x for n in _ops(item) for x in self._needed(n)]))

    def _needed(self, op: int) -> list[Item]:
        """Items that must come before an op, looking through pulled ops."""
        todo = [op]
        while todo:
            n = todo[-1]
            sources = self._g.sources[n]
            missing = [p for p in sources if p not in self._item_of and p not in self._needs]
            if missing:
                todo += missing
                continue
            if n not in self._needs:
                found = [x for p in sources for x in ([self._item_of[p]] if p in self._item_of else self._needs[p])]
                self._needs[n] = _dedupe(found)
            todo.pop()
        return self._needs[op]


def _dedupe(items: list[Item]) -> list[Item]:
    return list({_key(x): x for x in items}.values())


def _build_group(g: Graph, unit: Unit, before: Any) -> Any:
    anchor = unit.anchor.value if unit.anchor else "loops"
    types: list[TensorType] = [from_mlir(v) for v in unit.outputs]
    first = g.ops[unit.ops[0]]
    with ir.InsertionPoint(before), first.location:
        group = build(Group, [], {"anchor": anchor}, results=types, regions=1, loc=g.ops[unit.ops[-1]].location)
    body = ir.Block.create_at_start(group.operation.regions[0], [])
    inside = set(unit.ops)
    copies: dict[int, Any] = {}
    with ir.InsertionPoint(body), first.location:
        end = build(Yield, unit.outputs)
    for n in sorted(unit.ops):
        _pull(g, n, inside, end, copies)
        g.ops[n].operation.move_before(end.operation)
    for out, result in zip(unit.outputs, group.results, strict=True):
        g.stored[out] = result
        for use in list(out.uses):
            user = use.owner.operation
            if user.block != body:
                user.operands[use.operand_number] = result
    return group


def _pull(g: Graph, n: int, inside: set[int], end: Any, copies: dict[int, Any]) -> None:
    """Copies the on-demand ops that op n reads into the group, before it."""
    op = g.ops[n]
    for k, v in enumerate(op.operands):
        p = g.producer(v)
        if p is not None and p not in inside and _is_on_demand(g, p, v):
            op.operation.operands[k] = _copy(g, p, end, copies)


def _is_on_demand(g: Graph, p: int, v: Value) -> bool:
    """Whether v, made by op p, is computed where it is read: it's in no unit, or its unit doesn't store it."""
    return kind_of(g.ops[p]).pullable and (p not in g.unit or v not in g.unit[p].outputs)


def _copy(g: Graph, p: int, end: Any, copies: dict[int, Any]) -> Any:
    todo = [p]
    while todo:
        n = todo[-1]
        operands = [(v, g.producer(v)) for v in g.operands[n]]
        made_of = {v: q for v, q in operands if q is not None and _is_on_demand(g, q, v)}
        missing = [q for q in made_of.values() if q not in copies]
        if missing:
            todo.append(missing[0])
            continue
        todo.pop()
        if n not in copies:
            with ir.InsertionPoint(end.operation):
                c = g.ops[n].operation.clone()
            for k, (v, _) in enumerate(operands):
                c.operation.operands[k] = copies[made_of[v]] if v in made_of else g.stored.get(v, v)
            copies[n] = c.operation.results[0]
    return copies[p]
