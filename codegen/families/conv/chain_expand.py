"""The first convolution of a chain: packing of its input, and rows of its results, which are finished in registers.

Positions are the broadcast operand and channels the vector one, so that results lie with channels innermost, as the depthwise
convolution reads them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dhlo.codegen.elementwise.emit import Emitter, Slot
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.conv.chain_window import Window, part_of_row
from dhlo.codegen.families.conv.image import load_elements, load_pairs
from dhlo.codegen.families.conv.microkernel import emit_products
from dhlo.codegen.families.epilogue import Epilogue, repeated_buffers, set_sums
from dhlo.codegen.families.gemm.register_tile import TileSpec
from dhlo.codegen.families.kernel import Checks, GroupKernel, finish
from dhlo.codegen.kernel_ir.builder import F32, I32, I64, PTR, Fn, KernelModule, V
from dhlo.ir.dialect import Op
from dhlo.ir.handles import Value
from dhlo.ir.ops.control import Group

__all__ = ["Place", "Rows", "emit_pack", "lower_rows"]

Place = Callable[[Emitter, Index, Index, Index], Sequence[Index]]
"""(emitter, batch, channel, position) to the index of an element of the first convolution's result."""

# No fewer than the steps between the lanes of a vector.
_MOST_STEPS = 1 << 30

_TILE_ARGS = (
    ("eargs", PTR), ("x", PTR), ("w", PTR), ("k", I64), ("out", PTR), ("batch", I64), ("m0", I64), ("n0", I64), ("nr", I64),
)  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """What makes rows of a group's first convolution: the group, the convolution, and the value that the depthwise one reads."""

    group: Group
    anchor: Op
    result: Value
    checks: Checks
    place: Place


def emit_pack(w: Window, module: KernelModule) -> str:
    """`pack(x, channel_stride, channels, ih, iw, y, width, slot, to)`: what row `y` of the first convolution's result reads of the
    image `x`, in parts of the row as `part_of_row` cuts it, `slot` elements apart, each as [kernel point][channel, or pair of
    such][mr]. Where the image is `bounded`, two more arguments say where."""
    first, mr, lanes = w.first, w.spec.mr, w.lanes
    key = hashlib.sha256(repr(first).encode()).hexdigest()[:8]
    name = f"conv_pack_row_{w.elem}_{w.spec.name}" + ("" if first.pointwise else f"_{key}") + (f"_{w.image}" if w.image else "")
    name += "_pairs" if w.pairs else ""
    if name in module.functions:
        return name
    numbers = ("channel_stride", "channels", "ih", "iw", "y", "width", "slot")
    bounds = [("begin", PTR), ("end", PTR)] if w.bounded else []
    f = Fn(module, name, [("x", PTR), *((n, I64) for n in numbers), ("to", PTR), *bounds], noinline=True)
    x, stride, channels, ih, iw, y, width, slot, to, *_ = f.args
    limits = (f.args[9], f.args[10]) if w.bounded else None
    starts, step = range(0, mr, lanes), first.stride[1]
    span = 2 * lanes if step == 2 else lanes
    steps = f.dense([i * (1 if step == 2 else step) for i in range(span)], I32)
    with f.loop(0, f.ceildivu(width, mr)) as lp:
        begin, n = part_of_row(f, lp.iv, width, mr)
        dst = f.gep(to, f.mul(lp.iv, slot), w.elem)
        plain = [f.tail_mask(f.max(f.sub(n, s), 0), lanes) for s in starts]
        column0 = f.sub(f.mul(begin, step), first.padding[1][0])
        row0 = f.sub(f.mul(y, first.stride[0]), first.padding[0][0])
        with f.loop(0, first.kernel[0]) as ky:
            row = f.add(row0, f.mul(ky.iv, first.dilation[0]))
            limit = f.select(f.cmp("ult", row, ih), iw, 0)
            for kx in range(first.kernel[1]):
                columns = [f.add(column0, s * step + kx * first.dilation[1]) for s in starts]
                masks = plain
                if not first.pointwise:
                    masks = [_inside(f, steps, c, limit) for c in columns]
                number = f.add(f.mul(ky.iv, first.kernel[1]), kx)
                source = f.gep(x, f.add(f.mul(row, iw), columns[0]), w.stored)
                target = f.gep(dst, f.mul(f.mul(number, f.ceildivu(channels, w.step)), mr), w.elem)
                with f.loop(0, channels, w.step, [source, target]) as c:  # each overwrites what a vector writes past the one before
                    p, q = c.carried
                    for s, mask in zip(starts, masks, strict=True):
                        at = f.gep(p, s * step, w.stored)
                        if w.pairs:
                            both = f.cmp("lt", f.add(c.iv, 1), channels)
                            other = f.gep(at, f.select(both, stride, 0), w.stored)
                            value = load_pairs(f, at, other, lanes, step=step, mask=mask, both=both, bounds=limits)
                        else:
                            value = load_elements(f, w, at, lanes, step=step, mask=mask, bounds=limits)
                        f.store(value, f.gep(q, s, w.elem))
                    c.yield_(f.gep(p, f.mul(stride, w.step), w.stored), f.gep(q, mr, w.elem))
    f.done()
    return name


