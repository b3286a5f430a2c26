"""Cases of the op on quantised weights: every code, parameters of every form, read by products, lookups, loops and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dhlo.ir.dialect import build
from dhlo.ir.ops import compute, sequence
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops import movement as mv
from dhlo.ir.ops.quantised import CODES, Dequantize
from dhlo.ir.types import DTYPES, from_mlir
from tests.programs import Part, t, within

__all__ = ["CASES", "WEIGHTS"]

K = 12
_GEN = torch.Generator().manual_seed(2)


def _codes(code: str, shape: Sequence[int]) -> torch.Tensor:
    """All codes there are, but NaN and infinities."""
    bits = CODES[code][1]
    q = torch.randint(0, 1 << bits, tuple(shape), generator=_GEN)
    if code.startswith("f8"):
        values = q.to(torch.uint8).view(torch.float8_e4m3fn if code == "f8e4m3fn" else torch.float8_e5m2).float()
        q = torch.where(values.isfinite(), q, 1)
    return (q - (1 << bits - 1 if code in ("i8", "i4") else 0)).to(DTYPES[CODES[code][0]].torch)


WEIGHTS: dict[str, torch.Tensor] = {f"codes.{code}": _codes(code, (7, K)) for code in CODES}
WEIGHTS |= {f"rows.{k}": torch.rand(7, 1, generator=_GEN) + 0.1 for k in ("scale", "zero")}
WEIGHTS |= {f"blocks.{k}": (torch.rand(7, 3, generator=_GEN) + 0.1).bfloat16() for k in ("scale", "zero")}
WEIGHTS |= {"codes.conv": _codes("i8", (8, 3, 3, 3)), "conv.scale": torch.rand(8, 1, 1, 1, generator=_GEN)}
_BYTES = {
    "conv": (40, 6, 3, 3),
    "deep": (3, 330, 1),
    "grouped": (8, 5, 2, 3),
    "depth": (6, 1, 3, 3),
    "volume": (5, 3, 2, 1, 3),
    "lone": (40, 1, 9),
}
WEIGHTS |= {f"bytes.{name}": _codes("i8", shape) for name, shape in _BYTES.items()}
WEIGHTS |= {"codes.experts": _codes("i4", (2, K, 5)), "experts.scale": torch.rand(2, 4, 5, generator=_GEN)}
WEIGHTS["codes.grouped"] = _codes("i8", (2, K, 5))


def weight(name: str) -> Any:
    w = WEIGHTS[name]
    dtype = next(d for d in DTYPES.values() if d.torch == w.dtype)
    return build(mv.Weight, [], {"name_": name}, results=[t(dtype.name, *w.shape)]).results[0]


def dequantized(code: str, codes: str, parameters: Sequence[str], dtype: str = "f32") -> Any:
    operands = [weight(codes), *map(weight, parameters)]
    return build(Dequantize, operands, {"code": code, "dtype": dtype}).results[0]


def product(code: str, parameters: Sequence[str]) -> Part:
    def body(x: Any) -> list[Any]:
        w = build(mv.Transpose, [dequantized(code, f"codes.{code}", parameters)], {"perm": [1, 0]}).results[0]
        return [build(compute.Matmul, [x, w]).results[0]]

    largest = 3e4 if code == "f8e5m2" else 1  # beside which the others' rounding is lost
    return Part([(t("f32", "n", K), within(-1, 1))], body, tol={"f32": 1e-4}, atol=1e-3 * largest, label=f"{code} {parameters}")


def lookup(code: str, parameters: Sequence[str], dtype: str) -> Part:
    def body(i: Any, x: Any) -> list[Any]:
        w = dequantized(code, f"codes.{code}", parameters, dtype)
        rows = build(mv.Take, [w, i], {"dims": [0], "at": 0, "wrap": False}).results[0]
        wide = build(mv.Broadcast, [x], {"dims": [1]}, results=[from_mlir(rows)]).results[0]
        return [build(ew.Mul, [rows, wide]).results[0]]

    args = [(t("i64", "n"), within(0, 6)), (t(dtype, K), within(-1, 1))]
    return Part(args, body, tol={"f32": 1e-6, "f16": 1e-3, "bf16": 8e-3}, label=f"lookup {code} {dtype}")


def convolution() -> Part:
    def body(x: Any) -> list[Any]:
        w = dequantized("i8", "codes.conv", ["conv.scale"])
        attrs = {
            "stride": [1, 1],
            "padding": [0, 0],
            "dilation": [1, 1],
            "transposed": False,
            "output_padding": [0, 0],
            "groups": 1,
        }
        return [build(compute.Conv, [x, w], attrs, results=[t("f32", "n", 8, 4, "m + 1")]).results[0]]

    return Part([(t("f32", "n", 3, 6, "m + 3"), within(-1, 1))], body, tol={"f32": 1e-4}, atol=1e-2, label="convolution")


def bytes_(dtype: str, x: Sequence[object], name: str, out: Sequence[object], zero: int, **given: Any) -> Part:
    """A convolution of bytes, whose sums are exact."""
    n = len(x) - 2
    attrs = {"stride": [1] * n, "padding": [0] * n, "dilation": [1] * n, "groups": 1, "zero": zero, **given}

    def body(v: Any) -> list[Any]:
        y = build(compute.ConvBytes, [v, weight(f"bytes.{name}")], attrs, results=[t("i32", *out)]).results[0]
        return [build(ew.Add, [y, y]).results[0]]

    low = 0 if dtype == "ui8" else -128
    return Part([(t(dtype, *x), within(low, low + 255))], body, label=f"{dtype} {x} {name} {zero} {given}")


def experts() -> Part:
    def body(x: Any) -> list[Any]:
        return [build(compute.Matmul, [x, dequantized("i4", "codes.experts", ["experts.scale"])]).results[0]]

    return Part([(t("f32", 2, "n", K), within(-1, 1))], body, tol={"f32": 1e-4}, atol=1e-4, label="experts")


def rounded(code: str, parameters: Sequence[str], group: int, dtype: str = "f32") -> Part:
    """A product of rows that are rounded to int8, or are such."""

    def body(x: Any) -> list[Any]:
        w = build(mv.Transpose, [dequantized(code, f"codes.{code}", parameters)], {"perm": [1, 0]}).results[0]
        return [build(compute.RoundedMatmul, [x, w], {"group": group}).results[0]]

    values = within(-128, 127) if dtype == "i8" else within(-1, 1)
    return Part([(t(dtype, "n", K), values)], body, tol={"f32": 1e-4}, atol=1e-3, label=f"rounded {code} {parameters} {dtype}")


def rounded_experts() -> Part:
    def body(x: Any, ends: Any) -> list[Any]:
        w = dequantized("i8", "codes.grouped", [])
        return [build(sequence.RoundedGroupedMatmul, [x, w, ends], {"group": K}).results[0]]

    args = [(t("f32", "n", K), within(-1, 1)), (t("i64", 2), within(0, 1))]
    return Part(args, body, tol={"f32": 1e-4}, atol=1e-3, label="rounded experts")


ROWS, BLOCKS = ["rows.scale", "rows.zero"], ["blocks.scale", "blocks.zero"]
CASES: dict[str, list[Part]] = {
    "dhlo.dequantize": [
        *(product(code, BLOCKS) for code in CODES),
        *(product(code, form) for code, form in zip(CODES, ([], ROWS[:1], ROWS, BLOCKS[:1]) * 2, strict=False)),
        *(lookup(code, BLOCKS, dtype) for code, dtype in zip(CODES, ["f32", "bf16", "f16"] * 3, strict=False)),
        convolution(),
        experts(),
    ],
    "dhlo.rounded_matmul": [
        rounded("i8", BLOCKS, 4),
        rounded("i4", ROWS[:1], K),
        rounded("f4e2m1fn", ROWS, K),
        rounded("i8", BLOCKS, 4, "i8"),
        rounded("ui4", ROWS, K, "i8"),
    ],
    "dhlo.rounded_grouped_matmul": [rounded_experts()],
    "dhlo.conv_bytes": [
        *(bytes_(d, ["n", 6, "m + 1", 9], "conv", ["n", 40, "m + 1", 9], z, padding=[1, 1]) for d, z in (("ui8", 200), ("i8", -3))),
        bytes_("ui8", ["n", 6, "m + 2", 40], "conv", ["n", 40, "floordiv(m + 1, 2) + 1", 20], 5, padding=[1, 1], stride=[2, 2]),
        bytes_("i8", ["n", 330, "m + 1"], "deep", ["n", 3, "m + 1"], 127),
        bytes_("ui8", ["n", 330, "m + 1"], "deep", ["n", 3, "m + 1"], 0),
        bytes_("i8", ["n", 10, "m + 3", 8], "grouped", ["n", 8, "m + 2", 6], -128, groups=2, dilation=[2, 2], padding=[1, 1, 0, 1]),
        *(bytes_(d, ["n", 6, "m + 1", 37], "depth", ["n", 6, "m + 1", 37], 9, groups=6, padding=[1, 1]) for d in ("ui8", "i8")),
        bytes_("i8", ["n", 6, "m + 3", 7], "depth", ["n", 6, "floordiv(m, 2) + 1", 3], -9, groups=6, stride=[2, 3], padding=[0, 1]),
        *(bytes_(d, ["n", 1, "4*m + 9"], "lone", ["n", 40, "m + 1"], z, stride=[4]) for d, z in (("ui8", 7), ("i8", 0))),
        bytes_("i8", ["n", 1, "m + 1"], "lone", ["n", 40, "m + 1"], 100, padding=[4]),
        bytes_("ui8", ["n", 3, "m + 1", 3, 5], "volume", ["n", 5, "m + 2", 3, 3], 128, padding=[1, 0, 0]),
    ],
}
