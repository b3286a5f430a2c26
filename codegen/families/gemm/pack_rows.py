"""Packing of rows along k into panels of units: those of A, and columns of a B that lie along k."""

from __future__ import annotations

from collections.abc import Callable

from dhlo.codegen.families.gemm.matrix_microkernel import emit_pack_matrix_rows
from dhlo.codegen.families.gemm.multiply_add import as_vector_of, widened_pair
from dhlo.codegen.families.gemm.register_tile import BF16, F16, SIGN_BITS, TileSpec, depth, unit
from dhlo.codegen.kernel_ir.builder import BITS, F32, I8, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.target import LINE_BYTES

__all__ = ["emit_pack_a_panel", "emit_pack_rows", "emit_widen_rows", "load_unit", "memory_type", "units", "widened_row"]

# To the second level: rows that are a power of two apart share sets of the first.
_PREFETCH_LOCALITY = 2
# Rows of so many bytes are streams, which hardware fetches faster from a slow third-level cache: what a program asks for
# waits for the few buffers of the first one. Found on a Granite Rapids: 17 rows by 4,096 x 1,024 take 0.73 of the time.
_LONG_ROW = 2048
# Rows that are widened lie as far apart as all of k, where a chunk of it is shorter: hardware finds each one anew. So those are
# prefetched that come so many numbers later: 2 x 194 x 9,796 x 32 takes 0.92 to 0.96 of the time.
_WIDENED_AHEAD = 2048


def units(fn: Fn, k: V, elem: str) -> V:
    """Steps of k in a panel: k, or groups of it rounded up."""
    return fn.ceildivu(k, depth(elem)) if depth(elem) > 1 else k


def emit_pack_rows(module: KernelModule, elem: str, spec: TileSpec, *, flip: bool = False, wide: bool = False) -> str:
    """Emits `pack_rows_{elem}(src, row_stride, k_stride, rows, k, dst, ld)` once and returns its symbol.

    dst[kk * ld + r] = src[r * row_stride + kk * k_stride] for r < rows, 0 for rows <= r < min(ld, lanes), where lanes is
    the vector length and rows <= lanes; for bf16 each dst[kk][r] is the pair of k = 2 kk and 2 kk + 1, for i8 it is four,
    with their sign bits flipped if `flip` (the variant `pack_rows_{elem}_flipped`, which leaves padding undefined). If `wide`
    (`pack_rows_bf16_wide`) dst[2 kk][r] and dst[2 kk + 1][r] are the numbers of the pair as f32.
    Strides are in elements, `ld` in panel units. Steps write up to `lanes` units in ascending order of k, so that with
    ld < lanes a step overwrites the padding of the one before, and up to lanes - ld units past the panel are clobbered.
    """
    name = f"pack_rows_{elem}{'_flipped' if flip else ''}{'_wide' if wide else ''}"
    if name not in module.functions:
        _RowsPacking(module, name, elem, spec.lanes(elem), flip, wide).emit()
    return name


_PACK_ROWS_ARGS = (("src", PTR), ("row_stride", I64), ("k_stride", I64), ("rows", I64), ("k", I64), ("dst", PTR), ("ld", I64))


