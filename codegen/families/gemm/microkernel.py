"""The inner kernels of matrix products: tile (+)= A panel times B panel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dhlo.codegen.families.gemm.matrix_microkernel import emit_matrix_sums
from dhlo.codegen.families.gemm.multiply_add import multiply_add
from dhlo.codegen.families.gemm.register_tile import SIGN_BITS, TileSpec, accumulator, depth, in_one_set, unit
from dhlo.codegen.families.gemm.sides import PackedRows, Panel, RowsInPlace, RowsToPack, after_sums
from dhlo.codegen.families.gemm.tile_memory import RoundedTile, TileMemory
from dhlo.codegen.kernel_ir.builder import BITS, I8, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.target import LINE_BYTES

__all__ = [
    "LEAST_FETCHING",
    "SHARING_PANELS",
    "emit_microkernel",
    "emit_microkernel_table",
    "emit_packing_table",
    "emit_shared_table",
    "least_packing",
    "near_heights",
]

# Independent accumulators that cover FMA latency times issue width (4 x 2 on Zen 5 and on Intel's servers) with some
# slack.
_MIN_ACCUMULATORS = 12
# FMA vectors in one iteration of the unrolled k loop; more only grows the code.
_FMAS_PER_ITERATION = 28
# To the second level where it is far ahead; to the first where it is read soon, in the panel that is read: a line that is fetched
# to the second is asked of that twice. On a Zen 5 1 to 6 rows by 768 x 3,072 take 0.67 to 0.84 of the time so.
_FAR_LOCALITY, _NEAR_LOCALITY = 2, 3
# A prefetch of the second level may be lost, and the line is then missed a whole panel later. From so many rows on there is time
# to ask for each a second time, so many bytes after the first. In rows of B as it lies there are columns that were read before;
# where none is lost it takes the place of another, and 5 to 14 rows by 768 x 32,000 take 1.11 to 1.22 times as long
# (`Target.loses_prefetches`); where tiles are narrower than panels (x86-64-v3, on a Zen 5 with two threads) it's worse without,
# which isn't understood.
_RETRY_ROWS, _RETRY_BYTES = 5, 2048
_ARGS = (
    *(("b", PTR), ("k", I64), ("tile", PTR), ("accumulate", I64)),
    *(("ahead", PTR), ("ahead_step", I64), ("ahead_from", I64), ("ahead_pace", I64)),
)
_PLACED_ARGS, _ROUNDED_ARGS = (("ld", I64), ("fetches", I64)), (("to", PTR), ("ld", I64), ("next", PTR))
LEAST_FETCHING: Final = 8
"""Tiles of so many packed rows have room between multiply-adds for what fetches the place where they store their sums."""
# A row of that is fetched in 2 to the power of so many steps of k at most.
_MOST_PLACE_SHIFT: Final = 3
# Tiles of fewer rows don't hide the packing of B.
_LEAST_PACKING = 4
SHARING_PANELS: Final = 3
"""From so many row panels on a block's tiles share what they fetch."""
FETCH_BITS: Final = 16
"""Parts of a line in which tiles count what they fetch, as a power of two."""
_LINE_BITS = LINE_BYTES.bit_length() - 1


