"""Convolutions in matrix registers in the host program: what they would cost at the sizes of a call, and their launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dhlo.codegen.families.box import product_wake_cycles
from dhlo.codegen.families.conv.params import ConvParams
from dhlo.codegen.families.conv.tiles_form import TileForm
from dhlo.codegen.families.conv.tiles_kernel import TilesKernel, scratch_bytes, tiles_kernel_name
from dhlo.codegen.families.gemm.tiles import TILES_PAY
from dhlo.codegen.families.gemm.tiles_microkernel import PANEL_ROWS, ROW_BYTES, TILE_ROWS
from dhlo.codegen.kernel_ir.builder import KernelModule, V
from dhlo.codegen.kernel_ir.launch import HostContext

__all__ = ["ConvTiles", "TileBlocks"]

# A block's image takes so much of the second cache; its outputs are so many, and of a row so many, as windows' rows and columns at
# its edges are laid twice. Items for each thread, at least.
_IMAGE_SHARE, _MOST_OUTPUTS, _MOST_COLUMNS, _ITEMS_PER_THREAD = 4, 1024, 128, 4
# In multiply-adds of vectors, two a cycle, as measured on a Granite Rapids: a step of 32 positions by 32 output channels, whose
# tiles come from the second cache (35 ns); the call for these, with the way of its sums through rows to the epilogue; a line.
_STEP_CYCLES, _CALL_CYCLES, _LINE_CYCLES = 240, 1400, 16


@dataclass(frozen=True)
class TileBlocks:
    """How a launch is cut: blocks of images, of planes, rows and columns of outputs, how many of these the largest has, and the
    cost of one with one weight panel, and of its images, in multiply-adds of vectors."""

    image_blocks: V
    plane_blocks: V
    row_blocks: V
    column_blocks: V
    images: V
    planes: V
    rows: V
    columns: V
    panel: V
    image: V


@dataclass(frozen=True)
class ConvTiles:
    """A convolution of bf16 or bytes."""

    form: TileForm

    @staticmethod
    def of(p: ConvParams) -> ConvTiles | None:
        """None where the convolution has no such form."""
        return ConvTiles(TileForm.of(p)) if p.tiles else None

    def emit_kernel(self, module: KernelModule) -> None:
        """Adds the kernel to the module, once."""
        if tiles_kernel_name(self.form.p) not in module.functions:
            TilesKernel(self.form).emit()

    def blocks(self, host: HostContext, batch: V, out: Sequence[V]) -> TileBlocks:
        """Blocks whose images stay in the second cache, as square as rows may be, and enough of them for all threads. Small images
        are taken together, so that weights are read once for all of them."""
        f, form, p = host.fn, self.form, self.form.p
        line = form.step_groups * len(form.deep.all) * form.phases * ROW_BYTES  # of a position of a plane, all channels and phases
        room = f.divu(host.l2_bytes, _IMAGE_SHARE * line)
        most = f.max(f.min(f.divu(room, 1 + form.deep.reach), _MOST_OUTPUTS), PANEL_ROWS)
        depth, height, width = (f.max(n, 1) for n in out)
        column_blocks = f.ceildivu(width, f.min(most, _MOST_COLUMNS) if form.down.reach else most)
        columns = f.ceildivu(width, column_blocks)
        wanted, cells = f.mul(host.num_threads, _ITEMS_PER_THREAD), f.mul(f.max(batch, 1), p.groups * p.channel_panels)
        of_rows = f.divu(wanted, f.mul(f.mul(cells, depth), column_blocks))
        row_blocks = f.min(f.max(f.ceildivu(height, f.max(f.divu(most, columns), 1)), of_rows), height)
        rows = f.ceildivu(height, row_blocks)
        plane, flat = form.plane(f, rows, columns), f.mul(row_blocks, column_blocks)
        fit = f.select(f.cmp("eq", flat, 1), f.divu(room, plane), 1)  # planes, or images of as many
        of_planes = f.divu(wanted, f.mul(cells, flat))
        plane_blocks = f.min(f.max(f.ceildivu(depth, f.max(f.sub(fit, form.deep.reach), 1)), of_planes), depth)
        planes = f.ceildivu(depth, plane_blocks)
        together = f.select(f.cmp("eq", plane_blocks, 1), f.max(f.divu(fit, f.add(planes, form.deep.reach)), 1), 1)
        of_images = f.divu(wanted, p.groups * p.channel_panels)
        image_blocks = f.min(f.max(f.ceildivu(batch, together), of_images), f.max(batch, 1))
        images = f.ceildivu(f.max(batch, 1), f.max(image_blocks, 1))
        positions = f.add(f.mul(f.sub(rows, 1), f.add(columns, form.across.reach)), columns)
        cycles, many = form.steps * _STEP_CYCLES + _CALL_CYCLES, f.mul(images, planes)
        tiles = f.divu(f.mul(f.mul(f.ceildivu(positions, TILE_ROWS), many), cycles), PANEL_ROWS // TILE_ROWS)
        laid = f.mul(f.mul(f.mul(plane, images), f.add(planes, form.deep.reach)), line // ROW_BYTES * _LINE_CYCLES)
        return TileBlocks(image_blocks, plane_blocks, row_blocks, column_blocks, images, planes, rows, columns, tiles, laid)

    def _cells(self, host: HostContext, blocks: TileBlocks) -> V:
        """Blocks of all groups."""
        f = host.fn
        flat = f.mul(blocks.row_blocks, blocks.column_blocks)
        return f.mul(f.mul(blocks.image_blocks, self.form.p.groups), f.mul(blocks.plane_blocks, flat))

    def cost(self, host: HostContext, blocks: TileBlocks) -> V:
        """Multiply-adds of vectors that each thread has, modulo 2^64; no more than can be where the machine has no fast tiles."""
        f, p = host.fn, self.form.p
        all_of = f.mul(self._cells(host, blocks), f.add(f.mul(blocks.panel, p.channel_panels), blocks.image))
        fast = f.cmp("ge", host.machine("tiles_percent"), TILES_PAY)
        return f.select(fast, f.divu(all_of, host.num_threads), (1 << 63) - 1)

    def launch(self, host: HostContext, blocks: TileBlocks, shared: Sequence[V], batch: V, end: V, gates: Sequence[V] = ()) -> None:
        """`shared`: pointers, sizes and strides as `Conv.emit_launch` has them, and `gates`; `end`: where the image ends."""
        f, p = host.fn, self.form.p
        count = f.mul(self._cells(host, blocks), p.channel_panels)
        grain = f.add(f.divu(product_wake_cycles(host), f.max(blocks.panel, 1)), 1)
        scratch = scratch_bytes(self.form, f, blocks.images, blocks.planes, blocks.rows, blocks.columns)
        first = (blocks.row_blocks, blocks.column_blocks)
        host.launch(
            tiles_kernel_name(p),
            [*shared, *first, blocks.image_blocks, shared[0], end, batch, blocks.plane_blocks, *gates, host.kept()],
            count,
            grain,
            scratch,
        )
