"""Makes tensors that the program changes into state, not constants any more, so that nothing is folded or packed from them;
and says which results of the function are the new content of what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dhlo.ir.dialect import attr, build
from dhlo.ir.mlir import ir
from dhlo.ir.ops.movement import State, Weight
from dhlo.ir.types import from_mlir

__all__ = ["separate_state", "updates_of"]

Target = str | int  # the name of a state, or the number of an argument


def separate_state(module: Any, updates: Mapping[int, Target]) -> None:
    """Replaces `weight` by `state` for the names among `updates` (by result number), in all functions, and marks the results of
    the first."""
    names = set(updates.values())
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            for op in list(block.operations):
                if isinstance(op, Weight) and attr(op, "name_") in names:
                    with ir.InsertionPoint(op.operation), op.location:
                        new = build(State, [], {"name_": attr(op, "name_")}, results=[from_mlir(op.results[0])])
                    op.results[0].replace_all_uses_with(new.results[0])
                    op.operation.erase()
    if updates:
        main = module.body.operations[0]
        with module.context:
            main.attributes["res_attrs"] = ir.ArrayAttr.get(
                [_mark(updates.get(i)) for i in range(len(main.attributes["function_type"].value.results))]
            )


def _mark(target: Target | None) -> Any:
    if target is None:
        return ir.DictAttr.get({})
    if isinstance(target, str):
        return ir.DictAttr.get({"dhlo.state": ir.StringAttr.get(target)})
    return ir.DictAttr.get({"dhlo.argument": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), target)})


def updates_of(block: Any) -> dict[int, Target]:
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