def emit_microkernel(
    module: KernelModule,
    elem: str,
    mr: int,
    spec: TileSpec,
    *,
    rows: bool = False,
    narrow: bool = False,
    placed: str | None = None,
    packing: bool = False,
    shared: bool = False,
    near: bool = False,
) -> str:
    """Emits `ukr_{elem}_{mr}_ahead(a, b, k, tile, accumulate, ahead, ahead_step, ahead_from, ahead_pace)` or, with `rows`,
    `ukr_{elem}_{mr}_rows_ahead(a, lda, ...)` once and returns its symbol. Units with flipped signs have two more arguments after a,
    rows in place of units of several elements one after lda.

    tile[mr][columns] = sum_k a[k][mr] * b[k][columns], added to the tile's content if `accumulate` != 0; `k` counts units and may
    be 0, and a[k] is left_parts(elem) times mr. `elem` is f32, f64, bf16 or i8. With `rows`, A is read in place: row r at a + r *
    lda elements, whole units of it and, if the argument after lda isn't 0, the first element of one more; those of bytes have no
    such variant. Rows of B are panel(elem) apart and those of the tile columns(elem, mr), which are as many as it has; element
    alignment does. At step kk of k as many bytes are prefetched as are read of B, at ahead + kk * ahead_step bytes: so that the
    calls that share a panel of B can fetch the next panel between them; to the first cache if it's `near`. If that is `shared` it's
    a line: of rows `ahead_step` bytes apart the lines of a panel one after the other, from the line `ahead_from` on, `ahead_pace` a
    step, both in 2^FETCH_BITS parts.
    `narrow`: only the first vector of columns is computed, the rest of the tile isn't written. `placed`, a type: the sums may
    become a part of a larger matrix of such elements. Where that is the tile's own type, two arguments say how many elements its
    rows are apart, and whether LEAST_FETCHING packed rows and more fetch the tile's memory in the first steps of k; else three say
    where the part lies, how many elements its rows are apart, and where that of the next tile lies, whose memory is fetched before
    the first step, and sums are rounded to the part instead of stored to the tile; the first and the last may be null. `packing`:
    B's columns are read where they lie and packed on the way; `b` is the address of PACKING_FIELDS numbers (i64): where the tile's
    columns of the panel are and how many elements apart its rows, where the columns lie and how many elements apart, how many there
    are; of fewer than the tile has those that miss are packed as zeros, where the target has `mask_registers`, and mustn't be fewer
    elsewhere. The function is internal and not inlined.
    """
    how = "_shared" if shared else "_near" if near else "_ahead"
    name = f"ukr_{elem}_{mr}{_form(elem, rows, narrow, placed, packing)}{spec.suffix}{how}"
    if name in module.functions:
        return name
    head = _row_args(elem) if rows else _left_args(elem, spec)
    placing = () if placed is None else _PLACED_ARGS if placed == accumulator(elem) else _ROUNDED_ARGS
    fn = Fn(module, name, (*head, *_ARGS, *placing), explicit=True)
    (a, *beside), (b, k, tile, accumulate, ahead, ahead_step, begin, pace, *where) = fn.args[: len(head)], fn.args[len(head) :]
    right = (RowsToPack if packing else Panel)(fn, elem, spec, b)
    left = RowsInPlace(fn, elem, spec, mr, a, 1, *beside) if rows else PackedRows(fn, elem, spec, mr, a, mr * spec.left_parts(elem))
    vectors = 1 if narrow else spec.columns(elem, mr) // spec.lanes(elem)
    memory = _tile_memory(fn, elem, spec, mr, vectors, tile, placed, where)
    start = memory.start(accumulate)
    fetched: _Ahead | _Share = _Share.of(fn, elem, spec, ahead, ahead_step, begin, pace)
    if not shared:
        once = near or packing and spec.per_panel == 1 or not spec.target.loses_prefetches
        fetched = _Ahead.of(fn, elem, spec, mr, vectors, ahead, ahead_step, near=near, once=once)
    place = None
    if placed == elem == accumulator(elem) and mr >= LEAST_FETCHING and not rows:  # whose addresses leave no register
        place = _PlaceAhead.of(fn, elem, mr, vectors * spec.lanes(elem), k, tile, *where)
    products = _Products(fn, elem, spec, mr, vectors, left, right, fetched, place)
    if spec.matrices and (mr > 1 or spec.by_dots.flips(elem)):  # one row alone lies as dot products want it
        sums = emit_matrix_sums(fn, spec, mr, vectors, a, b, k, start, fetched.units)
    elif spec.flips(elem):
        sums = products.less_what_flips_add(k, start, *beside)
    else:
        sums = products.sums(mr, k, start)
    memory.store(sums)
    fn.done()
    return name


