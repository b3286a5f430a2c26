"""Loop nests over the elements of a group's results: elementwise work, views, lookups, joins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import Checks, GroupKernel, Launch, finish, rows, vectors
from dhlo.codegen.families.loops.narrow import Narrow, before_reshapes
from dhlo.codegen.families.loops.shared import ROWS, Shared
from dhlo.codegen.families.loops.transpose import Turned
from dhlo.codegen.families.merged import as_one, merged_dims
from dhlo.codegen.kernel_ir.builder import KernelModule, V
from dhlo.ir.dialect import Kind, Op, attr
from dhlo.ir.handles import Value
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.movement import Broadcast, Concat, Full
from dhlo.ir.pull import Elements
from dhlo.ir.symbols import ceil_div, is_static, product
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.cost import element_work

__all__ = ["lower_loops", "nested"]

BLOCK = 1024  # elements of a row that one item covers
_MASKED_VECTORS = 2  # rows of as many take all parts of what is joined along the lanes, under masks


def lower_loops(module: KernelModule, group: Group, checks: Checks) -> Launch:
    """One kernel that computes and stores all results of the group, which have one shape."""
    k = GroupKernel(module, group, checks)
    shape = from_mlir(group.results[0]).shape
    cost = element_work(k.ops)
    if _is_pointwise(k, shape):
        return _flat(k, shape, cost)
    narrow = Narrow.of(k)
    if narrow is not None:
        return narrow.lower(cost)
    return nested(k, _unreshaped(k) or k.yields, cost)


def _unreshaped(k: GroupKernel) -> list[Value]:
    """What the group computes before it is reshaped on its way to memory, where that repeats rows or is transposed: loops follow
    these, as along the result's rows each element would have to ask which it is, or be gathered."""
    values = before_reshapes(k)
    shapes = {from_mlir(v).shape for v in values}
    if len(shapes) != 1:
        return []
    (shape,) = shapes
    if Turned.of(k, shape) is not None:
        return values
    wide = shape and (not is_static(shape[-1]) or shape[-1] >= k.fn.lanes)
    made = [op for op in k.ops if isinstance(op, Broadcast) and from_mlir(op.results[0]).shape == shape]
    return values if wide and any(from_mlir(op.operands[0]).numel != product(shape) for op in made) else []


def _is_pointwise(k: GroupKernel, shape: tuple[sympy.Expr, ...]) -> bool:
    """Every value has the results' shape and is read in order: the whole is one long vector."""
    for op in k.ops:
        if op.kind is Kind.ELEMENTWISE:
            if any(from_mlir(v).shape != shape for v in [*op.operands, *op.results]):
                return False
        elif not isinstance(op, Full):
            return False
    return True


def _flat(k: GroupKernel, shape: tuple[sympy.Expr, ...], cost: int) -> Launch:
    fn, em = k.fn, k.em
    n = fn.i64(em.size(product(shape)))
    lo = fn.mul(fn.args[1], BLOCK)
    hi = fn.min(fn.mul(fn.args[2], BLOCK), n)

    def body(i: Index) -> None:
        idx = as_one(i, shape)
        for r, v in enumerate(k.yields):
            x = em.value(v, idx)
            em.store(x, k.result_pointer(r), from_mlir(v).dtype, i if shape else em.zero)

    if shape:
        vectors(em, lo, hi, body)
    else:
        body(em.zero)
    count = ceil_div(product(shape), BLOCK) if shape else sympy.Integer(1)
    return Launch(finish(k, "pointwise"), k.args.slots, count, sympy.Integer(BLOCK * cost), lookups=k.lookups)


