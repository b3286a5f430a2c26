"""Kernels of Winograd's convolution: input tiles, weights and output tiles mapped in vectors of channels, products in between.

A kernel serves all convolutions of an input tile's side and a window's; channels, sizes and padding are arguments. Its items are
(group of tiles, panel of output channels), the panel fastest. A group is some rows of tiles, or a part of one; a worker keeps of
it, in its scratch:

    inputs     [depth block][point][tile][DEPTH]   mapped once a group
    weights    [point][DEPTH][panel]               of one depth block, mapped for each group and panel
    sums       [point][tile][panel]                over the depth blocks

Of windows in three dims, rows and columns are mapped; their planes are summed over, as channels are. A depth block is some channels
of one plane of the window, or all channels of some planes.

Weights are mapped where they are used, rather than stored mapped: that takes about 100 operations for 36 multiply-adds a
tile, where mapped weights would be 4 times as many bytes in files, memory and caches, and small images are bound by bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from dhlo.codegen.families.conv.image import load_elements
from dhlo.codegen.families.conv.microkernel import emit_transpose
from dhlo.codegen.families.conv.pack import CACHE_LINE
from dhlo.codegen.families.conv.quantised_weights import load_codes, row_bytes
from dhlo.codegen.families.conv.winograd_transforms import in_two_dims, inputs, outputs, weights
from dhlo.codegen.families.gemm.microkernel import TileSpec, emit_pointers, widened_pair
from dhlo.codegen.kernel_ir.builder import F32, I8, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import HostContext, kernel_fn, load_args
from dhlo.codegen.kernel_ir.transpose import transpose_block

__all__ = ["FIELDS", "Blocking", "emit_winograd_kernel", "kernel_name"]

# Input channels of a depth block by the sides of the input tile and the window, no fewer than a block of packed weights has: mapped
# weights of a panel then take 256 to 360 KiB. Code and layout rest on it; on a machine whose second cache is smaller they come from
# the third, once a group.
_DEPTH = {(6, 3): 64, (6, 2): 80, (4, 3): 128, (4, 2): 128}
# Tiles of a group: the sums of a panel take 252 KiB. Weights are mapped once a group.
_MOST_TILES = {6: 56, 4: 126}
# Columns of the input that are brought into vectors of channels together, with all rows of a tile: they stay in the first cache.
_STRIP = 64
# Output positions of whole rows that are handed to the epilogue together.
_POSITIONS = 256

FIELDS = (
    "x",
    "w",
    "epilogue",
    "eargs",
    "id",
    "ih",
    "iw",
    "od",
    "oh",
    "ow",
    "sxb",
    "sxc",
    "sxd",
    "sxh",
    "front",
    "top",
    "left",
    "planes",
    "together",
    "plane_stride",
    "plane_dilation",
    "in_channels",
    "out_channels",
    "block_channels",
    "span",
    "rows",
    "th",
    "tw",
    "row_groups",
    "column_groups",
)
"""Arguments of a kernel. i*, o*: input and output size; sx*: input strides in elements; front, top, left: padding; planes: of the
window, of which `together` are a depth block; plane_stride, plane_dilation: between windows and inside of one; block_channels:
those of a depth block of the packed weights, of which `span` are one of this kernel; rows: of tiles, in all planes of all images;
th, tw: tiles down and across a plane; row_groups, column_groups: in how many groups all rows of tiles, and the tiles of a row, are
cut."""
_POINTERS = {"x", "w", "epilogue", "eargs"}


@dataclass(frozen=True)
class Blocking:
    """Sizes that follow from the sides of an input tile and of the window, and from the register tiles."""

    side: int
    window: int
    spec: TileSpec
    code: str = ""  # the form of weights that are kept as codes
    image: str = ""  # the type of the image in memory, where it isn't f32
    pairs: bool = False  # packed weights hold two channels side by side, of which there is an even number

    @property
    def elem(self) -> str:
        """What is computed in."""
        return F32

    @property
    def stored(self) -> str:
        """The type of the image in memory."""
        return self.image or F32

    @property
    def bounded(self) -> bool:
        """As `ConvParams.bounded`: two more arguments."""
        return bool(self.image) and not self.spec.target.mask_registers

    @property
    def m(self) -> int:
        """Side of an output tile."""
        return self.side - self.window + 1

    @property
    def taps(self) -> int:
        """Kernel points of a plane of the window."""
        return self.window**2

    @property
    def prefix(self) -> str:
        """Of the names of functions."""
        return f"winograd{self.window if self.window != 3 else ''}_{self.m}"

    @property
    def points(self) -> int:
        """Products of a tile."""
        return self.side**2

    @property
    def lanes(self) -> int:
        return self.spec.lanes(F32)

    @property
    def panel(self) -> int:
        return self.spec.panel(F32)

    @property
    def depth(self) -> int:
        """Channels that a depth block has room for."""
        return _DEPTH[self.side, self.window]

    @property
    def packed_row(self) -> tuple[int, str]:
        """Elements, and of what type, of a row of a panel of packed weights."""
        return (row_bytes(self.code, self.panel), I8) if self.code else (self.panel, F32)

    @property
    def coded(self) -> str:
        """What tells names of functions apart by the form of weights."""
        return (f"_{self.code}" if self.code else "") + ("_pairs" if self.pairs else "")

    @property
    def strip_tiles(self) -> int:
        """Tiles of a row that are brought into vectors of channels together."""
        return (_STRIP - self.window + 1) // self.m

    # Points are a line more apart than their content takes: a power of two apart, they would share sets of the caches.
    @property
    def weight_stride(self) -> int:
        """Elements between points of mapped weights."""
        return self.depth * self.panel + self.panel

    def span(self, block_channels: int, blocks: int) -> int:
        """Depth blocks of packed weights that are one of these kernels, balanced."""
        most = max(1, self.depth // block_channels)
        return -(-blocks // -(-blocks // most))

    def tile_bytes(self, depth_blocks: int) -> int:
        """Bytes of a tile's mapped inputs."""
        return depth_blocks * self.points * self.depth * 4

    def most_tiles(self, host: HostContext, depth_blocks: int) -> V:
        """Tiles of a group: as many as the second cache has room for, at least the rows of two register tiles. Mapped inputs may
        take all of it: they are read once for each panel, in order."""
        fn = host.fn
        fit = fn.min(fn.divu(host.l2_bytes, self.tile_bytes(depth_blocks)), _MOST_TILES[self.side])
        return fn.max(fit, 2 * self.spec.mr)

    @property
    def row_elements(self) -> int:
        """Room for the output positions that are finished together, and for what tiles and vectors write past them."""
        return max(_POSITIONS, self.m * self.m * max(_MOST_TILES[self.side], 2 * self.spec.mr)) + self.m + 2 * self.lanes

    def scratch_bytes(self, host: HostContext, depth_blocks: int) -> V:
        """Scratch of a worker."""
        inputs = host.fn.mul(self.most_tiles(host, depth_blocks), self.tile_bytes(depth_blocks))
        return host.fn.add(inputs, _Scratch(self).inputs + depth_blocks * self.points * self.lanes * 4)