def _form(elem: str, rows: bool, narrow: bool, placed: str | None, packing: bool = False) -> str:
    """What names of variants say."""
    where = "" if placed is None else "_placed" if placed == accumulator(elem) else f"_to_{placed}"
    return f"{'_rows' if rows else ''}{'_narrow' if narrow else ''}{where}{'_packing' if packing else ''}"


def _row_args(elem: str) -> tuple[tuple[str, str], ...]:
    """The arguments before B of a micro-kernel that reads rows in place."""
    return (("a", PTR), ("lda", I64), *((("half", I64),) if depth(elem) > 1 else ()))


def _left_args(elem: str, spec: TileSpec) -> tuple[tuple[str, str], ...]:
    """The arguments before B of a micro-kernel that reads packed panels."""
    return (("a", PTR), ("sums", PTR), ("turn", I64)) if spec.flips(elem) else (("a", PTR),)


def emit_microkernel_table(
    module: KernelModule,
    elem: str,
    *,
    rows: bool = False,
    narrow: bool = False,
    placed: str | None = None,
    spec: TileSpec,
    near: range = range(0),
) -> str:
    """Emits all variants and a constant table of them, entry mr - 1 for mr rows; returns the table's symbol. With `narrow` as many
    narrow ones follow. Those of so many rows are `near`; of narrow ones only those that are of low tiles."""
    high, low = spec.rows(elem), near_heights(elem, spec, rows=False)
    which = "_ahead" if not near else "_near" if high in near else "_low_near"
    name = f"ukr_table_{elem}{_form(elem, rows, narrow, placed)}{spec.suffix}{which}"
    if name not in module.globals:
        forms = [(mr, half) for half in (False, True)[: 1 + narrow] for mr in range(1, high + 1)]
        symbols = [
            emit_microkernel(
                module, elem, mr, spec, rows=rows, narrow=half, placed=placed, near=mr in near and (mr in low or not half)
            )
            for mr, half in forms
        ]
        module.add_pointers(name, symbols)
    return name


