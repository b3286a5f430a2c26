"""Turns units into `dhlo.group` ops and puts everything in an order in which it is computed before it is used."""

from __future__ import annotations

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


def _schedule(g: Graph, units: list[Unit]) -> list[Any]:
    """Units and lone ops in an order in which everything is computed before it is used; otherwise as in the program."""
    item_of: dict[int, Any] = {}
    for u in units:
        for n in u.ops:
            item_of[n] = u
    lone = dict.fromkeys(n for n, op in enumerate(g.ops) if n not in item_of and not kind_of(op).pullable)
    todo = list(lone)
    for n in todo:  # views that they read stand beside them
        for v in g.inputs(n):
            p = g.producer(v)
            if p is not None and p not in item_of and p not in lone and kind_of(g.ops[p]).pullable:
                lone[p] = None
                todo.append(p)
    for n in lone:
        item_of[n] = n

    def position(item: Any) -> int:
        return int(item.ops[-1]) if isinstance(item, Unit) else int(item)

    done: list[Any] = []
    state: dict[int, int] = {}
    needs_cache: dict[int, list[Any]] = {}

    def needs(n: int) -> list[Any]:
        """Items that must come before op n, looking through pulled ops."""
        todo = [n]
        while todo:
            k = todo[-1]
            missing = [p for p in g.sources[k] if p not in item_of and p not in needs_cache]
            if k not in needs_cache and not missing:
                needs_cache[k] = _dedupe([x for p in g.sources[k] for x in ([item_of[p]] if p in item_of else needs_cache[p])])
            if missing:
                todo += missing
            else:
                todo.pop()
        return needs_cache[n]

    def visit(item: Any) -> None:
        stack = [(item, iter(_dedupe([x for n in (item.ops if isinstance(item, Unit) else [item]) for x in needs(n)])))]
        state[id(item) if isinstance(item, Unit) else item] = 1
        while stack:
            current, rest = stack[-1]
            for x in rest:
                key = id(x) if isinstance(x, Unit) else x
                if x is current or state.get(key) == 2:
                    continue
                if state.get(key) == 1:
                    raise AssertionError("fusion made a cycle")
                state[key] = 1
                stack.append((x, iter(_dedupe([y for n in (x.ops if isinstance(x, Unit) else [x]) for y in needs(n)]))))
                break
            else:
                stack.pop()
                state[id(current) if isinstance(current, Unit) else current] = 2
                done.append(current)

    items: list[Any] = sorted([*units, *lone], key=position)
    for item in items:
        if state.get(id(item) if isinstance(item, Unit) else item) != 2:
            visit(item)
    return done


def _dedupe(items: list[Any]) -> list[Any]:
    seen: set[int] = set()
    out = []
    for x in items:
        key = id(x) if isinstance(x, Unit) else x
        if key not in seen:
            seen.add(key)
            out.append(x)
    return out


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