class _Scratch:
    """Offsets in bytes of a worker's scratch."""

    def __init__(self, b: Blocking) -> None:
        most = max(_MOST_TILES[b.side], 2 * b.spec.mr)
        self.sums = b.points * b.weight_stride * 4
        self.strip = self.sums + b.points * (most * b.panel + b.lanes) * 4
        self.stage = self.strip + b.side * _STRIP * b.lanes * 4
        self.tile = self.stage + b.row_elements * b.panel * 4
        self.inputs = self.tile + b.row_elements * b.panel * 4


@dataclass(frozen=True)
class _Geometry:
    """The arguments of a launch; see FIELDS."""

    x: V
    w: V
    epilogue: V
    eargs: V
    id: V
    ih: V
    iw: V
    od: V
    oh: V
    ow: V
    sxb: V
    sxc: V
    sxd: V
    sxh: V
    front: V
    top: V
    left: V
    planes: V
    together: V
    plane_stride: V
    plane_dilation: V
    in_channels: V
    out_channels: V
    block_channels: V
    span: V
    rows: V
    th: V
    tw: V
    row_groups: V
    column_groups: V


@dataclass(frozen=True)
class _Group:
    """Tiles that are worked on together: rows [row0, row1) of all planes' rows of tiles, tiles [first, first + across) of each."""

    row0: V
    row1: V
    first: V
    across: V
    tiles: V
    input_stride: V  # elements between points of mapped inputs
    sum_stride: V  # elements between points of sums


