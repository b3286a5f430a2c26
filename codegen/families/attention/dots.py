"""Products of attention by dot products of bf16, where the target has these and no matrix registers.

Scores are of keys, whose rows are pairs of elements as they lie, by pairs of a block of queries; sums are of pairs of keys' weights
by pairs of their values, which are brought together once a block of keys. Weights are rounded to bf16, as PyTorch's kernels round
them; totals are those of the weights before.
"""

from __future__ import annotations

from dhlo.codegen.families.attention.common import Spec
from dhlo.codegen.families.gemm.multiply_add import as_vector_of, multiply_add
from dhlo.codegen.families.gemm.register_tile import BF16
from dhlo.codegen.kernel_ir.builder import F32, I8, I32, I64, PTR, Fn, KernelModule, V, vec

__all__ = ["emit_value_kernel", "multiply_scores", "multiply_values", "pack_values"]


def multiply_scores(fn: Fn, spec: Spec, at: dict[str, V], table: V, count: V, keys: V, apart: V) -> None:
    """Scores of `count` keys, whose rows lie `apart` bytes from each other, by the micro-kernels of a table."""
    runs = fn.ceildivu(count, spec.tiles.mr)
    with fn.loop(0, runs) as t:
        lo = fn.divu(fn.mul(t.iv, count), runs)
        size = fn.sub(fn.divu(fn.mul(fn.add(t.iv, 1), count), runs), lo)
        row, elements = fn.gep(keys, fn.mul(lo, apart), I8), fn.divu(apart, 2)
        scores = fn.gep(at["scores"], fn.mul(lo, spec.rows), F32)
        right = [at["of_queries"], fn.i64(spec.head_dim // 2), scores, fn.i64(0)]
        # What is near: nothing else is to be fetched.
        fetched = [at["of_queries"], fn.i64(spec.tiles.alone.row_bytes(BF16)), fn.i64(0), fn.i64(0)]
        fn.call_ptr(fn.load(fn.gep(table, fn.sub(size, 1), PTR), PTR), [row, elements, fn.i64(0), *right, *fetched])


def pack_values(fn: Fn, spec: Spec, at: dict[str, V], count: V) -> None:
    """Values of `count` keys, whose rows lie in `tile_values`, in pairs of keys, column by column; zeros behind the last."""
    ty, lanes = vec("i16", fn.lanes), fn.lanes
    beside = [lane + lanes * k for lane in range(lanes) for k in (0, 1)]
    zero = fn.const(0, ty)
    with fn.loop(0, fn.ceildivu(count, 2)) as pair:
        first = fn.mul(pair.iv, 2)
        is_pair = fn.splat(fn.cmp("lt", fn.add(first, 1), count), lanes)
        rows = fn.gep(at["tile_values"], fn.mul(first, spec.v_pad // 2), I32)
        to = fn.gep(at["turned"], fn.mul(pair.iv, spec.v_pad), I32)
        for c in range(0, spec.v_pad, lanes):
            low, high = (fn.load(fn.gep(rows, k * spec.v_pad + c, BF16), ty, 2) for k in (0, 1))
            both = fn.shuffle(low, fn.select(is_pair, high, zero), beside)
            fn.store(as_vector_of(fn, I32, both), fn.gep(to, c, I32))


def emit_value_kernel(module: KernelModule, spec: Spec, mr: int) -> None:
    """`attn_pv_dots_{mr}(v, p, pairs, o, alpha)`: o[mr][rows] = o * alpha + sum over pairs of keys of the dot products of
    v[pair][mr] and p[pair][rows]; rows of v are `v_pad` units apart."""
    name = f"attn_pv_dots_{mr}_{spec.v_pad}"
    if name in module.functions:
        return
    fn = Fn(module, name, [("v", PTR), ("p", PTR), ("pairs", I64), ("o", PTR), ("alpha", PTR)], explicit=True)
    v, p, pairs, o, alpha = fn.args
    halves, units = range(spec.halves), fn.vec(I32)
    alphas = [fn.load(fn.gep(alpha, h * fn.lanes, F32), fn.vec(F32)) for h in halves]
    cells = [(i, h) for i in range(mr) for h in halves]
    places = [fn.gep(o, i * spec.rows + h * fn.lanes, F32) for i, h in cells]
    start = [fn.mul(fn.load(x, fn.vec(F32)), alphas[h]) for x, (_, h) in zip(places, cells, strict=True)]
    with fn.loop(0, pairs, 1, start) as lp:
        ps = [fn.load(fn.gep(fn.gep(p, fn.mul(lp.iv, spec.rows), I32), h * fn.lanes, I32), units) for h in halves]
        vs = fn.gep(v, fn.mul(lp.iv, spec.v_pad), I32)
        xs = [fn.splat(fn.load(fn.gep(vs, i, I32), I32)) for i in range(mr)]
        sums = [multiply_add(fn, BF16, spec.tiles, xs[i], ps[h], c) for (i, h), c in zip(cells, lp.carried, strict=True)]
        lp.yield_(*sums)
    for x, place in zip(lp.results, places, strict=True):
        fn.store(x, place)
    fn.done()


def multiply_values(fn: Fn, spec: Spec, at: dict[str, V], count: V, chunks: list[tuple[int, int]]) -> None:
    """Sums of values so far, times `alpha`, with those of `count` keys, by runs of columns."""
    for c, mr in chunks:
        to = fn.gep(at["ot"], c * spec.rows, F32)
        values = fn.gep(at["turned"], c, I32)
        fn.call(f"attn_pv_dots_{mr}_{spec.v_pad}", [values, at["weights"], fn.ceildivu(count, 2), to, at["alpha"]])
