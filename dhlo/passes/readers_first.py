"""Moves what reads old content of state or an argument before the op that overwrites parts of it."""

from __future__ import annotations

from typing import Any

from dhlo.ir.function import updates_of
from dhlo.ir.handles import Block, Module, Value
from dhlo.shape_infer.in_place import is_before, links, readers

__all__ = ["readers_first"]


def readers_first(module: Module) -> None:
    """Reorders groups so that parts of state and arguments can be written in place: a writer goes after the last reader of what
    it overwrites, unless something in between needs its result."""
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            for i, target in updates_of(block).items():
                for link in links(block, i, target) or []:
                    _move(block, link.group, link.old)


def _move(block: Block, group: Any, old: Value) -> None:
    end = list(block.operations)[-1]
    last = group
    for op in readers(block, old):
        if op.operation != end.operation and is_before(last, op):
            last = op
    between = (op for v in group.results for op in readers(block, v) if not is_before(last, op))
    if last is not group and not any(is_before(group, op) for op in between):
        group.operation.move_after(last.operation)
