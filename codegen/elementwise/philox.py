"""Philox 4x32-10, the counter-based random number generator (Salmon et al., SC 2011), in emitted code."""

from __future__ import annotations

from dhlo.codegen.kernel_ir.builder import I32, I64, Fn, V
from dhlo.ir.philox import KEY_STEPS, LOW, MULTIPLIERS, ROUNDS

__all__ = ["emit_word"]


def emit_word(fn: Fn, position: V, seed: V, draw: V, number: int) -> V:
    """Word `number` (0 to 3, as i32) of the block whose counter is (position, draw) and whose key is the seed; i64 scalars
    or vectors. What several words of a block share, LLVM computes once."""
    ty, lanes = position.type, position.lanes
    symbol = f"philox_{number}{f'_x{lanes}' if lanes else ''}"
    if symbol not in fn.module.functions:
        g = Fn(fn.module, symbol, [("position", ty), ("seed", I64), ("draw", I64)], position.type.replace(I64, I32), inline=True)
        g.ret(g.cast(_block(g, *g.args)[number], I32))
        g.done()
    out = fn.call(symbol, [position, seed, draw], position.type.replace(I64, I32))
    assert out is not None
    return out


def _halves(fn: Fn, x: V) -> tuple[V, V]:
    """The lower and upper 32 bits of i64 values, each zero-extended."""
    return fn.and_(x, LOW), _upper(fn, x)


def _upper(fn: Fn, x: V) -> V:
    return fn.op(x.type, f"arith.shrui {x.name}, {fn.const(32, x.type).name} : {x.type}")


def _block(fn: Fn, position: V, seed: V, draw: V) -> list[V]:
    """The four words, zero-extended in i64: the counter's words go through rounds of multiplication and keys."""
    spread = (lambda v: fn.splat(v, position.lanes)) if position.lanes else (lambda v: v)
    c = [*_halves(fn, position), *(spread(h) for h in _halves(fn, draw))]
    keys = list(_halves(fn, seed))
    for r in range(ROUNDS):
        if r:
            keys = [fn.and_(fn.add(k, step), LOW) for k, step in zip(keys, KEY_STEPS, strict=True)]
        k = [spread(x) for x in keys]
        (lo0, hi0), (lo1, hi1) = (_halves(fn, fn.mul(x, m)) for x, m in zip((c[0], c[2]), MULTIPLIERS, strict=True))
        c = [fn.xor(fn.xor(hi1, c[1]), k[0]), lo1, fn.xor(fn.xor(hi0, c[3]), k[1]), lo0]
    return c
