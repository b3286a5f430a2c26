"""How a micro-kernel reads its two sides: panels, or elements where they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dhlo.codegen.families.broadcast import broadcast_each
from dhlo.codegen.families.gemm.multiply_add import as_vector_of, widened_pair
from dhlo.codegen.families.gemm.register_tile import TileSpec, depth, unit
from dhlo.codegen.kernel_ir.builder import BITS, F32, I64, PTR, Fn, V, vec

__all__ = ["PACKING_FIELDS", "PackedRows", "Panel", "RowsInPlace", "RowsToPack", "after_sums"]

PACKING_FIELDS = 5
"""Numbers that tell a micro-kernel what it packs."""

_I16 = "i16"


class Panel:
    """B in a packed panel."""

    stores = False  # something, beside which rows of A don't change: LLVM loads them where it likes

    def __init__(self, fn: Fn, elem: str, spec: TileSpec, b: V) -> None:
        self.fn, self.elem, self.spec, self.b = fn, elem, spec, b
        # The elements of a unit are loaded each by itself, as both would take registers: LLVM mustn't see that they are the same.
        self.parts = [b, *(fn.opaque(b) for _ in range(1, spec.left_parts(elem)))]

    def at(self, k: V) -> list[V]:
        """Addresses of a step of k, one for each part of a unit."""
        return [self.fn.gep(p, self.fn.mul(k, self.spec.panel(self.elem)), unit(self.elem)) for p in self.parts]

    def vector(self, p: V, k: V, u: int, which: int, v: int) -> V:
        """Vector `v` of a row, or of one of its parts, `u` steps on from `k`, whose address is p."""
        fn, spec, part = self.fn, self.spec, unit(self.elem)
        lanes = spec.lanes(self.elem)
        y = fn.load(fn.gep(p, u * spec.panel(self.elem) + v * lanes, part), vec(part, lanes))
        return y if len(self.parts) == 1 else widened_pair(fn, y)[which]

    def keep(self, row: Sequence[V], k: V, u: int, sums: Sequence[V]) -> None:
        """Called with a row's vectors once they were multiplied, and the last sums: stored before them, they would keep LLVM from
        loading A's numbers one after the other."""


