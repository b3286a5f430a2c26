"""What a function says of its arguments once adapters (LoRA) are added to its products, for whoever feeds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dhlo.ir.mlir import ir

__all__ = ["Adapted", "Adapters", "adapters_of", "mark_adapters", "whole_rank"]

_PRODUCTS, _ARGUMENTS = "dhlo.adapted", "dhlo.adapters"
_VECTOR, _LEAST = 16, 4  # elements: of the widest vector of f32, and of the narrowest


@dataclass(frozen=True)
class Adapted:
    """A product of rows [T, inputs] with a constant. In a row of adapters' weights, A [inputs, rank] lies at element `offset`, and
    B [rank, outputs] behind it."""

    name: str
    """Of the module whose weight it multiplies by."""
    offset: int
    inputs: int
    outputs: int


@dataclass(frozen=True)
class Adapters:
    """Arguments by their numbers."""

    chosen: int
    """i32 [T]: the adapter of each token, below 0 none."""
    weights: int
    """[adapters, elements], of the dtype of rows."""
    rank: int
    products: tuple[Adapted, ...]


def whole_rank(rank: int) -> int:
    """The rank that adapters of up to `rank` have in memory: of whole vectors, or a power of two that divides one."""
    return -(-rank // _VECTOR) * _VECTOR if rank > _VECTOR // 2 else max(1 << (rank - 1).bit_length(), _LEAST)


def mark_adapters(block: Any, adapters: Adapters) -> None:
    """Says what `adapters_of` reads."""
    i64 = ir.IntegerType.get_signless(64)

    def row(p: Adapted) -> Any:
        numbers = {"offset": p.offset, "inputs": p.inputs, "outputs": p.outputs}
        return ir.DictAttr.get({"name": ir.StringAttr.get(p.name)} | {k: ir.IntegerAttr.get(i64, n) for k, n in numbers.items()})

    attributes = block.owner.attributes
    attributes[_ARGUMENTS] = ir.DenseI64ArrayAttr.get([adapters.chosen, adapters.weights, adapters.rank])
    attributes[_PRODUCTS] = ir.ArrayAttr.get([row(p) for p in adapters.products])


def adapters_of(block: Any) -> Adapters | None:
    """What `mark_adapters` has said, None if nothing. Raises KeyError, TypeError and ValueError for what it can't have said."""
    attributes = block.owner.attributes
    if _ARGUMENTS not in attributes:
        return None
    chosen, weights, rank = ir.DenseI64ArrayAttr(attributes[_ARGUMENTS])
    rows = [ir.DictAttr(x) for x in ir.ArrayAttr(attributes[_PRODUCTS])]
    products = [
        Adapted(ir.StringAttr(x["name"]).value, *(ir.IntegerAttr(x[n]).value for n in ("offset", "inputs", "outputs")))
        for x in rows
    ]
    return Adapters(chosen, weights, rank, tuple(products))
