"""Elementwise work after matrix products and convolutions, done on their tiles."""

from __future__ import annotations

from typing import Any

from dhlo.ir.dialect import Kind, attr
from dhlo.ir.ops.movement import Transpose
from dhlo.ir.types import from_mlir
from dhlo.passes.fuse.graph import Graph, InOrder, Members, Unit, kind_of

__all__ = ["grow_epilogues"]


def grow_epilogues(g: Graph) -> None:
    """Matmul, convolution: the longest run of elementwise ops that ends in a single value of the same shape."""
    for n, op in enumerate(g.ops):
        kind = getattr(op, "kind", None)
        if kind not in (Kind.MATMUL, Kind.CONVOLUTION, Kind.ATTENTION, Kind.WINDOW, Kind.OPAQUE):
            continue
        if kind is Kind.MATMUL or kind is Kind.CONVOLUTION:
            taken, out = _grow_epilogue(g, n)
        else:
            taken, out = [n], list(op.results)
        unit = Unit(kind, taken, out)
        if kind is Kind.ATTENTION:
            _absorb_output_transpose(g, unit)
        g.merge(unit)


def _grow_epilogue(g: Graph, n: int) -> tuple[list[int], list[Any]]:
    root = g.ops[n].results[0]
    shape = from_mlir(root).shape
    taken, order = Members(g, n), [n]
    best, out = 1, [root]
    todo = InOrder(g.users(root))
    while (k := todo.next()) is not None:
        op = g.ops[k]
        if k in g.unit or kind_of(op) is not Kind.ELEMENTWISE or from_mlir(op.results[0]).shape != shape or taken.closes_cycle(k):
            continue
        taken.add(k)
        order.append(k)
        todo.add(g.users(op.results[0]))
        if len(taken.open) == 1:
            best, out = len(order), list(taken.open)
    return order[:best], out


def _absorb_output_transpose(g: Graph, unit: Unit) -> None:
    """Attention may store its result in another order of dims, so a lone transpose after it is free."""
    users = g.users(unit.outputs[0])
    if len(users) == 1 and isinstance(g.ops[users[0]], Transpose) and attr(g.ops[users[0]], "perm")[-1] == 3:
        unit.ops.append(users[0])
        unit.outputs = list(g.ops[users[0]].results)