class RowsToPack(Panel):
    """B where it lies, packed as it is read (see `emit_microkernel`)."""

    stores = True

    def __init__(self, fn: Fn, elem: str, spec: TileSpec, b: V) -> None:
        to, self.panel_step, source, self.row_step, width = (fn.load(fn.gep(b, i, I64), I64) for i in range(PACKING_FIELDS))
        super().__init__(fn, elem, spec, fn.int_to_ptr(source))
        self.to, self.masks = fn.int_to_ptr(to), list[V]()
        if spec.target.mask_registers:
            lanes = spec.lanes(elem)
            self.masks = [fn.tail_mask(fn.max(fn.sub(width, v * lanes), 0), lanes) for v in range(spec.vectors)]

    def at(self, k: V) -> list[V]:
        return [self.fn.gep(self.b, self.fn.mul(k, self.row_step), self.elem)]

    def vector(self, p: V, k: V, u: int, which: int, v: int) -> V:
        fn, elem, lanes = self.fn, self.elem, self.spec.lanes(self.elem)
        ty = vec(elem, lanes)
        at = fn.gep(fn.gep(p, fn.mul(self.row_step, u), elem), v * lanes, elem)
        return fn.masked_load(at, self.masks[v], fn.const(0.0, ty)) if self.masks else fn.load(at, ty, BITS[elem] // 8)

    def keep(self, row: Sequence[V], k: V, u: int, sums: Sequence[V]) -> None:
        at = self.fn.gep(self.to, self.fn.mul(self.fn.add(k, u), self.panel_step), self.elem)
        at = after_sums(self.fn, at, sums)
        for v, y in enumerate(row):
            self.fn.store(y, self.fn.gep(at, v * y.lanes, self.elem))


@dataclass(frozen=True)
class PackedRows:
    """Rows of A in a panel, step after step of `step` numbers."""

    fn: Fn
    elem: str
    spec: TileSpec
    mr: int
    a: V
    step: int
    in_place = False

    def start(self) -> list[V]:
        """Pointers that a loop over k carries."""
        return []

    def at(self, k: V, pointers: Sequence[V]) -> list[tuple[V, int]]:
        """Address of each row at unit `k`, where the pointers are, and an offset; the next unit is `step` on."""
        a = self.fn.gep(self.a, self.fn.mul(k, self.step), unit(self.elem))
        return [(a, i) for i in range(self.mr)]

    def onward(self, units: int, pointers: Sequence[V]) -> list[V]:
        """The pointers so many units on."""
        return []

    def factors(self, at: Sequence[tuple[V, int]], u: int, which: int) -> Callable[[int, Sequence[V]], V]:
        """Gives, in all lanes, a row's unit or one of its parts, `u` units on from `at`, not to be loaded before some sums are
        computed."""
        fn, elem, part, lanes = self.fn, self.elem, unit(self.elem), self.spec.lanes(self.elem)
        if fn.target.lane_factors and depth(elem) > 1 and not self.in_place and not self.spec.widens(elem):
            together = list(broadcast_each(fn, fn.gep(at[0][0], u * self.step, part), self.mr, part, lanes))
            return lambda i, sums: together[i]

        def factor(i: int, sums: Sequence[V]) -> V:
            base, offset = at[i]
            return self._factor(after_sums(fn, base, sums), offset, u, which)

        return factor

    def _factor(self, base: V, offset: int, u: int, which: int) -> V:
        fn, part = self.fn, unit(self.elem)
        at = fn.gep(base, offset + u * self.step + which * self.mr, part)
        x = fn.splat(fn.load(at, part), self.spec.lanes(self.elem))
        return fn.bitcast(x, F32) if self.spec.left_parts(self.elem) > 1 else x


@dataclass(frozen=True)
class RowsInPlace(PackedRows):
    """Rows of A where they lie, `lda` elements apart. Where addresses may add multiples of that, few pointers serve all.

    They go through the loop, `opaque` in each turn: otherwise LLVM derives them from one another again or keeps one for each row,
    and spills."""

    lda: V
    half: V | None = None  # whether one more unit follows, of which rows have the first element alone
    in_place = True

    def start(self) -> list[V]:
        return [self.fn.gep(self.a, self.fn.mul(self.lda, i), self.elem) for i in range(0, self.mr, self.fn.target.strides)]

    def at(self, k: V, pointers: Sequence[V]) -> list[tuple[V, int]]:
        fn, strides, out = self.fn, self.fn.target.strides, list[tuple[V, int]]()
        for p, first in zip(pointers, range(0, self.mr, strides), strict=True):
            here = fn.opaque(p)
            out += [(fn.gep(here, fn.mul(self.lda, i), self.elem), 0) for i in range(min(strides, self.mr - first))]
        return out

    def onward(self, units: int, pointers: Sequence[V]) -> list[V]:
        return [self.fn.gep(p, units, unit(self.elem)) for p in pointers]

    def last(self, at: Sequence[tuple[V, int]], which: int) -> Callable[[int, Sequence[V]], V]:
        """As `factors` of a last unit, of which a row has the first element alone: those that miss are 0."""
        fn, part, lanes = self.fn, unit(self.elem), self.spec.lanes(self.elem)

        def factor(i: int, sums: Sequence[V]) -> V:
            if which > 0:
                return fn.const(0.0, vec(F32, lanes))
            number = fn.load(at[i][0], _I16)
            if self.spec.left_parts(self.elem) > 1:
                return self._widened(number)
            return fn.splat(fn.cast(number, part, signed=False), lanes)

        return factor

    def _factor(self, base: V, offset: int, u: int, which: int) -> V:
        fn, elem, part = self.fn, self.elem, unit(self.elem)
        lanes, parts = self.spec.lanes(elem), self.spec.left_parts(elem)
        if parts == 1:
            return fn.splat(fn.load(fn.gep(base, u, part), part, BITS[elem] // 8), lanes)
        return self._widened(fn.load(fn.gep(base, u * parts + which, _I16), _I16))

    def _widened(self, number: V) -> V:
        """A bf16 in all lanes, as f32."""
        # In both halves of each lane: LLVM would keep pairs in registers for the second number, and has none left.
        fn, lanes, parts = self.fn, self.spec.lanes(self.elem), self.spec.left_parts(self.elem)
        return fn.bitcast(fn.shl(as_vector_of(fn, unit(self.elem), fn.splat(number, lanes * parts)), 16), F32)


def after_sums(fn: Fn, p: V, sums: Sequence[V]) -> V:
    """The same address, of which LLVM loads nothing before it has computed `sums`: registers are short."""
    for x in sums:
        args = f"{p.name}, {x.name} : (!llvm.ptr, {x.type})"
        p = fn.op(PTR, f'llvm.inline_asm "", "=r,0,{fn.target.constraint}" {args} -> !llvm.ptr')
    return p
