"""Weights of convolutions that are kept as codes: bytes, nibbles and narrow floats, decoded in registers as kernels read panels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dhlo.codegen.families.conv.layout import WeightLayout
from dhlo.codegen.families.gemm.register_tile import TileSpec
from dhlo.codegen.kernel_ir.builder import F32, I8, I32, I64, PTR, Fn, KernelModule, V, vec

__all__ = ["CODE_BITS", "bits_of", "code_of", "coded_bytes", "emit_decode", "load_codes", "pack_codes", "row_bytes"]

CODE_BITS = {"i8": 8, "ui8": 8, "i4": 4, "ui4": 4, "f8e4m3fn": 8, "f8e5m2": 8, "f16": 16, "bf16": 16}
"""Bits of a code in a panel, by the code (see `dhlo.ir.ops.quantised.CODES`) or the type of weights that are merely converted.
Rows of a panel are [panel]; of nibbles, bytes of the first half of its columns (low) and the second."""

_I16 = "i16"
_NAN = 0x7F  # of e4m3, less its sign


def code_of(code: str, weight: torch.Tensor) -> str:
    """The form in which the kernels keep weights, "" for none: what f16's arithmetic decodes must not be NaN."""
    nan = code == "f8e4m3fn" and bool(((weight & _NAN) == _NAN).any())
    return code if code in CODE_BITS and not nan and weight.numel() else ""


def row_bytes(code: str, panel: int) -> int:
    """Of a depth step of a panel."""
    return panel * CODE_BITS[code] // 8


def coded_bytes(code: str, layout: WeightLayout) -> int:
    """Of all panels."""
    panels, depth, panel = layout.shape
    return panels * depth * row_bytes(code, panel) * layout.side


def bits_of(code: str, weight: torch.Tensor) -> npt.NDArray[Any]:
    """Codes as bytes or integers of 16 bits."""
    weight = weight.detach().contiguous()
    return (weight.view(torch.int16) if CODE_BITS[code] == 16 else weight.view(torch.uint8)).numpy()


def pack_codes(code: str, layout: WeightLayout, weight: torch.Tensor) -> npt.NDArray[Any]:
    """Codes [out_channels, in_channels / groups, *kernel] in the layout, as bytes or integers of 16 bits."""
    panels = layout.pack(bits_of(code, weight))
    if CODE_BITS[code] != 4:
        return panels
    half = layout.panel // 2
    return np.ascontiguousarray(panels[..., :half] & 15 | panels[..., half:] << 4)


def load_codes(f: Fn, code: str, row: V, column: int, lanes: int, panel: int) -> V:
    """The numbers (f32) that the codes of `lanes` columns of a row at `row` stand for."""
    if CODE_BITS[code] == 4:
        high, signed = column >= panel // 2, code == "i4"
        x = f.cast(f.load(f.gep(row, column % (panel // 2), I8), vec(I8, lanes)), I32, signed=signed)
        if signed:
            return f.cast(f.shr(x, 4) if high else f.shr(f.shl(x, 28), 28), F32)
        return f.cast(f.shr(x, 4) if high else f.and_(x, 15), F32)
    at = f.gep(row, column * CODE_BITS[code] // 8, I8)
    if code == "f16":
        return f.cast(f.load(at, vec("f16", lanes)), F32)
    if code == "bf16":
        return f.bitcast(f.shl(f.cast(f.load(at, vec(_I16, lanes)), I32, signed=False), 16), F32)
    if code in ("i8", "ui8"):
        return f.cast(f.cast(f.load(at, vec(I8, lanes)), I32, signed=code == "i8"), F32)
    x = f.shl(f.cast(f.load(at, vec(I8, lanes)), _I16, signed=False), 8)
    if code == "f8e5m2":  # an f16 without its low byte
        return f.cast(f.bitcast(x, "f16"), F32)
    x = f.and_(f.shr(x, 1), -0x4001)  # sign, four bits of exponent, three of mantissa: f16 has five of exponent, of bias 8 more
    return f.mul(f.cast(f.bitcast(x, "f16"), F32), 256.0)


def emit_decode(module: KernelModule, code: str, spec: TileSpec) -> str:
    """Emits `decode(codes, rows, to)` once and returns its symbol: to[rows][panel] in f32."""
    panel, lanes = spec.panel(F32), spec.lanes(F32)
    name = f"conv_decode_{code}_{panel}"
    if name in module.functions:
        return name
    f = Fn(module, name, [("codes", PTR), ("rows", I64), ("to", PTR)], noinline=True)
    codes, rows, to = f.args
    with f.loop(0, rows) as lp:
        row, out = f.gep(codes, f.mul(lp.iv, row_bytes(code, panel)), I8), f.gep(to, f.mul(lp.iv, panel), F32)
        for column in range(0, panel, lanes):
            f.store(load_codes(f, code, row, column, lanes, panel), f.gep(out, column, F32))
    f.done()
    return name
