"""Micro-kernels of bytes by instructions that multiply two rows by two columns of eight bytes each.

Two units of B, four columns wide, are zipped to two pairs of columns, as many of A to pairs of rows; a register of sums is a block
of two by two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dhlo.codegen.kernel_ir.builder import I8, I32, Fn, V, vec
from dhlo.codegen.target import DotProduct

if TYPE_CHECKING:
    from dhlo.codegen.families.gemm.microkernel import TileSpec

__all__ = ["emit_blocks_body"]

_UNITS, _LANES = 2, 4
_BYTES = 16


def _as_bytes(fn: Fn, x: V) -> V:
    ty = vec(I8, _BYTES)
    return fn.op(ty, f"vector.bitcast {x.name} : {x.type} to {ty}")


def _pairs_of_rows(fn: Fn, a: V, first: V, mr: int, units: int) -> list[V]:
    """Registers of two rows, eight bytes of each, from `units` units of a panel [k][mr] of A. Zeros stand for a second unit
    that there isn't, anything for a second row."""
    out: list[V] = []
    for r in range(0, mr, _LANES):
        rows = min(mr - r, _LANES)

        def load(u: int, r: int = r, rows: int = rows) -> V:
            at = fn.gep(fn.gep(a, fn.mul(fn.add(first, u), mr), I32), r, I32)
            if rows % 2 == 0:
                return fn.load(at, vec(I32, rows))
            last = fn.splat(fn.load(fn.gep(at, rows - 1, I32), I32), 2)
            return last if rows == 1 else fn.shuffle(fn.load(at, vec(I32, 2)), last, [0, 1, 2, 3])

        x = load(0)
        y = load(1) if units > 1 else fn.const(0, x.type)
        for pair in range(0, rows, 2):
            n = x.lanes
            out.append(_as_bytes(fn, fn.shuffle(x, y, [pair, n + pair, pair + 1, n + pair + 1])))
    return out


def emit_blocks_body(
    fn: Fn, product: DotProduct, spec: TileSpec, mr: int, nv: int, rest: Sequence[V], lines: Sequence[int]
) -> None:
    """The k loop and the tile's update of a micro-kernel (see `emit_microkernel`) for `mr` rows and `nv` vectors of columns;
    `rest` are its arguments, `lines` what it prefetches of each step of k."""
    a, b, k, tile, accumulate, ahead, ahead_step = rest
    panel, ld = spec.panel(I8), spec.columns(I8, mr)
    ty = vec(I32, _LANES)
    blocks = -(-mr // 2)

    def step(units: int, first: V, acc: Sequence[V]) -> list[V]:
        out, left = list(acc), _pairs_of_rows(fn, a, first, mr, units)
        for v in range(nv):
            rows = [fn.gep(fn.gep(b, fn.mul(fn.add(first, u), panel), I32), v * _LANES, I32) for u in range(units)]
            x = fn.load(rows[0], ty)
            y = fn.load(rows[1], ty) if units > 1 else fn.const(0, ty)
            for half, order in enumerate(([0, 4, 1, 5], [2, 6, 3, 7])):
                right = _as_bytes(fn, fn.shuffle(x, y, order))
                for r, pair in enumerate(left):
                    i = (r * nv + v) * 2 + half
                    out[i] = fn.intrinsic(product.intrinsic, ty, acc[i], pair, right)
        return out

    main = fn.and_(k, -_UNITS)
    with fn.loop(0, main, _UNITS, [fn.const(0, ty)] * (blocks * nv * 2)) as loop:
        fetch = fn.gep(ahead, fn.mul(loop.iv, ahead_step), I8)
        for _ in range(_UNITS):
            for line in lines:
                fn.prefetch(fn.gep(fetch, line, I8), 2)
            fetch = fn.gep(fetch, ahead_step, I8)
        loop.yield_(*step(_UNITS, loop.iv, loop.carried))
    with fn.loop(main, k, 1, loop.results) as tail:
        tail.yield_(*step(1, tail.iv, tail.carried))
    sums = tail.results
    rows = [[fn.gep(tile, i * ld + v * _LANES, I32) for v in range(nv)] for i in range(mr)]

    def store(add: bool) -> list[V]:
        for i, cells in enumerate(rows):
            for v, p in enumerate(cells):
                at = (i // 2 * nv + v) * 2
                x = fn.shuffle(sums[at], sums[at + 1], [2, 3, 6, 7] if i % 2 else [0, 1, 4, 5])
                fn.store(fn.add(x, fn.load(p, ty)) if add else x, p)
        return []

    fn.if_else(fn.cmp("ne", accumulate, 0), lambda: store(True), lambda: store(False), [])
    fn.done()
