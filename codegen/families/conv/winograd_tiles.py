"""Functions of Winograd's kernels on tiles: their inputs, weights and outputs mapped, and the products of their points."""

from __future__ import annotations

from collections.abc import Callable

from dhlo.codegen.families.conv.image import load_elements
from dhlo.codegen.families.conv.pack import CACHE_LINE
from dhlo.codegen.families.conv.quantised_weights import load_codes
from dhlo.codegen.families.conv.winograd_blocking import STRIP, Blocking
from dhlo.codegen.families.conv.winograd_transforms import in_two_dims
from dhlo.codegen.families.gemm.multiply_add import widened_pair
from dhlo.codegen.kernel_ir.builder import F32, I8, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.transpose import transpose_block

__all__ = ["emit_inputs", "emit_outputs", "emit_products", "emit_weights"]


def _in_range(f: Fn, c: V, size: V) -> V:
    """0 <= c < size for i32 vectors."""
    return f.cmp("ult", c, f.splat(f.cast(size, I32), c.lanes))


def _block(rows: int, columns: int, at: Callable[[int, int], V]) -> list[list[V]]:
    """What lies at each row and column."""
    return [[at(i, j) for j in range(columns)] for i in range(rows)]


def emit_inputs(module: KernelModule, b: Blocking) -> str:
    """`inputs(x, sxc, sxh, height, width, y0, x0, channels, tiles, strip, to, stride)`: maps the tiles of a row, from (y0, x0) of
    the image on, of one vector of channels, `channels` of which are there; the others become copies of the last. Points are
    `stride` elements apart. Of an image that is `bounded` two more arguments say where it is."""
    name = f"{b.prefix}_inputs_{b.spec.name}" + (f"_{b.image}" if b.image else "")
    if name in module.functions:
        return name
    numbers = ("sxc", "sxh", "height", "width", "y0", "x0", "channels", "tiles")
    pointers, limits = [("strip", PTR), ("to", PTR)], [("begin", I64), ("end", I64)] if b.bounded else []
    f = Fn(module, name, [("x", PTR), *((n, I64) for n in numbers), *pointers, ("stride", I64), *limits], noinline=True)
    x, sxc, sxh, height, width, y0, x0, channels, tiles, strip, to, stride, *_ = f.args
    bounds = (f.args[12], f.args[13]) if b.bounded else None
    lanes, ty = b.lanes, vec(F32, b.lanes)
    zero = f.const(0.0, ty)
    offsets = [f.mul(f.min(f.sub(channels, 1), j), sxc) for j in range(lanes)]
    with f.loop(0, f.add(f.mul(tiles, b.across.step), b.across.overlap), lanes) as c:
        column = f.add(x0, c.iv)
        mask = _in_range(f, f.add(f.iota(I32, lanes), f.splat(f.cast(column, I32), lanes)), width)
        with f.loop(0, b.down.inputs) as r:
            y = f.add(y0, r.iv)
            out = f.gep(strip, f.mul(f.add(f.mul(r.iv, STRIP), c.iv), lanes), F32)

            def rows(y: V = y, column: V = column, mask: V = mask) -> list[V]:
                start = f.gep(x, f.add(f.mul(y, sxh), column), b.stored)

                def load(offset: V) -> V:
                    return load_elements(f, b, f.gep(start, offset, b.stored), lanes, mask=mask, bounds=bounds)

                return transpose_block(f, [load(o) for o in offsets])

            def nothing() -> list[V]:
                return [zero] * lanes

            for j, v in enumerate(f.if_else(f.cmp("ult", y, height), rows, nothing, [ty] * lanes)):
                f.store(v, f.gep(out, j * lanes, F32))
    with f.loop(0, tiles) as t:
        start = f.gep(strip, f.mul(t.iv, b.across.step * lanes), F32)
        out = f.gep(to, f.mul(t.iv, b.depth), F32)
        block = _block(b.down.inputs, b.across.inputs, lambda i, j: f.load(f.gep(start, (i * STRIP + j) * lanes, F32), ty))
        mapped = in_two_dims(block, lambda d: b.down.map_inputs(f, d), lambda d: b.across.map_inputs(f, d))
        for p, v in enumerate(v for row in mapped for v in row):
            f.store(v, f.gep(out, f.mul(stride, p), F32))
    f.done()
    return name


