"""Marks on a function's results that are new content of state or of an argument, not outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from dhlo.ir.handles import Block
from dhlo.ir.mlir import ir

__all__ = ["Target", "mark_updates", "updates_of"]

Target: TypeAlias = str | int
"""The name of a state, or the number of an argument."""


def mark_updates(f: Any, updates: Mapping[int, Target]) -> None:
    """Marks results of a function, by their number, as new content of what."""
    with f.operation.context:
        results = f.attributes["function_type"].value.results
        f.attributes["res_attrs"] = ir.ArrayAttr.get([_mark(updates.get(i)) for i in range(len(results))])


def _mark(target: Target | None) -> Any:
    if target is None:
        return ir.DictAttr.get({})
    if isinstance(target, str):
        return ir.DictAttr.get({"dhlo.state": ir.StringAttr.get(target)})
    return ir.DictAttr.get({"dhlo.argument": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), target)})


def updates_of(block: Block) -> dict[int, Target]:
    """Which results of the function with this body are the new content of what; empty for other blocks."""
    attributes = block.owner.attributes
    if "res_attrs" not in attributes:
        return {}
    out: dict[int, Target] = {}
    for i, marks in enumerate(map(ir.DictAttr, attributes["res_attrs"])):
        if "dhlo.state" in marks:
            out[i] = marks["dhlo.state"].value
        elif "dhlo.argument" in marks:
            out[i] = marks["dhlo.argument"].value
    return out
