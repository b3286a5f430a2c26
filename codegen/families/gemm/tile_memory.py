"""Where the sums of a micro-kernel begin and end: its tile in memory, or a part of a larger matrix."""

from __future__ import annotations

from collections.abc import Sequence

from dhlo.codegen.elementwise.rules import narrow as rounded
from dhlo.codegen.families.gemm.register_tile import BF16, accumulator
from dhlo.codegen.kernel_ir.builder import BITS, I8, Fn, V, vec
from dhlo.codegen.target import LINE_BYTES

__all__ = ["RoundedTile", "TileMemory", "rounded_together"]


class TileMemory:
    """`rows` by `vectors` vectors of sums of products of `elem` at `tile`, rows `ld` elements apart."""

    def __init__(self, fn: Fn, elem: str, rows: int, vectors: int, lanes: int, tile: V, ld: V | int) -> None:
        self.fn, self.elem, self.rows, self.vectors, self.lanes, self.tile, self.ld = fn, elem, rows, vectors, lanes, tile, ld
        # Else addresses are computed where they are needed: registers mustn't hold them throughout the loop.
        self._known = self._cells(tile) if isinstance(ld, int) else []

    def start(self, accumulate: V) -> list[V]:
        """The sums in the tile where `accumulate` isn't 0, else zeros."""
        fn, ty, count = self.fn, vec(accumulator(self.elem), self.lanes), self.rows * self.vectors
        zero = fn.const(0.0, ty)
        adds = fn.cmp("ne", accumulate, 0)
        return fn.if_else(
            adds, lambda: [fn.load(p, ty) for p in self._known or self._cells(self.tile)], lambda: [zero] * count, [ty] * count
        )

    def store(self, sums: Sequence[V]) -> None:
        """Stores the sums, which are by row and vector."""
        for p, x in zip(self._known or self._cells(self.fn.opaque(self.tile)), sums, strict=True):
            self.fn.store(x, p)

    def _cells(self, tile: V) -> list[V]:
        """Addresses of the vectors of a tile."""
        fn, acc, ld = self.fn, accumulator(self.elem), self.ld
        if isinstance(ld, int):
            return [fn.gep(tile, i * ld + v * self.lanes, acc) for i in range(self.rows) for v in range(self.vectors)]
        starts = [fn.gep(tile, fn.mul(ld, i), acc) for i in range(self.rows)]
        return [fn.gep(start, v * self.lanes, acc) for start in starts for v in range(self.vectors)]


class RoundedTile(TileMemory):
    """A tile whose sums are rounded to the narrower float type `dtype` and stored at `to` instead, rows `apart` elements apart,
    where that isn't null. If `following` isn't, it's where the sums of the next tile will be."""

    def __init__(
        self, fn: Fn, elem: str, rows: int, vectors: int, lanes: int, tile: V, ld: int, dtype: str, to: V, apart: V, following: V
    ) -> None:
        super().__init__(fn, elem, rows, vectors, lanes, tile, ld)
        self.dtype, self.to, self.apart, self.following = dtype, to, apart, following

    def start(self, accumulate: V) -> list[V]:
        """Prefetches the next tile's place, too, all at once: rows are a line or two, and their addresses take no register of the
        loop over k."""
        fn, nbytes = self.fn, self.vectors * self.lanes * BITS[self.dtype] // 8
        with fn.when(fn.cmp("ne", fn.ptr_to_int(self.following), 0)):
            for i in range(self.rows):
                row = fn.gep(self.following, fn.mul(self.apart, i), self.dtype)
                for at in (*range(0, nbytes, LINE_BYTES), nbytes - 1):
                    fn.prefetch(fn.gep(row, at, I8))
        return super().start(accumulate)

    def store(self, sums: Sequence[V]) -> None:
        def to_tile() -> list[V]:
            super(RoundedTile, self).store(sums)
            return []

        self.fn.if_else(self.fn.cmp("eq", self.fn.ptr_to_int(self.to), 0), to_tile, lambda: self._store_rounded(sums), [])

    def _store_rounded(self, sums: Sequence[V]) -> list[V]:
        """Two vectors at a time, which are shortened together."""
        fn, to = self.fn, self.fn.opaque(self.to)
        for i in range(self.rows):
            row = fn.gep(to, fn.mul(self.apart, i), self.dtype)
            for v in range(0, self.vectors, 2):
                xs = sums[i * self.vectors + v : i * self.vectors + min(v + 2, self.vectors)]
                x = rounded_together(fn, self.elem, xs, self.dtype)
                fn.store(x, fn.gep(row, v * self.lanes, self.dtype), BITS[self.dtype] // 8)
        return []


def rounded_together(fn: Fn, elem: str, xs: Sequence[V], to: str) -> V:
    """One or two vectors of sums of products of `elem`, side by side, rounded to the narrower float type `to`."""
    if elem == BF16:
        fn.plain |= {x.name for x in xs}  # of bf16 come no other NaNs
    if len(xs) == 1:
        return rounded(fn, xs[0], to)
    x = fn.shuffle(xs[0], xs[1], range(2 * xs[0].lanes))
    if all(y.name in fn.plain for y in xs):
        fn.plain.add(x.name)
    return rounded(fn, x, to)
