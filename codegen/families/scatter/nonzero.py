"""Finds the non-zero elements of a tensor: one kernel counts them in each part, another writes their indices, all parts at once.

A part is a number of chunks. Of a chunk the places of what isn't zero are found first, 64 elements at a time: a mask of bits whose
bytes are looked up in a table of places. Then these places, a vector at a time, become indices: they and the numbers that they are
divided by are small, so that f32 divides them exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dhlo.codegen.elementwise.emit import memory_type
from dhlo.codegen.families.box import grain_of
from dhlo.codegen.kernel_ir.builder import BITS, F32, I8, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.interleave import interleave
from dhlo.codegen.kernel_ir.launch import HostContext, kernel_fn, load_args
from dhlo.codegen.kernel_ir.values import FLOATS
from dhlo.ir.types import DType

__all__ = ["COUNTS", "Counted", "count_nonzero", "fill_nonzero"]

_CHUNK: Final = 4096
"""Elements; twice as many are numbers of i16 and, with a half added, of f32."""
_MOST_PARTS: Final = 128
COUNTS: Final = _MOST_PARTS + 1
_WORD: Final = 64
_I16: Final = "i16"
_TABLE: Final = "nonzero_places"


@dataclass(frozen=True)
class Counted:
    """What is counted: parts of `size` elements; and an array of i64 with the number of each part's non-zero ones."""

    counts: V
    size: V
    parts: V

    def add_up(self, fn: Fn) -> V:
        """Once the launch has run: makes of the numbers where in the result each part begins, and of one more where it ends, which
        is returned."""
        total = fn.call(_adder(fn.module), [self.counts, self.parts], I64)
        assert total is not None
        return total


def count_nonzero(host: HostContext, x: V, n: V, dtype: DType, counts: V) -> Counted:
    """Writes the launch that counts the non-zero ones of n elements. `counts` has room for `COUNTS` numbers."""
    fn = host.fn
    with fn.wrapping():  # the elements are in memory, so none of these leaves 64 bits
        size = fn.mul(fn.max(fn.ceildivu(n, _CHUNK * _MOST_PARTS), 1), _CHUNK)
        parts = fn.ceildivu(n, size)
        grain = grain_of(host, size)
    host.launch(_count_kernel(host.module, dtype), [x, n, size, counts], parts, grain)
    return Counted(counts, size, parts)


def fill_nonzero(host: HostContext, counted: Counted, x: V, dims: Sequence[V], n: V, y: V, dtype: DType) -> None:
    """Writes the launch that stores the indices [number, rank] (i64) in row-major order, after `Counted.add_up`."""
    if not dims:
        return
    fn, rank = host.fn, len(dims)
    kernel = _fill_kernel(host.module, dtype, rank)
    with fn.wrapping():
        grain = grain_of(host, fn.mul(counted.size, 2 + 2 * rank))
    scratch = (_CHUNK + _WORD) * BITS[_I16] // 8
    host.launch(kernel, [x, n, counted.size, counted.counts, y, *dims], counted.parts, grain, scratch)


def _adder(module: KernelModule) -> str:
    """i64 add_up(counts, parts)"""
    name = "nonzero_add_up"
    if name not in module.functions:
        fn = Fn(module, name, [("counts", PTR), ("parts", I64)], I64, noinline=True)
        counts, parts = fn.args
        with fn.loop(0, parts, 1, [fn.const(0, I64)]) as part:
            cell, before = fn.gep(counts, part.iv, I64), part.carried[0]
            after = fn.add(before, fn.load(cell, I64))
            fn.store(before, cell)
            part.yield_(after)
        fn.store(part.results[0], fn.gep(counts, parts, I64))
        fn.ret(part.results[0])
        fn.done()
    return name


def _count_kernel(module: KernelModule, dtype: DType) -> str:
    """(x, elements, size, counts): stores the number of each part's non-zero elements."""
    mem = memory_type(dtype)
    name = f"nonzero_count_{mem}"
    if name not in module.functions:
        fn = kernel_fn(module, name)
        x, n, size, counts = load_args(fn, [PTR, I64, I64, PTR])
        with fn.loop(fn.args[1], fn.args[2]) as part:
            lo = fn.mul(part.iv, size)
            hi = fn.min(fn.add(lo, size), n)
            with fn.loop(lo, hi, _WORD, [fn.const(0, I64)]) as lp:
                word = _word(fn, x, lp.iv, hi, mem)
                ones = fn.op(I64, f"llvm.intr.ctpop({word.name}) : ({I64}) -> {I64}")
                lp.yield_(fn.add(lp.carried[0], ones))
            fn.store(lp.results[0], fn.gep(counts, part.iv, I64))
        fn.done()
    return name


