"""Writes of parts of state and arguments that go straight to their memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dhlo.ir.dialect import Kind, attr, defining
from dhlo.ir.function import Target, walk
from dhlo.ir.handles import Block, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.lookup import Scatter, UpdateSlice
from dhlo.ir.ops.movement import Reshape, State
from dhlo.ir.ops.recurrence import Recurrence
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.views import strided

__all__ = ["Link", "in_place", "is_before", "links", "readers"]

WRITERS = (Scatter, UpdateSlice, Recurrence)


@dataclass(frozen=True)
class Link:
    """A group whose result is `old` with parts overwritten."""

    group: Any
    old: Value
    new: Any


def links(block: Block, result: int, target: Target) -> list[Link] | None:
    """The writes that lead from the content that the target had to the function's result, last one first; None if the result
    comes about in another way."""
    v = list(block.operations)[-1].operands[result]
    found: list[Link] = []
    while not _is_content(v, block, target):
        op = defining(v)
        if isinstance(op, Reshape):
            v = op.operands[0]
            continue
        link = _link(op, v)
        if link is None:
            return None
        found.append(link)
        v = link.old
    return found


def _is_content(v: Value, block: Block, target: Target) -> bool:
    op = defining(v)
    if isinstance(target, int):
        return op is None and bool(v == block.arguments[target])
    return isinstance(op, State) and bool(attr(op, "name_") == target)


def _link(group: Any, v: Value) -> Link | None:
    """The write that a group is, if it writes onto a whole dense value from outside and reads no more of it."""
    if not isinstance(group, Group) or attr(group, "anchor") != Kind.OPAQUE.value:
        return None
    body = group.operation.regions[0].blocks[0]
    writers = [op for op in body.operations if isinstance(op, WRITERS)]
    if len(writers) != 1 or not list(body.operations)[-1].operands[ir.OpResult(v).result_number] == writers[0].results[0]:
        return None

    def outside(x: Value) -> bool:
        return defining(x) is None or bool(defining(x).operation.block != body)

    view = strided(writers[0].operands[0], outside)
    if view is None or not view.is_dense or view.offset != 0 or from_mlir(view.base).numel != from_mlir(v).numel:
        return None
    reads = [x for op in body.operations for x in op.operands if outside(x) and _same_memory(x, view.base)]
    return Link(group, view.base, v) if len(reads) == 1 else None


def readers(block: Block, v: Value) -> list[Any]:
    """The ops of a block that read v or a view of it, themselves or in their regions; some more than once, in no order."""
    made, found = defining(v), list[Any]()
    same = _of_state(block, attr(made, "name_")) if isinstance(made, State) else [v]
    for x in same:  # to which views are added on the way
        for use in x.uses:
            op = use.owner.operation.opview
            if getattr(op, "kind", None) is Kind.MOVEMENT and len(op.operands) == 1:
                same += op.results
            found.append(_around(block, op))
    return found


def _of_state(block: Block, name: str) -> list[Any]:
    """What a state is read as."""
    states = (op for op in walk(block) if isinstance(op, State) and attr(op, "name_") == name)
    return [v for op in states for v in op.results]


def _around(block: Block, op: Any) -> Any:
    """The op of a block that an op is or lies in."""
    while op.operation.block != block:
        op = op.operation.parent.opview
    return op


def is_before(a: Any, b: Any) -> bool:
    """Whether an op stands before another of its block."""
    return bool(a.operation != b.operation and a.operation.is_before_in_block(b.operation))


def _same_memory(x: Value, v: Value) -> bool:
    """Is x the value v, the same state, or a view outside groups of it?"""
    while not x == v:
        op = defining(x)
        if op is None:
            return False
        if isinstance(op, State):
            return isinstance(defining(v), State) and bool(attr(op, "name_") == attr(defining(v), "name_"))
        if op.kind is not Kind.MOVEMENT or len(op.operands) != 1:
            return False
        x = op.operands[0]
    return True


def in_place(block: Block, updates: Mapping[int, Target]) -> dict[Any, Any]:
    """For values that may be written over what they replace: that value. All of a result's writes, or none."""
    out: dict[Any, Any] = {}
    for i, target in updates.items():
        found = links(block, i, target)
        if found and all(_is_last(block, i, link) for link in found):
            out |= {link.new: link.old for link in found}
    return out


def _is_last(block: Block, result: int, link: Link) -> bool:
    """Nothing reads the old content after the write; nor is it, or what is written, a result of the function."""
    end = list(block.operations)[-1]
    later = any(is_before(link.group, op) and op.operation != end.operation for op in readers(block, link.old))
    others = [v for k, v in enumerate(end.operands) if k != result]
    return not later and not any(_same_memory(v, x) for v in others for x in (link.old, link.new))
