"""Products of attention in the target's matrix registers, where queries, keys and values are bf16: scores of 16 keys by 16 queries,
and sums of 16 columns of values by 16 queries, are a tile each. Queries and weights of dot products
(`dots.py`) lie in the same way.

Units are pairs of bf16, as they are multiplied: of a row's elements for scores; for sums of values of two keys, so that pairs of
weights lie as scores do, and values are turned once a block of keys. Weights are rounded to bf16, as PyTorch's kernels round them;
totals are those of the weights before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dhlo.codegen.families.attention.common import Args, Rows, Span, Spec, offset, scale_of_queries
from dhlo.codegen.families.attention.pages import contiguous, each_page
from dhlo.codegen.families.gemm.multiply_add import as_vector_of
from dhlo.codegen.families.gemm.register_tile import BF16
from dhlo.codegen.families.gemm.tiles import TILES_PAY
from dhlo.codegen.families.gemm.tiles_microkernel import TILE_ROWS, configure_whole, on_tiles, tiles_of
from dhlo.codegen.kernel_ir.builder import F32, I1, I8, I32, Fn, V, vec
from dhlo.codegen.kernel_ir.launch import HostContext
from dhlo.codegen.kernel_ir.transpose import transpose_block

__all__ = [
    "by_dots",
    "configure",
    "copy_query",
    "in_tiles",
    "lay_rows",
    "multiply_scores",
    "multiply_values",
    "pack_queries",
    "pack_values",
    "pack_weights",
    "release",
    "scale_scores",
    "serves",
    "tile_scratch",
]

_UNITS: Final = 16  # of a row of a tile


def serves(spec: Spec) -> bool:
    """Whether there is such a form."""
    tiles = spec.tiles.target.tiles
    plain = spec.elem == BF16 and spec.k == spec.v == Rows(BF16)
    fits = spec.lanes == _UNITS and spec.halves <= 3 and spec.head_dim % 2 == spec.value_dim % 2 == 0
    return plain and fits and (by_dots(spec) or tiles is not None and BF16 in tiles.products)


def by_dots(spec: Spec) -> bool:
    """Whether it is of dot products, which need no tiles."""
    return spec.tiles.target.tiles is None and spec.tiles.bf16_dot is not None


def _query_units(spec: Spec) -> int:
    """Units of a row of queries or keys, as whole rows of tiles."""
    return -(-spec.head_dim // (2 * _UNITS)) * _UNITS


def _key_units(spec: Spec) -> int:
    """Pairs of keys of a block, as whole rows of tiles."""
    return -(-spec.keys // (2 * _UNITS)) * _UNITS


def in_tiles(host: HostContext, spec: Spec) -> V:
    """1 where the machine multiplies in tiles fast and there is such a form, else 0."""
    fn = host.fn
    if not serves(spec) or by_dots(spec):
        return fn.i64(int(serves(spec)))
    return fn.select(fn.cmp("ge", host.machine("tiles_percent"), TILES_PAY), fn.i64(1), 0)


def tile_scratch(spec: Spec) -> dict[str, int]:
    """Buffers and how many f32 each takes: the configuration; queries as they lie, and by units; rows of keys and of values;
    values turned; weights by units."""
    if not serves(spec):
        return {}
    rows, units, pairs = spec.rows, _query_units(spec), _key_units(spec)
    return {
        "config": _UNITS,
        "raw": rows * units,
        "of_queries": units * rows,
        "tile_keys": 2 * pairs * units,
        "tile_values": pairs * spec.v_pad,
        "turned": spec.v_pad * pairs,
        "weights": pairs * rows,
    }


def configure(fn: Fn, at: dict[str, V]) -> None:
    """All tiles are whole ones."""
    configure_whole(fn, at["config"])


def release(fn: Fn) -> None:
    on_tiles(fn, tiles_of(fn).release)


def _copy_rows(fn: Fn, src: V, ld: V, count: V, columns: int, dst: V, units: int) -> None:
    """Copies `count` rows of so many bf16, `ld` apart, to rows of `units` pairs that end with zeros."""
    with fn.loop(0, count) as r:
        p, to = fn.gep(src, fn.mul(r.iv, ld), BF16), fn.gep(dst, fn.mul(r.iv, units), I32)
        for u in range(0, units, _UNITS):
            fn.store(_row(fn, p, u, columns // 2), fn.gep(to, u, I32))


def copy_query(fn: Fn, spec: Spec, at: dict[str, V], p: V, row: V) -> None:
    """A row of queries goes to its place in `raw`."""
    units = _query_units(spec)
    _copy_rows(fn, p, fn.i64(0), fn.i64(1), spec.head_dim, fn.gep(at["raw"], fn.mul(row, units), I32), units)


def _row(fn: Fn, p: V, first: int, units: int) -> V:
    """A vector of a row's units from `first` on, zeros behind its end."""
    ty, at, left = vec(I32, _UNITS), fn.gep(p, first, I32), units - first
    if left >= _UNITS:
        return fn.load(at, ty, 2)
    return fn.masked_load(at, fn.dense([int(i < left) for i in range(_UNITS)], "i1"), fn.const(0, ty))


