"""Images that stay within a group, between a convolution and the one that mixes its channels' positions, aren't rounded."""

from __future__ import annotations

from typing import Any

from dhlo.ir.dialect import defining
from dhlo.ir.function import bodies, walk
from dhlo.ir.handles import Module
from dhlo.ir.ops.compute import Conv
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.elementwise import Convert
from dhlo.ir.types import from_mlir
from dhlo.passes.simplify import is_rounded

__all__ = ["widen_chains"]


def widen_chains(module: Module) -> None:
    """Lets the second convolution of a group read what a convolution of bf16 or f16 makes before that is rounded to its type: it is
    never in memory, and computed in f32. What a program converts by itself, of numbers that weren't narrow, stays rounded."""
    for block in bodies(module):
        for group in list(walk(block)):
            if isinstance(group, Group):
                found = [op for op in group.operation.regions[0].blocks[0].operations if isinstance(op, Conv)]
                if len(found) == 2:
                    _widen(*found)


def _widen(first: Any, second: Any) -> None:
    wide = defining(second.operands[0])
    narrow = defining(wide.operands[0]) if isinstance(wide, Convert) else None
    if not isinstance(narrow, Convert) or from_mlir(narrow.operands[0]) != from_mlir(wide.results[0]):
        return
    to = from_mlir(narrow.results[0]).dtype
    if not to.is_float or not all(is_rounded(x, to) for x in first.operands):
        return
    second.operation.operands[0] = narrow.operands[0]
    for op in (wide, narrow):
        if not list(op.results[0].uses):
            op.operation.erase()
