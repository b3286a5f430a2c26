"""Transposed convolution (aten.convolution, transposed=True) as one ordinary stride-1 convolution an output phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product
from math import gcd
from typing import Any

import numpy as np
import sympy
import torch

from dhlo.codegen.families.box import grain_of
from dhlo.codegen.families.conv.conv import Conv
from dhlo.codegen.families.conv.layout import Array, WeightLayout
from dhlo.codegen.families.conv.quantised_weights import bits_of
from dhlo.codegen.families.conv.transposed_rows import BLOCK, emit_rows, rows_args, store_in_turn
from dhlo.codegen.families.conv.weights import WeightView
from dhlo.codegen.families.gemm.register_tile import TileSpec
from dhlo.codegen.kernel_ir.builder import BITS, F32, I8, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import EPILOGUE_ARGS, HostContext, kernel_fn, load_args

__all__ = ["ConvTranspose"]

_POSITION_WORK = 2  # simple operations that an output takes: its phase is found, and it is copied


@dataclass(frozen=True)
class _Taps:
    """One dim of a phase: kernel indices first, first - step, .. (`count`) meet input positions dilation apart."""

    count: int
    first: int
    step: int
    padding: int
    dilation: int


def _taps(phase: int, kernel: int, stride: int, padding: int, dilation: int) -> _Taps:
    """Output stride*j + phase takes input j + (phase + padding - k*dilation) / stride for each k where that divides."""
    fits = [k for k in range(kernel) if (phase + padding - k * dilation) % stride == 0]
    if not fits:
        return _Taps(0, 0, 1, 0, 1)
    step = stride // gcd(stride, dilation)
    return _Taps(len(fits), fits[-1], step, -(phase + padding - fits[-1] * dilation) // stride, step * dilation // stride)


@dataclass(frozen=True)
class ConvTranspose:
    """A transposed convolution's static parameters.

    Input [B, in_channels, *spatial], weight [in_channels, out_channels/groups, *kernel]. Output o of a dim is the sum
    over inputs i and kernel points k with o = i*stride - padding + k*dilation. The outputs congruent modulo the
    stride (a phase) are an ordinary convolution with a subset of the kernel, so no multiplication by an inserted zero
    is done. Where each phase has one point of the kernel, all are channels of one convolution of 1 x 1. `winograd`, `code`,
    `image`: as of those; codes have no scales.
    """

    in_channels: int
    out_channels: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    elem: str = F32
    spec: TileSpec = field(kw_only=True)
    winograd: tuple[int, ...] = field(default=(), kw_only=True, repr=False)
    code: str = field(default="", kw_only=True, repr=False)
    image: str = field(default="", kw_only=True, repr=False)

    def output_size(self, spatial: Sequence[Any]) -> list[Any]:
        """Output sizes of the spatial dims; ints or sympy expressions."""
        dims = zip(spatial, self.kernel, self.stride, self.padding, self.output_padding, self.dilation, strict=True)
        return [(n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, k, s, p, o, d in dims]

    @property
    def _phases(self) -> list[tuple[_Taps, ...]]:
        """Taps of every phase, last dim fastest."""
        dims = zip(self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return list(product(*([_taps(r, k, s, p, d) for r in range(s)] for k, s, p, d in dims)))

    def _conv(self, taps: tuple[_Taps, ...], outs: int = 1, row_multiple: int = 1) -> Conv | None:
        """The phase's convolution, with `outs` channels for each output channel; None if no kernel point meets it, so that it is
        zero."""
        if any(t.count == 0 for t in taps):
            return None
        return Conv(
            self.in_channels,
            self.out_channels * outs,
            tuple(t.count for t in taps),
            (1,) * len(taps),
            tuple((t.padding, 0) for t in taps),
            tuple(t.dilation for t in taps),
            self.groups,
            self.elem,
            spec=self.spec,
            winograd=self.winograd,
            code=self.code,
            image=self.image,
            row_multiple=row_multiple,
        )

    @property
    def _whole(self) -> Conv | None:
        """Where windows neither overlap nor leave gaps: all phases, one after another the channels of each output channel. Register
        tiles have the phases of a row's columns together."""
        apart, phases = self.stride[-1], self._phases
        fits = self.kernel == self.stride and not any((*self.padding, *self.output_padding)) and {*self.dilation} == {1}
        fits = fits and self.in_channels > self.groups and not self.direct
        fits = fits and apart <= self.spec.mr and self.spec.panel(self.elem) % apart == 0
        return self._conv(phases[0], len(phases), apart) if fits else None

    @property
    def interleaves(self) -> bool:
        """Whether phases are kept in memory before they are brought together."""
        return not self.direct and self._whole is None

    @property
    def direct(self) -> bool:
        """Stride 1: one phase, which is the output."""
        return all(s == 1 for s in self.stride)

    @property
    def name(self) -> str:
        """Prefix of the symbols that belong to the whole."""
        return f"conv_transposed_{self.elem}_{len(self.stride)}d_" + "x".join(map(str, self.stride))

    def winograd_shares(self, module: KernelModule) -> dict[str, sympy.Rational]:
        """By kernel of Winograd's algorithm, what part of the arithmetic it takes."""
        return {k: share for conv in self._convs() if conv for k, share in conv.winograd_shares(module).items()}

    def _convs(self) -> list[Conv | None]:
        """That of all phases, or those of each."""
        whole = self._whole
        return [self._conv(taps) for taps in self._phases] if whole is None else [whole]

    def emit_kernels(self, module: KernelModule) -> None:
        """Adds the phases' kernels, and those that interleave phases, to the module."""
        for conv in self._convs():
            if conv is not None:
                conv.emit_kernels(module)
        if self._whole:
            emit_rows(module, f"{self.name}_rows", self.elem, self.stride, self.spec)
        if self.interleaves:
            _emit_store(module, self.elem, self.spec)
            _emit_interleave(module, self.name, self.elem, self.stride, self.spec)

    @property
    def layouts(self) -> tuple[tuple[tuple[_Taps, ...], tuple[WeightLayout, ...]], ...]:
        """How the packed weights lie: phase after phase, each with its part of the kernel."""
        if whole := self._whole:
            return (((), whole.layouts),)
        return tuple((taps, conv.layouts if conv else ()) for taps, conv in zip(self._phases, self._convs(), strict=True))

    def pack_weight(self, weight: Array) -> Array:
        """Weights [in_channels, out_channels/groups, *kernel] packed phase after phase, one-dimensional."""
        return self._packed_by_phase(weight, Conv.pack_weight)

    def pack_codes(self, weight: torch.Tensor) -> Array:
        """Codes of such weights, as bytes or integers of 16 bits."""
        return self._packed_by_phase(bits_of(self.code, weight), lambda conv, part: conv.pack_codes(torch.from_numpy(part)))

    def _packed_by_phase(self, weight: Array, pack: Callable[[Conv, Array], Array]) -> Array:
        g = self.groups
        if weight.shape != (self.in_channels, self.out_channels // g, *self.kernel):
            raise ValueError(f"weight of shape {weight.shape} doesn't fit {self}")
        packed = np.zeros(self.workspace_bytes // weight.itemsize, weight.dtype)
        grouped = weight.reshape(g, self.in_channels // g, self.out_channels // g, *self.kernel).swapaxes(1, 2)
        whole = grouped.reshape(self.out_channels, self.in_channels // g, *self.kernel)
        if conv := self._whole:
            channels = np.moveaxis(whole, 1, -1).reshape(conv.out_channels, self.in_channels // g, *conv.kernel)
            return pack(conv, np.ascontiguousarray(channels)).ravel()
        for taps, conv, at in zip(self._phases, self._convs(), self._offsets()[:-1], strict=True):
            if conv is not None:
                subset = whole
                for d, t in enumerate(taps):
                    subset = np.take(subset, [t.first - i * t.step for i in range(t.count)], axis=2 + d)
                part = pack(conv, np.ascontiguousarray(subset)).ravel()
                packed[at // part.itemsize :][: part.size] = part
        return packed

    def _offsets(self) -> list[int]:
        """Byte offset of each phase's packed weights, and the total."""
        return list(accumulate((conv.workspace_bytes if conv else 0 for conv in self._convs()), initial=0))

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the packed weights; the workspace that `emit_pack` fills if weights are run-time values."""
        return self._offsets()[-1]

    def emit_pack_kernel(self, module: KernelModule) -> None:
        """Emits (once) what `emit_pack` launches."""
        for conv, _, view, _ in self._packed():
            conv.emit_pack_kernel(module, view)

    def emit_pack(self, host: HostContext, *, weight: V, packed: V) -> None:
        """Emits the packing of run-time weights, dense [in_channels, out_channels/groups, *kernel]."""
        for conv, base, view, at in self._packed():
            source, to = host.fn.gep(weight, base, self.elem), host.fn.gep(packed, at, I8)
            conv.emit_pack(host, weight=source, packed=to, view=view)

    def _packed(self) -> Iterator[tuple[Conv, int, WeightView, int]]:
        """Of each phase that isn't zero: where its weights begin, how they lie there, and where they begin when packed."""
        points = int(np.prod(self.kernel))
        group_in, group_out = self.in_channels // self.groups, self.out_channels // self.groups
        if whole := self._whole:
            yield whole, 0, WeightView(group_in * group_out * points, 1, group_out * points, (0, 0, 0)), 0
            return
        strides = [int(np.prod(self.kernel[d + 1 :])) for d in range(len(self.kernel))]
        for taps, conv, at in zip(self._phases, self._convs(), self._offsets()[:-1], strict=True):
            if conv is not None:
                base = sum(t.first * s for t, s in zip(taps, strides, strict=True))
                steps = [0] * (3 - len(taps)) + [-t.step * s for t, s in zip(taps, strides, strict=True)]
                view = WeightView(group_in * group_out * points, points, group_out * points, (steps[0], steps[1], steps[2]))
                yield conv, base, view, at

    def output_workspace(self, fn: Fn, sizes: Sequence[V]) -> V:
        """Bytes that `emit_launch` needs for the phases' outputs, if they are kept."""
        if not self.interleaves:
            return fn.i64(0)
        total = self._phase_sizes(fn, sizes)[1]
        return fn.mul(total, BITS[self.elem] // 8)

    def _phase_sizes(self, fn: Fn, sizes: Sequence[V]) -> tuple[list[list[V]], V, list[V], list[V]]:
        """Spatial sizes of every phase, elements of all, the phases' element offsets, the output's spatial sizes."""
        out = [fn.max(n, 0) for n in self._output_values(fn, sizes)]
        # Outputs stride*j + phase below the output size.
        per_dim = [[fn.divu(fn.add(n, s - 1 - r), s) for r in range(s)] for n, s in zip(out, self.stride, strict=True)]
        phases = [list(p) for p in product(*per_dim)]
        offsets = [fn.i64(0)]
        for phase in phases:
            count = fn.mul(sizes[0], self.out_channels)
            for n in phase:
                count = fn.mul(count, n)
            offsets.append(fn.add(offsets[-1], count))
        return phases, offsets[-1], offsets[:-1], out

    def _output_values(self, fn: Fn, sizes: Sequence[V]) -> list[V]:
        dims = zip(sizes[1:], self.kernel, self.stride, self.padding, self.output_padding, self.dilation, strict=True)
        return [fn.add(fn.mul(fn.sub(n, 1), s), -2 * p + d * (k - 1) + o + 1) for n, k, s, p, o, d in dims]

    def emit_launch(
        self,
        host: HostContext,
        *,
        x: V,
        w: V,
        sizes: Sequence[V],
        epilogue: V,
        epilogue_args: V,
        workspace: V,
        x_strides: Sequence[V] | None = None,
    ) -> None:
        """Emits size arithmetic and launches; as `Conv.emit_launch`, with `workspace` of `output_workspace` bytes.

        Strides above 1: the epilogue gets one channel (mr = 1) and at most 256 positions at a time.
        """
        fn = host.fn
        image: dict[str, Any] = {"x": x, "sizes": sizes, "x_strides": x_strides}
        if whole := self._whole:
            height, width = [fn.i64(1), *sizes[1:]][-2:]
            args = rows_args(host, epilogue, epilogue_args, height, width)
            whole.emit_launch(host, w=w, epilogue=fn.address_of(f"{self.name}_rows"), epilogue_args=args, **image)
            return
        phases, _, offsets, out = self._phase_sizes(fn, sizes)
        if self.direct:
            (only,) = self._convs()
            if only is not None:
                only.emit_launch(host, w=w, out_sizes=out, epilogue=epilogue, epilogue_args=epilogue_args, **image)
            return
        table = fn.alloca(3 * len(phases), I64)
        for i, (conv, at, shape, where) in enumerate(zip(self._convs(), self._offsets()[:-1], phases, offsets, strict=True)):
            if conv is None:
                continue
            positions = fn.i64(1)
            for n in shape:
                positions = fn.mul(positions, n)
            eargs = fn.gep(table, 3 * i, I64)
            target = fn.ptr_to_int(fn.gep(workspace, where, self.elem))
            for k, value in enumerate((target, positions, fn.i64(self.out_channels))):
                fn.store(value, fn.gep(eargs, k, I64))
            store = fn.address_of(f"conv_store_{self.elem}")
            conv.emit_launch(host, w=fn.gep(w, at, I8), out_sizes=shape, epilogue=store, epilogue_args=eargs, **image)
        self._interleave(host, sizes[0], workspace, phases, offsets, out, epilogue, epilogue_args)

    def _interleave(
        self,
        host: HostContext,
        batch: V,
        workspace: V,
        phases: list[list[V]],
        offsets: list[V],
        out: list[V],
        epilogue: V,
        epilogue_args: V,
    ) -> None:
        """Launches the kernel that brings the phases together and calls the epilogue."""
        fn = host.fn
        missing, one = fn.i64(0), fn.i64(1)
        # Per phase: its address, or 0 if it is zero, and its spatial sizes.
        table = []
        for conv, shape, where in zip(self._convs(), phases, offsets, strict=True):
            address = missing if conv is None else fn.ptr_to_int(fn.gep(workspace, where, self.elem))
            table += [address, *([one] * (3 - len(shape))), *shape]
        full = [*([one] * (3 - len(out))), *out]
        positions = fn.mul(fn.mul(full[0], full[1]), full[2])
        blocks = fn.ceildivu(positions, BLOCK)
        count = fn.mul(fn.mul(batch, self.out_channels), blocks)
        with fn.when(fn.cmp("gt", count, 0)):
            grain = grain_of(host, fn.mul(fn.min(positions, BLOCK), _POSITION_WORK))
            args = [epilogue, epilogue_args, fn.i64(self.out_channels), *full, positions, blocks, *table]
            scratch = (BLOCK + 3 * _room(self.stride[-1], self.spec.lanes(self.elem))) * BITS[self.elem] // 8
            host.launch(f"{self.name}_interleave", args, count, grain, scratch)


def _emit_store(module: KernelModule, elem: str, spec: TileSpec) -> None:
    """The epilogue that stores a phase densely; eargs = (output, positions, channels)."""
    name = f"conv_store_{elem}"
    if name in module.functions:
        return
    lanes = spec.lanes(elem)
    f = Fn(module, name, EPILOGUE_ARGS)
    eargs, tile, ld, batch, m0, n0, mr, nr = f.args
    out, positions, channels = (f.load(f.gep(eargs, i, I64), I64) for i in range(3))
    first = f.gep(f.int_to_ptr(out), f.add(f.mul(f.add(f.mul(batch, channels), m0), positions), n0), elem)
    with f.loop(0, mr) as r, f.loop(0, nr, lanes) as c:
        value = f.load(f.gep(tile, f.add(f.mul(r.iv, ld), c.iv), elem), vec(elem, lanes))
        f.store_first(value, f.gep(first, f.add(f.mul(r.iv, positions), c.iv), elem), f.sub(nr, c.iv))
    f.done()


def _emit_interleave(module: KernelModule, prefix: str, elem: str, stride: Sequence[int], spec: TileSpec) -> None:
    """Items are (image, channel, block of positions); output o of a row is in phase o mod stride at o / stride.

    In the worker's scratch there is room before and behind the block: rows are written in whole vectors of all phases, past both
    of their ends; the next row comes later.
    """
    name = f"{prefix}_interleave"
    if name in module.functions:
        return
    s = (1,) * (3 - len(stride)) + tuple(stride)
    lanes = spec.lanes(elem)
    f = kernel_fn(module, name)
    args, begin, end, _, scratch = f.args
    head = load_args(f, [PTR, PTR, I64, I64, I64, I64, I64, I64])
    epilogue, eargs, channels, _, oh, ow, positions, blocks = head
    tile, per_image = f.gep(scratch, _room(s[2], lanes), elem), f.mul(channels, blocks)
    zero = f.const(0.0, vec(elem, lanes))
    with f.loop(begin, end) as items:
        plane = f.divu(items.iv, blocks)
        p0 = f.mul(f.sub(items.iv, f.mul(plane, blocks)), BLOCK)
        stop = f.min(f.add(p0, BLOCK), positions)
        with f.loop(f.divu(p0, ow), f.add(f.divu(f.sub(stop, 1), ow), 1)) as rows:
            z, y = f.divu(rows.iv, oh), f.remu(rows.iv, oh)
            start = f.mul(rows.iv, ow)
            lo, hi = f.max(start, p0), f.min(f.add(start, ow), stop)
            phase_row = f.add(f.mul(f.remu(z, s[0]), s[1]), f.remu(y, s[1]))
            sources = []  # where each phase's row is, and how many it has, none if it is zero
            for r in range(s[2]):
                entry = f.gep(args, f.add(f.mul(f.add(f.mul(phase_row, s[2]), r), 4), len(head)), I64)
                address, pd, ph, pw = (f.load(f.gep(entry, i, I64), I64) for i in range(4))
                row = f.add(f.mul(f.add(f.mul(plane, pd), f.divu(z, s[0])), ph), f.divu(y, s[1]))
                src = f.gep(f.int_to_ptr(address), f.mul(row, pw), elem)
                sources.append((src, f.select(f.cmp("ne", address, 0), pw, 0)))
            first, last = f.divu(f.sub(lo, start), s[2]), f.ceildivu(f.sub(hi, start), s[2])
            with f.loop(first, last, lanes) as j:
                at = f.gep(tile, f.sub(f.add(start, f.mul(j.iv, s[2])), p0), elem)
                values = [
                    f.masked_load(f.gep(src, j.iv, elem), f.tail_mask(f.max(f.sub(count, j.iv), 0), lanes), zero)
                    for src, count in sources
                ]
                store_in_turn(f, values, at, f.sub(last, j.iv))
        image, m = f.divu(items.iv, per_image), f.remu(plane, channels)
        f.call_ptr(epilogue, [eargs, tile, f.i64(BLOCK), image, m, p0, f.i64(1), f.sub(stop, p0)])
    f.done()


def _room(phases: int, lanes: int) -> int:
    """Elements, in whole vectors, before a block into which a row of so many phases may write; behind it, it's twice as many."""
    return -(-max(phases, lanes) // lanes) * lanes