def nested(k: GroupKernel, values: list[Value], cost: int, put: Callable[[list[V], Index], None] | None = None) -> Launch:
    """Loops over the dims of the values, which lie in memory as the results do. `put` stores a vector of each of them at a place
    among the elements, if they aren't the results themselves."""
    fn, em, shape = k.fn, k.em, from_mlir(values[0]).shape
    dims = [d for d, s in enumerate(shape) if s != 1]

    merged: tuple[int, ...] = ()  # trailing dims that are gone through as one

    def store(at: dict[int, Index]) -> None:
        if merged:
            at = {**at, **dict(zip(merged, as_one(at[merged[0]], shape[merged[0] :]), strict=True))}
        idx = [at.get(d, em.zero) for d in range(len(shape))]
        if put is not None:
            x = [em.value(v, idx) for v in values]
            if em.touching is None:  # nothing says where it stores
                put(x, em.flatten(idx, shape))
            return
        for r, v in enumerate(values):
            em.store(em.value(v, idx), k.result_pointer(r), from_mlir(v).dtype, em.flatten(idx, shape))

    if not dims:
        with fn.loop(fn.args[1], fn.args[2]), em.scope():
            store({})
        return Launch(finish(k, "loops"), k.args.slots, sympy.Integer(1), sympy.Integer(1), lookups=k.lookups)
    *outer, lane = dims
    turned = Turned.of(k, shape)
    long = is_static(shape[lane]) and shape[lane] >= BLOCK
    count = merged_dims(k, values, len(shape)) if turned is None and not long else 1
    if count > len(shape) - lane:  # more than what are ones behind it
        merged = tuple(range(len(shape) - count, len(shape)))
        outer, lane = [d for d in outer if d not in merged], merged[0]
    length = product([shape[d] for d in merged]) if merged else shape[lane]
    if merged:
        turned = Turned.of(k, (*shape[:lane], length))
    shared = Shared.of(k, shape, lane) if turned is None and not merged and outer else None
    per_item = dict.fromkeys(outer, 1)
    if shared is not None:
        per_item[outer[-1]] = ROWS
    if turned is not None:
        per_item[turned.dim] = turned.along
    blocks = ceil_div(length, BLOCK)
    sizes = [*(ceil_div(shape[d], n) if n > 1 else shape[d] for d, n in per_item.items()), blocks]
    with rows(em, fn.args[1], fn.args[2], sizes) as item:
        *row, block = item
        at = dict(zip(outer, row, strict=True))
        lo = fn.mul(em.position(block), BLOCK)
        hi = fn.min(fn.add(lo, BLOCK), fn.i64(em.size(length)))
        if turned is not None:
            turned.blocks(at, lo, hi, store)
        elif merged:  # what is joined is so along a dim before, or within what is one
            vectors(em, lo, hi, lambda i: store({**at, lane: i}))
        elif shared is not None:
            _by_parts(k, shape, lane, lo, hi, shared.in_rows(at, outer[-1], store))
        else:
            _by_parts(k, shape, lane, lo, hi, lambda i: store({**at, lane: i}))
    work = sympy.Min(length, BLOCK) * cost * product([sympy.Min(shape[d], n) for d, n in per_item.items() if n > 1])
    scratch = sympy.Integer(turned.scratch_bytes if turned is not None else 0)
    return Launch(finish(k, "loops"), k.args.slots, product(sizes), work, scratch, k.lookups)


def _by_parts(k: GroupKernel, shape: tuple[sympy.Expr, ...], lane: int, lo: V, hi: V, body: Callable[[Index], None]) -> None:
    """Runs `body` over [lo, hi) a vector at a time; where tensors are joined there, in a loop for each of them."""
    em, fn = k.em, k.fn
    elements: Elements = em
    parts: list[tuple[Any, sympy.Expr, sympy.Expr]] = max(
        (join.parts(elements) for join in k.ops if _joins(join, shape, lane)), key=len, default=[]
    )
    if len(parts) < 2 or is_static(shape[lane]) and shape[lane] <= _MASKED_VECTORS * fn.lanes:
        vectors(em, lo, hi, body)
        return
    bounds = [end for _, _, end in parts]
    for number, (_, start, end) in enumerate(parts):

        def inside(i: Index, number: int = number) -> None:
            with em.of_piece(i, bounds, number):
                body(i)

        first, last = fn.max(lo, fn.i64(em.size(start))), fn.min(hi, fn.i64(em.size(end)))
        with fn.when(fn.cmp("lt", first, last)):
            vectors(em, first, last, inside, anywhere=True)


def _joins(op: Op, shape: tuple[sympy.Expr, ...], lane: int) -> bool:
    """Does an op join tensors along dim `lane` of a result of this shape?"""
    return isinstance(op, Concat) and attr(op, "dim") == lane and from_mlir(op.results[0]).shape == shape
