"""Stores a tensor into a part of another."""

from __future__ import annotations

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import Launch, finish, vectors
from dhlo.codegen.families.lines import OpKernel
from dhlo.codegen.families.lowering import Lowering
from dhlo.ir.dialect import Op, attr, exprs
from dhlo.ir.ops.control import Group
from dhlo.ir.symbols import ceil_div, product
from dhlo.ir.types import from_mlir

__all__ = ["lower_update_slice"]

CHUNK = 1024  # elements of a row that one item covers


def lower_update_slice(low: Lowering, group: Group, op: Op) -> Launch:
    """Onto a result that already holds the operand. Trailing dims that are stored whole make rows, a vector at a time."""
    k = OpKernel(low, group, op)
    fn, em = k.fn, k.em
    x, src = (from_mlir(v) for v in op.operands)
    starts = exprs(attr(op, "starts"))
    lead = x.rank
    while lead and starts[lead - 1] == 0 and x.shape[lead - 1] == src.shape[lead - 1]:
        lead -= 1
    lead = max(lead - 1, 0)  # the last dim that is stored in part belongs to the row as well
    row, whole = product(src.shape[lead:]), product(x.shape[lead + 1 :])
    y, source = k.result(0), k.operand(1)
    outer = [*src.shape[:lead], ceil_div(row, CHUNK)]
    with fn.loop(k.begin, k.end) as item, em.scope():
        *at, chunk = em.split(Index(item.iv), outer)
        to = em.flatten([em.shift(i, s) for i, s in zip(at, starts, strict=False)], x.shape[:lead])
        if x.rank:
            to = em.plus(em.times(to, em.size(product(x.shape[lead:]))), Index(k.size(starts[lead] * whole)))
        start = em.times(em.flatten(at, src.shape[:lead]), em.size(row))
        lo = fn.mul(em.position(chunk), CHUNK)
        hi = fn.min(fn.add(lo, CHUNK), k.size(row))

        def move(i: Index) -> None:
            k.store(k.load(source, x.dtype, em.plus(start, i)), y, x.dtype, em.plus(to, i))

        vectors(em, lo, hi, move)
    return Launch(finish(k, "update_slice"), k.args.slots, product(outer), CHUNK)
