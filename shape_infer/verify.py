"""Symbols are values: each has one definition, which comes before everything that mentions it.

An argument's type defines the symbols of its sizes, and its mark how much of it is filled, where it is the filled part of
a buffer; ops with a `symbol` define that one, and a branch the sizes in which its regions differ. What a region defines ends
with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dhlo.ir.function import filled_sizes
from dhlo.ir.handles import Block, Module
from dhlo.ir.ops.control import new_symbols
from dhlo.ir.types import from_mlir

__all__ = ["Misuse", "misused_symbol"]


@dataclass(frozen=True)
class Misuse:
    """An op that mentions a symbol before it has a value, or defines one that has; and that in words."""

    op: Any
    text: str


def misused_symbol(module: Module) -> Misuse | None:
    """The first misuse of a symbol in the functions of a module whose ops are verified; None if there is none."""
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            known = _sizes(block.arguments) | {s.name for e in filled_sizes(block).values() for s in e.free_symbols}
            found = next(_block(block, known, set(known)), None)
            if found is not None:
                return found
    return None


def _block(block: Block, known: set[str], taken: set[str]) -> Iterator[Misuse]:
    """Misuses in a block before which `known` have values; `taken` are all that the function has defined so far. Adds to both."""
    for op in block.operations:
        if getattr(op, "kind", None) is None:  # func.return
            continue
        new = set(new_symbols(op, known))
        if twice := new & taken:
            yield Misuse(op, f"the symbol {min(twice)} is defined twice")
        if early := op.mentions() - known:
            yield Misuse(op, f"the symbol {min(early)} is used before it is defined")
        taken |= new
        for region in op.operation.regions:
            for inner in region.blocks:
                if early := _sizes(inner.arguments) - known:
                    yield Misuse(op, f"the symbol {min(early)} of a region's argument is used before it is defined")
                yield from _block(inner, set(known), taken)
        known |= new
        if early := _sizes(op.results) - known:
            yield Misuse(op, f"the symbol {min(early)} of a result is used before it is defined")


def _sizes(values: Any) -> set[str]:
    """The symbols in the types of values."""
    return {s for v in values for s in from_mlir(v).symbols}
