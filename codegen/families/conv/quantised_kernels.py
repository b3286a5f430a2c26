"""Kernels of convolutions of bytes: some channels side by side in units, and register tiles that add their dot products."""

from __future__ import annotations

from dhlo.codegen.families.broadcast import broadcast_each
from dhlo.codegen.families.conv.gemm import ConvKernel
from dhlo.codegen.families.conv.microkernel import lines_of_step
from dhlo.codegen.families.conv.params import ConvParams
from dhlo.codegen.families.gemm.multiply_add import add_pair_products, multiply_add
from dhlo.codegen.families.gemm.register_tile import SIGN_BITS, TileSpec
from dhlo.codegen.kernel_ir.builder import BITS, I8, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args

__all__ = ["BLOCK", "ByteConvKernel", "emit_units", "unit_channels"]

BLOCK = 4096
"""Positions of an item of the kernel that makes units."""


def unit_channels(spec: TileSpec) -> int:
    """Channels of a unit, an i32: four bytes, or two integers of 16 bits where the target has products of such pairs and none of
    bytes, so that nothing is taken apart."""
    return 2 if spec.dot(I8) is None and spec.target.pair_products else 4


class ByteConvKernel(ConvKernel):
    """The implicit matrix product of convolutions whose elements are units of bytes. The first row of a weight panel holds what
    sums begin with."""

    def microkernel(self, rows: int, ldb: int) -> str:
        return _emit_tile(self.p, rows, ldb, self.swapped)


def _emit_tile(p: ConvParams, mr: int, ldb: int, swapped: bool) -> str:
    """As `emit_strided_microkernel`, of units, with i32 sums. The weights are `a`, or `b` if `swapped`: without `accumulate` sums
    begin with the row before them."""
    module, spec = p.module, p.spec
    side = "swapped" if swapped else "normal"
    name = f"conv_ukr_bytes_{spec.name}_{mr}_{side}" + (f"_ld{ldb}" if ldb != p.nr else "")
    if name in module.functions:
        return name
    lanes, ty = p.lanes, vec(I32, p.lanes)
    halves = range(spec.vectors)
    types = (PTR, I64, PTR, I64, PTR, I64, I64, PTR, I64)
    names = ("a", "lda", "b", "k", "tile", "ld", "accumulate", "ahead", "step")
    f = Fn(module, name, list(zip(names, types, strict=True)), noinline=True)
    a, lda, b, k, tile, ld, accumulate, ahead, step = f.args
    lines = lines_of_step(f, p.panel * BITS[I32] // 8, spec.per_panel, step)
    cells = [f.gep(f.gep(tile, f.mul(ld, i), I32), h * lanes, I32) for i in range(mr) for h in halves]

    def fresh() -> list[V]:
        if swapped:
            head = f.gep(b, -ldb, I32)
            return [f.load(f.gep(head, h * lanes, I32), ty) for h in halves] * mr
        head = f.gep(a, f.neg(lda), I32)
        return [x for x in broadcast_each(f, head, mr, I32, lanes) for _ in halves]

    start = f.if_else(f.cmp("ne", accumulate, 0), lambda: [f.load(c, ty) for c in cells], fresh, [ty] * len(cells))
    with f.loop(0, k, 1, [a, b, ahead, *start]) as lp:
        pa, pb, next_row, *acc = lp.carried
        for line in lines:
            f.prefetch(f.gep(next_row, line, I8), 2)
        vb = [f.load(f.gep(pb, h * lanes, I32), ty) for h in halves]
        for i, x in enumerate(broadcast_each(f, pa, mr, I32, lanes)):
            for h in halves:
                at = i * spec.vectors + h
                position, weight = (x, vb[h]) if swapped else (vb[h], x)
                acc[at] = _add_products(f, spec, position, weight, acc[at])
        lp.yield_(f.gep(pa, lda, I32), f.gep(pb, ldb, I32), f.gep(next_row, step, I8), *acc)
    for cell, value in zip(cells, lp.results[3:], strict=True):
        f.store(value, cell)
    f.done()
    return name


def _add_products(f: Fn, spec: TileSpec, position: V, weight: V, total: V) -> V:
    """total + the dot products of units."""
    if unit_channels(spec) == 4:
        return multiply_add(f, I8, spec, position, weight, total)
    return add_pair_products(f, position, weight, total)


def emit_units(module: KernelModule, spec: TileSpec, channels: int, zero: int | None) -> str:
    """Emits (once) the kernel that brings images to the form that the others read; returns its symbol.

    Args (x, to, positions, blocks): x is [images * groups][channels][positions] of i8, or of ui8 if `spec.unsigned`. With `zero`
    None `to` is [images * groups][units][positions][unit_channels], bytes as the target's dot product wants them
    (`TileSpec.flips`) or 16 bits each, the last unit filled up with anything. Else it is [images * groups][channels][positions] of
    i32, less `zero`. Items are (image and group, unit, block of BLOCK positions), `blocks` of them in an image.
    """
    flips = zero is None and spec.flips(I8)
    what = f"units_of_{unit_channels(spec)}" if zero is None else f"less_{zero}"
    name = f"conv_{what}_{'ui8' if spec.unsigned else 'i8'}_c{channels}{'_flipped' if flips else ''}".replace("-", "m")
    if name in module.functions:
        return name
    depth = unit_channels(spec) if zero is None else 1
    bits = 32 // depth
    units = -(-channels // depth)
    f = kernel_fn(module, name)
    x, to, positions, blocks = load_args(f, [PTR, PTR, I64, I64])
    _, begin, end, *_ = f.args
    lanes = f.target.lanes(I32)

    def unit(rows: list[V], at: V, out: V, lanes: int) -> None:
        """A vector of units, or one."""
        narrow, wide = (vec(I8, lanes), vec(I32, lanes)) if lanes else (I8, I32)
        value = f.const(0, wide)
        for i, row in enumerate(rows):
            byte = f.cast(f.load(f.gep(row, at, I8), narrow), I32, signed=bits > 8 and not spec.unsigned)
            if i:
                value = f.or_(value, f.shl(byte, bits * i))
            else:
                value = f.and_(byte, 0xFFFF) if depth == 2 and not spec.unsigned else byte
        if flips:
            value = f.xor(value, SIGN_BITS)
        f.store(f.sub(value, zero) if zero else value, f.gep(out, at, I32))

    with f.loop(begin, end) as items:
        number, block = f.divu(items.iv, blocks), f.remu(items.iv, blocks)
        image, first = f.divu(number, units), f.mul(f.remu(number, units), depth)
        start = f.mul(block, BLOCK)
        n = f.min(f.sub(positions, start), BLOCK)
        plane = f.gep(x, f.add(f.mul(f.mul(image, channels), positions), start), I8)
        rows = [f.gep(plane, f.mul(f.min(f.add(first, i), channels - 1), positions), I8) for i in range(depth)]
        out = f.gep(to, f.add(f.mul(number, positions), start), I32)
        whole = f.and_(n, -lanes)
        with f.loop(0, whole, lanes) as lp:
            unit(rows, lp.iv, out, lanes)

        def last() -> list[V]:
            """The last whole vector again, further on."""
            with f.when(f.cmp("lt", whole, n)):
                unit(rows, f.sub(n, lanes), out, lanes)
            return []

        def few() -> list[V]:
            with f.loop(0, n) as lp:
                unit(rows, lp.iv, out, 0)
            return []

        f.if_else(f.cmp("ge", n, lanes), last, few, [])
    f.done()
    return name