def _fill_kernel(module: KernelModule, dtype: DType, rank: int) -> str:
    """(x, elements, size, starts, out, dims...): stores each part's indices."""
    mem = memory_type(dtype)
    name = f"nonzero_fill_{mem}_{rank}"
    if name not in module.functions:
        fn = kernel_fn(module, name)
        x, n, size, starts, out, *dims = load_args(fn, [PTR, I64, I64, PTR, PTR, *[I64] * rank])
        with fn.loop(fn.args[1], fn.args[2]) as part:
            lo = fn.mul(part.iv, size)
            hi = fn.min(fn.add(lo, size), n)
            begin, end = (fn.load(fn.gep(starts, fn.add(part.iv, i), I64), I64) for i in (0, 1))
            with fn.loop(lo, hi, _CHUNK, [begin]) as chunk:
                at = chunk.carried[0]
                found = _places(fn, x, chunk.iv, fn.min(fn.add(chunk.iv, _CHUNK), hi), mem)
                found = fn.min(found, fn.sub(end, at))  # whatever others do to the elements meanwhile
                with fn.when(fn.cmp("gt", found, 0)):
                    _Indices(fn, chunk.iv, dims).write(found, fn.gep(out, fn.mul(at, rank), I64), fn.sub(end, at))
                chunk.yield_(fn.add(at, found))
        fn.done()
    return name