class _RowsPacking:
    """The function under construction that packs rows."""

    def __init__(self, module: KernelModule, name: str, elem: str, lanes: int, flip: bool, wide: bool) -> None:
        self.elem, self.lanes, self.flip, self.wide = elem, lanes, flip, wide
        self.fn = fn = Fn(module, name, _PACK_ROWS_ARGS, noinline=True)
        self.src, self.row_stride, self.k_stride, self.rows, self.k, self.dst, self.ld = fn.args
        self.mask = fn.tail_mask(fn.max(self.rows, 0), lanes)
        self.zero = fn.const(0, vec(memory_type(elem), lanes))

    def emit(self) -> None:
        fn = self.fn
        along_k = fn.and_(fn.cmp("eq", self.k_stride, 1), fn.cmp("gt", self.rows, 0))
        done = fn.if_else(along_k, self._transposed, lambda: [fn.const(0, I64)], [I64])[0]

        def from_anywhere() -> list[V]:
            if depth(self.elem) == 1:
                return self._remaining(self._gathered, done)
            return self._remaining(self._gathered, fn.if_else(along_k, lambda: self._whole_units(done), lambda: [done], [I64])[0])

        fn.if_else(fn.cmp("eq", self.row_stride, 1), lambda: self._remaining(self._contiguous, done), from_anywhere, [])
        fn.done()

    def _transposed(self, high: int | None = None) -> list[V]:
        """By the height of blocks, from a quarter of a vector on: padding isn't transposed where a next step overwrites it. Returns
        how many units are done."""
        fn, height = self.fn, high or max(1, self.lanes // 4)
        if height == self.lanes:
            return [self._blocks(height)]
        dense = fn.and_(fn.cmp("le", self.rows, height), fn.cmp("eq", self.ld, self.rows))
        return fn.if_else(dense, lambda: [self._blocks(height)], lambda: self._transposed(height * 2), [I64])

    def _blocks(self, high: int) -> V:
        """Blocks of `high` rows by `lanes` units, read along k, transposed in registers and stored; the last one begins inside the
        one before. Returns how many units of k are done: all whole ones, or none where they make up no block."""
        fn, elem, lanes = self.fn, self.elem, self.lanes
        whole = fn.divu(self.k, depth(elem))
        last = fn.sub(whole, lanes)
        main = fn.select(fn.cmp("ge", last, 0), whole, 0)
        pointers = [fn.gep(self.src, fn.mul(fn.min(fn.sub(self.rows, 1), r), self.row_stride), elem) for r in range(high)]
        zero = fn.const(0, vec(unit(elem), lanes))
        with fn.loop(0, main, lanes) as loop:
            begin = fn.min(loop.iv, last)
            at = fn.mul(begin, depth(elem))
            if elem == I8:
                with fn.when(fn.cmp("lt", self.row_stride, _LONG_ROW)):  # those of the next call
                    for p in pointers:
                        fn.prefetch(fn.gep(fn.gep(p, fn.mul(self.row_stride, lanes), elem), at, elem), _PREFETCH_LOCALITY)
            memory = zero.type if depth(elem) > 1 else vec(memory_type(elem), lanes)
            block = [fn.load(fn.gep(p, at, elem), memory, BITS[elem] // 8) for p in pointers]
            block = _turned(fn, [_as_unit(fn, elem, self._flipped(x)) for x in block], lanes)
            for i in range(lanes):
                x, part = block[i * high // lanes], i * high % lanes
                x = fn.select(self.mask, x, zero) if high == lanes else fn.shuffle(x, x, list(range(part, part + high)))
                self._put(x, fn.add(begin, i))
        return main

    def _whole_units(self, done: V) -> list[V]:
        """Where k is contiguous: all but a last one that isn't whole. Returns how many."""
        fn, elem = self.fn, self.elem
        whole = fn.divu(self.k, depth(elem))
        offsets = fn.mul(fn.iota(I64, self.lanes), self.row_stride)
        with fn.loop(done, whole) as loop:
            pointers = fn.gep(fn.gep(self.src, fn.mul(loop.iv, depth(elem)), elem), offsets, elem)
            x = fn.gather(pointers, self.mask, fn.const(0, vec(unit(elem), self.lanes)), BITS[elem] // 8)
            self._put(self._flipped(x), loop.iv)
        return [whole]

    def _remaining(self, load: Callable[[V], V], first: V) -> list[V]:
        """Units from the first one on, of elements of single k."""
        fn, elem = self.fn, self.elem
        with fn.loop(first, units(fn, self.k, elem)) as loop:
            self._put(self._flipped(load_unit(fn, elem, load, loop.iv, self.k)), loop.iv)
        return []

    def _contiguous(self, k: V) -> V:
        return self.fn.masked_load(self.fn.gep(self.src, self.fn.mul(k, self.k_stride), self.elem), self.mask, self.zero)

    def _gathered(self, k: V) -> V:
        fn, elem = self.fn, self.elem
        offsets = fn.mul(fn.iota(I64, self.lanes), self.row_stride)
        return fn.gather(fn.gep(fn.gep(self.src, fn.mul(k, self.k_stride), elem), offsets, elem), self.mask, self.zero)

    def _flipped(self, units: V) -> V:
        return self.fn.xor(units, SIGN_BITS) if self.flip else units

    def _put(self, x: V, k: V) -> None:
        """Stores a vector of the unit k."""
        fn, elem = self.fn, self.elem
        if not self.wide:
            fn.store(x, fn.gep(self.dst, fn.mul(k, self.ld), unit(elem)))
            return
        for i, part in enumerate(widened_pair(fn, x)):
            fn.store(part, fn.gep(self.dst, fn.mul(fn.add(fn.mul(k, depth(elem)), i), self.ld), F32))


def _turned(fn: Fn, block: list[V], lanes: int) -> list[V]:
    """Rows transposed: a perfect shuffle of the block brings one bit of the row's number to the end."""
    high = len(block)
    first = [x for i in range(lanes // 2) for x in (i, lanes + i)]
    second = [x + lanes // 2 for x in first]
    for _ in range(high.bit_length() - 1):
        block = [fn.shuffle(block[i // 2], block[i // 2 + high // 2], second if i % 2 else first) for i in range(high)]
    return block


def memory_type(elem: str) -> str:
    """The type that single elements are loaded as: bf16 and f16 as integers, which every target moves."""
    return "i16" if elem in (BF16, F16) else elem


def _as_unit(fn: Fn, elem: str, x: V) -> V:
    """What elements that are units by themselves are in panels."""
    return fn.cast(fn.bitcast(x, F16), F32) if elem == F16 else x


def load_unit(fn: Fn, elem: str, load: Callable[[V], V], step: V, k: V) -> V:
    """A vector of panel units from loads of single k; the last unit is completed by zeros."""
    if depth(elem) == 1:
        return _as_unit(fn, elem, load(step))
    if elem == I8:
        return _load_bytes(fn, load, fn.mul(step, depth(elem)), k)
    first = fn.mul(step, 2)
    second = fn.add(first, 1)
    low = fn.cast(load(first), I32, signed=False)
    high = fn.shl(fn.cast(load(fn.min(second, fn.sub(k, 1))), I32, signed=False), 16)
    return fn.or_(low, fn.select(fn.cmp("lt", second, k), high, fn.const(0, high.type)))


def _load_bytes(fn: Fn, load: Callable[[V], V], first: V, k: V) -> V:
    """A vector of units of the bytes at `first` and the next three k."""
    x = [load(first)]
    for i in range(1, depth(I8)):
        at = fn.add(first, i)
        byte = load(fn.min(at, fn.sub(k, 1)))
        x.append(fn.select(fn.cmp("lt", at, k), byte, fn.const(0, byte.type)))
    return _interleaved(fn, x)


def _interleaved(fn: Fn, x: list[V]) -> V:
    """A vector of units from vectors of their four bytes."""
    lanes = x[0].lanes
    turns = [i for lane in range(lanes) for i in (lane, lanes + lane)]
    low, high = (as_vector_of(fn, "i16", fn.shuffle(a, b, turns)) for a, b in (x[:2], x[2:]))
    return as_vector_of(fn, I32, fn.shuffle(low, high, turns))


def widened_row(fn: Fn, k: V, spec: TileSpec) -> V:
    """How many f32 apart are the rows of `k` that `emit_widen_rows` writes: an odd number of vectors, so that they don't crowd few
    sets of a cache."""
    lanes = spec.lanes(F16)
    return fn.mul(fn.or_(fn.ceildivu(k, lanes), fn.i64(1)), lanes)


def emit_widen_rows(module: KernelModule, spec: TileSpec) -> str:
    """Emits `widen_rows_f16(src, row_stride, rows, k, dst, ld)` once and returns its symbol: dst[r * ld + kk] =
    src[r * row_stride + kk] as f32. Strides are in elements; up to `widened_row` numbers of a row are written."""
    name = "widen_rows_f16"
    if name in module.functions:
        return name
    sizes = [(x, I64) for x in ("row_stride", "rows", "k")]
    fn = Fn(module, name, [("src", PTR), *sizes, ("dst", PTR), ("ld", I64)], noinline=True)
    src, row_stride, rows, k, dst, ld = fn.args
    lanes = spec.lanes(F16)
    ty = vec(memory_type(F16), lanes)
    line = max(LINE_BYTES * 8 // BITS[F16], lanes)
    whole = fn.mul(fn.divu(k, line), line)
    ahead = fn.add(fn.divu(fn.i64(_WIDENED_AHEAD), fn.max(k, 1)), 1)
    later = fn.mul(row_stride, fn.select(fn.cmp("eq", row_stride, k), 0, ahead))
    with fn.loop(0, rows) as i:
        row, to = fn.gep(src, fn.mul(i.iv, row_stride), F16), fn.gep(dst, fn.mul(i.iv, ld), F32)
        with fn.loop(0, whole, line) as at:
            fn.prefetch(fn.gep(fn.gep(row, later, F16), at.iv, F16))
            for v in range(0, line, lanes):
                x = fn.load(fn.gep(row, fn.add(at.iv, v), F16), ty, BITS[F16] // 8)
                fn.store(_as_unit(fn, F16, x), fn.gep(to, fn.add(at.iv, v), F32))
        with fn.loop(whole, k, lanes) as at:
            x = fn.masked_load(fn.gep(row, at.iv, F16), fn.tail_mask(fn.sub(k, at.iv), lanes), fn.const(0, ty))
            fn.store(_as_unit(fn, F16, x), fn.gep(to, at.iv, F32))
    fn.done()
    return name


def emit_pack_a_panel(fn: Fn, elem: str, spec: TileSpec, src: V, row_stride: V, k_stride: V, rows: V, k: V, dst: V) -> None:
    """Emits the packing of `rows` rows of A to a panel [k][rows] (see `TileSpec`); up to lanes - 1 units past it are clobbered."""
    if spec.matrices:
        fn.call(emit_pack_matrix_rows(fn.module), [src, row_stride, k_stride, rows, k, dst])
        return
    lanes = spec.lanes(elem)
    pack = emit_pack_rows(fn.module, elem, spec, flip=spec.flips(elem), wide=spec.left_parts(elem) > 1)
    for first in reversed(range(0, spec.rows(elem), lanes)):  # the padding of a group is overwritten by the one before
        left = fn.min(fn.sub(rows, first), lanes)
        with fn.when(fn.cmp("gt", left, 0)):
            fn.call(
                pack,
                [fn.gep(src, fn.mul(row_stride, first), elem), row_stride, k_stride, left, k, fn.gep(dst, first, unit(elem)), rows],
            )
