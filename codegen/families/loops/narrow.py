"""Results whose last dim has a few elements, as pixels have channels: vectors run along the dim before it, and what they compute
for each of these elements is interleaved on its way to memory."""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from dhlo.codegen.elementwise.emit import MOST_APART, memory_type
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import GroupKernel, Launch, finish, rows, vectors
from dhlo.codegen.kernel_ir.builder import V
from dhlo.codegen.kernel_ir.interleave import interleave
from dhlo.ir.dialect import defining
from dhlo.ir.handles import Value
from dhlo.ir.ops.elementwise import Copy
from dhlo.ir.ops.movement import Reshape
from dhlo.ir.symbols import ceil_div, is_static, product
from dhlo.ir.types import from_mlir

__all__ = ["Narrow", "before_reshapes"]

_BLOCK = 1024  # elements of a row that one item covers


@dataclass
class Narrow:
    """The values of a group, all of one shape, before what reshapes them on their way to memory."""

    k: GroupKernel
    values: list[Value]
    shape: tuple[sympy.Expr, ...]

    @staticmethod
    def of(k: GroupKernel) -> Narrow | None:
        """The group's results in that form; None if it isn't theirs."""
        for values in (k.yields, before_reshapes(k)):
            shapes = {from_mlir(v).shape for v in values}
            shape = next(iter(shapes), ())
            if len(shapes) == 1 and _is_narrow(k, shape):
                return Narrow(k, values, shape)
        return None

    def lower(self, cost: int) -> Launch:
        k, em, fn, shape = self.k, self.k.em, self.k.fn, self.shape
        *outer, lane = [d for d, s in enumerate(shape[:-1]) if s != 1]
        sizes = [*(shape[d] for d in outer), ceil_div(shape[lane], _BLOCK)]
        with rows(em, fn.args[1], fn.args[2], sizes) as item:
            *row, block = item
            at = dict(zip(outer, row, strict=True))
            lo = fn.mul(em.position(block), _BLOCK)
            hi = fn.min(fn.add(lo, _BLOCK), fn.i64(em.size(shape[lane])))
            vectors(em, lo, hi, lambda i: self._store({**at, lane: i}, lane, hi))
        width = int(shape[-1])
        work = sympy.Min(shape[lane], _BLOCK) * cost * width
        return Launch(finish(k, "loops"), k.args.slots, product(sizes), work, lookups=k.lookups)

    def _store(self, at: dict[int, Index], lane: int, hi: V) -> None:
        """Stores a vector of positions of dim `lane`, those below `hi`."""
        k, em, fn, rank, width = self.k, self.k.em, self.k.fn, len(self.shape), int(self.shape[-1])
        first = Index(at[lane].base)
        start = em.flatten([(first if d == lane else at.get(d, em.zero)) for d in range(rank)], self.shape)
        mask = em.mask
        for r, v in enumerate(self.values):
            dtype = from_mlir(v).dtype
            parts = []
            for element in range(width):
                x = em.value(v, [*(at.get(d, em.zero) for d in range(rank - 1)), Index(element, multiple=element)])
                parts.append(em.in_memory(x if x.lanes else fn.splat(x), dtype))
            p = fn.gep(k.result_pointer(r), start.base, memory_type(dtype))
            for n, x in enumerate(interleave(fn, parts)):
                to = fn.gep(p, n * fn.lanes, memory_type(dtype))
                if mask is None:
                    fn.store(x, to)
                else:
                    fn.masked_store(x, to, fn.tail_mask(fn.sub(fn.mul(fn.sub(hi, first.base), width), n * fn.lanes)))


def before_reshapes(k: GroupKernel) -> list[Value]:
    """What the group computes, where it all is reshaped, which leaves memory as it is."""
    members, found = {op.operation for op in k.ops}, []
    for v in k.yields:
        op = defining(v)
        if isinstance(op, Copy) and op.operation in members:
            op = defining(op.operands[0])
        if not isinstance(op, Reshape) or op.operation not in members:
            return []
        found.append(op.operands[0])
    return found


def _is_narrow(k: GroupKernel, shape: tuple[sympy.Expr, ...]) -> bool:
    """A few elements, of positions that fill vectors."""
    lanes = [s for s in shape[:-1] if s != 1]
    if not lanes or not is_static(shape[-1]) or not 2 <= shape[-1] <= MOST_APART:
        return False
    return bool(not is_static(lanes[-1]) or lanes[-1] >= k.fn.lanes)