# ---------------------------------------------------------------------------------------------------- where they are
def _word(fn: Fn, x: V, i: V, hi: V, mem: str) -> V:
    """64 elements from i on as bits, 0 past `hi`."""

    def whole() -> list[V]:
        found = _is_set(fn, fn.load(fn.gep(x, i, mem), vec(_integer(mem), _WORD), BITS[mem] // 8), mem)
        return [fn.op(I64, f"llvm.bitcast {found.name} : {found.type} to {I64}")]

    def rest() -> list[V]:
        with fn.loop(i, hi, 1, [fn.const(0, I64)]) as lp:
            found = _is_set(fn, fn.load(fn.gep(x, lp.iv, mem), _integer(mem)), mem)
            lp.yield_(fn.or_(lp.carried[0], fn.shl(fn.cast(found, I64), fn.sub(lp.iv, i))))
        return lp.results

    return fn.if_else(fn.cmp("le", fn.add(i, _WORD), hi), whole, rest, [I64])[0]


def _integer(mem: str) -> str:
    return f"i{BITS[mem]}"


def _is_set(fn: Fn, bits: V, mem: str) -> V:
    """Floats are compared as integers, so that no mode of the processor takes the smallest for zero; -0 is zero, NaN isn't."""
    return fn.cmp("ne", fn.and_(bits, (1 << BITS[mem] - 1) - 1) if mem in FLOATS else bits, 0)


def _places(fn: Fn, x: V, lo: V, hi: V, mem: str) -> V:
    """Stores to scratch, as i16 from `lo` on, where elements aren't zero; and returns how many there are. Up to seven numbers
    behind them are anything."""
    _add_table(fn.module)
    table, scratch = fn.address_of(_TABLE), fn.args[4]
    with fn.loop(lo, hi, _WORD, [fn.const(0, I64)]) as lp:
        at = lp.carried[0]
        word = _word(fn, x, lp.iv, hi, mem)

        def store() -> list[V]:
            ends = _ends(fn, word)
            base = fn.splat(fn.cast(fn.sub(lp.iv, lo), _I16), 8)
            for k in range(8):
                byte = fn.and_(fn.shr(word, 8 * k), 255)
                places = fn.cast(fn.load(fn.gep(table, fn.mul(byte, 8), I8), vec(I8, 8)), _I16, signed=False)
                to = fn.add(at, fn.and_(fn.shr(ends, 8 * (k - 1)), 255)) if k else at
                fn.store(fn.add(fn.add(places, 8 * k), base), fn.gep(scratch, to, _I16))
            return [fn.add(at, fn.shr(ends, 56))]

        lp.yield_(*fn.if_else(fn.cmp("ne", word, 0), store, lambda: [at], [I64]))
    return lp.results[0]


def _ends(fn: Fn, word: V) -> V:
    """In each byte, how many bits of the word are set up to the end of that byte."""
    pairs = fn.sub(word, fn.and_(fn.shr(word, 1), 0x5555555555555555))
    fours = fn.add(fn.and_(pairs, 0x3333333333333333), fn.and_(fn.shr(pairs, 2), 0x3333333333333333))
    return fn.mul(fn.and_(fn.add(fours, fn.shr(fours, 4)), 0x0F0F0F0F0F0F0F0F), 0x0101010101010101)


def _add_table(module: KernelModule) -> None:
    """For every byte the numbers of its set bits, then zeros."""
    if _TABLE not in module.globals:
        lines = ([k for k in range(8) if byte >> k & 1] for byte in range(256))
        text = ", ".join(str(k) for line in lines for k in line + [0] * (8 - len(line)))
        module.add_constant(_TABLE, f"(dense<[{text}]> : tensor<2048xi8>) {{alignment = 64 : i64}} : !llvm.array<2048 x i8>")


# ---------------------------------------------------------------------------------------------------- their indices
class _Indices:
    """Makes indices of the places in scratch, of a chunk that begins with element `start`."""

    def __init__(self, fn: Fn, start: V, dims: Sequence[V]) -> None:
        self.fn, self.rank = fn, len(dims)
        self.lanes = fn.target.lanes(I64)
        self.digits: list[_Digit] = []  # from the last dim to the second
        for size in reversed(dims[1:]):
            above = fn.divu(start, size)
            self.digits.append(_Digit(fn, size, fn.sub(start, fn.mul(above, size))))
            start = above
        self.first = start

    def write(self, found: V, out: V, room: V) -> None:
        """Stores the indices of the first `found` places. Up to `room` others may follow these, which are written later: as long
        as that lasts, whole vectors are stored."""
        fn, step = self.fn, self.fn.lanes
        whole = fn.min(fn.and_(fn.add(found, step - 1), -step), fn.and_(room, -step))
        with fn.loop(0, whole, step) as lp:
            for k, v in enumerate(self.at(lp.iv)):
                fn.store(v, fn.gep(out, fn.add(fn.mul(lp.iv, self.rank), k * self.lanes), I64))
        with fn.when(fn.cmp("lt", whole, found)):
            left = fn.mul(fn.sub(found, whole), self.rank)
            for k, v in enumerate(self.at(whole)):
                to = fn.add(fn.mul(whole, self.rank), k * self.lanes)
                fn.store_first(v, fn.gep(out, to, I64), fn.sub(left, k * self.lanes))

    def at(self, i: V) -> list[V]:
        """What is to be stored of the places from i on, as vectors of i64 one after the other."""
        fn = self.fn
        places = fn.cast(fn.load(fn.gep(fn.args[4], i, _I16), fn.vec(_I16)), I32, signed=False)
        columns: list[list[V]] = []
        rest = fn.cast(places, F32) if self.digits else places
        for digit in self.digits:
            rest, column = digit.take(rest)
            columns.append(column)
        columns.append([fn.add(h, self.first) for h in _halves(fn, fn.cast(rest, I32))])
        return [v for half in zip(*reversed(columns), strict=True) for v in interleave(fn, half)]


class _Digit:
    """Splits numbers into multiples of a dim's size, and an index in it. Numbers are below `_CHUNK`; `begin`, the index that a
    chunk begins with, is added to them. Where the size is larger than a chunk, there is at most one multiple."""

    def __init__(self, fn: Fn, size: V, begin: V) -> None:
        self.fn = fn
        small = fn.min(size, _CHUNK)
        near = fn.max(fn.sub(begin, fn.sub(size, small)), 0)
        self.below = fn.splat(fn.sub(begin, near), fn.target.lanes(I64))  # of what is before the first multiple
        self.size, self.begin = (fn.splat(fn.cast(v, F32)) for v in (small, near))
        self.inverse = fn.div(fn.const(1.0, self.size.type), self.size)

    def take(self, x: V) -> tuple[V, list[V]]:
        """The multiples (f32), and indices as two vectors of i64."""
        fn = self.fn
        x = fn.add(x, self.begin)
        multiples = fn.unary("floor", fn.mul(fn.add(x, 0.5), self.inverse))
        index = fn.cast(fn.sub(x, fn.mul(multiples, self.size)), I32)
        before = _halves(fn, fn.select(fn.cmp("eq", multiples, 0.0), fn.const(-1, index.type), 0))
        return multiples, [fn.add(h, fn.and_(b, self.below)) for h, b in zip(_halves(fn, index), before, strict=True)]


def _halves(fn: Fn, x: V) -> list[V]:
    """A vector of i32 as two of i64."""
    n = x.lanes // 2
    return [fn.cast(fn.shuffle(x, x, range(k * n, k * n + n)), I64) for k in (0, 1)]
