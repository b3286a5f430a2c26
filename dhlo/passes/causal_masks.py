"""Lets attention know of masks that hide what comes later: keys that no query of a block may see aren't read."""

from __future__ import annotations

import math

from dhlo.ir.dialect import attr, build, defining
from dhlo.ir.handles import Module, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops.compute import Attention, extra
from dhlo.ir.ops.elementwise import Select
from dhlo.ir.ops.movement import Full, number
from dhlo.ir.symbols import show
from dhlo.ir.types import from_mlir
from dhlo.passes.positions import seen

__all__ = ["causal_masks"]


def causal_masks(module: Module) -> None:
    """Where a mask says that a query sees no key after its own, attention becomes causal; what of it says nothing else goes."""
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            for op in list(block.operations):
                if isinstance(op, Attention) and extra(op, 4) is not None and not attr(op, "causal"):
                    _rewrite(op)


def _rewrite(op: Attention) -> None:
    q, k, v, mask, *sinks = op.operands
    sees, added = (mask, None) if from_mlir(mask).dtype.is_bool else _added_where(mask)
    found = seen(sees) if sees is not None else None
    if found is None or found.past is None:
        return
    with ir.InsertionPoint(op.operation), op.location:
        kept = [mask] if not found.whole or found.window else [added] if added is not None else []
        attrs = {"scale": attr(op, "scale"), "softcap": attr(op, "softcap"), "causal": True, "past": show(found.past)}
        new = build(Attention, [q, k, v, *kept, *sinks], attrs).results[0]
    op.results[0].replace_all_uses_with(new)
    op.operation.erase()


def _added_where(mask: Value) -> tuple[Value | None, Value | None]:
    """Where a mask of floats isn't -inf, as bools, and what it is there; nothing if it doesn't say so."""
    op = defining(mask)
    if not isinstance(op, Select):
        return None, None
    sees, added, hidden = op.operands
    least = defining(hidden)
    return (sees, added) if isinstance(least, Full) and number(attr(least, "value")) == -math.inf else (None, None)
