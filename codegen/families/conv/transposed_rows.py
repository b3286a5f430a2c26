"""Rows of a transposed convolution's output, whose columns come from several rows of sums in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from dhlo.codegen.families.gemm.register_tile import TileSpec
from dhlo.codegen.kernel_ir.builder import BITS, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import EPILOGUE_ARGS, HostContext, kernel_fn, load_args
from dhlo.codegen.kernel_ir.transpose import transpose_block

__all__ = ["block_positions", "emit_interleave", "emit_rows", "interleave_scratch", "rows_args"]

# Vectors' lengths of phases up to which all are brought together at once, whatever run they are of; more in a loop over each run's.
_MOST_AT_ONCE = 2
# Positions that an epilogue takes at most.
_BLOCK = 256


def emit_rows(module: KernelModule, name: str, elem: str, stride: Sequence[int], spec: TileSpec) -> None:
    """Emits (once) the epilogue of a convolution of 1 x 1 whose channels are the output channels' phases, one after another: it
    calls that of the transposed convolution with a row of the output, or a part of one, at a time.

    eargs = `rows_args`. Tiles have whole groups of rows: the phases of a row's columns.
    """
    if name in module.functions:
        return
    planes, down, apart = (1, 1, *stride)[-3:]
    lanes = spec.lanes(elem)
    f = Fn(module, name, EPILOGUE_ARGS)
    eargs, tile, ld, batch, m0, n0, mr, nr = f.args
    given = [f.load(f.gep(eargs, i, I64), I64) for i in range(4)]
    epilogue, inner, height, width = f.int_to_ptr(given[0]), f.int_to_ptr(given[1]), *given[2:]
    buffer = f.alloca(_BLOCK + apart * lanes, elem)
    most, end = max(_BLOCK // apart, 1), f.add(n0, nr)
    with f.loop(0, mr, apart) as group:
        row = f.divu(f.add(m0, group.iv), apart)
        channel, phase = f.divu(row, prod(stride[:-1])), f.remu(row, prod(stride[:-1]))
        source = f.gep(tile, f.mul(group.iv, ld), elem)
        with f.loop(f.divu(n0, width), f.ceildivu(end, width)) as line:
            z, y = f.divu(line.iv, height), f.remu(line.iv, height)
            above = f.add(f.mul(f.add(f.mul(z, planes), f.divu(phase, down)), f.mul(height, down)), f.mul(y, down))
            out = f.mul(f.add(above, f.remu(phase, down)), f.mul(width, apart))
            start = f.mul(line.iv, width)
            lo, hi = f.max(start, n0), f.min(f.add(start, width), end)
            with f.loop(lo, hi, most) as part:
                count = f.min(f.sub(hi, part.iv), most)
                first = f.gep(source, f.sub(part.iv, n0), elem)
                with f.loop(0, count, lanes) as j:
                    rows = [f.load(f.gep(first, f.add(f.mul(ld, i), j.iv), elem), vec(elem, lanes)) for i in range(apart)]
                    _store_in_turn(f, rows, f.gep(buffer, f.mul(j.iv, apart), elem), f.sub(count, j.iv))
                at = f.add(out, f.mul(f.sub(part.iv, start), apart))
                f.call_ptr(epilogue, [inner, buffer, f.i64(_BLOCK), batch, channel, at, f.i64(1), f.mul(count, apart)])
    f.done()


def rows_args(host: HostContext, epilogue: V, epilogue_args: V, height: V, width: V) -> V:
    """The arguments of `emit_rows`: the other epilogue and its own, and the input's size."""
    fn = host.fn
    table = fn.alloca(4, I64)
    for i, value in enumerate((fn.ptr_to_int(epilogue), fn.ptr_to_int(epilogue_args), height, width)):
        fn.store(value, fn.gep(table, i, I64))
    return table