def near_heights(elem: str, spec: TileSpec, *, rows: bool) -> range:
    """The row panels that may prefetch what they read soon where they are alone: any whose `rows` are read in place; of those that
    are packed, which few are, low ones."""
    return range(1, spec.rows(elem) + 1 if rows else (spec.rows(elem) + 1) // 2)


def least_packing(elem: str, spec: TileSpec) -> int:
    """The fewest rows whose tiles pack B on the way: of fewer the products don't hide it, or they span more than a tile."""
    return max(_LEAST_PACKING, spec.whole_panel_rows(elem) + 1)


def emit_packing_table(module: KernelModule, elem: str, *, rows: bool, placed: str | None, spec: TileSpec) -> str:
    """Emits all variants that pack B and a constant table of them, entry mr - 1 for mr rows, from `least_packing` on; returns its
    symbol."""
    least, high = least_packing(elem, spec), spec.rows(elem)
    return _emit_table(module, elem, range(least, high + 1), spec, rows=rows, placed=placed, packing=True)


def emit_shared_table(module: KernelModule, elem: str, *, placed: str | None, spec: TileSpec, packing: bool) -> str:
    """Emits variants that share what they fetch, and a constant table of them, entry mr - 1 for mr rows; returns its symbol. They
    are of as many rows as at least `SHARING_PANELS` row panels of nearly equal height have."""
    high = spec.rows(elem)
    least = (high * (SHARING_PANELS - 1) + 1) // SHARING_PANELS
    if packing:
        least = max(least, least_packing(elem, spec))
    return _emit_table(module, elem, range(least, high + 1), spec, rows=False, placed=placed, packing=packing, shared=True)


def _emit_table(
    module: KernelModule,
    elem: str,
    heights: range,
    spec: TileSpec,
    *,
    rows: bool,
    placed: str | None,
    packing: bool,
    shared: bool = False,
) -> str:
    """Emits variants of these `heights`, and a table of as many entries as a tile has rows: lower ones are that of the first."""
    name = f"ukr_table_{elem}{_form(elem, rows, False, placed, packing)}{spec.suffix}{'_shared' if shared else '_ahead'}"
    if name not in module.globals:
        symbols = [
            emit_microkernel(module, elem, max(mr, heights[0]), spec, rows=rows, placed=placed, packing=packing, shared=shared)
            for mr in range(1, heights[-1] + 1)
        ]
        module.add_pointers(name, symbols)
    return name


def _tile_memory(
    fn: Fn, elem: str, spec: TileSpec, mr: int, vectors: int, tile: V, placed: str | None, where: Sequence[V]
) -> TileMemory:
    """What the arguments say of the tile and its place."""
    lanes, ld = spec.lanes(elem), spec.columns(elem, mr)
    if placed is None:
        return TileMemory(fn, elem, mr, vectors, lanes, tile, ld)
    if placed == accumulator(elem):
        return TileMemory(fn, elem, mr, vectors, lanes, tile, where[0])
    return RoundedTile(fn, elem, mr, vectors, lanes, tile, ld, placed, *where)


@dataclass(frozen=True)
class _Ahead:
    """What a micro-kernel prefetches: at `address`, `step` bytes further for each unit of k, some lines."""

    fn: Fn
    address: V
    step: V
    lines: Sequence[int]
    locality: int

    @classmethod
    def of(cls, fn: Fn, elem: str, spec: TileSpec, mr: int, vectors: int, address: V, step: V, *, near: bool, once: bool) -> _Ahead:
        """As many bytes as a tile reads of B, which are read soon if they are `near`; of many rows some of them twice, unless
        `once`."""
        row = range(0, vectors * spec.lanes(elem) * BITS[unit(elem)] // 8, LINE_BYTES)
        again = mr >= _RETRY_ROWS and not once
        return cls(fn, address, step, [*row, *([-_RETRY_BYTES] if again else [])], _NEAR_LOCALITY if near else _FAR_LOCALITY)

    def unit(self, k: V, u: int) -> None:
        """Prefetches the lines of the unit `u` on from k."""
        fn, steps = self.fn, self.fn.add(k, u) if u else k
        at = fn.gep(self.address, fn.mul(steps, self.step), I8)
        for line in self.lines:
            fn.prefetch(fn.gep(at, line, I8), self.locality)

    def units(self, k: V, count: int) -> None:
        """Prefetches so many units' lines from the unit k on."""
        for u in range(count):
            self.unit(k, u)


@dataclass(frozen=True)
class _Share:
    """A tile's share of the lines of rows at `address`, `step` bytes apart, of each of which so many `lines` are fetched: from the
    line `begin` on, `pace` lines each unit of k, both in 2^FETCH_BITS parts."""

    fn: Fn
    address: V
    step: V
    begin: V
    pace: V
    lines: int
    every: int

    @classmethod
    def of(cls, fn: Fn, elem: str, spec: TileSpec, address: V, step: V, begin: V, pace: V) -> _Share:
        """Of the rows of a panel, whose tiles are so many that a line every few units doesn't fall behind."""
        lines = max(spec.row_bytes(elem) // LINE_BYTES, 1)
        return cls(fn, address, step, begin, pace, lines, max(SHARING_PANELS * spec.per_panel // lines, 1))

    def unit(self, k: V, u: int) -> None:
        """Prefetches the line of the unit `u` on from k, unless one before fetches it."""
        if u % self.every:
            return
        fn, each = self.fn, self.lines.bit_length() - 1
        at = fn.add(self.begin, fn.mul(fn.add(k, u) if u else k, self.pace))
        row = fn.gep(self.address, fn.mul(fn.shr(at, FETCH_BITS + each), self.step), I8)
        line = fn.and_(fn.shr(at, FETCH_BITS - _LINE_BITS), (self.lines - 1) * LINE_BYTES)
        fn.prefetch(fn.gep(row, line, I8), _FAR_LOCALITY)

    def units(self, k: V, count: int) -> None:
        """Prefetches so many units' lines from the unit k on."""
        for u in range(count):
            self.unit(k, u)


@dataclass(frozen=True)
class _PlaceAhead:
    """The memory of a tile, which the first `steps` steps of k fetch, 2^shift of them each row."""

    fn: Fn
    tile: V
    row_bytes: V
    width_bytes: int
    shift: V
    steps: V

    @classmethod
    def of(cls, fn: Fn, elem: str, mr: int, columns: int, k: V, tile: V, ld: V, fetches: V) -> _PlaceAhead:
        """`mr` rows of so many `columns`, `ld` elements apart, of a tile of `k` steps; none unless it `fetches`."""
        nbytes, shift = BITS[elem] // 8, fn.i64(0)
        for x in range(1, _MOST_PLACE_SHIFT + 1):
            shift = fn.select(fn.cmp("ge", k, mr << x), x, shift)
        steps = fn.select(fn.cmp("ne", fetches, 0), fn.min(k, fn.shl(fn.i64(mr), shift)), 0)
        return cls(fn, tile, fn.mul(ld, nbytes), columns * nbytes, shift, steps)

    def unit(self, k: V) -> None:
        """Fetches what the step `k` is to: the lines that vectors end in, as the tile beside has fetched that in which the first
        begins. For reading: LLVM moves no load past what might write, and registers are short."""
        fn = self.fn
        row = fn.gep(self.tile, fn.mul(fn.shr(k, self.shift), self.row_bytes), I8)
        for end in range(LINE_BYTES, self.width_bytes + 1, LINE_BYTES):
            fn.prefetch(fn.gep(row, end - 1, I8))


@dataclass(frozen=True)
class _Place:
    """Unit `k` of both sides: addresses of the parts of B's row, addresses and offsets of the rows of A."""

    k: V
    b: Sequence[V]
    a: Sequence[tuple[V, int]]


@dataclass(frozen=True)
class _Products:
    """The loop over k of a tile of `mr` rows by `vectors` vectors of columns."""

    fn: Fn
    elem: str
    spec: TileSpec
    mr: int
    vectors: int
    left: PackedRows
    right: Panel
    ahead: _Ahead | _Share
    place: _PlaceAhead | None

    def sums(self, rows: int, k: V, start: Sequence[V]) -> list[V]:
        """Sums over `k` units by row and vector, begun with `start`: of the tile's rows, and perhaps of one of sign bits."""
        fn, left, n = self.fn, self.left, rows * self.vectors
        sets = self._sets(n)
        unroll = sets * max(1, _FMAS_PER_ITERATION // (n * sets * self.spec.products(self.elem)))
        main = fn.mul(fn.divu(k, unroll), unroll)
        zeros = [fn.const(0.0, start[0].type)] * (n * sets - len(start))
        carried = [*start, *zeros, *left.start()]

        def run(first: V | int, end: V, place: _PlaceAhead | None) -> None:
            with fn.loop(first, end, unroll, carried) as loop:
                acc, pointers = list(loop.carried[: n * sets]), loop.carried[n * sets :]
                at = self._place(loop.iv, pointers)
                if place is not None:
                    place.unit(loop.iv)
                for u in range(unroll):
                    self.ahead.unit(loop.iv, u)
                    s = u % sets * n
                    for part, b in enumerate(at.b):
                        here = after_sums(fn, b, acc[s + n - 1 : s + n]) if part and left.in_place else b
                        acc[s : s + n] = self._step(rows, at, u, part, here, acc[s : s + n])
                loop.yield_(*acc, *left.onward(unroll, pointers))
            carried[:] = loop.results

        if self.place is None or unroll > 1:
            run(0, main, None)
        else:
            run(0, self.place.steps, self.place)
            run(self.place.steps, main, None)
        total, pointers = carried[:n], carried[n * sets :]
        for s in range(1, sets):
            total = [fn.add(x, y) for x, y in zip(total, carried[s * n : (s + 1) * n], strict=True)]
        with fn.loop(main, k, 1, [*total, *pointers]) as tail:
            acc, pointers = list(tail.carried[:n]), tail.carried[n:]
            at = self._place(tail.iv, pointers)
            for part, b in enumerate(at.b):
                acc = self._step(rows, at, 0, part, b, acc)
            tail.yield_(*acc, *left.onward(1, pointers))
        return self._with_last(rows, k, tail.results[:n], tail.results[n:])

    def _with_last(self, rows: int, k: V, sums: list[V], pointers: Sequence[V]) -> list[V]:
        """The sums with the products of a last unit, behind `k` whole ones, of which rows in place may have the first element."""
        fn, left = self.fn, self.left
        if not isinstance(left, RowsInPlace) or left.half is None:
            return sums

        def added() -> list[V]:
            at, acc = self._place(k, pointers), sums
            for part, b in enumerate(at.b):
                acc = self._add(rows, at, 0, part, b, acc, left.last(at.a, part))
            return acc

        return fn.if_else(fn.cmp("ne", left.half, 0), added, lambda: sums, [x.type for x in sums])

    def less_what_flips_add(self, k: V, start: Sequence[V], memory: V, turn: V) -> list[V]:
        """The tile's sums without what flipped signs add to them: the sums of a row more, which are in `memory` from the second
        turn on (see `TileSpec.flips`)."""
        fn, lanes, n = self.fn, self.fn.target.lanes(I32), len(start)
        ty, at = vec(I32, lanes), [fn.gep(memory, v * lanes, I32) for v in range(self.vectors)]

        def first() -> list[V]:
            out = self.sums(self.mr + 1, k, start)
            for p, x in zip(at, out[n:], strict=True):
                fn.store(x, p)
            return out

        def later() -> list[V]:
            return [*self.sums(self.mr, k, start), *(fn.load(p, ty) for p in at)]

        out = fn.if_else(fn.cmp("eq", turn, 0), first, later, [ty] * (n + self.vectors))
        return [fn.sub(x, out[n + i % self.vectors]) for i, x in enumerate(out[:n])]

    def _sets(self, accumulators: int) -> int:
        """In how many sets of `accumulators` the steps of k are summed: more than one where a single set can't keep the FMA units
        busy and registers allow."""
        if self.mr >= in_one_set(self.elem, self.spec):
            return 1
        return max(1, min(-(-_MIN_ACCUMULATORS // accumulators), self.spec.accumulators(self.elem) // accumulators))

    def _place(self, k: V, pointers: Sequence[V]) -> _Place:
        return _Place(k, self.right.at(k), self.left.at(k, pointers))

    def _step(self, rows: int, at: _Place, u: int, part: int, b: V, acc: Sequence[V]) -> list[V]:
        """Adds the products of a part of the unit `u` on from `at`, whose row of B is at `b`."""
        return self._add(rows, at, u, part, b, acc, self.left.factors(at.a, u, part))

    def _add(
        self, rows: int, at: _Place, u: int, part: int, b: V, acc: Sequence[V], factors: Callable[[int, Sequence[V]], V]
    ) -> list[V]:
        """The same of rows whose `factors` are these."""
        fn, nv, out = self.fn, self.vectors, list(acc)

        def row(i: int) -> V:
            if i == self.mr:
                return fn.const(SIGN_BITS, vec(unit(self.elem), self.spec.lanes(self.elem)))
            return factors(i, out[(i - 2) * nv : (i - 1) * nv] if self.right.stores and i > 1 else ())

        def column(v: int) -> V:
            return self.right.vector(b, at.k, u, part, v)

        def add(i: int, v: int, x: V, y: V) -> None:
            out[i * nv + v] = multiply_add(fn, self.elem, self.spec, x, y, acc[i * nv + v])

        if nv > self.spec.vectors:  # a whole panel of few rows: B's row wouldn't fit the registers, A's column does
            xs = [row(i) for i in range(rows)]
            for v in range(nv):
                y = column(v)
                for i, x in enumerate(xs):
                    add(i, v, x, y)
            return out
        ys = [column(v) for v in range(nv)]
        for i in range(rows):
            x = row(i)
            for v, y in enumerate(ys):
                add(i, v, x, y)
        self.right.keep(ys, at.k, u, out[-nv:])
        return out
