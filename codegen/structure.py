"""Recognises groups that differ only in which buffers they touch, so that each kind of kernel is written once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dhlo.codegen.emit import Slot
from dhlo.types import from_mlir

__all__ = ["Structure"]


class Structure:
    """The shape of a group's body: `key` is equal for groups with the same kernel; `buffers` and `ops` correspond one to one."""

    def __init__(self, group: Any) -> None:
        body = list(group.operation.regions[0].blocks[0].operations)
        self.ops = body[:-1]
        local: dict[Any, int] = {}
        outside: dict[Any, int] = {}
        rows: list[Any] = [str(group.operation.attributes["anchor"])]
        for op in body:
            operands: list[Any] = []
            for v in op.operands:
                if v in local:
                    operands.append(local[v])
                else:
                    operands.append((outside.setdefault(v, len(outside)), from_mlir(v)))
            attrs = tuple((n, str(op.operation.attributes[n])) for n in op.operation.attributes)
            rows.append((op.OPERATION_NAME, attrs, tuple(operands), tuple(from_mlir(v) for v in op.results)))
            for v in op.results:
                local[v] = len(local)
        self.key = tuple(rows)
        self.buffers = [*outside, *group.results]

    def rebind(self, slots: Sequence[Slot], made_for: Structure, check_of: Callable[[Any], int],
               lookups: dict[int, Any]) -> list[Slot]:
        """The arguments of a kernel that was written for another group, for this one. `lookups` says which op a check of the
        other group is about."""
        position = {v: n for n, v in enumerate(made_for.buffers)}
        out: list[Slot] = []
        for kind, what in slots:
            if kind == "pointer":
                out.append((kind, self.buffers[position[what]]))
            elif kind == "errors":
                n = next(i for i, op in enumerate(made_for.ops) if op.operation == lookups[what].operation)
                out.append((kind, check_of(self.ops[n])))
            else:
                out.append((kind, what))
        return out