def _in_range(f: Fn, c: V, size: V) -> V:
    """0 <= c < size for i32 vectors."""
    return f.cmp("ult", c, f.splat(f.cast(size, I32), c.lanes))


def _emit_inputs(module: KernelModule, b: Blocking) -> str:
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
    with f.loop(0, f.add(f.mul(tiles, b.m), b.window - 1), lanes) as c:
        column = f.add(x0, c.iv)
        mask = _in_range(f, f.add(f.iota(I32, lanes), f.splat(f.cast(column, I32), lanes)), width)
        with f.loop(0, b.side) as r:
            y = f.add(y0, r.iv)
            out = f.gep(strip, f.mul(f.add(f.mul(r.iv, _STRIP), c.iv), lanes), F32)

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
        start = f.gep(strip, f.mul(t.iv, b.m * lanes), F32)
        out = f.gep(to, f.mul(t.iv, b.depth), F32)
        square = [[f.load(f.gep(start, (i * _STRIP + j) * lanes, F32), ty) for j in range(b.side)] for i in range(b.side)]
        mapped = in_two_dims(square, lambda d: inputs(f, d))
        for p, v in enumerate(v for row in mapped for v in row):
            f.store(v, f.gep(out, f.mul(stride, p), F32))
    f.done()
    return name


def _emit_weights(module: KernelModule, b: Blocking) -> str:
    """`weights(w, channels, to)`: maps a depth block of packed weights, [kernel point][channel][panel]."""
    name = f"{b.prefix}_weights_{b.spec.name}" + b.coded
    if name in module.functions:
        return name
    f = Fn(module, name, [("w", PTR), ("channels", I64), ("to", PTR)], noinline=True)
    w, channels, to = f.args
    point, ty = f.mul(channels, b.panel), vec(F32, b.lanes)

    def map_column(square: list[list[V]], dst: V) -> None:
        mapped = in_two_dims(square, lambda g: weights(f, g, b.side))
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
                    square = [channel[j : j + b.window] for j in range(0, b.taps, b.window)]
                    map_column(square, f.gep(to, f.add(f.mul(f.add(lp.iv, i), b.panel), column), F32))
        f.done()
        return name
    if b.code:
        row, _ = b.packed_row
        with f.loop(0, channels) as lp:
            rows = [f.gep(w, f.mul(f.add(f.mul(channels, p), lp.iv), row), I8) for p in range(b.taps)]
            for column in range(0, b.panel, b.lanes):
                taps = [load_codes(f, b.code, r, column, b.lanes, b.panel) for r in rows]
                map_column(
                    [taps[i : i + b.window] for i in range(0, b.taps, b.window)],
                    f.gep(to, f.add(f.mul(lp.iv, b.panel), column), F32),
                )
        f.done()
        return name
    with f.loop(0, f.mul(channels, b.panel), b.lanes) as lp:
        src, dst = f.gep(w, lp.iv, F32), f.gep(to, lp.iv, F32)
        r = range(b.window)
        square = [[f.load(f.gep(src, f.mul(point, b.window * i + j), F32), ty) for j in r] for i in r]
        map_column(square, dst)
    f.done()
    return name


def _emit_outputs(module: KernelModule, b: Blocking) -> str:
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
            dst = f.gep(to, f.add(f.mul(t, b.m * b.panel), part.iv), F32)
            square = [[f.load(f.gep(src, f.mul(stride, i * b.side + j), F32), ty) for j in range(b.side)] for i in range(b.side)]
            for i, row in enumerate(in_two_dims(square, lambda s: outputs(f, s, b.m))):
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
    name = f"{b.prefix}_ukr_{b.spec.name}_{rows}"
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