def lay_rows(fn: Fn, a: Args, spec: Spec, at: dict[str, V], span: Span, h: V, key0: V, count: V) -> tuple[V, V]:
    """Copies rows of V of a block of keys, and those of K unless they are whole tiles as they lie. Where those of K are, and how
    many bytes apart."""

    def copy_all(p: V, strides: Sequence[V], columns: int, to: V, units: int) -> None:
        base, ld = fn.gep(p, offset(fn, strides, span.batch, h), spec.elem), strides[2]

        def copy(first: V, rows: V, row: V, _: V) -> None:
            _copy_rows(
                fn, fn.gep(base, fn.mul(row, ld), spec.elem), ld, rows, columns, fn.gep(to, fn.mul(first, units), I32), units
            )

        if spec.paging is None:
            copy(fn.i64(0), count, key0, key0)
        else:
            each_page(fn, a, spec, span, key0, count, copy, ahead=spec.keys)

    copy_all(a.v, a.vs, spec.value_dim, at["tile_values"], spec.v_pad // 2)
    units = _query_units(spec)
    whole, row = contiguous(fn, a, spec, span, key0, count) if spec.paging is not None else (fn.const(1, I1), key0)
    if spec.head_dim != 2 * units and not by_dots(spec):  # rows of tiles would end in other rows
        copy_all(a.k, a.ks, spec.head_dim, at["tile_keys"], units)
        return at["tile_keys"], fn.i64(4 * units)
    if not by_dots(spec):
        whole = fn.and_(whole, fn.cmp("eq", fn.remu(count, TILE_ROWS), 0))
    with fn.when(fn.not_(whole)):
        copy_all(a.k, a.ks, spec.head_dim, at["tile_keys"], units)
    there = fn.gep(fn.gep(a.k, offset(fn, a.ks, span.batch, h), spec.elem), fn.mul(row, a.ks[2]), spec.elem)
    return fn.select(whole, there, at["tile_keys"]), fn.select(whole, fn.mul(a.ks[2], 2), fn.i64(4 * units))


def pack_queries(fn: Fn, spec: Spec, at: dict[str, V]) -> None:
    """Of the rows in `raw`: unit by unit, those of all rows side by side."""
    units, ty = _query_units(spec), vec(I32, _UNITS)
    for half in range(spec.halves):
        for u in range(0, units, _UNITS):
            rows = [fn.load(fn.gep(at["raw"], (half * _UNITS + i) * units + u, I32), ty) for i in range(_UNITS)]
            for i, x in enumerate(transpose_block(fn, rows)):
                fn.store(x, fn.gep(at["of_queries"], (u + i) * spec.rows + half * _UNITS, I32))


def multiply_scores(fn: Fn, spec: Spec, at: dict[str, V], count: V, keys: V, apart: V) -> None:
    """Scores of `count` keys, whose rows lie `apart` bytes from each other; those of a last tile's other rows may be any."""
    units, high = _query_units(spec), _most_high(spec)

    def score(tile: V, high: int) -> None:
        first = fn.mul(tile, TILE_ROWS)
        left = fn.gep(keys, fn.mul(first, apart), I8)
        products = _Products(fn, spec, high, apart, fn.mul(apart, TILE_ROWS))
        products.clear()
        for u in range(0, units, _UNITS):
            products.multiply(fn.gep(left, u, I32), fn.gep(at["of_queries"], u * spec.rows, I32))
        products.store(fn.gep(at["scores"], fn.mul(first, spec.rows), F32))

    tiles = fn.ceildivu(count, TILE_ROWS)
    whole = fn.mul(fn.divu(tiles, high), high)
    with fn.loop(0, whole, high) as t:
        score(t.iv, high)
    with fn.loop(whole, tiles) as t:
        score(t.iv, 1)


def scale_scores(fn: Fn, a: Args, spec: Spec, at: dict[str, V], count: V) -> None:
    """Scores of `count` keys by queries as they lie, in bf16, which would be rounded once more if they were scaled instead."""
    scale = fn.splat(scale_of_queries(fn, a, spec))
    with fn.loop(0, fn.mul(count, spec.rows), fn.lanes) as e:
        p = fn.gep(at["scores"], e.iv, F32)
        fn.store(fn.mul(fn.load(p, fn.vec(F32)), scale), p)


def _most_high(spec: Spec) -> int:
    """Tiles of keys or columns that are taken at once: four products that don't wait for each other, if tiles suffice."""
    return 2 if spec.halves <= 2 else 1


@dataclass(frozen=True)
class _Products:
    """Tiles of sums of `high` tiles of rows, `below` bytes from one to the next and rows `apart`, by all queries."""

    fn: Fn
    spec: Spec
    high: int
    apart: V
    below: V

    @property
    def _sums(self) -> list[tuple[int, int, int]]:
        """Number, row and half of each."""
        return [(r * self.spec.halves + half, r, half) for r in range(self.high) for half in range(self.spec.halves)]

    def _cells(self, to: V) -> list[tuple[int, V]]:
        fn, rows = self.fn, self.spec.rows
        return [(n, fn.gep(to, r * TILE_ROWS * rows + half * _UNITS, F32)) for n, r, half in self._sums]

    @property
    def _line(self) -> V:
        """Bytes of a row of scores, weights or sums."""
        return self.fn.i64(4 * self.spec.rows)

    def clear(self) -> None:
        for number, _, _ in self._sums:
            on_tiles(self.fn, tiles_of(self.fn).zero, number)

    def load(self, of: V) -> None:
        for number, p in self._cells(of):
            on_tiles(self.fn, tiles_of(self.fn).load, number, p, self._line)

    def store(self, to: V) -> None:
        for number, p in self._cells(to):
            on_tiles(self.fn, tiles_of(self.fn).store, number, p, self._line)

    def multiply(self, left: V, right: V) -> None:
        """Adds the products of the rows from `left` on by what lies from `right` on."""
        fn, tiles, halves = self.fn, tiles_of(self.fn), self.spec.halves
        lefts = range(self.high * halves, self.high * halves + self.high)
        rights = range(lefts.stop, lefts.stop + halves)
        for half, number in enumerate(rights):
            on_tiles(fn, tiles.load, number, fn.gep(right, half * _UNITS, I32), self._line)
        for r, number in enumerate(lefts):
            on_tiles(fn, tiles.load, number, fn.gep(left, self.below, I8) if r else left, self.apart)
        for number, r, half in self._sums:
            on_tiles(fn, tiles.products[BF16].intrinsic, number, lefts[r], rights[half])


def pack_values(fn: Fn, spec: Spec, at: dict[str, V], count: V) -> None:
    """Values of `count` keys, whose rows lie in `tile_values`, turned: of each column pairs of keys, zeros for those behind."""
    pairs, ty = _key_units(spec), vec("i16", 2 * _UNITS)
    blocks, row_units = fn.ceildivu(count, 2 * _UNITS), spec.v_pad // 2
    with fn.loop(fn.mul(count, row_units), fn.mul(blocks, 2 * _UNITS * row_units), _UNITS // 2) as z:
        fn.store(fn.const(0, vec(I32, _UNITS // 2)), fn.gep(at["tile_values"], z.iv, I32))
    beside = [lane + 2 * _UNITS * k for lane in range(2 * _UNITS) for k in (0, 1)]  # two rows, element by element
    with fn.loop(0, blocks) as b:
        rows = fn.gep(at["tile_values"], fn.mul(b.iv, 2 * _UNITS * row_units), I32)
        for first in range(0, spec.v_pad, 2 * _UNITS):
            units = list[list[V]]()
            for i in range(_UNITS):
                low, high = (fn.load(fn.gep(rows, (2 * i + k) * spec.v_pad + first, BF16), ty, 2) for k in (0, 1))
                units.append([fn.shuffle(low, high, beside[h : h + 2 * _UNITS]) for h in (0, 2 * _UNITS)])
            for c in range(first, min(first + 2 * _UNITS, spec.v_pad), _UNITS):
                to = fn.gep(at["turned"], fn.add(fn.mul(b.iv, _UNITS), c * pairs), I32)
                block = [as_vector_of(fn, I32, x[(c - first) // _UNITS]) for x in units]
                for i, x in enumerate(transpose_block(fn, block)):
                    fn.store(x, fn.gep(to, i * pairs, I32))


def pack_weights(fn: Fn, spec: Spec, at: dict[str, V], count: V) -> None:
    """Of `count` keys' weights, which lie where scores did, pairs of keys, zeros for those behind."""
    wide, zero = vec(I32, _UNITS), fn.const(0.0, fn.vec(F32))
    whole, end = fn.divu(count, 2), fn.mul(fn.ceildivu(count, 2 * _UNITS), _UNITS)

    def store(pair: V, low: V, high: V, half: int) -> None:
        bits = [fn.cast(fn.bitcast(fn.cast(x, BF16), "i16"), I32, signed=False) for x in (low, high)]
        to = fn.gep(at["weights"], fn.add(fn.mul(pair, spec.rows), half * _UNITS), I32)
        fn.store(fn.or_(bits[0], fn.shl(bits[1], fn.const(16, wide))), to)

    def weight(key: V, half: int) -> V:
        return fn.load(fn.gep(at["scores"], fn.add(fn.mul(key, spec.rows), half * _UNITS), F32), fn.vec(F32))

    with fn.loop(0, whole) as p:
        first = fn.mul(p.iv, 2)
        for half in range(spec.halves):
            store(p.iv, weight(first, half), weight(fn.add(first, 1), half), half)
    with fn.when(fn.cmp("ne", fn.remu(count, 2), 0)):
        for half in range(spec.halves):
            store(whole, weight(fn.sub(count, 1), half), zero, half)
    with fn.loop(fn.mul(fn.ceildivu(count, 2), spec.rows), fn.mul(end, spec.rows), _UNITS) as z:
        fn.store(fn.const(0, wide), fn.gep(at["weights"], z.iv, I32))


def multiply_values(fn: Fn, spec: Spec, at: dict[str, V], count: V) -> None:
    """Sums of values so far, times `alpha`, with those of `count` keys."""
    pairs, halves = _key_units(spec), range(spec.halves)
    alphas = [fn.load(fn.gep(at["alpha"], half * _UNITS, F32), fn.vec(F32)) for half in halves]
    with fn.loop(0, spec.v_pad) as column:
        for half in halves:
            p = fn.gep(fn.gep(at["ot"], fn.mul(column.iv, spec.rows), F32), half * _UNITS, F32)
            fn.store(fn.mul(fn.load(p, fn.vec(F32)), alphas[half]), p)
    c = 0
    while c < spec.v_pad:
        high = _most_high(spec) if c + TILE_ROWS < spec.v_pad else 1
        products = _Products(fn, spec, high, fn.i64(4 * pairs), fn.i64(4 * pairs * TILE_ROWS))
        sums = fn.gep(at["ot"], c * spec.rows, F32)
        products.load(sums)
        with fn.loop(0, fn.ceildivu(count, 2 * _UNITS)) as b:
            left = fn.gep(at["turned"], fn.add(fn.mul(b.iv, _UNITS), c * pairs), I32)
            products.multiply(left, fn.gep(at["weights"], fn.mul(b.iv, _UNITS * spec.rows), I32))
        products.store(sums)
        c += high * TILE_ROWS
