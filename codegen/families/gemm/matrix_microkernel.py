"""The inner kernel of products of bytes where the target multiplies matrices of them: two rows by two columns, eight steps of k.

A panel of A holds such rows side by side. B's panels are those of all targets, whose units are of four steps: two units of each
column are brought together, once for all rows of the tile, which is the higher for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dhlo.codegen.kernel_ir.builder import I8, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.target import LINE_BYTES

if TYPE_CHECKING:
    from dhlo.codegen.families.gemm.register_tile import TileSpec

__all__ = ["emit_matrix_sums", "emit_pack_matrix_rows"]

# Rows, columns and units of k of a product; steps of k of a unit, and of a row of a product.
_SIDE, _UNIT = 2, 4
_DEPTH = _SIDE * _UNIT
# Products in one iteration of the unrolled k loop; more only grows the code.
_PRODUCTS_PER_ITERATION = 24


def emit_matrix_sums(
    fn: Fn, spec: TileSpec, mr: int, vectors: int, a: V, b: V, k: V, start: Sequence[V], fetch: Callable[[V, int], None]
) -> list[V]:
    """Emits the loop over `k` units; gives the tile's sums, by row and vector of columns, begun with `start`.

    `a` is [ceil(k / 2)][mr] of two units, b [k][panel] of one. `fetch(at, count)` is called in each iteration with its first unit
    and how many it takes."""
    pairs, columns = -(-mr // _SIDE), vectors * spec.lanes(I8) // _SIDE
    turned = _turned(fn, _by_pairs(fn, start, mr, vectors), vectors)
    unroll = max(1, _PRODUCTS_PER_ITERATION // (pairs * columns))
    main = fn.mul(fn.divu(k, unroll * _SIDE), unroll * _SIDE)

    def step(sums: Sequence[V], at: V, u: int, *, single: bool = False) -> list[V]:
        """Adds the products of two units, the second of which is zeros if `single`."""
        ys = _columns(
            fn, spec, fn.gep(fn.gep(b, fn.mul(at, spec.panel(I8)), I32), u * _SIDE * spec.panel(I8), I32), vectors, single
        )
        out = list(sums)
        for p in range(pairs):
            x = _rows(fn, fn.gep(fn.gep(a, fn.mul(at, mr), I32), (u * mr + p * _SIDE) * _SIDE, I32), mr - p * _SIDE)
            for c, y in enumerate(ys):
                out[p * columns + c] = _product(fn, spec, out[p * columns + c], x, y)
        return out

    with fn.loop(0, main, unroll * _SIDE, turned) as loop:
        sums: Sequence[V] = loop.carried
        fetch(loop.iv, unroll * _SIDE)
        for u in range(unroll):
            sums = step(sums, loop.iv, u)
        loop.yield_(*sums)
    whole = fn.mul(fn.divu(k, _SIDE), _SIDE)
    with fn.loop(main, whole, _SIDE, loop.results) as rest:
        rest.yield_(*step(rest.carried, rest.iv, 0))
    with fn.loop(whole, k, 1, rest.results) as last:
        last.yield_(*step(last.carried, last.iv, 0, single=True))
    sums = _turned(fn, last.results, vectors)
    return [sums[(i // _SIDE) * columns + v * _SIDE + i % _SIDE] for i in range(mr) for v in range(vectors)]


def _by_pairs(fn: Fn, sums: Sequence[V], mr: int, vectors: int) -> list[V]:
    """Sums by row and vector, as those of pairs of rows, by vector: a last row alone is its own neighbour."""
    return [sums[min(i + r, mr - 1) * vectors + v] for i in range(0, mr, _SIDE) for v in range(vectors) for r in range(_SIDE)]


def _turned(fn: Fn, sums: Sequence[V], vectors: int) -> list[V]:
    """Two rows of a vector of columns each, as products of two columns each have them; and back."""
    out = []
    for x, y in zip(sums[::2], sums[1::2], strict=True):
        out += [fn.shuffle(x, y, [0, 1, 4, 5]), fn.shuffle(x, y, [2, 3, 6, 7])]
    return out


def _columns(fn: Fn, spec: TileSpec, b: V, vectors: int, single: bool) -> list[V]:
    """Pairs of columns, two units of each."""
    ty, lanes = vec(I32, spec.lanes(I8)), spec.lanes(I8)
    out = []
    for v in range(vectors):
        x = fn.load(fn.gep(b, v * lanes, I32), ty)
        y = fn.const(0, ty) if single else fn.load(fn.gep(b, spec.panel(I8) + v * lanes, I32), ty)
        turns = [i for lane in range(lanes) for i in (lane, lanes + lane)]
        out += [fn.shuffle(x, y, turns[at : at + lanes]) for at in range(0, 2 * lanes, lanes)]
    return out


def _rows(fn: Fn, a: V, left: int) -> V:
    """A pair of rows, or one row twice."""
    if left >= _SIDE:
        return fn.load(a, vec(I32, 4), 4)
    return _as(fn, fn.splat(fn.load(a, I64, 4), 2), I32)


def _product(fn: Fn, spec: TileSpec, sums: V, x: V, y: V) -> V:
    dot = spec.matrix_dot
    assert dot is not None
    return fn.intrinsic(dot.intrinsic, sums.type, sums, _as(fn, x, I8), _as(fn, y, I8))


def _as(fn: Fn, x: V, elem: str) -> V:
    """The same 128 bits."""
    ty = vec(elem, {I8: 16, I32: 4}[elem])
    return fn.op(ty, f"vector.bitcast {x.name} : {x.type} to {ty}")


def emit_pack_matrix_rows(module: KernelModule) -> str:
    """Emits `pack_matrix_rows(src, row_stride, k_stride, rows, k, dst)` once: dst[k / 8][rows][k % 8] are the bytes of `rows` rows
    of `k` elements with any strides, the last eight filled up with zeros."""
    name = "pack_matrix_rows"
    if name in module.functions:
        return name
    sizes = [(x, I64) for x in ("row_stride", "k_stride", "rows", "k")]
    fn = Fn(module, name, [("src", PTR), *sizes, ("dst", PTR)], explicit=True)
    src, row_stride, k_stride, rows, k, dst = fn.args

    def put(row: V, step: V, x: V) -> None:
        fn.store(x, fn.gep(dst, fn.add(fn.mul(step, rows), row), I64), 1)

    def lines() -> list[V]:
        """Where k is contiguous: a line of each row, and so on. Returns the steps that are done."""
        whole = fn.divu(k, LINE_BYTES)  # steps of k that are packed at a time: a line of each row
        each = LINE_BYTES // _DEPTH
        with fn.loop(0, whole) as line, fn.loop(0, rows) as r:
            at = fn.gep(src, fn.add(fn.mul(r.iv, row_stride), fn.mul(line.iv, LINE_BYTES)), I8)
            for i in range(each):
                put(r.iv, fn.add(fn.mul(line.iv, each), i), fn.load(fn.gep(at, i * _DEPTH, I8), I64, 1))
        return [fn.mul(whole, each)]

    done = fn.if_else(fn.cmp("eq", k_stride, 1), lines, lambda: [fn.const(0, I64)], [I64])[0]
    with fn.loop(done, fn.ceildivu(k, _DEPTH)) as step, fn.loop(0, rows) as r:
        row, x = fn.gep(src, fn.mul(r.iv, row_stride), I8), fn.const(0, I64)
        for i in range(_DEPTH):
            at = fn.add(fn.mul(step.iv, _DEPTH), i)
            byte = fn.load(fn.gep(row, fn.mul(fn.min(at, fn.sub(k, 1)), k_stride), I8), I8)
            wide = fn.cast(fn.select(fn.cmp("lt", at, k), byte, fn.const(0, I8)), I64, signed=False)
            x = fn.or_(x, fn.shl(wide, 8 * i) if i else wide)
        put(r.iv, step.iv, x)
    fn.done()
    return name
