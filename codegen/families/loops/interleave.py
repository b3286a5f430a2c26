"""Complex numbers out of their real and imaginary parts."""

from __future__ import annotations

from dhlo.codegen.elementwise.emit import memory_type
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import GroupKernel, Launch
from dhlo.codegen.families.loops.loops import nested
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.kernel_ir.builder import V
from dhlo.codegen.kernel_ir.interleave import interleave
from dhlo.ir.dialect import Op
from dhlo.ir.ops.control import Group
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.cost import element_work

__all__ = ["lower_interleave"]


def lower_interleave(low: Lowering, group: Group, op: Op) -> Launch:
    """aten.complex, of parts that are computed here or read from memory."""
    k = GroupKernel(low.module, group, low.checks)
    fn, em = k.fn, k.em
    dtype = from_mlir(op.operands[0]).dtype
    mem = memory_type(dtype)

    def put(parts: list[V], at: Index) -> None:
        out, mask = k.result_pointer(k.yields.index(op.results[0])), em.mask
        p = fn.gep(out, fn.mul(fn.i64(at.base), 2), mem)
        if at.uniform:
            for n, x in enumerate(parts):
                em.store(x, fn.gep(p, n, mem), dtype, em.zero)
            return
        pairs = interleave(fn, [em.in_memory(x if x.lanes else fn.splat(x), dtype) for x in parts])
        masks = [None, None] if mask is None else interleave(fn, [mask, mask])
        for n, (x, some) in enumerate(zip(pairs, masks, strict=True)):
            to = fn.gep(p, n * fn.lanes, mem)
            if some is None:
                fn.store(x, to)
            else:
                fn.masked_store(x, to, some)

    return nested(k, list(op.operands), element_work(k.ops), put)
