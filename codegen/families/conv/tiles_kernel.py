"""The kernel of convolutions in the target's matrix registers: tiles of 16 positions by 16 output channels, summed over the points
of windows and 32 channels of bf16 or 64 of bytes a step.

A block of output rows and columns lies as `tiles_image` has it, a position's channels a row of the left tile; weights lie as those
of dot products do, units of channels by 32 output channels, a step of which is two right tiles. Positions are numbered along
the block's rows as these lie, which are longer than those of outputs by the window's reach: sums in between belong to no output,
and are left out as sums are transposed for the epilogue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from dhlo.codegen.families.blocks import Blocks
from dhlo.codegen.families.conv.pack import KERNEL_TYPES, load_geometry
from dhlo.codegen.families.conv.params import ConvParams
from dhlo.codegen.families.conv.tiles_form import TileForm
from dhlo.codegen.families.conv.tiles_image import INFINITY, NUMBERS, NUMBERS_OF_ROW, emit_largest, emit_lay_row
from dhlo.codegen.families.gemm.tiles_microkernel import (
    PANEL_COLUMNS,
    PANEL_ROWS,
    ROW_BYTES,
    STEP_BYTES,
    STEP_UNITS,
    SUMS_BYTES,
    SUMS_ROW_BYTES,
    TILE_BYTES,
    TILE_ROWS,
    configure_whole,
    emit_tiles_microkernel,
    on_tiles,
    tiles_of,
)
from dhlo.codegen.kernel_ir.builder import F32, I1, I8, I32, I64, PTR, Fn, V, vec
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args
from dhlo.codegen.kernel_ir.transpose import transpose_block
from dhlo.codegen.target import LINE_BYTES

__all__ = ["TilesKernel", "scratch_bytes", "tiles_kernel_name"]

# Positions whose sums are kept together, and a row of them as the epilogue gets it: a channel's, with room for a vector more.
_TOGETHER: Final = 128
_ROW: Final = _TOGETHER + TILE_ROWS
# So many steps of weights wait in the first cache.
_SHALLOW_STEPS: Final = 16


def tiles_kernel_name(p: ConvParams) -> str:
    """Symbol of the kernel."""
    return f"{p.name}_tiles"


class _Scratch:
    """Offsets in bytes of a worker's scratch: the configuration, where steps lie, sums, rows for the epilogue, what sums begin
    with, a panel of weights whose steps are whole, the largest numbers of the image, where outputs lie, the image."""

    def __init__(self, form: TileForm) -> None:
        self.list = ROW_BYTES
        self.sums = self.list + -(-form.steps * 8 // ROW_BYTES) * ROW_BYTES
        self.rows = self.sums + _TOGETHER * SUMS_ROW_BYTES
        self.heads = self.rows + PANEL_COLUMNS * _ROW * 4
        self.weights = self.heads + (SUMS_BYTES if form.p.heads else 0)
        self.largest = self.weights + (form.steps * STEP_BYTES if form.splits_steps else 0)
        self.outputs = self.largest + (ROW_BYTES if form.together > 1 else 0)


def scratch_bytes(form: TileForm, f: Fn, images: V, planes: V, rows: V, columns: V) -> V:
    """Scratch of a worker for blocks of so many images, output planes, rows and columns. Tiles read up to 31 positions beyond the
    last."""
    image = f.mul(f.mul(images, form.planes(f, planes)), f.mul(form.plane(f, rows, columns), ROW_BYTES * form.step_groups))
    return f.add(f.add(image, _outputs_bytes(f, rows, columns)), _Scratch(form).outputs + PANEL_ROWS * ROW_BYTES)


def _outputs_bytes(f: Fn, rows: V, columns: V) -> V:
    """Of the list of where outputs lie, which is written in whole vectors; in whole lines, as the image follows."""
    return f.mul(f.ceildivu(f.mul(f.add(f.mul(rows, columns), TILE_ROWS), 4), ROW_BYTES), ROW_BYTES)


@dataclass(frozen=True)
class _Block:
    """What an item works on: a group of channels; the first image, output plane, row and column, and how many of these."""

    group: V
    image: V
    images: V
    plane: V
    planes: V
    row: V
    rows: V
    column: V
    columns: V


class TilesKernel:
    """Emits one kernel. Items are (block of images, group, blocks of planes, rows and columns, weight panel), the last fastest."""

    def __init__(self, form: TileForm) -> None:
        self.form, self.p = form, form.p
        p = form.p
        self.lay = emit_lay_row(form)
        # Points of a window share most positions; a shallow panel of weights meets all positions.
        rows_first = form.points > 1 or form.steps > _SHALLOW_STEPS
        spec = replace(p.spec, unsigned=form.elem == I8 and p.spec.left == "ui8")
        self.micro = [emit_tiles_microkernel(p.module, form.elem, spec, high, rows_first, listed=True) for high in (1, 2)]
        self.turn = _emit_turn(p)
        self.f = f = kernel_fn(p.module, tiles_kernel_name(p))
        *_, self.scratch = f.args
        self.geo = load_geometry(f, f.args[0])
        self.image_blocks, self.row_blocks, self.column_blocks = self.geo.flat, self.geo.panels, self.geo.blocks
        types = [*KERNEL_TYPES, PTR, PTR, I64, I64, *([PTR] if p.gated else []), PTR]
        begin, end, self.batch, self.plane_blocks, *self.gates, kept = load_args(f, types)[len(KERNEL_TYPES) :]
        self.blocks = Blocks(f, kept)
        self.bounds = (begin, end)
        rows, columns = f.ceildivu(self.geo.oh, self.row_blocks), f.ceildivu(self.geo.ow, self.column_blocks)
        self.planes = f.add(f.ceildivu(self.geo.od, self.plane_blocks), form.deep.reach)
        self.plane, self.width = form.plane(f, rows, columns), f.add(columns, form.across.reach)
        at = _Scratch(form)
        places = (0, at.list, at.sums, at.rows, at.heads, at.weights, at.largest, at.outputs)
        self.config, self.list, self.sums, self.rows, self.heads, self.weights, self.largest, self.outputs = (
            f.gep(self.scratch, offset, I8) for offset in places
        )
        self.image = f.gep(self.outputs, _outputs_bytes(f, rows, columns), I8)

    def emit(self) -> str:
        """Walks the blocks of the kernel's items; the weight panels of a block share its image."""
        f, p, geo = self.f, self.p, self.geo
        configure_whole(f, self.config)
        with f.when(self.blocks.is_first_range()):
            self._list_steps()
        flat = f.mul(self.row_blocks, self.column_blocks)
        parts = f.mul(self.plane_blocks, flat)
        with self.blocks.each(p.channel_panels) as (number, lo, hi, other):
            part, image_group = f.remu(number, parts), f.divu(number, parts)
            images, group = f.divu(image_group, p.groups), f.remu(image_group, p.groups)
            planes, part = f.divu(part, flat), f.remu(part, flat)
            b = _Block(
                group,
                *self._part(self.batch, self.image_blocks, images),
                *self._part(geo.od, self.plane_blocks, planes),
                *self._part(geo.oh, self.row_blocks, f.divu(part, self.column_blocks)),
                *self._part(geo.ow, self.column_blocks, f.remu(part, self.column_blocks)),
            )
            with f.when(other):
                self._lay(b)
                self._list_outputs(b.rows, b.columns)
            if self.form.together > 1:
                self._groups_together(b)
            else:
                with f.loop(lo, hi) as panel:
                    self._panel(b, panel.iv, f.cmp("lt", f.add(panel.iv, 1), hi))
        on_tiles(f, tiles_of(f).release)
        f.done()
        return tiles_kernel_name(p)

    def _part(self, size: V, parts: V, part: V) -> tuple[V, V]:
        """Where one of nearly equal parts begins, and how long it is."""
        f = self.f
        begin = f.divu(f.mul(size, part), parts)
        return begin, f.sub(f.divu(f.mul(size, f.add(part, 1)), parts), begin)

    def _list_steps(self) -> None:
        """Where the left tile of each step lies, in the order of weights: blocks of channels, points, channels."""
        f, form = self.f, self.form
        with f.loop(0, form.step_groups, self._block_steps) as block:
            count = f.min(f.sub(form.step_groups, block.iv), self._block_steps)
            at = f.gep(self.list, f.mul(block.iv, form.points), I64)
            windows = product(range(form.deep.kernel), range(form.down.kernel), range(form.across.kernel))
            for number, (z, y, x) in enumerate(windows):
                places = zip((form.deep, form.down, form.across), (z, y, x), strict=True)
                (deep, plane), (down, row), (across, column) = (phases.place(point) for phases, point in places)
                with f.loop(0, count) as c:
                    at_plane = self._plane(f.add(block.iv, c.iv), deep, f.i64(plane), down * len(form.across.all) + across)
                    place = f.add(f.mul(at_plane, self.plane), f.add(f.mul(self.width, row), column))
                    f.store(f.mul(place, ROW_BYTES), f.gep(at, f.add(f.mul(count, number), c.iv), I64))

    def _plane(self, step: V, deep: int, plane: V, phase: int) -> V:
        """Number of a plane of a step's channels among those of an image, by its phase and its place there, and the phase of its
        rows and columns."""
        f, form = self.f, self.form
        return f.add(f.mul(f.add(f.mul(f.add(f.mul(step, len(form.deep.all)), deep), self.planes), plane), form.phases), phase)

    @property
    def _block_steps(self) -> int:
        """Steps at a point, of a block of channels."""
        return -(-min(self.form.layout.block_channels, self.form.layout.group_in) // self.form.step_channels)

    def _laid(self, image: V, plane: V) -> V:
        """Where one of the block's images lies, from one of its planes on."""
        f, form = self.f, self.form
        planes = f.mul(image, f.mul(self.planes, form.step_groups * len(form.deep.all) * form.phases))
        return f.gep(self.image, f.mul(f.mul(f.add(planes, f.mul(plane, form.phases)), self.plane), ROW_BYTES), I8)

    def _lay(self, b: _Block) -> None:
        """The block's part of its images."""
        f = self.f
        if self.form.together > 1:
            f.store(f.const(0, NUMBERS), self.largest)
        with f.loop(0, b.images) as image:
            self._lay_image(b, image.iv)

    def _groups_together(self, b: _Block) -> None:
        """The product of a block with several groups' weights, at once, or group by group if the image has a NaN or an infinity,
        which must not meet the zeros between groups."""
        f, form = self.f, self.form
        numbers = f.cmp("lt", f.reduce("maxsi", f.load(self.largest, NUMBERS)), INFINITY)
        none, no = f.i64(0), f.const(0, I1)

        def one_by_one() -> list[V]:
            with f.loop(0, form.together) as group:
                self._lay(b)
                self._keep(b, group.iv)
                self._panel(b, none, no, group.iv)
            return []

        def at_once() -> list[V]:
            self._panel(b, none, no)
            return []

        f.if_else(numbers, at_once, one_by_one, [])

    def _keep(self, b: _Block, group: V) -> None:
        """Makes zeros of what the block's images have of other groups that are multiplied together."""
        f, form, each = self.f, self.form, self.p.group_in // self.form.together
        channels = f.sub(f.dense(range(NUMBERS_OF_ROW), "i16"), f.splat(f.cast(f.mul(group, each), "i16"), NUMBERS_OF_ROW))
        kept = f.cmp("ult", channels, f.const(each, NUMBERS))
        lines = f.mul(f.mul(b.images, form.planes(f, f.sub(self.planes, form.deep.reach))), self.plane)
        with f.loop(0, lines) as line:
            at = f.gep(self.image, f.mul(line.iv, ROW_BYTES), I8)
            f.store(f.select(kept, f.load(at, NUMBERS), f.const(0, NUMBERS)), at)

    def _lay_image(self, b: _Block, image: V) -> None:
        """The block's part of one of its images, of all channels and phases."""
        f, p, geo, form = self.f, self.p, self.geo, self.form
        with f.loop(0, form.step_groups) as c:
            before = f.mul(c.iv, form.step_channels)
            channels = f.min(f.sub(form.layout.group_in, before), form.step_channels)
            first = f.add(f.mul(b.group, p.group_in), before)
            if form.ends_early:
                channels = f.min(channels, f.sub(form.channels[0], first))
            number = f.add(b.image, image)
            x = f.gep(geo.x, f.add(f.mul(number, geo.sxb), f.mul(first, geo.sxc)), p.stored)
            gates = [f.gep(all_of, f.add(f.mul(number, form.channels[0]), first), p.stored) for all_of in self.gates]
            for phase, deep in enumerate(form.deep.all):
                with f.loop(0, f.add(b.planes, form.deep.reach)) as k:
                    z = form.deep.first(f, deep, f.add(b.plane, k.iv))
                    inside = f.and_(f.cmp("ge", z, 0), f.cmp("lt", z, geo.id))
                    to = f.mul(self._plane(c.iv, phase, k.iv, 0), f.mul(self.plane, ROW_BYTES))
                    start = f.gep(self._laid(image, f.i64(0)), to, I8)
                    self._lay_plane(b, f.gep(x, f.mul(z, geo.sxd), p.stored), channels, gates, inside, start)

    def _lay_plane(self, b: _Block, x: V, channels: V, gates: list[V], inside: V, to: V) -> None:
        """The block's part of a plane of some channels, if the image has it, of all phases of rows and columns. `gates`: where
        theirs are, if there are such."""
        f, p, geo, form = self.f, self.p, self.geo, self.form
        count = f.add(b.columns, form.across.reach)
        for number, (down, across) in enumerate(product(form.down.all, form.across.all)):
            start = f.gep(to, f.mul(self.plane, number * ROW_BYTES), I8)
            column = form.across.first(f, across, b.column)
            with f.loop(0, f.add(b.rows, form.down.reach)) as j:
                y = form.down.first(f, down, f.add(b.row, j.iv))
                has = f.and_(inside, f.and_(f.cmp("ge", y, 0), f.cmp("lt", y, geo.ih)))
                row, at = f.gep(x, f.mul(y, geo.sxh), p.stored), f.gep(start, f.mul(f.mul(j.iv, self.width), ROW_BYTES), I8)
                limit = f.select(has, geo.iw, 0)
                f.call(self.lay, [row, channels, geo.sxc, column, count, limit, at, *self.bounds, *gates])
                if form.together > 1:
                    f.call(emit_largest(p), [at, count, self.largest])

    def _list_outputs(self, rows: V, columns: V) -> None:
        """Where sums of each output lie among those of positions, in bytes."""
        f, lanes = self.f, self.p.lanes
        steps = f.dense([i * SUMS_ROW_BYTES for i in range(lanes)], I32)
        with f.loop(0, rows) as r, f.loop(0, columns, lanes) as c:
            position = f.add(f.mul(r.iv, self.width), c.iv)
            to = f.gep(self.outputs, f.add(f.mul(r.iv, columns), c.iv), I32)
            f.store(f.add(steps, f.splat(f.cast(f.mul(position, SUMS_ROW_BYTES), I32), lanes)), to)

    def _panel(self, b: _Block, panel: V, more: V, group: V | None = None) -> None:
        """A weight panel by all positions of the block, some at a time. If `more` panels follow, the next is fetched meanwhile. Of
        groups that are multiplied together the results of one alone are handed on, if it's given."""
        f, p = self.f, self.p
        w, ahead = self._weights(f.add(f.mul(b.group, p.channel_panels), panel))
        positions = f.add(f.mul(f.sub(b.rows, 1), self.width), b.columns)
        calls, none, lines = f.ceildivu(positions, PANEL_ROWS), f.int_to_ptr(f.i64(0)), STEP_BYTES // LINE_BYTES
        each = f.mul(calls, f.mul(b.images, b.planes))
        share = f.ceildivu(f.i64(lines), each)  # of a step's lines of the next panel, for each call
        with f.loop(0, b.images) as image, f.loop(0, b.planes) as plane, f.loop(0, positions, _TOGETHER) as some:
            number = f.mul(f.add(f.mul(image.iv, b.planes), plane.iv), calls)
            last = f.min(f.add(some.iv, _TOGETHER), positions)
            with f.loop(some.iv, last, PANEL_ROWS) as q:
                to = f.gep(self.sums, f.mul(f.sub(q.iv, some.iv), SUMS_ROW_BYTES), I8)
                left = f.gep(self._laid(image.iv, plane.iv), f.mul(q.iv, ROW_BYTES), I8)
                before = f.mul(f.add(number, f.divu(q.iv, PANEL_ROWS)), share)
                needed = f.select(f.and_(more, f.cmp("lt", before, lines)), share, 0)
                fetch = [f.gep(ahead, f.mul(before, self.form.steps * LINE_BYTES), I8), needed, f.i64(LINE_BYTES)]
                rows_of = [left, f.i64(ROW_BYTES), self.list, f.i64(TILE_BYTES), w, f.i64(self.form.steps)]
                begun = [self.heads if p.heads else to, f.i64(1 if p.heads else 0)]
                args = [*rows_of, none, f.i64(0), none, f.i64(0), *begun, to, f.i64(SUMS_ROW_BYTES), *fetch]
                single = f.cmp("le", f.sub(last, q.iv), TILE_ROWS)

                def multiply(micro: str, args: list[V] = args) -> list[V]:
                    f.call(micro, args)
                    return []

                f.if_else(single, lambda: multiply(self.micro[0]), lambda: multiply(self.micro[1]), [])
            self._finish(b, [f.add(b.image, image.iv), f.add(b.plane, plane.iv)], panel, group, some.iv, last)

    def _weights(self, panel: V) -> tuple[V, V]:
        """Where a panel's weights lie, and those to fetch ahead. What its sums begin with, a row before the weights of other
        kernels, is laid 32 times."""
        f, p, form = self.f, self.p, self.form
        own, few = (p.heads + p.depth) * SUMS_ROW_BYTES, form.layout.depth * SUMS_ROW_BYTES
        at = f.gep(self.geo.w, f.mul(panel, own), I8)
        if p.heads:
            ty = vec(I32, p.lanes)
            head = [f.load(f.gep(at, column, I32), ty) for column in range(0, PANEL_COLUMNS, p.lanes)]
            with f.loop(0, PANEL_ROWS) as row:
                for i, x in enumerate(head):
                    f.store(x, f.gep(f.gep(self.heads, f.mul(row.iv, SUMS_ROW_BYTES), I8), i * p.lanes, I32))
        if form.offset:
            w = f.gep(f.gep(self.geo.w, form.offset, I8), f.mul(panel, few), I8)
        else:
            w = f.gep(at, p.heads * SUMS_ROW_BYTES, I8)
        ahead = f.gep(w, few if form.offset else own, I8)
        return (self._whole_steps(w) if form.splits_steps else w), ahead

    def _whole_steps(self, w: V) -> V:
        """A panel of weights, zeros behind the last unit of each point."""
        f, points = self.f, self.form.points
        lanes, units, some = self.p.spec.lanes(I32), self.form.layout.units, self._block_steps * STEP_UNITS
        nbytes = lanes * 4
        with f.loop(0, units, some) as block:
            count = f.min(f.sub(units, block.iv), some)
            whole = f.mul(f.ceildivu(count, STEP_UNITS), STEP_BYTES)
            with f.loop(0, points) as point:
                before = f.add(f.mul(block.iv, points), f.mul(count, point.iv))
                source = f.gep(w, f.mul(before, SUMS_ROW_BYTES), I8)
                # Blocks before the last one are whole steps.
                start = f.add(f.mul(block.iv, points * SUMS_ROW_BYTES), f.mul(whole, point.iv))
                to, copied = f.gep(self.weights, start, I8), f.mul(count, SUMS_ROW_BYTES)
                with f.loop(0, copied, nbytes) as at:
                    f.store(f.load(f.gep(source, at.iv, I8), vec(I32, lanes)), f.gep(to, at.iv, I8))
                with f.loop(copied, whole, nbytes) as at:
                    f.store(f.const(0, vec(I32, lanes)), f.gep(to, at.iv, I8))
        return self.weights

    def _finish(self, b: _Block, place: list[V], panel: V, group: V | None, first: V, last: V) -> None:
        """Hands sums of the positions [first, last) of an image's plane that are outputs to the epilogue, as rows of channels."""
        f, p, geo, columns = self.f, self.p, self.geo, b.columns
        image, plane = place
        row0 = f.add(f.mul(plane, geo.oh), b.row)
        m0 = f.add(f.mul(b.group, p.group_out), f.mul(panel, PANEL_COLUMNS))
        channels, first_row = f.min(f.sub(p.group_out, f.mul(panel, PANEL_COLUMNS)), PANEL_COLUMNS), f.i64(0)
        if group is not None:
            each = p.group_out // self.form.together
            channels, first_row = f.i64(each), f.mul(group, each)
            m0 = f.add(m0, first_row)
        if self.form.ends_early:
            channels = f.max(f.min(channels, f.sub(self.form.channels[1], m0)), 0)

        def outputs(position: V) -> V:
            """Of the positions before."""
            row = f.divu(position, self.width)
            return f.add(f.mul(row, columns), f.min(f.sub(position, f.mul(row, self.width)), columns))

        v0, v1 = outputs(first), outputs(last)
        base = f.gep(self.sums, f.mul(first, -SUMS_ROW_BYTES), I8)
        f.call(self.turn, [base, f.gep(self.outputs, v0, I32), f.sub(v1, v0), self.rows])
        # Rows of outputs follow each other where the block has all of their columns.
        whole = f.cmp("eq", columns, geo.ow)
        begin, end = f.divu(v0, columns), f.ceildivu(v1, columns)
        segments = f.select(f.cmp("gt", v1, v0), f.select(whole, f.i64(1), f.sub(end, begin)), 0)
        with f.loop(0, segments) as s:
            row = f.mul(f.add(begin, s.iv), columns)
            lo = f.select(whole, v0, f.max(row, v0))
            hi = f.select(whole, v1, f.min(f.add(row, columns), v1))
            r = f.divu(lo, columns)
            n0 = f.add(f.mul(f.add(row0, r), geo.ow), f.add(b.column, f.sub(lo, f.mul(r, columns))))
            tile = f.gep(self.rows, f.add(f.mul(first_row, _ROW), f.sub(lo, v0)), F32)
            f.call_ptr(geo.epilogue, [geo.eargs, tile, f.i64(_ROW), image, m0, n0, channels, f.sub(hi, lo)])


def _emit_turn(p: ConvParams) -> str:
    """Emits `conv_turn_sums(sums, outputs, count, to)` once and returns its symbol: to[32][_ROW] are the sums [32] of `count`
    outputs, which lie `outputs` bytes from `sums` on, with undefined ones behind them."""
    name, lanes = "conv_turn_sums", p.lanes
    if name in p.module.functions:
        return name
    f = Fn(p.module, name, [("sums", PTR), ("outputs", PTR), ("count", I64), ("to", PTR)], noinline=True)
    sums, outputs, count, to = f.args
    last = f.sub(count, 1)
    with f.loop(0, count, lanes) as at:
        places = [f.min(f.add(at.iv, i), last) for i in range(lanes)]
        rows = [f.gep(sums, f.cast(f.load(f.gep(outputs, place, I32), I32), I64), I8) for place in places]
        for column in range(0, PANEL_COLUMNS, lanes):
            block = [f.load(f.gep(row, column, F32), vec(F32, lanes)) for row in rows]
            for j, row in enumerate(transpose_block(f, block)):
                f.store(row, f.gep(f.gep(to, (column + j) * _ROW, F32), at.iv, F32))
    f.done()
    return name
