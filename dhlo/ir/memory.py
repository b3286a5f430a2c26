"""Where values live: what `assign-buffers` writes beside the ops that make them, read back.

Each result of an op has one dictionary in the op's `memory`:

    {buffer = n}       the arena buffer that `dhlo.alloc` calls n
    {outputs = [i]}    memory of the model's output i
    {state = "name"}   the content of a state, which is written over
    {argument = k}     argument k's, which is written over
    {offset = "e"}     that of the value whose view it is, from element e on
    {given = k}        where the op around the region wants the region's result k
    {}                 where the branch that made it has put it, or none
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy

from dhlo.ir.dialect import defining, to_attr
from dhlo.ir.mlir import ir
from dhlo.ir.symbols import parse

__all__ = ["base", "buffers_of", "is_written_over", "memory_of", "offset_of", "set_memory"]

Memory = Mapping[str, Any]


def set_memory(op: Any, places: Sequence[Memory], name: str = "memory") -> None:
    """Writes down where the results of an op live; `name` "spare" is for the second buffers of a loop's results, "workspace_memory"
    for what a group needs while it runs."""
    op.operation.attributes[name] = ir.ArrayAttr.get([ir.DictAttr.get({k: to_attr(x) for k, x in p.items()}) for p in places])


def memory_of(v: Any, name: str = "memory") -> Memory:
    """Where a value lives; empty where nothing is written down."""
    op = defining(v)
    return {} if op is None else _place(op, ir.OpResult(v).result_number, name)


def is_written_over(v: Any) -> bool:
    """Is a value written over the content that it replaces part of?"""
    return not {"state", "argument"}.isdisjoint(memory_of(v))


def buffers_of(op: Any, name: str) -> list[int]:
    """The arena buffers that an op names beside those of its results."""
    if name not in op.operation.attributes:
        return []
    places = range(len(op.operation.attributes[name]))
    return [p["buffer"] for k in places if "buffer" in (p := _place(op, k, name))]


def _place(op: Any, k: int, name: str) -> Memory:
    attributes = op.operation.attributes
    if name not in attributes:
        return {}
    holder = {e.name: e.attr for e in ir.DictAttr(attributes[name][k])}
    return {key: [n.value for n in a] if isinstance(a, ir.ArrayAttr) else a.value for key, a in holder.items()}


def base(v: Any) -> Any:
    """The value whose memory `v` shows: through views outside of groups, the first behind it that isn't one."""
    while "offset" in memory_of(v):
        op = defining(v)
        while op is not None and op.kind.pullable:
            v = op.operands[0]
            op = defining(v)
    return v


def offset_of(v: Any) -> sympy.Expr:
    """Where a view begins in its base's memory, in elements."""
    return parse(memory_of(v)["offset"])
