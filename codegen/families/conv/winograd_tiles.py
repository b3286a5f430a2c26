"""Functions of Winograd's kernels on tiles: their inputs, weights and outputs mapped, and the products of their points."""

from __future__ import annotations

from collections.abc import Callable

from dhlo.codegen.families.conv.image import load_elements
from dhlo.codegen.families.conv.pack import CACHE_LINE
from dhlo.codegen.families.conv.winograd_blocking import Blocking
from dhlo.codegen.families.conv.winograd_transforms import in_two_dims
from dhlo.codegen.kernel_ir.builder import I8, I32, I64, PTR, Fn, KernelModule, V, vec
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
    the image on, of one vector of its elements along channels, `channels` of which are there; the others become copies of the last.
    Points are `stride` elements apart. Further arguments are those of `Blocking.more_of_inputs`."""
    name = f"{b.prefix}_inputs_{b.spec.name}" + (f"_{b.image}" if b.image else "")
    if name in module.functions:
        return name
    numbers = ("sxc", "sxh", "height", "width", "y0", "x0", "channels", "tiles")
    pointers, more = [("strip", PTR), ("to", PTR)], [(n, I64) for n in b.more_of_inputs]
    f = Fn(module, name, [("x", PTR), *((n, I64) for n in numbers), *pointers, ("stride", I64), *more], noinline=True)
    x, sxc, sxh, height, width, y0, x0, channels, tiles, strip, to, stride, *others = f.args
    bounds = (others[0], others[1]) if b.bounded else None
    lanes, ty = b.lanes, vec(b.elem, b.lanes)
    outside = b.outside(f, others)
    offsets = [f.mul(f.min(f.sub(channels, 1), j), sxc) for j in range(lanes)]
    with f.loop(0, f.add(f.mul(tiles, b.across.step), b.across.overlap), lanes) as c:
        column = f.add(x0, c.iv)
        mask = _in_range(f, f.add(f.iota(I32, lanes), f.splat(f.cast(column, I32), lanes)), width)
        with f.loop(0, b.down.inputs) as r:
            y = f.add(y0, r.iv)
            out = f.gep(strip, f.mul(f.add(f.mul(r.iv, b.strip), c.iv), b.parts * lanes), b.elem)

            def rows(y: V = y, column: V = column, mask: V = mask) -> list[V]:
                start = f.gep(x, f.add(f.mul(y, sxh), column), b.stored)

                def load(offset: V) -> V:
                    return load_elements(f, b, f.gep(start, offset, b.stored), lanes, mask=mask, fill=outside, bounds=bounds)

                return transpose_block(f, [load(o) for o in offsets])

            def nothing() -> list[V]:
                return [outside] * lanes

            for j, v in enumerate(f.if_else(f.cmp("ult", y, height), rows, nothing, [ty] * lanes)):
                for i, part in enumerate(b.split(f, v, outside)):
                    f.store(part, f.gep(out, (j * b.parts + i) * lanes, b.elem))
    with f.loop(0, tiles) as t:
        for nth in range(b.parts):
            start = f.gep(strip, f.add(f.mul(t.iv, b.across.step * b.parts * lanes), nth * lanes), b.elem)
            out = f.gep(to, f.add(f.mul(t.iv, b.depth), nth * lanes), b.elem)

            def at(i: int, j: int, start: V = start) -> V:
                return f.load(f.gep(start, (i * b.strip + j) * b.parts * lanes, b.elem), b.mapped)

            block = _block(b.down.inputs, b.across.inputs, at)
            mapped = in_two_dims(block, lambda d: b.down.map_inputs(f, d), lambda d: b.across.map_inputs(f, d))
            for point, v in enumerate(v for row in mapped for v in row):
                f.store(v, f.gep(out, f.mul(stride, point), b.elem))
    f.done()
    return name


def emit_weights(module: KernelModule, b: Blocking) -> str:
    """`weights(w, channels, to)`: maps a depth block of packed weights, [kernel point][channel][panel]."""
    name = f"{b.prefix}_weights_{b.spec.name}" + b.coded
    if name in module.functions:
        return name
    f = Fn(module, name, [("w", PTR), ("channels", I64), ("to", PTR)], noinline=True)
    w, channels, to = f.args
    wide = b.across.window
    with f.loop(0, channels, b.row_channels) as lp:
        rows = [f.gep(w, f.mul(f.add(f.mul(channels, p), lp.iv), b.packed_bytes), I8) for p in range(b.taps)]
        for column in range(0, b.panel, b.lanes):
            taps = [b.load_taps(f, r, column) for r in rows]
            for i in range(b.row_channels):
                channel = [of_row[i] for of_row in taps]
                block = [channel[j : j + wide] for j in range(0, b.taps, wide)]
                mapped = in_two_dims(block, lambda g: b.down.map_weights(f, g), lambda g: b.across.map_weights(f, g))
                out = f.gep(to, f.add(f.mul(f.add(lp.iv, i), b.panel), column), b.elem)
                for p, v in enumerate(v for row in mapped for v in row):
                    f.store(v, f.gep(out, p * b.weight_stride, b.elem))
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
    ty = vec(b.elem, b.lanes)
    with f.loop(0, tiles) as lp:
        t = f.sub(f.sub(tiles, 1), lp.iv)
        with f.loop(0, b.panel, b.lanes) as part:
            src = f.gep(sums, f.add(f.mul(t, b.panel), part.iv), b.elem)
            dst = f.gep(to, f.add(f.mul(t, b.across.m * b.panel), part.iv), b.elem)
            points = b.across.points
            block = _block(b.down.points, points, lambda i, j: f.load(f.gep(src, f.mul(stride, i * points + j), b.elem), ty))
            mapped = in_two_dims(block, lambda s: b.down.map_outputs(f, s), lambda s: b.across.map_outputs(f, s))
            for i, row in enumerate(b.finished(f, mapped)):
                line = f.gep(dst, f.mul(columns, i * b.panel), b.elem)
                for j, v in enumerate(row):
                    f.store(v, f.gep(line, j * b.panel, b.elem))
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
    f = Fn(module, name, args, explicit=True)
    a, w, k, sums, accumulate, ahead, later, step = f.args
    ty, vectors = vec(b.elem, b.lanes), range(b.spec.vectors)
    cells = [f.gep(sums, i * b.panel + v * b.lanes, b.elem) for i in range(rows) for v in vectors]
    zero = f.const(0, ty)
    start = f.if_else(
        f.cmp("ne", accumulate, 0), lambda: [f.load(c, ty) for c in cells], lambda: [zero] * len(cells), [ty] * len(cells)
    )
    with f.loop(0, k, 1, [a, w, *start]) as lp:
        pa, pw, *acc = lp.carried
        f.prefetch(f.gep(ahead, f.mul(lp.iv, CACHE_LINE), "i8"), 2)
        f.prefetch(f.gep(later, f.mul(lp.iv, step), "i8"), 2)
        ys = [f.load(f.gep(pw, v * b.lanes, b.elem), ty) for v in vectors]
        for i in range(rows):
            x = f.splat(f.load(f.gep(pa, i * b.depth, b.elem), b.elem), b.lanes)
            for v in vectors:
                acc[i * len(ys) + v] = b.multiply_add(f, x, ys[v], acc[i * len(ys) + v])
        lp.yield_(f.gep(pa, 1, b.elem), f.gep(pw, b.panel, b.elem), *acc)
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
    step = -(-b.taps * b.packed_bytes // b.points)  # bytes of weights of a channel and point
    parts = f.ceildivu(tiles, b.spec.mr)
    kernels = f.address_of(table)
    with f.loop(0, b.points) as p:
        pa, pw = f.gep(a, f.mul(p.iv, a_stride), b.elem), f.gep(w, f.mul(_factor(f, b, p.iv), b.weight_stride), b.elem)
        ps = f.gep(sums, f.mul(p.iv, sum_stride), b.elem)
        with f.loop(0, columns, b.spec.nr(b.elem)) as column, f.loop(0, parts) as part:
            t0 = f.divu(f.mul(part.iv, tiles), parts)
            n = f.sub(f.divu(f.mul(f.add(part.iv, 1), tiles), parts), t0)
            ukr = f.load(f.gep(kernels, f.sub(n, 1), PTR), PTR)
            at = f.gep(ps, f.add(f.mul(t0, b.panel), column.iv), b.elem)
            rows = f.gep(pa, f.mul(t0, b.depth), b.elem)
            fetch = [f.gep(rows, a_stride, b.elem), f.gep(later, f.mul(f.mul(p.iv, k), step), "i8")]
            fetch.append(f.select(f.cmp("eq", f.add(part.iv, column.iv), 0), f.i64(step), 0))
            f.call_ptr(ukr, [rows, f.gep(pw, column.iv, b.elem), k, at, accumulate, *fetch])
    f.done()
    return name
