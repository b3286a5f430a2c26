"""Complex numbers out of their real and imaginary parts."""

from __future__ import annotations

from collections.abc import Sequence

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import Launch, finish
from dhlo.codegen.families.lines import OpKernel, lanes_at
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.kernel_ir.builder import V
from dhlo.codegen.kernel_ir.interleave import interleave
from dhlo.ir.dialect import Op
from dhlo.ir.ops.control import Group
from dhlo.ir.symbols import ceil_div
from dhlo.ir.types import from_mlir

__all__ = ["lower_interleave"]

CHUNK = 1024  # numbers that one item covers


def lower_interleave(low: Lowering, group: Group, op: Op) -> Launch:
    """aten.complex."""
    k = OpKernel(low, group, op)
    fn, part = k.fn, from_mlir(op.operands[0])
    re, im, out, n = k.operand(0), k.operand(1), k.result(0), k.size(part.numel)

    def body(i: V, _: Sequence[V]) -> list[V]:
        pair, mask = [k.load(p, part.dtype, Index(i, 1)) for p in (re, im)], k.em.mask
        for number, x in enumerate(interleave(fn, pair)):
            first = number * fn.lanes
            k.em.mask = mask and fn.tail_mask(fn.sub(fn.mul(fn.sub(n, i), 2), first))
            k.store(x, out, part.dtype, Index(fn.add(fn.mul(i, 2), first), 1))
        k.em.mask = mask
        return []

    with fn.loop(k.begin, k.end) as item:
        lo = fn.mul(item.iv, CHUNK)
        lanes_at(k, lo, fn.min(fn.add(lo, CHUNK), n), [], body)
    return Launch(finish(k, "interleave"), k.args.slots, ceil_div(part.numel, CHUNK), CHUNK * 2 // fn.lanes)
