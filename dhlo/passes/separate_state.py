"""Makes tensors that the program changes into state, not constants any more, so that nothing is folded or packed from them."""

from __future__ import annotations

from collections.abc import Iterable

from dhlo.ir.dialect import attr, build
from dhlo.ir.function import bodies, updates_of
from dhlo.ir.handles import Module
from dhlo.ir.mlir import ir
from dhlo.ir.ops.movement import State, Weight
from dhlo.ir.types import from_mlir

__all__ = ["request_states", "separate_state"]

_REQUEST = "dhlo.states"


def request_states(module: Module, names: Iterable[str]) -> None:
    """Writes down, for the pass, tensors that other programs change, which share their state with this one."""
    module.operation.attributes[_REQUEST] = ir.ArrayAttr.get([ir.StringAttr.get(name) for name in names])


def separate_state(module: Module) -> None:
    """Replaces `weight` by `state`, in all functions, for what results of the first are the new content of, or other
    programs of the model change."""
    blocks = bodies(module)
    names = set(updates_of(blocks[0]).values()) if blocks else set()
    if _REQUEST in module.operation.attributes:
        names |= {ir.StringAttr(name).value for name in ir.ArrayAttr(module.operation.attributes[_REQUEST])}
        del module.operation.attributes[_REQUEST]
    for block in blocks if names else []:
        for op in list(block.operations):
            if isinstance(op, Weight) and attr(op, "name_") in names:
                with ir.InsertionPoint(op.operation), op.location:
                    new = build(State, [], {"name_": attr(op, "name_")}, results=[from_mlir(op.results[0])])
                op.results[0].replace_all_uses_with(new.results[0])
                op.operation.erase()
