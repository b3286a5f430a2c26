"""The kernels that a group of reductions may be launched as: whole, in parts, or along the way operands lie."""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from dhlo.codegen.families.kernel import Checks, Launch
from dhlo.codegen.families.reduce.reduction import Reduction
from dhlo.codegen.kernel_ir.builder import KernelModule
from dhlo.ir.ops.control import Group

__all__ = ["MAX_SPLIT", "Kernels", "Turned", "lower_reduction"]

MAX_SPLIT = 16  # items that are split at most


@dataclass(frozen=True)
class Split:
    """How a group is reduced in `parts` parts an item: `partial` leaves each part's results (`cell_bytes`) in the workspace, its
    first argument; `gather` brings them together."""

    parts: sympy.Expr
    cell_bytes: int
    partial: Launch
    gather: Launch


@dataclass(frozen=True)
class Turned:
    """A group's kernel whose vectors run along `positions` of its kept dims, as operands lie, and how many it needs to be faster
    than the other."""

    launch: Launch
    positions: sympy.Expr
    least: int


@dataclass(frozen=True)
class Kernels:
    """The kernel of a group; how it is split where it has few items, and what is launched instead where operands' memory runs along
    other dims: None where that never pays."""

    whole: Launch
    split: Split | None = None
    turned: Turned | None = None


def lower_reduction(module: KernelModule, group: Group, checks: Checks) -> Kernels:
    """The kernels of a group that holds reductions over the same dims of one domain."""
    r = Reduction(module, group, checks)
    whole = r.lower()
    if r.turn is not None:
        turned = Reduction(module, group, checks, turned=True)
        return Kernels(whole, turned=Turned(turned.lower(), turned.run_size, turned.fn.lanes // 2))
    if not r.can_split or r.parts == 1:
        return Kernels(whole)
    partial, gather = (Reduction(module, group, checks, part).lower() for part in ("partial", "gather"))
    return Kernels(whole, Split(r.parts, r.cell_bytes, partial, gather))
