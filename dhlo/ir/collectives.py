"""What a function does together with other processes."""

from __future__ import annotations

from typing import Any

from dhlo.errors import CompileError
from dhlo.ir.dialect import attr
from dhlo.ir.function import walk
from dhlo.ir.ops.collective import Collective
from dhlo.ir.places import place_of

__all__ = ["collectives_of", "has_collectives", "process_groups"]


def has_collectives(op: Any) -> bool:
    """Whether an op is a collective operation, or has some in its regions."""
    if isinstance(op, Collective):
        return True
    return any(has_collectives(x) for region in op.regions for block in region.blocks for x in block.operations)


def collectives_of(block: Any) -> list[Collective]:
    """The collective operations of a function, in its order."""
    return [op for op in walk(block) if isinstance(op, Collective)]


def process_groups(block: Any) -> dict[str, int]:
    """How many processes each group has that a function runs in; 0: any number is right. Raises CompileError where operations
    disagree."""
    found: dict[str, int] = {}
    for op in collectives_of(block):
        name, size = attr(op, "group"), attr(op, "size")
        before = found.setdefault(name, size)
        if size and before not in (0, size):
            raise CompileError(f"process group '{name}' can't have {before} and {size} processes", where=str(place_of(op)))
        found[name] = before or size
    return found
