"""What attention of few query rows calls for a block of keys: dot products with up to 4 rows at a time, and sums of values."""

from __future__ import annotations

from collections.abc import Iterator

from dhlo.codegen.families.attention.common import Spec, load_row
from dhlo.codegen.families.attention.pages import each_run
from dhlo.codegen.families.broadcast import broadcast_each
from dhlo.codegen.kernel_ir.builder import BITS, F32, I64, PTR, Fn, KernelModule, V

__all__ = ["GROUP", "KEYS", "ROW_SCORES", "emit_scores", "emit_values", "kernels_of"]

GROUP = 4  # rows scored together
KEYS = 64  # keys of a block
ROW_SCORES = KEYS + 16  # f32 from one row of scores to the next: those behind a run's last key are stored, too, up to so many


def kernels_of(spec: Spec, rows: int) -> tuple[str, str]:
    """The symbols of what `emit_scores` and `emit_values` emit."""
    return f"attn_dot{spec.head_dim}_{spec.k.elem}_{rows}", f"attn_acc{spec.value_dim}_{spec.v.elem}_{rows}"


def emit_scores(module: KernelModule, spec: Spec, rows: int) -> None:
    """`attn_dot..(k, ldk, runs, count, q, s)`: s[row][key] = q[row] . k[key] for `rows` rows and the keys of so many runs. The sums
    of lanes / rows keys make up a vector; as many such sets are computed at once as leave half of the registers for operands. What
    comes next is prefetched."""
    name = kernels_of(spec, rows)[0]
    if name in module.functions:
        return
    fn = Fn(module, name, [("k", PTR), ("ldk", I64), ("runs", PTR), ("count", I64), ("q", PTR), ("s", PTR)], explicit=True)
    k, ldk, runs, count, q, s = fn.args
    step = fn.lanes // rows
    sets = max(1, fn.target.registers // 2 // fn.lanes)
    assert step * sets <= ROW_SCORES - KEYS

    def score(begin: V, keys: V, row: V, after: V, _: list[V]) -> list[V]:
        here, following = (fn.gep(k, fn.mul(x, ldk), spec.k.elem) for x in (row, after))
        last = fn.sub(keys, 1)
        with fn.loop(0, keys, step * sets) as lp:
            # keys beyond the last repeat it: their scores are masked later
            places = [fn.mul(fn.min(fn.add(lp.iv, i), last), ldk) for i in range(step * sets)]
            acc: list[V] = []
            for c in range(0, spec.qk_pad, fn.lanes):
                qs = [fn.load(fn.gep(q, r * spec.qk_pad + c, F32), fn.vec(F32)) for r in range(rows)]
                for i, at in enumerate(places):
                    x = load_row(fn, fn.gep(here, at, spec.k.elem), spec.k.elem, spec.head_dim, c)
                    if _prefetches(spec, rows):
                        _prefetch_next(fn, following, at, c, spec.k.elem)
                    for r in range(rows):
                        if c == 0:
                            acc.append(fn.mul(x, qs[r]))
                        else:
                            acc[i * rows + r] = fn.fma(x, qs[r], acc[i * rows + r])
            for first in range(0, step * sets, step):
                sums = _sum_each(fn, [acc[(first + i) * rows + r] for r in range(rows) for i in range(step)])
                for r in range(rows):
                    part = fn.shuffle(sums, sums, range(r * step, (r + 1) * step)) if rows > 1 else sums
                    fn.store(part, fn.gep(fn.gep(s, r * ROW_SCORES, F32), fn.add(fn.add(begin, lp.iv), first), F32))
        return []

    each_run(fn, runs, count, [], score)
    fn.done()


def _prefetches(spec: Spec, rows: int) -> bool:
    """Whether what comes next is prefetched, so that memory works while this one computes. A single row computes next to nothing,
    and its stream is the hardware's, unless it may go from block to block in no order: steps behind such take 0.66 to 0.75 of the
    time so, those in order 0.99 to 1.03 (heads with keys of their own; Zen 4)."""
    return rows > 1 or spec.paging is not None


def _prefetch_next(fn: Fn, after: V, at: V, c: int, elem: str) -> None:
    """Asks for column `c` of a row of what comes next, `at` elements behind `after`, whatever the machine."""
    if c * BITS[elem] // 8 % 64 == 0:
        fn.prefetch(fn.gep(fn.gep(after, at, elem), c, elem), locality=2)


def _sum_each(fn: Fn, xs: list[V]) -> V:
    """Lane i is the sum of vector i of as many as there are lanes:
    pairs of vectors are folded into one, halving the lanes each still needs."""
    width = fn.lanes // 2
    while len(xs) > 1:
        # vector i keeps blocks of `width` lanes; its partner of the upper half moves into the others
        low = [lane if not lane & width else fn.lanes + lane - width for lane in range(fn.lanes)]
        high = [lane + width if not lane & width else fn.lanes + lane for lane in range(fn.lanes)]
        half = len(xs) // 2
        xs = [fn.add(fn.shuffle(xs[i], xs[i + half], low), fn.shuffle(xs[i], xs[i + half], high)) for i in range(half)]
        width //= 2
    return xs[0]


def emit_values(module: KernelModule, spec: Spec, rows: int) -> None:
    """`attn_acc..(v, ldv, runs, count, p, alpha, o)`: o[row] = alpha[row] * o[row] + sum of p[row][key] * v[key] over the keys of
    so many runs. What comes next is prefetched."""
    name = kernels_of(spec, rows)[1]
    if name in module.functions:
        return
    args = [("v", PTR), ("ldv", I64), ("runs", PTR), ("count", I64), ("p", PTR), ("alpha", PTR), ("o", PTR)]
    fn = Fn(module, name, args, explicit=True)
    v, ldv, runs, count, p, alpha, o = fn.args
    vectors = spec.v_pad // fn.lanes
    most = fn.target.registers * 3 // 4  # accumulators; the rest holds a row of V and weights
    passes = -(-vectors * rows // most)
    for i in range(passes):
        columns = [c * fn.lanes for c in range(vectors * i // passes, vectors * (i + 1) // passes)]
        sets = 2 if rows * len(columns) <= most // 3 else 1  # independent sums enough to hide the latency of FMA
        init = [
            fn.mul(fn.load(fn.gep(o, r * spec.v_pad + c, F32), fn.vec(F32)), fn.splat(fn.load(fn.gep(alpha, r, F32), F32)))
            for r in range(rows)
            for c in columns
        ]
        n = len(init)

        def weights(key: V, count: int) -> list[Iterator[V]]:
            """Of each row, those of `count` keys in turn."""
            return [broadcast_each(fn, fn.gep(fn.gep(p, r * ROW_SCORES, F32), key, F32), count, F32, fn.lanes) for r in range(rows)]

        def add(begin: V, keys: V, row: V, after: V, acc: list[V], columns: list[int] = columns, n: int = n) -> list[V]:
            here, following = (fn.gep(v, fn.mul(x, ldv), spec.v.elem) for x in (row, after))

            def step(key: V, each: list[Iterator[V]], acc: list[V]) -> list[V]:
                at = fn.mul(key, ldv)
                xs = [load_row(fn, fn.gep(here, at, spec.v.elem), spec.v.elem, spec.value_dim, c) for c in columns]
                for c in columns if _prefetches(spec, rows) else ():
                    _prefetch_next(fn, following, at, c, spec.v.elem)
                ps = [next(w) for w in each]
                return [fn.fma(ps[i // len(columns)], xs[i % len(columns)], a) for i, a in enumerate(acc)]

            unroll = max(len(acc) // n, fn.lanes) if fn.target.lane_factors else len(acc) // n
            main = fn.mul(fn.divu(keys, unroll), unroll)
            with fn.loop(0, main, unroll, acc) as lp:
                out, each = list(lp.carried), weights(fn.add(begin, lp.iv), unroll)
                for u in range(unroll):
                    at = u * n % len(out)
                    out[at : at + n] = step(fn.add(lp.iv, u), each, out[at : at + n])
                lp.yield_(*out)
            with fn.loop(main, keys, 1, lp.results[:n]) as tail:
                tail.yield_(*step(tail.iv, weights(fn.add(begin, tail.iv), 1), tail.carried))
            return [*tail.results, *lp.results[n:]]

        acc = each_run(fn, runs, count, init + [fn.const(0.0, fn.vec(F32))] * (n * (sets - 1)), add)
        if sets == 2:
            acc = [fn.add(x, y) for x, y in zip(acc[:n], acc[n:], strict=True)]
        for i, x in enumerate(acc):
            fn.store(x, fn.gep(o, i // len(columns) * spec.v_pad + columns[i % len(columns)], F32))
    fn.done()
