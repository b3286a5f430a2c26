"""Transposed convolution (aten.convolution, transposed=True) as one ordinary stride-1 convolution an output phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, product
from math import gcd, prod
from typing import Any

import numpy as np
import sympy
import torch

from dhlo.codegen.families.box import grain_of
from dhlo.codegen.families.conv.conv import Conv
from dhlo.codegen.families.conv.layout import Array, WeightLayout
from dhlo.codegen.families.conv.quantised_weights import bits_of
from dhlo.codegen.families.conv.transposed_rows import block_positions, emit_interleave, emit_rows, interleave_scratch, rows_args
from dhlo.codegen.families.conv.weights import WeightView
from dhlo.codegen.families.gemm.register_tile import TileSpec
from dhlo.codegen.kernel_ir.builder import F32, I8, I64, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import EPILOGUE_ARGS, HostContext
from dhlo.ir.symbols import ceil_div

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


@dataclass(frozen=True)
class _Run:
    """Phases beside each other in the last dim whose points of the kernel meet the same inputs: for each output channel they are
    channels of one convolution. `first` is the first one's number, `taps` are its; those after it begin a point later each."""

    first: int
    phases: int
    taps: tuple[_Taps, ...]

    def taps_of(self, phase: int) -> tuple[_Taps, ...]:
        """Those of one of the phases."""
        *others, last = self.taps
        return (*others, replace(last, first=last.first + phase))


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
    is done. Phases of a row that meet the same inputs are channels of one convolution (`_Run`). Where each phase has one point of
    the kernel, all are, of one of 1 x 1. `winograd`, `code`, `image`: as of those; codes have no scales.
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

    @property
    def _runs(self) -> list[_Run]:
        """The phases in runs, in order."""
        phases, apart = self._phases, self.stride[-1]

        def inputs(number: int) -> tuple[int, _Taps]:
            return number // apart, replace(phases[number][-1], first=0)

        grouped = ([*numbers] for _, numbers in groupby(range(len(phases)), inputs))
        return [_Run(numbers[0], len(numbers), phases[numbers[0]]) for numbers in grouped]

    def _conv(self, taps: tuple[_Taps, ...], outs: int, row_multiple: int = 1) -> Conv | None:
        """The convolution of such taps, with `outs` channels for each output channel; None if no kernel point meets it, so that it
        is zero."""
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
        """That of all phases, or those of each run."""
        whole = self._whole
        return [self._conv(run.taps, run.phases) for run in self._runs] if whole is None else [whole]

    @property
    def _row(self) -> list[_Run]:
        """The runs of the first row of phases; each row has as many, as long."""
        return [run for run in self._runs if run.first < self.stride[-1]]

    @property
    def _interleave_name(self) -> str:
        return f"{self.name}_of_{'_'.join(str(run.phases) for run in self._row)}_interleave"

    def emit_kernels(self, module: KernelModule) -> None:
        """Adds the phases' kernels, and those that interleave phases, to the module."""
        for conv in self._convs():
            if conv is not None:
                conv.emit_kernels(module)
        if self._whole:
            emit_rows(module, f"{self.name}_rows", self.elem, self.stride, self.spec)
        if self.interleaves:
            _emit_store(module, self.elem, self.spec)
            counts = [run.phases for run in self._row]
            emit_interleave(module, self._interleave_name, self.elem, self.stride, counts, self.spec)

    @property
    def layouts(self) -> tuple[tuple[_Run | None, tuple[WeightLayout, ...]], ...]:
        """How the packed weights lie: run after run of phases, each with its part of the kernel."""
        if whole := self._whole:
            return ((None, whole.layouts),)
        return tuple((run, conv.layouts if conv else ()) for run, conv in zip(self._runs, self._convs(), strict=True))

    def pack_weight(self, weight: Array) -> Array:
        """Weights [in_channels, out_channels/groups, *kernel] packed run after run of phases, one-dimensional."""
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
        for run, conv, at in zip(self._runs, self._convs(), self._offsets()[:-1], strict=True):
            if conv is not None:
                subsets = np.stack([_subset(whole, run.taps_of(i)) for i in range(run.phases)], 1)
                part = pack(conv, subsets.reshape(conv.out_channels, *subsets.shape[2:])).ravel()
                packed[at // part.itemsize :][: part.size] = part
        return packed

    def _offsets(self) -> list[int]:
        """Byte offset of each convolution's packed weights, and the total."""
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
        """Of each convolution: where its weights begin, how they lie there, and where they begin when packed."""
        points = int(np.prod(self.kernel))
        group_in, group_out = self.in_channels // self.groups, self.out_channels // self.groups
        if whole := self._whole:
            yield whole, 0, WeightView(group_in * group_out * points, 1, group_out * points, (0, 0, 0)), 0
            return
        strides = [int(np.prod(self.kernel[d + 1 :])) for d in range(len(self.kernel))]
        for run, conv, at in zip(self._runs, self._convs(), self._offsets()[:-1], strict=True):
            if conv is not None:
                base = sum(t.first * s for t, s in zip(run.taps, strides, strict=True))
                z, y, x = [0] * (3 - len(run.taps)) + [-t.step * s for t, s in zip(run.taps, strides, strict=True)]
                view = WeightView(group_in * group_out * points, points, group_out * points, (z, y, x), run.phases)
                yield conv, base, view, at

    def kept_elements(self, batch: Any, out: Sequence[Any]) -> sympy.Expr:
        """Elements of the phases' outputs if they are kept in a workspace: of so many images, for such sizes of the output; ints or
        sympy expressions."""
        if not self.interleaves:
            return sympy.Integer(0)
        row = sum(run.phases * ceil_div(out[-1] - run.first, self.stride[-1]) for run in self._row)
        return sympy.sympify(batch * self.out_channels * prod(out[:-1]) * row)

    def _run_sizes(self, fn: Fn, sizes: Sequence[V]) -> tuple[list[list[V]], list[V], list[V]]:
        """Spatial sizes of every run's phases, those of the first, which has most; the runs' element offsets, the output's spatial
        sizes."""
        out = [fn.max(n, 0) for n in self._output_values(fn, sizes)]
        # Outputs stride*j + phase below the output size.
        per_dim = [[fn.divu(fn.add(n, s - 1 - r), s) for r in range(s)] for n, s in zip(out, self.stride, strict=True)]
        phases, shapes, offsets = list(product(*per_dim)), list[list[V]](), [fn.i64(0)]
        for run in self._runs:
            shapes.append(list(phases[run.first]))
            count = fn.mul(sizes[0], self.out_channels * run.phases)
            for n in shapes[-1]:
                count = fn.mul(count, n)
            offsets.append(fn.add(offsets[-1], count))
        return shapes, offsets[:-1], out

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
        """Emits size arithmetic and launches; as `Conv.emit_launch`, with a `workspace` for `kept_elements`.

        Strides above 1: the epilogue gets one channel (mr = 1) and at most 256 positions at a time.
        """
        fn = host.fn
        image: dict[str, Any] = {"x": x, "sizes": sizes, "x_strides": x_strides}
        if whole := self._whole:
            height, width = [fn.i64(1), *sizes[1:]][-2:]
            args = rows_args(host, epilogue, epilogue_args, height, width)
            whole.emit_launch(host, w=w, epilogue=fn.address_of(f"{self.name}_rows"), epilogue_args=args, **image)
            return
        shapes, offsets, out = self._run_sizes(fn, sizes)
        if self.direct:
            (only,) = self._convs()
            if only is not None:
                only.emit_launch(host, w=w, out_sizes=out, epilogue=epilogue, epilogue_args=epilogue_args, **image)
            return
        table = fn.alloca(3 * len(shapes), I64)
        for i, (conv, at, shape, where) in enumerate(zip(self._convs(), self._offsets()[:-1], shapes, offsets, strict=True)):
            if conv is None:
                continue
            positions = fn.i64(1)
            for n in shape:
                positions = fn.mul(positions, n)
            eargs = fn.gep(table, 3 * i, I64)
            target = fn.ptr_to_int(fn.gep(workspace, where, self.elem))
            for k, value in enumerate((target, positions, fn.i64(conv.out_channels))):
                fn.store(value, fn.gep(eargs, k, I64))
            store = fn.address_of(f"conv_store_{self.elem}")
            conv.emit_launch(host, w=fn.gep(w, at, I8), out_sizes=shape, epilogue=store, epilogue_args=eargs, **image)
        self._interleave(host, sizes[0], workspace, shapes, offsets, out, epilogue, epilogue_args)

    def _interleave(
        self,
        host: HostContext,
        batch: V,
        workspace: V,
        shapes: list[list[V]],
        offsets: list[V],
        out: list[V],
        epilogue: V,
        epilogue_args: V,
    ) -> None:
        """Launches the kernel that brings the phases together and calls the epilogue."""
        fn = host.fn
        missing, one = fn.i64(0), fn.i64(1)
        # Per run: its address, or 0 if it is zero, and its spatial sizes.
        table = []
        for conv, shape, where in zip(self._convs(), shapes, offsets, strict=True):
            address = missing if conv is None else fn.ptr_to_int(fn.gep(workspace, where, self.elem))
            table += [address, *([one] * (3 - len(shape))), *shape]
        full = [*([one] * (3 - len(out))), *out]
        positions = fn.mul(fn.mul(full[0], full[1]), full[2])
        block = block_positions(self.stride[-1], self.spec.lanes(self.elem))
        blocks = fn.ceildivu(positions, block)
        count = fn.mul(fn.mul(batch, self.out_channels), blocks)
        with fn.when(fn.cmp("gt", count, 0)):
            grain = grain_of(host, fn.mul(fn.min(positions, block), _POSITION_WORK))
            args = [epilogue, epilogue_args, fn.i64(self.out_channels), *full, positions, blocks, *table]
            scratch = interleave_scratch(self.stride[-1], self.elem, self.spec)
            host.launch(self._interleave_name, args, count, grain, scratch)


def _subset(weight: Array, taps: tuple[_Taps, ...]) -> Array:
    """The points of the kernel [out_channels, in_channels, *kernel] that a phase has."""
    for d, t in enumerate(taps):
        weight = np.take(weight, [t.first - i * t.step for i in range(t.count)], axis=2 + d)
    return weight


def _emit_store(module: KernelModule, elem: str, spec: TileSpec) -> None:
    """The epilogue that stores phases densely; eargs = (output, positions, channels)."""
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
