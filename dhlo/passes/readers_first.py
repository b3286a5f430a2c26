"""Moves what reads old content of state or an argument before the op that overwrites parts of it."""

from __future__ import annotations

from typing import Any

from dhlo.ir.function import updates_of
from dhlo.ir.handles import Block, Module, Value
from dhlo.shape_infer.in_place import links, readers

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
    ops = list(block.operations)
    at = next(k for k, op in enumerate(ops) if op.operation == group.operation)
    last = max((k for k, op in enumerate(ops[:-1]) if k != at and readers(op, old)), default=-1)
    if last > at and not any(readers(op, v) for op in ops[at + 1 : last + 1] for v in group.results):
        group.operation.move_after(ops[last].operation)
