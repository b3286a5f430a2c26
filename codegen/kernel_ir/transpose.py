"""Transposition of square blocks held in registers."""

from __future__ import annotations

from collections.abc import Sequence

from dhlo.codegen.kernel_ir.builder import Fn, V

__all__ = ["transpose_block"]


def transpose_block(fn: Fn, rows: Sequence[V]) -> list[V]:
    """Transposes a square block, held in as many vectors as each has lanes, by swapping off-diagonal blocks of half the
    lanes, a quarter, and so on down to 1."""
    out, n = list(rows), len(rows)
    for s in (1 << b for b in reversed(range(n.bit_length() - 1))):
        upper = [lane if not lane & s else n + lane - s for lane in range(n)]
        lower = [lane + s if not lane & s else n + lane for lane in range(n)]
        for i in range(n):
            if not i & s:
                a, b = out[i], out[i + s]
                out[i], out[i + s] = fn.shuffle(a, b, upper), fn.shuffle(a, b, lower)
    return out