def emit_weights(module: KernelModule, b: Blocking) -> str:
    """`weights(w, channels, to)`: maps a depth block of packed weights, [kernel point][channel][panel]."""
    name = f"{b.prefix}_weights_{b.spec.name}" + b.coded
    if name in module.functions:
        return name
    f = Fn(module, name, [("w", PTR), ("channels", I64), ("to", PTR)], noinline=True)
    w, channels, to = f.args
    point, ty, wide = f.mul(channels, b.panel), vec(F32, b.lanes), b.across.window

    def map_column(block: list[list[V]], dst: V) -> None:
        mapped = in_two_dims(block, lambda g: b.down.map_weights(f, g), lambda g: b.across.map_weights(f, g))
        for p, v in enumerate(v for row in mapped for v in row):
            f.store(v, f.gep(dst, p * b.weight_stride, F32))

    if b.pairs:
        row, _ = b.packed_row
        with f.loop(0, channels, 2) as lp:
            rows = [f.gep(w, f.mul(f.add(f.mul(channels, p), lp.iv), row), I8) for p in range(b.taps)]
            for column in range(0, b.panel, b.lanes):
                both = [widened_pair(f, f.load(f.gep(r, column, I32), vec(I32, b.lanes))) for r in rows]
                for i in range(2):
                    channel = [pair[i] for pair in both]
                    dst = f.gep(to, f.add(f.mul(f.add(lp.iv, i), b.panel), column), F32)
                    map_column([channel[j : j + wide] for j in range(0, b.taps, wide)], dst)
        f.done()
        return name
    if b.code:
        row, _ = b.packed_row
        with f.loop(0, channels) as lp:
            rows = [f.gep(w, f.mul(f.add(f.mul(channels, p), lp.iv), row), I8) for p in range(b.taps)]
            for column in range(0, b.panel, b.lanes):
                taps = [load_codes(f, b.code, r, column, b.lanes, b.panel) for r in rows]
                dst = f.gep(to, f.add(f.mul(lp.iv, b.panel), column), F32)
                map_column([taps[i : i + wide] for i in range(0, b.taps, wide)], dst)
        f.done()
        return name
    with f.loop(0, f.mul(channels, b.panel), b.lanes) as lp:
        src, dst = f.gep(w, lp.iv, F32), f.gep(to, lp.iv, F32)
        map_column(_block(b.down.window, wide, lambda i, j: f.load(f.gep(src, f.mul(point, wide * i + j), F32), ty)), dst)
    f.done()
    return name


def emit_outputs(module: KernelModule, b: Blocking) -> str:
    """`outputs(sums, stride, tiles, columns, to)`: maps the sums of a row of tiles to [output row][columns][panel].

    Tiles go from the last to the first, rows of a tile from the first to the last: what a tile that overhangs writes beyond
    `columns` is then overwritten by what belongs there."""
    name = f"{b.prefix}_outputs_{b.spec.name}"
    if name in module.functions:
        return name
    numbers = ("stride", "tiles", "columns")
    f = Fn(module, name, [("sums", PTR), *((n, I64) for n in numbers), ("to", PTR)], noinline=True)
    sums, stride, tiles, columns, to = f.args
    ty = vec(F32, b.lanes)
    with f.loop(0, tiles) as lp:
        t = f.sub(f.sub(tiles, 1), lp.iv)
        with f.loop(0, b.panel, b.lanes) as part:
            src = f.gep(sums, f.add(f.mul(t, b.panel), part.iv), F32)
            dst = f.gep(to, f.add(f.mul(t, b.across.m * b.panel), part.iv), F32)
            points = b.across.points
            block = _block(b.down.points, points, lambda i, j: f.load(f.gep(src, f.mul(stride, i * points + j), F32), ty))
            mapped = in_two_dims(block, lambda s: b.down.map_outputs(f, s), lambda s: b.across.map_outputs(f, s))
            for i, row in enumerate(mapped):
                line = f.gep(dst, f.mul(columns, i * b.panel), F32)
                for j, v in enumerate(row):
                    f.store(v, f.gep(line, j * b.panel, F32))
    f.done()
    return name


