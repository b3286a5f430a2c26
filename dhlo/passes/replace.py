"""Ops of one kind, each replaced by what a rule makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dhlo.ir.function import bodies, walk
from dhlo.ir.handles import Module, Value
from dhlo.ir.mlir import ir
from dhlo.passes.cse import erase_dead

__all__ = ["replace_each"]


def replace_each(module: Module, cls: type, rule: Callable[[Any], Value | None]) -> None:
    """Replaces the result of each op of a class, in the module's functions and the regions of their control flow, by the value that
    the rule builds before it; None leaves the op as it is."""
    for block in bodies(module):
        changed = False
        found: list[Any] = [op for op in walk(block) if isinstance(op, cls)]
        for op in found:
            with ir.InsertionPoint(op.operation), op.location:
                y = rule(op)
            if y is not None:
                op.results[0].replace_all_uses_with(y)
                op.operation.erase()
                changed = True
        if changed:
            erase_dead(block)
