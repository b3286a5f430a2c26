"""Which dims of a reduction's domain the dims of other values follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from dhlo.ir.dialect import Kind, attr
from dhlo.ir.ops.movement import Broadcast, Reshape
from dhlo.ir.types import from_mlir

__all__ = ["Axes", "reduction_axes"]

Axes: TypeAlias = tuple[int | None, ...]
"""By dim of a value: the dim of the domain; None for one of size 1."""


def reduction_axes(op: Any, axes: Mapping[Any, Axes], domain: Sequence[Any]) -> Axes | None:
    """Which dim of the reduction's domain each dim of `op`'s result follows (None: a unit dim), given those of its operands;
    None if the op rearranges elements in another way."""
    known = [axes[v] for v in op.operands if v in axes]
    shape = from_mlir(op.results[0]).shape
    if op.kind is Kind.ELEMENTWISE:
        return known[0] if all(a == known[0] for a in known) else None
    if isinstance(op, Broadcast):
        dims, out = attr(op, "dims"), []
        src = from_mlir(op.operands[0]).shape
        if len(shape) != len(domain) or any(a != b for a, b in zip(shape, domain, strict=True)):
            return None
        for j in range(len(shape)):
            i = dims.index(j) if j in dims else None
            a = known[0][i] if i is not None else None
            if a is not None and a != j or (a is None and i is not None and src[i] != 1):
                return None
            out.append(j)
        return tuple(out)
    if isinstance(op, Reshape):
        src = from_mlir(op.operands[0]).shape
        if known[0] == tuple(range(len(domain))):  # the whole domain is stored as it is
            return known[0] if shape == src else None
        rest = [a for a, s in zip(known[0], src, strict=True) if s != 1]
        if [s for s in src if s != 1] != [s for s in shape if s != 1]:
            return None
        return tuple(None if s == 1 else rest.pop(0) for s in shape)
    return None