def _emit_microkernel(module: KernelModule, b: Blocking, rows: int) -> str:
    """`ukr(a, b, k, sums, accumulate, ahead, weights, step)`: sums[rows][nr] (+)= A[rows][k] B[k][nr], rows of A `depth` apart, of
    B and sums `panel`.

    One sum an element, in order of k, whatever the rows: how tiles are cut into groups and register tiles changes no bit. Each step
    of k fetches to the second cache a line at `ahead`, the next point's rows, and `step` bytes of `weights`, to be mapped next.
    """
    name = f"{b.products}_ukr_{b.spec.name}_{rows}"
    if name in module.functions:
        return name
    args = [("a", PTR), ("b", PTR), ("k", I64), ("sums", PTR), ("accumulate", I64), ("ahead", PTR), ("weights", PTR), ("step", I64)]
    f = Fn(module, name, args, noinline=True)
    a, w, k, sums, accumulate, ahead, later, step = f.args
    ty, vectors = vec(F32, b.lanes), range(b.spec.vectors)
    cells = [f.gep(sums, i * b.panel + v * b.lanes, F32) for i in range(rows) for v in vectors]
    zero = f.const(0.0, ty)
    start = f.if_else(
        f.cmp("ne", accumulate, 0), lambda: [f.load(c, ty) for c in cells], lambda: [zero] * len(cells), [ty] * len(cells)
    )
    with f.loop(0, k, 1, [a, w, *start]) as lp:
        pa, pw, *acc = lp.carried
        f.prefetch(f.gep(ahead, f.mul(lp.iv, CACHE_LINE), "i8"), 2)
        f.prefetch(f.gep(later, f.mul(lp.iv, step), "i8"), 2)
        ys = [f.load(f.gep(pw, v * b.lanes, F32), ty) for v in vectors]
        for i in range(rows):
            x = f.splat(f.load(f.gep(pa, i * b.depth, F32), F32), b.lanes)
            for v in vectors:
                acc[i * len(ys) + v] = f.fma(x, ys[v], acc[i * len(ys) + v])
        lp.yield_(f.gep(pa, 1, F32), f.gep(pw, b.panel, F32), *acc)
    for cell, value in zip(cells, lp.results[2:], strict=True):
        f.store(value, cell)
    f.done()
    return name


def _emit_table(module: KernelModule, b: Blocking) -> str:
    """Emits the register tiles of 1 row and more, and a table of their addresses, once; returns its symbol."""
    table = f"{b.products}_table_{b.spec.name}"
    if f"{b.products}_ukr_{b.spec.name}_1" not in module.functions:
        module.add_pointers(table, [_emit_microkernel(module, b, n + 1) for n in range(b.spec.mr)])
    return table


def _factor(f: Fn, b: Blocking, point: V) -> V:
    """The number of a point's mapped weights."""
    if b.factors == b.points:
        return point
    row, column = f.divu(point, b.across.points), f.remu(point, b.across.points)
    return f.add(f.mul(f.min(row, b.down.factors - 1), b.across.factors), f.min(column, b.across.factors - 1))


def emit_products(module: KernelModule, b: Blocking) -> str:
    """`products(a, a_stride, b, sums, sum_stride, tiles, k, columns, accumulate, weights)`: the products of all points; of the
    panel's columns those below `columns`, in whole register tiles. Spread over them, the next depth block is fetched from `weights`
    on."""
    name = f"{b.prefix}_products_{b.spec.name}"
    if name in module.functions:
        return name
    table = _emit_table(module, b)
    args = [("a", PTR), ("a_stride", I64), ("b", PTR), ("sums", PTR), ("sum_stride", I64)]
    f = Fn(module, name, [*args, *((n, I64) for n in ("tiles", "k", "columns", "accumulate")), ("weights", PTR)], noinline=True)
    a, a_stride, w, sums, sum_stride, tiles, k, columns, accumulate, later = f.args
    step = -(-b.taps * b.panel * 4 // b.points)  # bytes of weights of a channel and point
    parts = f.ceildivu(tiles, b.spec.mr)
    kernels = f.address_of(table)
    with f.loop(0, b.points) as p:
        pa, pw = f.gep(a, f.mul(p.iv, a_stride), F32), f.gep(w, f.mul(_factor(f, b, p.iv), b.weight_stride), F32)
        ps = f.gep(sums, f.mul(p.iv, sum_stride), F32)
        with f.loop(0, columns, b.spec.nr(F32)) as column, f.loop(0, parts) as part:
            t0 = f.divu(f.mul(part.iv, tiles), parts)
            n = f.sub(f.divu(f.mul(f.add(part.iv, 1), tiles), parts), t0)
            ukr = f.load(f.gep(kernels, f.sub(n, 1), PTR), PTR)
            at = f.gep(ps, f.add(f.mul(t0, b.panel), column.iv), F32)
            rows = f.gep(pa, f.mul(t0, b.depth), F32)
            fetch = [f.gep(rows, a_stride, F32), f.gep(later, f.mul(f.mul(p.iv, k), step), "i8")]
            fetch.append(f.select(f.cmp("eq", f.add(part.iv, column.iv), 0), f.i64(step), 0))
            f.call_ptr(ukr, [rows, f.gep(pw, column.iv, F32), k, at, accumulate, *fetch])
    f.done()
    return name
