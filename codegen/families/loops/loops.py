"""Loop nests over the elements of a group's results: elementwise work, views, lookups, joins."""

from __future__ import annotations

import sympy

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import Checks, GroupKernel, Launch, finish, rows, vectors
from dhlo.codegen.families.loops.transpose import Turned
from dhlo.codegen.kernel_ir.builder import KernelModule
from dhlo.ir.dialect import Kind
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.movement import Full
from dhlo.ir.symbols import ceil_div, product
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.cost import element_work

__all__ = ["lower_loops"]

BLOCK = 1024  # elements of a row that one item covers


def lower_loops(module: KernelModule, group: Group, checks: Checks) -> Launch:
    """One kernel that computes and stores all results of the group, which have one shape."""
    k = GroupKernel(module, group, checks)
    shape = from_mlir(group.results[0]).shape
    cost = element_work(k.ops)
    if _is_pointwise(k, shape):
        return _flat(k, shape, cost)
    return _nested(k, shape, cost)


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
        idx = [Index(i.base, i.step, i.vec, i.multiple, (i, d, shape)) for d in range(len(shape))] if len(shape) > 1 else [i]
        idx = idx if shape else []
        for r, v in enumerate(k.yields):
            x = em.value(v, idx)
            em.store(x, k.result_pointer(r), from_mlir(v).dtype, i if shape else em.zero)

    if shape:
        vectors(em, lo, hi, body)
    else:
        body(em.zero)
    count = ceil_div(product(shape), BLOCK) if shape else sympy.Integer(1)
    return Launch(finish(k, "pointwise"), k.args.slots, count, sympy.Integer(BLOCK * cost), lookups=k.lookups)


def _nested(k: GroupKernel, shape: tuple[sympy.Expr, ...], cost: int) -> Launch:
    fn, em = k.fn, k.em
    dims = [d for d, s in enumerate(shape) if s != 1]

    def store(at: dict[int, Index]) -> None:
        idx = [at.get(d, em.zero) for d in range(len(shape))]
        for r, v in enumerate(k.yields):
            x = em.value(v, idx)
            em.store(x, k.result_pointer(r), from_mlir(v).dtype, em.flatten(idx, shape))

    if not dims:
        with fn.loop(fn.args[1], fn.args[2]), em.scope():
            store({})
        return Launch(finish(k, "loops"), k.args.slots, sympy.Integer(1), sympy.Integer(1), lookups=k.lookups)
    *outer, lane = dims
    turned = Turned.of(k, lane)
    per_item = {d: fn.lanes if turned is not None and d == turned.dim else 1 for d in outer}
    blocks = ceil_div(shape[lane], BLOCK)
    sizes = [*(ceil_div(shape[d], n) if n > 1 else shape[d] for d, n in per_item.items()), blocks]
    with rows(em, fn.args[1], fn.args[2], sizes) as item:
        *row, block = item
        at = dict(zip(outer, row, strict=True))
        lo = fn.mul(em.position(block), BLOCK)
        hi = fn.min(fn.add(lo, BLOCK), fn.i64(em.size(shape[lane])))
        if turned is None:
            vectors(em, lo, hi, lambda i: store({**at, lane: i}))
        else:
            start = fn.mul(em.position(at.pop(turned.dim)), fn.lanes)
            with fn.loop(lo, hi, fn.lanes) as lp, em.scope():
                turned.block(at, start, Index(lp.iv, 1, multiple=fn.lanes), hi, store)
    work = sympy.Min(shape[lane], BLOCK) * cost * max(per_item.values(), default=1)
    scratch = sympy.Integer(turned.scratch_bytes if turned is not None else 0)
    return Launch(finish(k, "loops"), k.args.slots, product(sizes), work, scratch, k.lookups)
