"""Rows of a transposed convolution's output, whose columns come from several rows of sums in turn."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from dhlo.codegen.families.gemm.register_tile import TileSpec
from dhlo.codegen.kernel_ir.builder import I32, I64, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import EPILOGUE_ARGS, HostContext

__all__ = ["BLOCK", "emit_rows", "rows_args", "store_in_turn"]

BLOCK = 256
"""Positions that an epilogue takes at most."""


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
    buffer = f.alloca(BLOCK + apart * lanes, elem)
    most, end = max(BLOCK // apart, 1), f.add(n0, nr)
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
                    store_in_turn(f, rows, f.gep(buffer, f.mul(j.iv, apart), elem), f.sub(count, j.iv))
                at = f.add(out, f.mul(f.sub(part.iv, start), apart))
                f.call_ptr(epilogue, [inner, buffer, f.i64(BLOCK), batch, channel, at, f.i64(1), f.mul(count, apart)])
    f.done()


def rows_args(host: HostContext, epilogue: V, epilogue_args: V, height: V, width: V) -> V:
    """The arguments of `emit_rows`: the other epilogue and its own, and the input's size."""
    fn = host.fn
    table = fn.alloca(4, I64)
    for i, value in enumerate((fn.ptr_to_int(epilogue), fn.ptr_to_int(epilogue_args), height, width)):
        fn.store(value, fn.gep(table, i, I64))
    return table


def store_in_turn(f: Fn, values: Sequence[V], to: V, count: V) -> None:
    """Stores the first elements of all vectors, then the second ones, of `count` of each at least."""
    elem, lanes, apart = values[0].elem, values[0].lanes, len(values)
    if apart == 1:
        f.store(values[0], to)
    elif apart == 2:
        for half in range(2):
            order = [i // 2 + i % 2 * lanes for i in range(half * lanes, (half + 1) * lanes)]
            f.store(f.shuffle(values[0], values[1], order), f.gep(to, half * lanes, elem))
    else:
        steps = f.dense([i * apart for i in range(lanes)], I32)
        for r, value in enumerate(values):
            f.scatter(value, f.gep(f.gep(to, r, elem), steps, elem), f.tail_mask(count, lanes))
