"""Kernel of a convolution and the depthwise convolution of its result, which never leaves a worker's scratch.

Items are (image, band of output rows, panel of channels), the panel fastest. Of a band, a worker packs the input once, and for each
panel keeps in its scratch, channels innermost so that they fill vectors at any width and stride of the image:

    windows    [expanded row][part of the row][kernel point][input channel, or pair][rows of a register tile]
    expanded   [expanded row][padding | width | padding][panel]  zeros where the image ends
    sums       [output position][panel]                          of some rows, transposed for the epilogue
    decoded    [depth of the first sum][panel]                   where its weights are kept as codes

Neighbouring bands both compute the rows that their windows share. A kernel serves all convolutions of a window: channels and image
sizes are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dhlo.codegen.families.blocks import Blocks
from dhlo.codegen.families.conv.chain_expand import emit_pack
from dhlo.codegen.families.conv.chain_window import Window, part_of_row
from dhlo.codegen.families.conv.microkernel import emit_transpose
from dhlo.codegen.families.conv.quantised_weights import emit_decode, row_bytes
from dhlo.codegen.kernel_ir.builder import I8, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args

__all__ = ["emit_chain_kernel", "scratch_bytes"]

_FIELDS = (
    "x", "w1", "inner", "inner_args", "w2", "epilogue", "eargs", "in_channels", "depth", "channels", "ih", "iw", "h", "w",
    "oh", "ow", "sxb", "sxc", "bands", "held", "kept",
)  # fmt: skip
"""Arguments. w1, inner, inner_args: weights of the first convolution, and what makes rows of its results; depth: of its sums;
ih, iw: its image; h, w: its result's, the expanded image; sxb, sxc: strides of batch and channel in elements; bands: of an
image, nearly equal ones; held: the most expanded rows that a band needs; kept: what workers keep of bands."""
_POINTERS = {"x", "w1", "inner", "inner_args", "w2", "epilogue", "eargs", "kept"}
# Output positions transposed and handed to the epilogue together, and how far its tile's rows are apart: not a power of two.
_POSITIONS, _LD = 128, 144


def _fixed_elements(w: Window) -> int:
    return w.panel * _LD


def scratch_bytes(w: Window, f: Fn, depth: int, width: V, out_width: V, rows: V) -> V:
    """Scratch of a worker for bands of up to `rows` expanded rows."""
    sums = f.mul(f.add(f.max(out_width, _POSITIONS), w.lanes), w.panel)
    fixed = _fixed_elements(w) + (depth * w.panel if w.decodes else 0)
    return f.mul(f.add(f.add(sums, fixed), f.mul(rows, w.row_elements(f, depth, width))), w.bytes)


@dataclass(frozen=True)
class _Arguments:
    x: V
    w1: V
    inner: V
    inner_args: V
    w2: V
    epilogue: V
    eargs: V
    in_channels: V
    depth: V
    channels: V
    ih: V
    iw: V
    h: V
    w: V
    oh: V
    ow: V
    sxb: V
    sxc: V
    bands: V
    held: V
    kept: V


def _emit_line(w: Window, module: KernelModule, count: int) -> str:
    """`line(x, row, weights, lo, hi, out)`: `count` neighbouring outputs of a vector of channels, over the kernel's rows [lo, hi).

    `x` is where the first window begins, `row` elements from one kernel row to the next; positions are a panel apart."""
    name = f"{w.name}_line_{count}"
    if name in module.functions:
        return name
    args = [("x", PTR), ("row", I64), ("weights", PTR), ("lo", I64), ("hi", I64), ("out", PTR)]
    f = Fn(module, name, args, noinline=True)
    x, row, weights, lo, hi, out = f.args
    ty, columns = vec(w.elem, w.lanes), w.kernel[1]
    with f.loop(lo, hi, 1, [f.const(0.0, ty)] * count) as lp:
        sums = list(lp.carried)
        line, factors = f.gep(x, f.mul(lp.iv, row), w.elem), f.gep(weights, f.mul(lp.iv, columns * w.panel), w.elem)
        held = [f.load(f.gep(factors, k * w.panel, w.elem), ty) for k in range(columns)]
        users: dict[int, list[tuple[int, int]]] = {}
        for o in range(count):
            for k in range(columns):
                users.setdefault(o * w.stride[1] + k * w.dilation[1], []).append((o, k))
        for position in sorted(users):
            value = f.load(f.gep(line, position * w.panel, w.elem), ty)
            for o, k in users[position]:
                sums[o] = f.fma(value, held[k], sums[o])
        lp.yield_(*sums)
    for o, total in enumerate(lp.results):
        f.store(total, f.gep(out, o * w.panel, w.elem))
    f.done()
    return name


class _Kernel:
    """Emits the kernel of a window."""

    def __init__(self, module: KernelModule, w: Window) -> None:
        self.window = w
        self.pack = emit_pack(w, module)
        self.lines = f"{w.name}_lines"
        module.add_pointers(self.lines, [_emit_line(w, module, n + 1) for n in range(w.outputs)])
        self.transpose = emit_transpose(module, w.elem, w.lanes, w.spec)
        self.f = f = kernel_fn(module, w.name)
        *_, scratch = f.args
        types = [PTR if n in _POINTERS else I64 for n in _FIELDS]
        values = load_args(f, [*types, PTR] if w.bounded else types)
        self.a = a = _Arguments(*values[: len(_FIELDS)])
        self.bounds = (a.x, values[-1]) if w.bounded else ()
        self.row, self.slot = w.row(f, a.w), w.slot(f, a.depth)
        self.tile = scratch
        self.sums = f.gep(scratch, _fixed_elements(w), w.elem)
        self.expanded = f.gep(self.sums, f.mul(f.add(f.max(a.ow, _POSITIONS), w.lanes), w.panel), w.elem)
        self.packed = f.gep(self.expanded, f.mul(a.held, self.row), w.elem)
        self.packed_row = f.mul(f.ceildivu(a.w, w.spec.mr), self.slot)
        self.decoded = f.gep(self.packed, f.mul(a.held, self.packed_row), w.elem) if w.decodes else None

    def emit(self) -> str:
        """Walks the bands of the kernel's items; the panels of a band share its packed input."""
        f, a, w = self.f, self.a, self.window
        bands = Blocks(f, a.kept)
        with f.when(bands.is_first_range()):
            self.clear_padding()
        with bands.each(f.ceildivu(a.channels, w.panel)) as (number, lo, hi, other):
            image, band = f.divu(number, a.bands), f.remu(number, a.bands)
            r0, r1 = (f.divu(f.mul(n, a.oh), a.bands) for n in (band, f.add(band, 1)))
            y0 = f.min(f.max(f.sub(f.mul(r0, w.stride[0]), w.padding[0][0]), 0), a.h)
            y1 = f.add(f.sub(f.mul(r0, w.stride[0]), w.padding[0][0]), w.span(f.sub(r1, r0), f))
            rows = f.max(f.sub(f.min(y1, a.h), y0), 0)
            x = f.gep(a.x, f.mul(image, a.sxb), w.stored)
            with f.when(other), f.loop(0, rows) as y:
                to = f.gep(self.packed, f.mul(y.iv, self.packed_row), w.elem)
                f.call(self.pack, [x, a.sxc, a.in_channels, a.ih, a.iw, f.add(y0, y.iv), a.w, self.slot, to, *self.bounds])
            with f.loop(lo, hi) as panel:
                c0 = f.mul(panel.iv, w.panel)
                self.panel(image, c0, f.min(f.sub(a.channels, c0), w.panel), r0, r1, y0)
        f.done()
        return f.name

    def clear_padding(self) -> None:
        """Zeros beside the image, which nothing overwrites."""
        f, a, w = self.f, self.a, self.window
        before, after = w.padding[1]
        zero = f.const(0.0, vec(w.elem, w.lanes))
        with f.loop(0, a.held) as y:
            row = f.gep(self.expanded, f.mul(y.iv, self.row), w.elem)
            for start, count in ((f.i64(0), before), (f.mul(f.add(a.w, before), w.panel), after)):
                with f.loop(0, count * w.panel, w.lanes) as at:
                    f.store(zero, f.gep(row, f.add(start, at.iv), w.elem))

    def expand(self, image: V, c0: V, channels: V, y: V, held: V) -> None:
        """A row of the first convolution for a panel, finished."""
        f, a, w = self.f, self.a, self.window
        row = f.gep(self.expanded, f.add(f.mul(held, self.row), w.padding[1][0] * w.panel), w.elem)
        packed = f.gep(self.packed, f.mul(held, self.packed_row), w.elem)
        weights = self.decoded or f.gep(a.w1, f.mul(c0, a.depth), w.elem)
        places = [image, c0, f.mul(y, a.w), a.w, channels]
        f.call_ptr(a.inner, [a.inner_args, packed, self.slot, weights, a.depth, row, *places])

    def panel(self, image: V, c0: V, channels: V, r0: V, r1: V, y0: V) -> None:
        """A panel of a band to the epilogue: some output rows at a time, after the rows of the first convolution that they need."""
        f, a, w = self.f, self.a, self.window
        weights = f.gep(a.w2, f.mul(c0, w.kernel[0] * w.kernel[1]), w.elem)
        if self.decoded is not None:
            codes = f.gep(a.w1, f.mul(f.divu(c0, w.panel), f.mul(a.depth, row_bytes(w.code, w.panel))), I8)
            f.call(emit_decode(f.module, w.code, w.spec), [codes, a.depth, self.decoded])
        together = f.max(f.divu(f.i64(_POSITIONS), f.max(a.ow, 1)), 1)
        with f.loop(r0, r1, together, [f.i64(0)]) as lp:
            last = f.min(f.add(lp.iv, together), r1)
            below = f.sub(f.add(f.mul(f.sub(last, 1), w.stride[0]), w.reach), w.padding[0][0])
            needed = f.max(f.sub(f.min(below, a.h), y0), lp.carried[0])
            with f.loop(lp.carried[0], needed) as y:
                self.expand(image, c0, channels, f.add(y0, y.iv), y.iv)
            with f.loop(lp.iv, last) as r:
                self.sum_row(weights, channels, r.iv, y0, f.gep(self.sums, f.mul(f.sub(r.iv, lp.iv), f.mul(a.ow, w.panel)), w.elem))
            positions = f.mul(f.sub(last, lp.iv), a.ow)
            with f.loop(0, positions, _POSITIONS) as block:
                n = f.min(f.sub(positions, block.iv), _POSITIONS)
                source = f.gep(self.sums, f.mul(block.iv, w.panel), w.elem)
                with f.loop(0, n, w.lanes) as p:
                    f.call(
                        self.transpose,
                        [f.gep(source, f.mul(p.iv, w.panel), w.elem), f.gep(self.tile, p.iv, w.elem), f.i64(_LD)],
                    )
                n0 = f.add(f.mul(lp.iv, a.ow), block.iv)
                f.call_ptr(a.epilogue, [a.eargs, self.tile, f.i64(_LD), image, c0, n0, channels, n])
            lp.yield_(needed)

    def sum_row(self, weights: V, channels: V, r: V, y0: V, out: V) -> None:
        """A row of outputs of a panel."""
        f, a, w = self.f, self.a, self.window
        step = w.dilation[0]
        top = f.sub(f.mul(r, w.stride[0]), w.padding[0][0])
        lo = f.divu(f.add(f.max(f.neg(top), 0), step - 1), step)
        hi = f.min(f.divu(f.add(f.max(f.sub(a.h, top), 0), step - 1), step), w.kernel[0])
        table = f.address_of(self.lines)
        row = f.gep(self.expanded, f.mul(f.sub(top, y0), self.row), w.elem)
        with f.loop(0, f.ceildivu(a.ow, w.outputs)) as lp:
            first, n = part_of_row(f, lp.iv, a.ow, w.outputs)
            line = f.load(f.gep(table, f.sub(n, 1), PTR), PTR)
            with f.loop(0, channels, w.lanes) as c:
                at = f.add(f.mul(first, w.stride[1] * w.panel), c.iv)
                args: list[Any] = [f.gep(row, at, w.elem), f.mul(self.row, step), f.gep(weights, c.iv, w.elem), lo, hi]
                f.call_ptr(line, [*args, f.gep(out, f.add(f.mul(first, w.panel), c.iv), w.elem)])


def emit_chain_kernel(module: KernelModule, w: Window) -> str:
    """Emits the kernel once and returns its symbol."""
    return w.name if w.name in module.functions else _Kernel(module, w).emit()
