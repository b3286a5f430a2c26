"""Direct convolution for one input channel a group: vectors along the output row, kernel points outside."""

from __future__ import annotations

from collections.abc import Sequence

from dhlo.codegen.builder import I1, I32, Fn, V, vec
from dhlo.codegen.kernels.conv_pack import Geometry, load_geometry, load_strided
from dhlo.codegen.kernels.conv_params import ConvParams
from dhlo.codegen.launch import kernel_fn

__all__ = ["BLOCK", "depthwise_scratch_bytes", "emit_depthwise_kernel"]

# Output positions handed to the epilogue at once.
BLOCK = 256
# Kernel points up to which the sum is one straight line of code.
_UNROLL = 49
# Kernel columns up to which a kernel row is a straight line of code, and independent chains of sums.
_COLUMNS = 16
_CHAINS = 4


def depthwise_scratch_bytes(p: ConvParams) -> int:
    """Scratch of a worker: one tile row and room for the last vector's tail."""
    return (BLOCK + p.lanes) * p.bytes


def emit_depthwise_kernel(p: ConvParams) -> str:
    """Emits the kernel; items are (image, output channel, block of BLOCK positions), the block fastest."""
    f = kernel_fn(p.module, f"{p.name}_depthwise")
    args, begin, end, _, tile = f.args
    geo = load_geometry(f, args)
    per_image = f.mul(geo.blocks, p.out_channels)
    with f.loop(begin, end) as items:
        image = f.divu(items.iv, per_image)
        rest = f.sub(items.iv, f.mul(image, per_image))
        m = f.divu(rest, geo.blocks)
        p0 = f.mul(f.sub(rest, f.mul(m, geo.blocks)), BLOCK)
        stop = f.min(f.add(p0, BLOCK), geo.positions)
        channel = f.divu(m, p.out_channels // p.groups)
        x = f.gep(geo.x, f.add(f.mul(image, geo.sxb), f.mul(channel, geo.sxc)), p.elem)
        w = f.gep(geo.w, f.mul(m, p.points), p.elem)
        with f.loop(f.divu(p0, geo.ow), f.add(f.divu(f.sub(stop, 1), geo.ow), 1)) as rows:
            row_start = f.mul(rows.iv, geo.ow)
            od = f.divu(rows.iv, geo.oh)
            oh = f.sub(rows.iv, f.mul(od, geo.oh))
            z0 = f.sub(f.mul(od, p.stride[0]), p.padding[0][0])
            y0 = f.sub(f.mul(oh, p.stride[1]), p.padding[1][0])
            with f.loop(f.max(row_start, p0), f.min(f.add(row_start, geo.ow), stop), p.lanes) as chunk:
                x0 = f.sub(f.mul(f.sub(chunk.iv, row_start), p.stride[2]), p.padding[2][0])
                f.store(_Window(p, f, geo, x, w, (z0, y0, x0)).sum(), f.gep(tile, f.sub(chunk.iv, p0), p.elem))
        f.call_ptr(geo.epilogue, [geo.eargs, tile, f.i64(BLOCK), image, m, p0, f.i64(1), f.sub(stop, p0)])
    f.done()
    return f.name


class _Window:
    """The sum over the windows of a vector of outputs, whose first lane's window starts at `origin` (z, y, x)."""

    def __init__(self, p: ConvParams, f: Fn, geo: Geometry, x: V, w: V, origin: tuple[V, V, V]) -> None:
        self.p, self.f, self.geo, self.x, self.w, self.origin = p, f, geo, x, w, origin
        self.sizes = (geo.id, geo.ih, geo.iw)
        step, lanes = p.stride[2], p.lanes
        # Stride 2 loads two vectors and keeps every other element.
        self.span = 2 * lanes if step == 2 else lanes
        self.steps = f.dense([i * (1 if step == 2 else step) for i in range(self.span)], I32)
        self.reach = self.span - 1 if step == 2 else (lanes - 1) * step
        self.zero = f.const(0.0, vec(p.elem, lanes))

    def sum(self) -> V:
        """The vector of sums; windows that lie inside of the image need no masks."""
        f, p = self.f, self.p
        interior = f.cmp("ge", f.min(f.min(self.origin[0], self.origin[1]), self.origin[2]), 0)
        for d, size in enumerate(self.sizes):
            last = (p.kernel[d] - 1) * p.dilation[d] + (self.reach if d == 2 else 0)
            interior = f.and_(interior, f.cmp("lt", f.add(self.origin[d], last), size))
        inside = self.unrolled if p.points <= _UNROLL else self.looped
        return f.if_else(interior, lambda: [inside()], lambda: [self.border()], [self.zero.type])[0]

    def term(self, acc: V, k: Sequence[V | int], mask: V) -> V:
        """Adds kernel point `k`."""
        f, p = self.f, self.p
        c = [f.add(o, f.mul(k[d], p.dilation[d])) for d, o in enumerate(self.origin)]
        offset = f.add(f.add(f.mul(c[0], self.geo.sxd), f.mul(c[1], self.geo.sxh)), c[2])
        value = load_strided(p, f, f.gep(self.x, offset, p.elem), mask, self.zero)
        number = f.add(f.mul(f.add(f.mul(k[0], p.kernel[1]), k[1]), p.kernel[2]), k[2])
        return f.fma(f.load(f.gep(self.w, number, p.elem), p.elem), value, acc)

    def total(self, sums: Sequence[V]) -> V:
        out = sums[0]
        for x in sums[1:]:
            out = self.f.add(out, x)
        return out

    def unrolled(self) -> V:
        """All points in one straight line of code, in several chains to cover the latency of an FMA."""
        p, sums = self.p, [self.zero] * min(_CHAINS, self.p.points)
        everything = self.f.const(1, vec(I1, self.span))
        for number in range(p.points):
            plane, column = divmod(number, p.kernel[2])
            chain = number % len(sums)
            sums[chain] = self.term(sums[chain], (*divmod(plane, p.kernel[1]), column), everything)
        return self.total(sums)

    def looped(self) -> V:
        """All points in a loop."""
        return self.rows([(0, k) for k in self.p.kernel[:2]], None)

    def border(self) -> V:
        """Only the kernel rows that meet the image, with a mask for the columns outside."""
        f, bounds = self.f, []
        for d in range(2):
            dilation = self.p.dilation[d]
            lo = f.divu(f.add(f.max(f.neg(self.origin[d]), 0), dilation - 1), dilation)
            left = f.max(f.sub(self.sizes[d], self.origin[d]), 0)
            bounds.append((lo, f.min(f.divu(f.add(left, dilation - 1), dilation), self.p.kernel[d])))
        return self.rows(bounds, f.splat(f.cast(self.geo.iw, I32), self.span))

    def rows(self, bounds: Sequence[tuple[V | int, V | int]], width: V | None) -> V:
        """Loops over kernel planes and rows; columns in a straight line if few. Masks columns from `width` on."""
        f, p = self.f, self.p
        columns = p.kernel[2]

        def mask(column: V | int) -> V:
            if width is None:
                return f.const(1, vec(I1, self.span))
            x = f.add(self.origin[2], f.mul(column, p.dilation[2]))
            return f.cmp("ult", f.add(self.steps, f.cast(x, I32)), width)

        few = columns <= _COLUMNS
        masks = [mask(c) for c in range(columns)] if few else []
        with f.loop(*bounds[0], 1, [self.zero] * (min(_CHAINS, columns) if few else 1)) as lz:
            with f.loop(*bounds[1], 1, lz.carried) as ly:
                sums = list(ly.carried)
                if few:
                    for c in range(columns):
                        chain = c % len(sums)
                        sums[chain] = self.term(sums[chain], (lz.iv, ly.iv, c), masks[c])
                else:
                    with f.loop(0, columns, 1, sums) as lx:
                        lx.yield_(self.term(lx.carried[0], (lz.iv, ly.iv, lx.iv), mask(lx.iv)))
                    sums = lx.results
                ly.yield_(*sums)
            lz.yield_(*ly.results)
        return self.total(lz.results)
