"""What kernels of products in the target's matrix registers call: the products of two row tiles by a panel, tiles' way to their
place, and the packing of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dhlo.codegen.families.gemm.multiply_add import as_vector_of
from dhlo.codegen.families.gemm.pack_rows import emit_pack_rows, units
from dhlo.codegen.families.gemm.register_tile import TileSpec, accumulator, depth, result_type
from dhlo.codegen.families.gemm.tile_memory import rounded_together
from dhlo.codegen.kernel_ir.builder import BITS, I8, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.target import MatrixTiles

__all__ = [
    "PANEL_COLUMNS",
    "PANEL_ROWS",
    "ROW_BYTES",
    "STEP_BYTES",
    "STEP_UNITS",
    "SUMS_BYTES",
    "SUMS_ROW_BYTES",
    "TILE_BYTES",
    "TILE_ROWS",
    "configure_whole",
    "emit_pack_tile",
    "emit_place_tile",
    "emit_tiles_microkernel",
    "on_tiles",
    "tiles_of",
]

TILE_ROWS: Final = 16
ROW_BYTES: Final = 64
TILE_BYTES: Final = TILE_ROWS * ROW_BYTES
STEP_UNITS: Final = TILE_ROWS
"""Units of k in a step: rows of a tile of B."""
PANEL_ROWS: Final = 2 * TILE_ROWS
PANEL_COLUMNS: Final = 32
SUMS_ROW_BYTES: Final = PANEL_COLUMNS * 4  # of a panel of B, too
STEP_BYTES: Final = STEP_UNITS * SUMS_ROW_BYTES
"""Of a panel of B in a step."""
SUMS_BYTES: Final = PANEL_ROWS * SUMS_ROW_BYTES

# Tiles: sums by row and column, A by row, B by column.
_SUMS, _LEFT, _RIGHT = ((0, 1), (2, 3)), (4, 5), (6, 7)
# A configuration of whole tiles, in words.
_WHOLE: Final = (1, 0, 0x0040_0040_0040_0040, 0x0040_0040_0040_0040, 0, 0, 0x1010_1010_1010_1010, 0)
# Of a panel of B ahead of its use, to the second level.
_PREFETCH_LOCALITY = 2


def on_tiles(fn: Fn, intrinsic: str, *args: V | int) -> None:
    """Calls an intrinsic of tiles, whose numbers are i8."""
    values = [x if isinstance(x, V) else fn.const(x, I8) for x in args]
    names, types = ", ".join(x.name for x in values), ", ".join(x.type for x in values)
    fn.raw(f'llvm.call_intrinsic "{intrinsic}"({names}) : ({types}) -> ()')


def tiles_of(fn: Fn) -> MatrixTiles:
    tiles = fn.target.tiles
    assert tiles is not None
    return tiles


def configure_whole(fn: Fn, at: V) -> None:
    """Makes all tiles whole ones; `at` is memory for a configuration, 64 bytes."""
    for place, word in enumerate(_WHOLE):
        fn.store(fn.i64(word), fn.gep(at, place, I64))
    on_tiles(fn, tiles_of(fn).configure, at)


def _product(fn: Fn, elem: str, spec: TileSpec) -> str:
    """The intrinsic that multiplies these elements."""
    return tiles_of(fn).products["ui8" if elem == I8 and spec.unsigned else elem].intrinsic


def emit_tiles_microkernel(
    module: KernelModule, elem: str, spec: TileSpec, high: int, rows_first: bool, *, listed: bool = False
) -> str:
    """Emits `ukr_{elem}_tiles_{high}`, or `..._rows` for one that keeps rows of A in the first-level cache rather than B,
    once and returns its symbol. Its arguments: a, stride, step, second, b, steps, a_tail, tail_second, b_tail, rest, tile,
    accumulate, to, ld, ahead, lines, apart.

    to[16 * high][32], rows `ld` bytes apart, = the products of `steps` steps and, if `rest` isn't 0, of one more from the tails,
    added to the content of tile[16 * high][32] if `accumulate`. Rows of A are `stride` bytes apart and 64 long, the next step's
    `step` bytes on, the second tile's `second`; in its tail rows follow each other. Each product has as many rows as the
    configuration says. At each step so many `lines` are prefetched, from `ahead` on each `apart` bytes after the one before.
    Where steps are `listed`, `step` points to where each lies instead, i64 bytes from `a`.
    """
    form = ("_rows" if rows_first else "") + ("_unsigned" if spec.unsigned else "") + ("_listed" if listed else "")
    name = f"ukr_{elem}_tiles_{high}{form}"
    if name in module.functions:
        return name
    pointers = ("a", "b", "a_tail", "b_tail", "tile", "to", "ahead", *(["step"] if listed else []))
    order = (
        "a", "stride", "step", "second", "b", "steps", "a_tail", "tail_second", "b_tail", "rest", "tile", "accumulate", "to", "ld",
        "ahead", "lines", "apart",
    )  # fmt: skip
    fn = Fn(module, name, [(x, PTR if x in pointers else I64) for x in order], explicit=True)
    a, stride, step, second, b, steps, a_tail, tail_second, b_tail, rest, tile, accumulate, to, ld, ahead, lines, apart = fn.args
    tiles, product, row_bytes = tiles_of(fn), _product(fn, elem, spec), fn.i64(SUMS_ROW_BYTES)
    used = _SUMS[:high]

    def cells(at: V, row_bytes: V | int) -> list[tuple[int, V]]:
        """The tiles of sums and where they lie."""
        rows = [at if r == 0 else fn.gep(at, fn.mul(row_bytes, TILE_ROWS), I8) for r in range(high)]
        return [(number, fn.gep(rows[r], c * ROW_BYTES, I8)) for r, row in enumerate(used) for c, number in enumerate(row)]

    def load() -> list[V]:
        for number, p in cells(tile, row_bytes):
            on_tiles(fn, tiles.load_once, number, p, row_bytes)
        return []

    def clear() -> list[V]:
        for row in used:
            for number in row:
                on_tiles(fn, tiles.zero, number)
        return []

    def multiply(left: V, below: V, stride: V, right: V) -> None:
        of_left, of_right = (tiles.load, tiles.load_once) if rows_first else (tiles.load_once, tiles.load)
        on_tiles(fn, of_right, _RIGHT[0], right, row_bytes)
        for r, row in enumerate(used):
            on_tiles(fn, of_left, _LEFT[r], fn.gep(left, below, I8) if r else left, stride)
            if r == 0:
                on_tiles(fn, of_right, _RIGHT[1], fn.gep(right, ROW_BYTES, I8), row_bytes)
            for c, number in enumerate(row):
                on_tiles(fn, product, number, _LEFT[r], _RIGHT[c])

    fn.if_else(fn.cmp("ne", accumulate, 0), load, clear, [])
    with fn.loop(0, steps, 1, [a, b, ahead]) as s:
        left, right, later = s.carried
        with fn.loop(0, lines, 1, [later]) as line:
            fn.prefetch(line.carried[0], _PREFETCH_LOCALITY)
            line.yield_(fn.gep(line.carried[0], apart, I8))
        multiply(fn.gep(left, fn.load(fn.gep(step, s.iv, I64), I64), I8) if listed else left, second, stride, right)
        s.yield_(left if listed else fn.gep(left, step, I8), fn.gep(right, STEP_BYTES, I8), line.results[0])
    with fn.when(fn.cmp("ne", rest, 0)):
        multiply(a_tail, tail_second, fn.i64(ROW_BYTES), b_tail)
    for number, p in cells(to, ld):
        on_tiles(fn, tiles.store, number, p, ld)
    fn.done()
    return name


def emit_place_tile(module: KernelModule, elem: str, spec: TileSpec, *, streams: bool) -> str:
    """Emits `place_tile_{elem}(tile, rows, to, n)`, or `stream_tile_{elem}`, once and returns its symbol: stores so many rows of 32
    sums at `tile` as `result_type(elem)` at `to`, rows `n` elements apart. Where it `streams`, these are whole lines, and no cache
    reads them first; a fence must follow."""
    name = f"{'stream' if streams else 'place'}_tile_{elem}"
    if name in module.functions:
        return name
    fn = Fn(module, name, [("tile", PTR), ("rows", I64), ("to", PTR), ("n", I64)], explicit=True)
    tile, rows, to, n = fn.args
    placed, sums = result_type(elem), accumulator(elem)
    lanes, together = spec.lanes(elem), 2 if placed != sums else 1
    with fn.loop(0, rows, 1, [tile, to]) as row:
        at, out = row.carried
        for v in range(0, PANEL_COLUMNS, lanes * together):
            xs = [fn.load(fn.gep(at, v + i * lanes, sums), vec(sums, lanes)) for i in range(together)]
            x = xs[0] if placed == sums else rounded_together(fn, elem, xs, placed)
            p = fn.gep(out, v, placed)
            if streams:
                fn.store(_integers(fn, x), p, x.lanes * BITS[placed] // 8, nontemporal=True)
            else:
                fn.store(x, p, BITS[placed] // 8)
        row.yield_(fn.gep(at, SUMS_ROW_BYTES, I8), fn.gep(out, n, placed))
    fn.done()
    return name


def _integers(fn: Fn, x: V) -> V:
    """The same bits, of which LLVM doesn't know that they were bf16: of these it has no streaming store."""
    return fn.opaque(as_vector_of(fn, I32, x))


