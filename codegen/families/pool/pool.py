"""Max and average pooling (aten.max_pool*d_with_indices, aten.avg_pool*d), vectorised along the row."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import sympy

from dhlo.codegen.families.box import grain_of
from dhlo.codegen.families.pool.max_rows import MOST_REACH, MaxRows, scratch_bytes
from dhlo.codegen.families.pool.rows import accumulator
from dhlo.codegen.families.pool.windows import Windows
from dhlo.codegen.kernel_ir.builder import BITS, F32, KernelModule, V
from dhlo.codegen.kernel_ir.launch import HostContext
from dhlo.codegen.kernel_ir.values import FLOATS

__all__ = ["Pool"]

_POINT_WORK = 2  # simple operations that a point of a window takes: it is read and taken in


@dataclass(frozen=True)
class Pool:
    """A pooling over 1 to 3 spatial dims. `kind` is max or avg; `elem` f16, bf16, f32 or f64 (reduced in f32 or f64), or for a max
    without indices an integer type, `unsigned` or not.

    Padding is -inf for max, the least of integers; avg divides by `divisor_override`, or by the window's size with or without its
    padding as `count_include_pad` says. A NaN in a window is its maximum. `indices` (max only): i64 positions in the plane as in
    PyTorch.
    """

    kind: str
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool = field(default=False, repr=False)  # how `output_size` rounds; kernels are told the size
    count_include_pad: bool = True
    divisor_override: int | None = None
    indices: bool = False
    elem: str = F32
    unsigned: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("max", "avg") or (self.indices and self.kind != "max"):
            raise ValueError("kind is max (with or without indices) or avg")
        if self.elem not in FLOATS and not self.takes_rows:
            raise ValueError("of integers there are maxima without indices")
        if len({len(self.kernel), len(self.stride), len(self.padding), len(self.dilation)}) != 1 or len(self.kernel) > 3:
            raise ValueError("kernel, stride, padding and dilation need the same 1 to 3 entries")

    @property
    def takes_rows(self) -> bool:
        """Whether windows are reduced row by row: maxima may come in any order, and more than once."""
        far = (self.kernel[-1] - 1) * self.dilation[-1] > MOST_REACH
        return self.kind == "max" and not self.indices and not (far and self.elem in FLOATS)

    @property
    def name(self) -> str:
        """The kernel's symbol; equal parameters give equal names."""
        key = hashlib.sha256(repr(self).encode()).hexdigest()[:8]
        return f"pool_{self.kind}_{self.elem}_{'x'.join(map(str, self.kernel))}_{key}"

    def output_size(self, spatial: Sequence[Any]) -> list[Any]:
        """Output sizes of the spatial dims; ints or sympy expressions."""
        out = []
        for n, k, s, p, d in zip(spatial, self.kernel, self.stride, self.padding, self.dilation, strict=True):
            room = n + 2 * p - d * (k - 1) - 1
            if self.ceil_mode:
                # The last window must start inside of the input or its left padding.
                most, inside = (room + s - 1) // s + 1, (n + p - 1) // s + 1
                out.append(min(most, inside) if isinstance(n, int) else sympy.Min(most, inside))
            else:
                out.append(room // s + 1)
        return out

    def emit_kernels(self, module: KernelModule) -> None:
        """Adds the kernel to the module, once."""
        if self.name not in module.functions:
            (MaxRows if self.takes_rows else Windows)(self, module).emit()

    def emit_launch(
        self,
        host: HostContext,
        *,
        x: V,
        out: V,
        planes: V,
        spatial: Sequence[V],
        out_spatial: Sequence[V],
        indices: V | None = None,
    ) -> None:
        """Pools `planes` dense planes of sizes `spatial` at x to `out` (and i64 `indices`) of sizes `out_spatial`, if that is not
        empty."""
        f, ones = host.fn, [host.fn.i64(1)] * (3 - len(spatial))
        sizes, outs = [*ones, *spatial], [*ones, *out_spatial]
        count = f.mul(f.mul(planes, outs[0]), outs[1])
        scratch, points = 0, prod(self.kernel)
        if self.takes_rows:
            acc = accumulator(self.elem)
            lanes = host.module.target.lanes(acc)
            scratch = scratch_bytes(self, acc, lanes)
            # Each of the input's columns once for a row of a window, each output's window along the row; more of them at once.
            points = (prod(self.kernel[:-1]) * self.stride[-1] + self.kernel[-1]) * BITS[acc]
            points = -(-points // BITS[F32])
        with f.when(f.cmp("gt", f.mul(count, outs[2]), 0)):
            grain = grain_of(host, f.mul(outs[2], points * _POINT_WORK))
            pointers = [x, out, *([indices] if self.indices and indices is not None else [out])]
            host.launch(self.name, [*pointers, *sizes, *outs], count, grain, scratch)