def _store_in_turn(f: Fn, values: Sequence[V], to: V, count: V) -> None:
    """Stores the first elements of all vectors, then the second ones, of `count` of each at least: of no more where their number
    isn't a power of two, or exceeds that of lanes."""
    lanes, apart = values[0].lanes, len(values)
    if _fills_vectors(apart, lanes):
        for i, value in enumerate(_in_turn(f, values)):
            f.store(value, f.gep(to, i * lanes, value.elem))
        return
    for first in range(0, apart, lanes):
        _store_columns(f, values[first : first + lanes], f.gep(to, first, values[0].elem), apart, count)


def _store_columns(f: Fn, rows: Sequence[V], to: V, apart: int, count: V) -> None:
    """Stores `count` columns of the rows, of which there are no more than lanes, `apart` elements from each other."""
    elem, lanes = rows[0].elem, rows[0].lanes
    zeros = [f.const(0.0, vec(elem, lanes))] * (lanes - len(rows))
    for i, column in enumerate(transpose_block(f, [*rows, *zeros])):
        there = f.select(f.cmp("gt", count, i), f.i64(len(rows)), 0)
        f.store_first(column, f.gep(to, i * apart, elem), there)


def _fills_vectors(apart: int, lanes: int) -> bool:
    """Whether the elements of so many vectors fill vectors of the same length in turn by halves."""
    return apart <= lanes and apart & (apart - 1) == 0