def _inside(f: Fn, steps: V, column: V, width: V) -> V:
    """Whether column + steps, in i32 lanes, is one of `width` columns, of which there may be more than fit an i32."""
    past = f.max(column, 0)
    left = f.min(f.max(f.sub(width, past), 0), _MOST_STEPS)
    return f.cmp(
        "ult", f.add(steps, f.splat(f.cast(f.sub(column, past), I32), steps.lanes)), f.splat(f.cast(left, I32), steps.lanes)
    )


def lower_rows(w: Window, module: KernelModule, r: Rows) -> Epilogue:
    """`rows(eargs, x, slot, w, k, out, batch, m0, n0, width, channels)`: a row of the first convolution's results, finished, for
    channels m0 to m0 + channels - 1, at most a panel, to out[position][panel].

    `x`: what `emit_pack` makes of the row, `w`: weights [k][panel]. The row's first position is n0 of image `batch`. Room for whole
    vectors of channels is written."""
    # As many lanes as elements are computed at once: there may be no more channels.
    least = w.spec.target.lanes(F32)
    vectors = least // w.lanes
    narrow = replace(w.spec, vectors=vectors, per_panel=w.spec.per_panel * w.spec.vectors // vectors)
    one = _lower_tile(w, module, r, w.spec, 1, ())
    name = f"conv_chain_rows_{w.spec.name}_{one.symbol}"
    if name in module.functions:
        return replace(one, symbol=name)
    table = f"conv_chain_tiles_{w.spec.name}_{one.symbol}"
    tiles = [_lower_tile(w, module, r, s, n + 1, one.slots).symbol for s in (w.spec, narrow) for n in range(w.spec.mr)]
    module.add_pointers(table, tiles)
    args = [("eargs", PTR), ("x", PTR), ("slot", I64), ("w", PTR), ("k", I64), ("out", PTR)]
    f = Fn(module, name, [*args, *((n, I64) for n in ("batch", "m0", "n0", "width", "channels"))], noinline=True)
    eargs, x, slot, weights, k, out, batch, m0, n0, width, channels = f.args
    mr, kernels = w.spec.mr, f.address_of(table)
    with f.loop(0, f.ceildivu(width, mr)) as lp:
        begin, n = part_of_row(f, lp.iv, width, mr)
        source, to = f.gep(x, f.mul(lp.iv, slot), w.elem), f.gep(out, f.mul(begin, w.panel), w.elem)
        with f.loop(0, channels, w.spec.nr(w.elem)) as column:
            left = f.sub(channels, column.iv)
            index = f.add(f.sub(n, 1), f.select(f.cmp("le", left, least), mr, 0))
            tile = f.load(f.gep(kernels, index, PTR), PTR)
            places = [batch, f.add(m0, column.iv), f.add(n0, begin), left]
            f.call_ptr(tile, [eargs, source, f.gep(weights, column.iv, w.elem), k, f.gep(to, column.iv, w.elem), *places])
    f.done()
    return replace(one, symbol=name)


def _lower_tile(w: Window, module: KernelModule, r: Rows, spec: TileSpec, rows: int, slots: Sequence[Slot]) -> Epilogue:
    """A register tile of `rows` positions: products, and what is done to them, of up to `nr` channels."""
    k = GroupKernel(module, r.group, r.checks, _TILE_ARGS, slots=slots)
    f, em = k.fn, k.em
    _, x, weights, depth, out, batch, m0, n0, nr = f.args
    sums = emit_products(f, w.elem, rows, spec, x, w.spec.mr, weights, w.panel, depth, pairs=w.pairs)
    positions = [Index(f.add(n0, i)) for i in range(rows)]
    anchor = r.anchor.results[0]
    repeated_buffers(k, anchor)
    together = f.lanes // w.lanes  # vectors that hold as many elements as are computed at once
    for v in range(0, spec.vectors, together):
        channel, mask = Index(f.add(m0, v * w.lanes), 1), f.tail_mask(f.sub(nr, v * w.lanes))
        totals = [_join(f, sums[i * spec.vectors + v :][:together]) for i in range(rows)]
        with em.scope(mask):
            done = [_finish_sum(em, r, anchor, x, [Index(batch), channel, at]) for x, at in zip(totals, positions, strict=True)]
        for i, value in enumerate(done):
            f.store(value, f.gep(out, i * w.panel + v * w.lanes, w.elem))
    return Epilogue(finish(k, "conv_chain_tile"), None, k.args.slots, k.lookups)


def _join(f: Fn, parts: Sequence[V]) -> V:
    """One vector of one or two."""
    return parts[0] if len(parts) == 1 else f.shuffle(parts[0], parts[1], range(2 * parts[0].lanes))


def _finish_sum(em: Emitter, r: Rows, anchor: Value, total: V, at: Sequence[Index]) -> V:
    """What becomes of the sums at (batch, channel, position)."""
    set_sums(em, anchor, total)
    value = em.value(r.result, list(r.place(em, *at)))
    del em.leaves[anchor]
    return value