def _emit_products(module: KernelModule, b: Blocking) -> str:
    """`products(a, a_stride, b, sums, sum_stride, tiles, k, columns, accumulate, weights)`: the products of all points; of the
    panel's columns those below `columns`, in whole register tiles. Spread over them, the next depth block is fetched from `weights`
    on."""
    name = f"{b.prefix}_products_{b.spec.name}"
    if name in module.functions:
        return name
    table = f"{b.prefix}_table_{b.spec.name}"
    emit_pointers(module, table, [_emit_microkernel(module, b, n + 1) for n in range(b.spec.mr)])
    args = [("a", PTR), ("a_stride", I64), ("b", PTR), ("sums", PTR), ("sum_stride", I64)]
    f = Fn(module, name, [*args, *((n, I64) for n in ("tiles", "k", "columns", "accumulate")), ("weights", PTR)], noinline=True)
    a, a_stride, w, sums, sum_stride, tiles, k, columns, accumulate, later = f.args
    step = -(-b.taps * b.panel * 4 // b.points)  # bytes of weights of a channel and point
    parts = f.ceildivu(tiles, b.spec.mr)
    kernels = f.address_of(table)
    with f.loop(0, b.points) as p:
        pa, pw = f.gep(a, f.mul(p.iv, a_stride), F32), f.gep(w, f.mul(p.iv, b.weight_stride), F32)
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


class _Kernel:
    """Emits the kernel of a tile's side."""

    def __init__(self, module: KernelModule, b: Blocking) -> None:
        self.b, self.layout = b, _Scratch(b)
        self.inputs, self.weights = _emit_inputs(module, b), _emit_weights(module, b)
        self.products, self.outputs = _emit_products(module, b), _emit_outputs(module, b)
        self.transpose = emit_transpose(module, F32, b.lanes, b.spec)
        self.f = kernel_fn(module, kernel_name(b))
        _, self.begin, self.end, _, self.scratch = self.f.args
        types = [PTR if n in _POINTERS else I64 for n in FIELDS]
        values = load_args(self.f, [*types, PTR] if b.bounded else types)
        self.geo, self.end_of_image = _Geometry(*values[: len(FIELDS)]), values[-1]
        f, geo = self.f, self.geo
        self.depth = f.mul(geo.block_channels, geo.span)  # channels of a depth block
        self.channel_blocks = f.ceildivu(geo.in_channels, self.depth)
        self.plane_blocks = f.ceildivu(geo.planes, geo.together)
        self.blocks = f.mul(self.channel_blocks, self.plane_blocks)
        self.panels = f.ceildivu(geo.out_channels, b.panel)

    def at(self, offset: int) -> V:
        return self.f.gep(self.scratch, offset, "i8")

    def emit(self) -> str:
        """Walks the groups touched by [begin, end); the panels of a group share its mapped inputs."""
        f = self.f
        with f.loop(f.divu(self.begin, self.panels), f.ceildivu(self.end, self.panels)) as groups:
            first = f.mul(groups.iv, self.panels)
            lo = f.sub(f.max(self.begin, first), first)
            hi = f.min(f.sub(self.end, first), self.panels)
            group = self.group(groups.iv)
            self.map_inputs(group)
            with f.loop(lo, hi) as panel:
                self.multiply(group, panel.iv)
                self.finish(group, panel.iv)
        f.done()
        return f.name

    def group(self, number: V) -> _Group:
        f, geo, b = self.f, self.geo, self.b
        column, row = f.remu(number, geo.column_groups), f.divu(number, geo.column_groups)
        row0 = f.divu(f.mul(row, geo.rows), geo.row_groups)
        row1 = f.divu(f.mul(f.add(row, 1), geo.rows), geo.row_groups)
        first = f.divu(f.mul(column, geo.tw), geo.column_groups)
        across = f.sub(f.divu(f.mul(f.add(column, 1), geo.tw), geo.column_groups), first)
        tiles = f.mul(f.sub(row1, row0), across)
        return _Group(
            row0, row1, first, across, tiles, f.add(f.mul(tiles, b.depth), b.lanes), f.add(f.mul(tiles, b.panel), b.lanes)
        )

    def block(self, number: V) -> tuple[V, V, V, V]:
        """First channel of a depth block, how many channels of a plane it has, its first plane, and the one after its last."""
        f, geo = self.f, self.geo
        of_planes = f.remu(number, self.plane_blocks)
        c0 = f.mul(f.divu(number, self.plane_blocks), self.depth)
        first = f.divu(f.mul(of_planes, geo.planes), self.plane_blocks)
        end = f.divu(f.mul(f.add(of_planes, 1), geo.planes), self.plane_blocks)
        return c0, f.min(f.sub(geo.in_channels, c0), self.depth), first, end

    def map_inputs(self, g: _Group) -> None:
        """The group's mapped inputs, row by row of tiles and vector by vector of channels."""
        f, geo, b = self.f, self.geo, self.b
        with f.loop(g.row0, g.row1) as row:
            plane, line = f.divu(row.iv, geo.th), f.remu(row.iv, geo.th)
            image, z0 = f.divu(plane, geo.od), f.sub(f.mul(f.remu(plane, geo.od), geo.plane_stride), geo.front)
            y0 = f.sub(f.mul(line, b.m), geo.top)
            tile0 = f.mul(f.sub(row.iv, g.row0), g.across)
            parts = f.ceildivu(g.across, b.strip_tiles)
            with f.loop(0, parts) as part, f.loop(0, self.blocks) as block:
                t0 = f.divu(f.mul(part.iv, g.across), parts)
                tiles = f.sub(f.divu(f.mul(f.add(part.iv, 1), g.across), parts), t0)
                x0 = f.sub(f.mul(f.add(g.first, t0), b.m), geo.left)
                c0, channels, first, end = self.block(block.iv)
                to = f.mul(f.mul(block.iv, b.points), g.input_stride)
                to = f.add(to, f.mul(f.add(tile0, t0), b.depth))
                with f.loop(first, end) as k:
                    z = f.add(z0, f.mul(k.iv, geo.plane_dilation))
                    height = f.select(f.cmp("ult", z, geo.id), geo.ih, 0)
                    inside = f.add(to, f.mul(f.sub(k.iv, first), channels))
                    with f.loop(0, channels, b.lanes) as c:
                        source = f.add(f.mul(image, geo.sxb), f.mul(f.add(c0, c.iv), geo.sxc))
                        source = f.add(source, f.mul(z, geo.sxd))
                        numbers = [geo.sxc, geo.sxh, height, geo.iw, y0, x0, f.sub(channels, c.iv), tiles]
                        at = f.gep(self.at(self.layout.inputs), f.add(inside, c.iv), F32)
                        strip = self.at(self.layout.strip)
                        bounds = (f.ptr_to_int(geo.x), f.ptr_to_int(self.end_of_image)) if b.bounded else ()
                        f.call(self.inputs, [f.gep(geo.x, source, b.stored), *numbers, strip, at, g.input_stride, *bounds])

    def multiply(self, g: _Group, panel: V) -> None:
        """The sums of a panel, over all depth blocks."""
        f, geo, b = self.f, self.geo, self.b
        columns = f.min(f.sub(geo.out_channels, f.mul(panel, b.panel)), b.panel)
        row, elem = b.packed_row
        taps = f.mul(geo.planes, b.taps)
        packed = f.gep(geo.w, f.mul(f.mul(panel, geo.in_channels), f.mul(taps, row)), elem)
        with f.loop(0, self.blocks) as block:
            c0, k, first, end = self.block(block.iv)
            with f.loop(first, end) as plane, f.loop(0, k, geo.block_channels) as part:
                channels = f.min(f.sub(k, part.iv), geo.block_channels)
                at = f.add(f.mul(f.add(c0, part.iv), taps), f.mul(f.mul(plane.iv, b.taps), channels))
                to = f.add(f.mul(f.sub(plane.iv, first), k), part.iv)
                f.call(self.weights, [f.gep(packed, f.mul(at, row), elem), channels, f.gep(self.at(0), f.mul(to, b.panel), F32)])
            a = f.gep(self.at(self.layout.inputs), f.mul(f.mul(block.iv, b.points), g.input_stride), F32)
            sums = self.at(self.layout.sums)
            depth = f.mul(k, f.sub(end, first))
            numbers = [g.tiles, depth, columns, block.iv]
            later = f.gep(packed, f.mul(f.mul(f.add(c0, k), taps), row), elem)
            f.call(self.products, [a, g.input_stride, self.at(0), sums, g.sum_stride, *numbers, later])

    def finish(self, g: _Group, panel: V) -> None:
        """Hands a panel's outputs to the epilogue: some rows of tiles at a time where they are whole, else one."""
        f, geo, b = self.f, self.geo, self.b
        columns = f.sub(f.min(f.mul(f.add(g.first, g.across), b.m), geo.ow), f.mul(g.first, b.m))
        whole = f.cmp("eq", geo.column_groups, 1)
        together = f.select(whole, f.max(f.divu(f.i64(_POSITIONS), f.mul(geo.ow, b.m)), 1), 1)
        with f.loop(f.divu(g.row0, geo.th), f.ceildivu(g.row1, geo.th)) as plane:
            above = f.mul(plane.iv, geo.th)
            lo, hi = f.sub(f.max(g.row0, above), above), f.min(f.sub(g.row1, above), geo.th)
            with f.loop(lo, hi, together) as row:
                lines = f.min(f.sub(hi, row.iv), together)
                first = f.mul(f.sub(f.add(above, row.iv), g.row0), g.across)
                self.finish_rows(g, panel, plane.iv, row.iv, lines, first, columns, whole)

    def finish_rows(self, g: _Group, panel: V, plane: V, row: V, lines: V, tile0: V, columns: V, whole: V) -> None:
        """The same for `lines` rows of tiles, the first of which is `row` of the plane and begins with the group's `tile0`."""
        f, geo, b = self.f, self.geo, self.b
        sums, stage, tile = (self.at(n) for n in (self.layout.sums, self.layout.stage, self.layout.tile))
        with f.loop(0, lines) as line:
            source = f.gep(sums, f.mul(f.add(tile0, f.mul(line.iv, g.across)), b.panel), F32)
            to = f.gep(stage, f.mul(f.mul(line.iv, columns), b.m * b.panel), F32)
            f.call(self.outputs, [source, g.sum_stride, g.across, columns, to])
        y0 = f.mul(row, b.m)
        height = f.sub(f.min(f.mul(f.add(row, lines), b.m), geo.oh), y0)
        positions = f.mul(height, columns)
        ld = f.mul(f.add(f.ceildivu(positions, b.lanes), 1), b.lanes)  # not a power of two
        with f.loop(0, positions, b.lanes) as p:
            f.call(self.transpose, [f.gep(stage, f.mul(p.iv, b.panel), F32), f.gep(tile, p.iv, F32), ld])
        m0 = f.mul(panel, b.panel)
        channels = f.min(f.sub(geo.out_channels, m0), b.panel)
        image, z = f.divu(plane, geo.od), f.remu(plane, geo.od)
        n0 = f.add(f.mul(f.add(f.mul(z, geo.oh), y0), geo.ow), f.mul(g.first, b.m))
        calls, step = f.select(whole, f.i64(1), height), f.select(whole, positions, columns)
        with f.loop(0, calls) as c:
            at, n = f.gep(tile, f.mul(c.iv, step), F32), f.add(n0, f.mul(c.iv, geo.ow))
            f.call_ptr(geo.epilogue, [geo.eargs, at, ld, image, m0, n, channels, step])


def kernel_name(b: Blocking) -> str:
    """The symbol of a kernel."""
    return f"{b.prefix}x{b.m}_{b.spec.name}" + b.coded + (f"_of_{b.image}" if b.image else "")


def emit_winograd_kernel(module: KernelModule, b: Blocking) -> str:
    """Emits the kernel once and returns its symbol."""
    name = kernel_name(b)
    return name if name in module.functions else _Kernel(module, b).emit()