def _in_turn(f: Fn, values: Sequence[V]) -> list[V]:
    """The first elements of all vectors, a power of two of them, then the second ones, and so on, as as many vectors."""
    if len(values) == 1:
        return list(values)
    lanes, out = values[0].lanes, list[V]()
    for a, b in zip(_in_turn(f, values[0::2]), _in_turn(f, values[1::2]), strict=True):
        for half in range(2):
            order = [i // 2 + i % 2 * lanes for i in range(half * lanes, (half + 1) * lanes)]
            out.append(f.shuffle(a, b, order))
    return out


def emit_interleave(module: KernelModule, name: str, elem: str, stride: Sequence[int], runs: Sequence[int], spec: TileSpec) -> None:
    """Emits (once) the kernel that brings phases together and calls the epilogue, with some positions of a channel at a time.

    Arguments: epilogue, its arguments, channels, the output's sizes (z, y, x), positions, blocks of a channel; then, for each row
    of phases and run of as many of them as `runs` says: address, or 0 where they are zero, and sizes. A run holds an output
    channel's phases one after another. Items are (image, channel, block of positions); output o of a row is in phase o mod stride
    at o / stride. In the worker's scratch there is room before and behind the block: rows are written whole, past both of their
    ends; the next row comes later.
    """
    if name in module.functions:
        return
    s = (1,) * (3 - len(stride)) + tuple(stride)
    lanes, apart = spec.lanes(elem), s[2]
    block = block_positions(apart, lanes)
    f = kernel_fn(module, name)
    args, begin, end, _, scratch = f.args
    head = load_args(f, [PTR, PTR, I64, I64, I64, I64, I64, I64])
    epilogue, eargs, channels, _, oh, ow, positions, blocks = head
    tile, per_image = f.gep(scratch, _room(apart, lanes), elem), f.mul(channels, blocks)
    with f.loop(begin, end) as items:
        plane = f.divu(items.iv, blocks)
        p0 = f.mul(f.sub(items.iv, f.mul(plane, blocks)), block)
        stop = f.min(f.add(p0, block), positions)
        with f.loop(f.divu(p0, ow), f.add(f.divu(f.sub(stop, 1), ow), 1)) as rows:
            z, y = f.divu(rows.iv, oh), f.remu(rows.iv, oh)
            start = f.mul(rows.iv, ow)
            lo, hi = f.max(start, p0), f.min(f.add(start, ow), stop)
            phase_row = f.add(f.mul(f.remu(z, s[0]), s[1]), f.remu(y, s[1]))
            sources = []
            for i, count in enumerate(runs):
                entry = f.gep(args, f.add(f.mul(f.add(f.mul(phase_row, len(runs)), i), 4), len(head)), I64)
                sources.append(_PhaseRows.of(f, elem, lanes, entry, count, plane, f.divu(z, s[0]), f.divu(y, s[1])))
            first, last = f.divu(f.sub(lo, start), apart), f.ceildivu(f.sub(hi, start), apart)
            with f.loop(first, last, lanes) as j:
                at = f.gep(tile, f.sub(f.add(start, f.mul(j.iv, apart)), p0), elem)
                _bring_together(f, sources, at, j.iv, f.sub(last, j.iv))
        image, m = f.divu(items.iv, per_image), f.remu(plane, channels)
        with f.loop(p0, stop, _BLOCK) as part:
            source = f.gep(tile, f.sub(part.iv, p0), elem)
            f.call_ptr(epilogue, [eargs, source, f.i64(block), image, m, part.iv, f.i64(1), f.min(f.sub(stop, part.iv), _BLOCK)])
    f.done()


def block_positions(apart: int, lanes: int) -> int:
    """Positions of an item: so many that there are a vector of each phase."""
    return max(_BLOCK, apart * lanes)


def interleave_scratch(apart: int, elem: str, spec: TileSpec) -> int:
    """Bytes of a worker's scratch."""
    lanes = spec.lanes(elem)
    return (block_positions(apart, lanes) + _room(apart, lanes) + apart * lanes) * BITS[elem] // 8


def _room(phases: int, lanes: int) -> int:
    """Elements, in whole vectors, before a block into which a row of so many phases may write; behind it, it's a vector of each."""
    return -(-max(phases, lanes) // lanes) * lanes


@dataclass(frozen=True)
class _PhaseRows:
    """A row of each of some phases: where the first one is, elements from one to the next, elements of a row, 0 if all are zero."""

    f: Fn
    elem: str
    lanes: int
    phases: int
    first: V
    pitch: V
    length: V

    @classmethod
    def of(cls, f: Fn, elem: str, lanes: int, entry: V, phases: int, plane: V, z: V, y: V) -> _PhaseRows:
        """The row (z, y) of a plane, an image's channel, of the run that the `entry` of the arguments tells of."""
        address, pd, ph, pw = (f.load(f.gep(entry, i, I64), I64) for i in range(4))
        row = f.add(f.mul(f.add(f.mul(f.mul(plane, phases), pd), z), ph), y)
        first = f.gep(f.int_to_ptr(address), f.mul(row, pw), elem)
        return cls(f, elem, lanes, phases, first, f.mul(f.mul(pd, ph), pw), f.select(f.cmp("ne", address, 0), pw, 0))

    def vector(self, phase: int | V, j: V) -> V:
        """A vector of a phase's row from its element j on, 0 beyond the end."""
        f = self.f
        mask = f.tail_mask(f.max(f.sub(self.length, j), 0), self.lanes)
        at = f.gep(self.first, f.add(f.mul(self.pitch, phase), j), self.elem)
        return f.masked_load(at, mask, f.const(0.0, vec(self.elem, self.lanes)))


def _bring_together(f: Fn, sources: Sequence[_PhaseRows], to: V, j: V, count: V) -> None:
    """Stores the elements from j on of all rows in turn, of `count` of each at least."""
    lanes, apart = sources[0].lanes, sum(x.phases for x in sources)
    if apart <= _MOST_AT_ONCE * lanes:
        _store_in_turn(f, [x.vector(i, j) for x in sources for i in range(x.phases)], to, count)
        return
    for x in sources:
        whole = x.phases // lanes * lanes
        with f.loop(0, whole, lanes) as some:
            _store_columns(f, [x.vector(f.add(some.iv, i), j) for i in range(lanes)], f.gep(to, some.iv, x.elem), apart, count)
        if rest := [x.vector(i, j) for i in range(whole, x.phases)]:
            _store_columns(f, rest, f.gep(to, whole, x.elem), apart, count)
        to = f.gep(to, x.phases, x.elem)
