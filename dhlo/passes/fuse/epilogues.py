"""Elementwise work after matrix products and convolutions, done on their tiles."""

from __future__ import annotations

from typing import Any

from dhlo.ir.coded import coded, is_constant, stored_image
from dhlo.ir.dialect import Kind, attr, defining
from dhlo.ir.gates import gate_of
from dhlo.ir.ops.movement import Broadcast, Full, Transpose
from dhlo.ir.symbols import is_static
from dhlo.ir.types import from_mlir
from dhlo.passes.fuse.graph import Graph, InOrder, Members, Unit, kind_of
from dhlo.passes.fuse.loops import BUFFER_KINDS

__all__ = ["grow_epilogues"]

# Elements that a result of a convolution sums, and columns of a depthwise one, up to which they become one group.
_MOST_DEPTH, _MOST_WINDOW = 256, 7


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
        if kind is Kind.CONVOLUTION:
            _join_expansion(g, unit, op)
            _join_gate(g, unit, op)
        g.merge(unit)


def _join_expansion(g: Graph, unit: Unit, op: Any) -> None:
    """A depthwise convolution takes in the convolution before it, where nothing else reads that: it is computed for some
    channels and rows at a time, which stay near."""
    image, p = op.operands[0], g.producer(op.operands[0])
    widened = []
    if p is not None and p not in g.unit and (stored := stored_image(op)) is not None:
        if len(g.users(image)) > 1:
            return
        widened, image, p = [p], stored, g.producer(stored)
    before = None if p is None else g.unit.get(p)
    if before is None or before.anchor is not Kind.CONVOLUTION or before.outputs != [image]:
        return
    first = g.ops[before.ops[0]]  # or the gates of its image
    if kind_of(first) is not Kind.CONVOLUTION or not _expands(first):
        return
    if len(g.users(before.outputs[0])) > 1 or not _is_depthwise(op):
        return
    if all(_takes_channels(g, v, before) for n in before.ops[1:] for v in g.operands[n]):
        unit.ops = [*before.ops, *widened, *unit.ops]


def _join_gate(g: Graph, unit: Unit, op: Any) -> None:
    """A convolution multiplies the channels of its image by their gates as it packs them, where nothing else reads the product."""
    found = gate_of(op)
    if found is None:
        return
    image = op.operands[0]
    read = [image] if (stored := stored_image(op)) is None else [stored, image]  # the product, and what widens it
    made = [g.producer(v) for v in read]
    if any(n is None or n in g.unit for n in made) or any(len(g.users(v)) > 1 for v in read):
        return
    units = [None if (p := g.producer(v)) is None else g.unit.get(p) for v in found]
    if all(u is not None and v in u.outputs for u, v in zip(units, found, strict=True)):  # they lie in memory, and densely
        unit.ops = [*(n for n in made if n is not None), *unit.ops]


def _expands(op: Any) -> bool:
    """A convolution of images, whose windows make one block of the sum: 1 x 1, or strided, so that Winograd's algorithm isn't given
    up for it."""
    if not _is_static_image(op) or attr(op, "groups") != 1:
        return False
    x, w = (from_mlir(v) for v in op.operands)
    window = w.shape[2:]
    return bool((op.pointwise or min(attr(op, "stride")) > 1) and x.shape[1] * window[0] * window[1] <= _MOST_DEPTH)


def _is_depthwise(op: Any) -> bool:
    """One channel in and out for each group, and a window that fits registers."""
    w = from_mlir(op.operands[1])
    each = _is_static_image(op) and attr(op, "groups") == w.shape[0] == from_mlir(op.operands[0]).shape[1]
    return bool(each and max(w.shape[2:]) <= _MOST_WINDOW)


def _is_static_image(op: Any) -> bool:
    """Two spatial dims, constant weights, floats that convolutions have kernels for."""
    x, w = (from_mlir(v) for v in op.operands)
    known = x.rank == 4 and is_static(x.shape[1]) and _is_known(op.operands[1]) and x.dtype.name in ("f32", "f64")
    return bool(known and w.is_static and not attr(op, "transposed"))


def _is_known(weight: Any) -> bool:
    """Constant, or codes without scales."""
    kept = coded(weight)
    return is_constant(weight) or (kept is not None and len(kept.op.operands) == 1)


def _takes_channels(g: Graph, v: Any, unit: Unit) -> bool:
    """Whether an operand of elementwise work is there before any of the image: made in the unit, or constant."""
    return (
        g.producer(v) in unit.ops
        or isinstance(op := defining(v), Full)
        or isinstance(op, Broadcast)
        and is_constant(op.operands[0])
    )


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
    last = g.ops[order[best - 1]]
    if best > 1 and len(out) == 1 and _widens_image(g, last):
        return order[: best - 1], [last.operands[0]]
    return order[:best], out


def _widens_image(g: Graph, op: Any) -> bool:
    """Whether an op converts an image for convolutions, which widen it themselves, and for nothing else that needs memory: better
    stored narrow."""
    users = [g.ops[n] for n in g.users(op.results[0])]
    images = [u for u in users if stored_image(u) is not None and u.operands[0] == op.results[0]]
    return bool(images) and all(u in images or kind_of(u) not in BUFFER_KINDS for u in users)


def _absorb_output_transpose(g: Graph, unit: Unit) -> None:
    """Attention may store its result in another order of dims, so a lone transpose after it is free."""
    users = g.users(unit.outputs[0])
    if len(users) == 1 and isinstance(g.ops[users[0]], Transpose) and attr(g.ops[users[0]], "perm")[-1] == 3:
        unit.ops.append(users[0])
        unit.outputs = list(g.ops[users[0]].results)
