"""Copies rows of an image with zeros around them, for targets on which masks are dear: loads from the copy need none."""

from __future__ import annotations

from dhlo.codegen.families.conv.image import load_elements
from dhlo.codegen.families.conv.params import ConvParams
from dhlo.codegen.kernel_ir.builder import I64, PTR, Fn, vec

__all__ = ["emit_pad_rows"]


def emit_pad_rows(p: ConvParams) -> str:
    """`pad(x, stride, height, width, y0, x0, rows, columns, to, ld)`: to[r][c] = x[y0 + r][x0 + c], or 0 outside of
    height x width, for r < rows, c < columns; up to lanes - 1 elements after each row are clobbered. Strides are in elements. Where
    the image is `bounded`, two more arguments say where."""
    name = f"conv_pad_{p.elem}" + (f"_{p.image}" if p.image else "")
    if name in p.module.functions:
        return name
    numbers = ("stride", "height", "width", "y0", "x0", "rows", "columns")
    bounds = [("begin", I64), ("end", I64)] if p.bounded else []
    f = Fn(p.module, name, [("x", PTR), *((n, I64) for n in numbers), ("to", PTR), ("ld", I64), *bounds], noinline=True)
    x, stride, height, width, y0, x0, rows, columns, to, ld, *_ = f.args
    limits = (f.args[10], f.args[11]) if p.bounded else None
    zero = f.const(0.0, vec(p.elem, p.lanes))
    before, first = f.min(f.max(f.neg(x0), 0), columns), f.max(x0, 0)
    held = f.max(f.min(f.sub(width, first), f.sub(columns, before)), 0)
    with f.loop(0, rows) as lp:
        y = f.add(y0, lp.iv)
        inside = f.cmp("ult", y, height)
        left, n = f.select(inside, before, 0), f.select(inside, held, 0)
        row = f.gep(to, f.mul(lp.iv, ld), p.elem)
        with f.loop(0, left, p.lanes) as c:
            f.store(zero, f.gep(row, c.iv, p.elem))
        src, dst = f.gep(x, f.add(f.mul(y, stride), first), p.stored), f.gep(row, left, p.elem)
        full = f.and_(n, -p.lanes)
        with f.loop(0, full, p.lanes) as c:
            f.store(load_elements(f, p, f.gep(src, c.iv, p.stored), p.lanes), f.gep(dst, c.iv, p.elem))
        with f.when(f.cmp("lt", full, n)):
            at = f.gep(src, full, p.stored)
            rest = load_elements(f, p, at, p.lanes, mask=f.tail_mask(f.sub(n, full), p.lanes), bounds=limits)
            f.store(rest, f.gep(dst, full, p.elem))
        with f.loop(f.add(left, n), columns, p.lanes) as c:
            f.store(zero, f.gep(row, c.iv, p.elem))
    f.done()
    return name