def emit_pack_tile(module: KernelModule, elem: str, spec: TileSpec) -> str:
    """Emits `pack_tile_{elem}(src, row_stride, k_stride, rows, k, dst, corner)` once and returns its symbol.

    Copies `rows` rows, 1 to 16, of `k` elements, 1 to 64 bytes, to rows of 64 bytes at dst that end with zeros; those after them
    are undefined. Strides are in elements; `corner` is memory for a tile.
    """
    name = f"pack_tile_{elem}"
    if name in module.functions:
        return name
    names = [("src", PTR), ("row_stride", I64), ("k_stride", I64), ("rows", I64), ("k", I64), ("dst", PTR), ("corner", PTR)]
    fn = Fn(module, name, names, explicit=True)
    src, row_stride, k_stride, rows, k, dst, corner = fn.args
    memory = f"i{BITS[elem]}"  # bf16 as integers, which are never converted
    lanes, whole = spec.target.lanes(memory), STEP_UNITS * depth(elem)
    parts = range(0, whole, lanes)

    def copy(load: Sequence[V] | None) -> list[V]:
        """The rows where k is contiguous: whole ones, or through masks."""
        ty = vec(memory, lanes)
        with fn.loop(0, rows) as r:
            row, to = fn.gep(src, fn.mul(r.iv, row_stride), elem), fn.gep(dst, fn.mul(r.iv, ROW_BYTES), I8)
            for i, part in enumerate(parts):
                p = fn.gep(row, part, elem)
                x = fn.load(p, ty) if load is None else fn.masked_load(p, load[i], fn.const(0, ty))
                fn.store(x, fn.gep(to, part, memory))
        return []

    def contiguous() -> list[V]:
        def masked() -> list[V]:
            return copy([fn.tail_mask(fn.max(fn.sub(k, part), 0), lanes) for part in parts])

        return fn.if_else(fn.cmp("eq", k, whole), lambda: copy(None), masked, [])

    def transposed() -> list[V]:
        """Units of all rows side by side, as panels of vectors have them, and then each row's."""
        wide, zero = spec.target.lanes(I32), fn.const(0, vec(I32, spec.target.lanes(I32)))
        pack, turn = emit_pack_rows(module, elem, spec), emit_pack_rows(module, I32, spec)
        of_lanes = range(0, TILE_ROWS, wide)
        for first in of_lanes:
            left = fn.max(fn.min(fn.sub(rows, first), wide), 0)
            to = fn.gep(corner, first, I32)
            with fn.when(fn.cmp("gt", left, 0)):
                fn.call(pack, [fn.gep(src, fn.mul(row_stride, first), elem), row_stride, k_stride, left, k, to, fn.i64(TILE_ROWS)])
            with fn.loop(units(fn, k, elem), STEP_UNITS) as u:
                fn.store(zero, fn.gep(to, fn.mul(u.iv, TILE_ROWS), I32))
        for first in of_lanes:
            at, row = fn.gep(corner, first * TILE_ROWS, I32), fn.i64(TILE_ROWS)
            fn.call(turn, [at, row, fn.i64(1), fn.i64(wide), rows, fn.gep(dst, first, I32), row])
        return []

    fn.if_else(fn.cmp("eq", k_stride, 1), contiguous, transposed, [])
    fn.done()
    return name
