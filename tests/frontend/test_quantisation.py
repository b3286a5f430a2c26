"""Quantised programs: what PyTorch's quantisers leave in a graph, and operators of other libraries that are Python code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines the operators

import dhlo
from dhlo.frontend.compat import VERSION
from dhlo.ir.ops.quantised import dequantize
from dhlo.passes.quantise_weights import Format, quantise
from tests.frontend.helpers import export
from tests.frontend.test_more_ops import compiled

A: Any = torch.ops.aten
Q: Any = torch.ops.quantized_decomposed
i8 = torch.int8
LIMITS = (-128, 127, i8)


def rn(*shape: int) -> torch.Tensor:
    return 9 * torch.randn(shape)


def scales(n: int) -> list[torch.Tensor]:
    return [torch.rand(n) + 0.1, torch.randint(-4, 4, (n,))]


def test_static_quantisation() -> None:
    def f(x: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> Any:
        q, c = Q.quantize_per_tensor(x, 0.1, 3, *LIMITS), Q.quantize_per_channel(x, s, z, 1, *LIMITS)
        plain = Q.dequantize_per_channel(c, s, None, 1, *LIMITS)
        return q, c, plain, Q.dequantize_per_tensor(q, 0.1, 3, *LIMITS), Q.dequantize_per_channel(c, s, z, 1, *LIMITS)

    compiled(f, *([rn(m, n), *scales(n)] for m, n in ((3, 4), (1, 1), (0, 5), (17, 33))))


def test_quantisation_chosen_at_the_call() -> None:
    def f(x: torch.Tensor) -> Any:
        s, z = Q.choose_qparams(x, -128, 127, 1e-5, i8)
        q = Q.quantize_per_tensor.tensor(x, s, z, *LIMITS)
        st, zt = Q.choose_qparams_per_token_asymmetric(x, i8)
        t = Q.quantize_per_token(x, st, zt, *LIMITS)
        back = Q.dequantize_per_tensor.tensor(q, s, z, *LIMITS), Q.dequantize_per_token(t, st, zt, *LIMITS, torch.float32)
        return s, z, *back, *Q.choose_qparams_symmetric(x, -128, 127, 1e-5, i8), *Q.choose_qparams_per_token(x, i8)

    compiled(f, [rn(3, 4)], [rn(7, 1)], [rn(16, 40) + 50], [torch.zeros(2, 3)])


def test_groups_of_weights() -> None:
    def f(w: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> Any:
        return Q.dequantize_per_channel_group(w, s, z, -8, 7, i8, 4, torch.float32)

    compiled(f, [torch.randint(-8, 7, (3, 8), dtype=i8), torch.rand(3, 2), torch.zeros(3, 2)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_fake_quantisation(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> Any:
        one, zero = s[0], z[0].int()
        return (
            *A.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 3, -128, 127),
            torch.fake_quantize_per_tensor_affine(x, one, zero, -8, 7),
            torch.fake_quantize_per_channel_affine(x, s, z.int(), 1, -20, 100),
        )

    x, s, z = rn(5, 7).to(dtype), *scales(7)
    model = dhlo.compile(export(f, (x, s, z), ({}, {}, {})))  # PyTorch can't trace it at dynamic sizes
    for got, want in zip(model(x, s, z), f(x, s, z), strict=True):
        torch.testing.assert_close(got, want)


def test_products_of_bytes() -> None:
    def bytes_(*shape: int) -> torch.Tensor:
        return torch.randint(-128, 127, shape, dtype=i8)

    compiled(torch._int_mm, [bytes_(32, 16), bytes_(16, 32)], [bytes_(33, 8), bytes_(8, 40)])
    unsigned: Any = lambda *shape: torch.randint(0, 256, shape, dtype=torch.uint8)
    compiled(torch._int_mm, [unsigned(32, 16), bytes_(16, 32)], [unsigned(1, 9), bytes_(9, 1)], [unsigned(3, 0), bytes_(0, 4)])
    compiled(torch.matmul, [bytes_(4, 3, 16), bytes_(4, 16, 5)], [bytes_(2, 1, 131), bytes_(2, 131, 40)])
    compiled(torch.matmul, [unsigned(5, 16), unsigned(16, 3)], [unsigned(1, 300), unsigned(300, 2)])
    w8 = lambda x, w, s: A._weight_int8pack_mm(x, w, s)
    compiled(w8, [torch.rand(8, 16).bfloat16(), bytes_(32, 16), torch.rand(32).bfloat16()])


class Quantised(torch.nn.Module):
    """Products of one left side, which become one product with a wider right side."""

    def __init__(self) -> None:
        super().__init__()
        for n in "qkv":
            self.register_buffer(n, torch.randint(-128, 128, (24, 40), dtype=i8))
            self.register_buffer(n + "_bias", torch.randint(-999, 999, (24,), dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        products = (torch._int_mm(x, getattr(self, n).t()) + getattr(self, n + "_bias") for n in "qkv")
        return torch.stack([y.reshape(-1, 4, 6).transpose(0, 1) for y in products])


def test_joined_products_of_bytes() -> None:
    module = Quantised().eval()
    draw: Any = lambda n: torch.randint(-128, 128, (n, 40), dtype=i8)
    model = dhlo.compile(export(module, (draw(5),), ({0: torch.export.Dim.AUTO},)))
    for n in (1, 2, 7, 33):
        x = draw(n)
        assert torch.equal(model(x), module(x))


@torch.library.custom_op("dhlo_test::shifted", mutates_args=())
def shifted(x: torch.Tensor, n: int) -> torch.Tensor:
    return (x * n).sin() + x.sum()


@shifted.register_fake
def _(x: torch.Tensor, n: int) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("dhlo_test::add_to", mutates_args=("x",))
def add_to(x: torch.Tensor, n: int) -> None:
    x.add_(n)


@torch.library.custom_op("dhlo_test::through_numpy", mutates_args=())
def through_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() + 1)


@through_numpy.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_operators_in_python_are_traced() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x.clone()
        add_to(y, 3)
        return y, shifted(x, 3), shifted(x, x.size(0))

    compiled(f, [torch.rand(3, 4)], [torch.rand(7, 1)], [torch.rand(40, 5)])


def test_operators_that_leave_pytorch_are_refused() -> None:
    with pytest.raises(dhlo.UnsupportedError, match=r"dhlo_test\.through_numpy\.default"):
        dhlo.compile(export(through_numpy, [torch.rand(3, 4)]))


# ------------------------------------------------------------------------------------------------ weights that stay codes
class Pair(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(64, 96), torch.nn.Linear(96, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(self.up(x).relu())
        return y


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 1e-4) -> None:
    """Equal to a part of the largest magnitude."""
    assert got.dtype == want.dtype and got.shape == want.shape
    if want.numel():
        assert float((got.float() - want.float()).abs().max()) <= tolerance * float(want.float().abs().max())


def compile_rows(module: torch.nn.Module, x: torch.Tensor, **options: Any) -> tuple[dhlo.CompiledModel, str]:
    """Compiled for any number of rows, and the module after `find-dequantize` and `quantise-weights`."""
    texts: dict[str, str] = {}
    with torch.no_grad():
        ep = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("rows", max=4096)},))
    return dhlo.compile(ep, dump=texts.__setitem__, **options), texts["quantise-weights"]


def constants(model: dhlo.CompiledModel) -> int:
    return int(json.loads(model.metadata)["constants_bytes"])


def torchao_configs() -> dict[str, Callable[[], Any]]:
    from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig
    from torchao.quantization import (
        Float8WeightOnlyConfig,
        Int8DynamicActivationInt8WeightConfig,
        Int8DynamicActivationIntxWeightConfig,
        Int8WeightOnlyConfig,
        PerGroup,
    )

    return {
        "int8": Int8WeightOnlyConfig,
        "int8 in groups": lambda: Int8WeightOnlyConfig(granularity=PerGroup(32)),
        "int8 dynamic": Int8DynamicActivationInt8WeightConfig,
        "int4 dynamic": lambda: Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(32)),
        "float8": Float8WeightOnlyConfig,
        "int4": lambda: PrototypeInt4WeightOnlyConfig(group_size=32),
    }


TORCHAO = {"int8": "i8", "int8 in groups": "i8", "int8 dynamic": "", "int4 dynamic": "i4", "float8": "f8e4m3fn", "int4": "i4"}


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        *((c, torch.float32) for c in TORCHAO),
        *(pytest.param(c, torch.bfloat16, marks=() if c in ("int8", "int8 dynamic") else pytest.mark.slow) for c in TORCHAO),
    ],
)
def test_torchao(config: str, dtype: torch.dtype) -> None:
    """As its documentation says to export: tensor subclasses are taken apart, and their codes are what the file holds."""
    ao = pytest.importorskip("torchao.quantization")
    module = Pair().to(dtype)
    ao.quantize_(module, torchao_configs()[config]())
    model, text = compile_rows(module, torch.randn(3, 64).to(dtype))
    code = TORCHAO[config]
    assert text.count("dhlo.dequantize") == (2 if code else 0)
    if code:
        assert text.count(f'code = "{code}"') == 2
    assert constants(model) < 0.4 * 4 * (64 * 96 + 96 * 32)
    for n in (1, 2, 17, 40, 0):
        x = torch.randn(n, 64).to(dtype)
        want = module(x) if n else torch.empty(0, 32, dtype=dtype)  # torchao fails without rows
        close(model(x), want, 1e-4 if dtype == torch.float32 else 3e-2)


class Handmade(torch.nn.Module):
    """Codes as checkpoints hold them: a table of bytes that is looked up and multiplies, nibbles in bytes and words, 4-bit floats
    with powers of two."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        for name, data in {
            "table": torch.randint(-128, 128, (80, 64), dtype=i8),
            "table_scale": torch.rand(80, 1) / 100,
            "nibbles": torch.randint(0, 256, (64, 32), dtype=torch.uint8),
            "nibbles_scale": torch.rand(64, 2) / 10,
            "nibbles_zero": torch.randint(0, 16, (64, 2)),
            "words": torch.randint(-(1 << 31), 1 << 31, (64, 8)).to(torch.int32),
            "words_scale": (torch.rand(64, 2) / 10).half(),
            "floats": torch.randint(0, 256, (64, 2, 16), dtype=torch.uint8),
            "exponents": torch.randint(120, 126, (64, 2), dtype=torch.uint8),
            "values": torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]),
        }.items():
            self.register_buffer(name, data)

    def weights(self) -> list[torch.Tensor]:
        table = self.table.float() * self.table_scale
        pairs = torch.stack([self.nibbles & 15, self.nibbles >> 4], -1).reshape(64, 2, 32)
        a = ((pairs.int() - self.nibbles_zero[..., None]) * self.nibbles_scale[..., None]).reshape(64, 64)
        shifts = torch.arange(0, 32, 4, dtype=torch.int32)
        parts = ((self.words[..., None] >> shifts) & 15).reshape(64, 2, 32)
        b = ((parts.to(i8) - 8).half() * self.words_scale[..., None]).reshape(64, 64).float()
        low, high = (self.values[k.int()] for k in (self.floats & 15, self.floats >> 4))
        c = torch.ldexp(torch.stack([low, high], -1).flatten(-2), self.exponents.int()[..., None] - 127).reshape(64, 64)
        return [table, a, b, c]

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        table, *matrices = self.weights()
        x = torch.nn.functional.embedding(index, table)
        for w in matrices:
            x = torch.nn.functional.linear(x, w)
        return x @ table.T


def test_codes_of_checkpoints() -> None:
    module = Handmade()
    model, text = compile_rows(module, torch.arange(5))
    assert sorted(re.findall(r'code = "(\w+)"', text)) == ["f4e2m1fn", "i4", "i8", "i8", "ui4"]
    assert constants(model) < 0.4 * 4 * (80 + 3 * 64) * 64
    for n in (0, 1, 2, 33):
        index = torch.randint(0, 80, (n,))
        close(model(index), module(index), 5e-4)  # products may leave out what was rounded to f16 on the way


class Packed(torch.nn.Module):
    """Eight codes in a word, zero points packed alike: along K in GPTQ's order, or along N in AWQ's, which interleaves them."""

    def __init__(self, awq: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.awq, k, n, groups = awq, 128, 96, 4
        draw: Any = lambda *shape: torch.randint(-(1 << 31), 1 << 31, shape).to(torch.int32)
        self.register_buffer("qweight", draw(k, n // 8) if awq else draw(k // 8, n))
        self.register_buffer("qzeros", draw(groups, n // 8))
        self.register_buffer("scales", (torch.rand(groups, n) / 50).half())
        self.register_buffer("g_idx", torch.arange(k, dtype=torch.int32) // (k // groups))

    def weight(self) -> torch.Tensor:
        shifts = torch.arange(0, 32, 4, dtype=torch.int32)
        zeros = (self.qzeros[:, :, None] >> shifts) & 15
        if self.awq:
            order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
            codes = ((self.qweight[:, :, None] >> shifts) & 15)[:, :, order].flatten(1)
            zeros, scales = (t.repeat_interleave(32, 0) for t in (zeros[:, :, order].flatten(1), self.scales))
            return ((codes - zeros) * scales).float()
        codes = ((self.qweight[:, None] >> shifts[:, None]) & 15).flatten(0, 1)
        return (self.scales[self.g_idx.long()] * (codes - (zeros.flatten(1) + 1)[self.g_idx.long()])).float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight()


@pytest.mark.parametrize("awq", [False, True], ids=["gptq", "awq"])
def test_words_of_codes_and_zero_points(awq: bool) -> None:
    module = Packed(awq)
    model, text = compile_rows(module, torch.randn(3, 128))
    assert re.findall(r'code = "(\w+)"', text) == ["ui4"]
    assert constants(model) < 0.2 * 4 * 128 * 96
    for n in (0, 1, 2, 33):
        x = torch.randn(n, 128)
        close(model(x), module(x), 5e-4)


@pytest.mark.parametrize("swapped", [False, True])
def test_groups_in_the_order_of_their_rows(swapped: bool) -> None:
    """GPTQ's "desc_act": rows belong to groups in any order. Codes stay codes; products take their rows in the groups' order."""

    class Ordered(Packed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            w = self.weight()
            return torch.nn.functional.linear(x, w.t().contiguous()) if swapped else x @ w

    module = Ordered(False)
    module.g_idx = module.g_idx[torch.randperm(128, generator=torch.Generator().manual_seed(6))]
    model, text = compile_rows(module, torch.randn(3, 128))
    assert re.findall(r'code = "(\w+)"', text) == ["ui4"]
    assert constants(model) < 0.3 * 4 * 128 * 96
    for n in (0, 1, 2, 33):
        x = torch.randn(n, 128)
        close(model(x), module(x), 5e-4)


def test_static_quantisation_around_layers() -> None:
    """What PyTorch 2 Export's quantisers leave: weights dequantised by channel before linear layers, convolutions and lookups."""

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            for name, shape in {"linear": (48, 64), "conv": (16, 8, 3, 3), "table": (70, 64)}.items():
                self.register_buffer(name, torch.randint(-128, 128, shape, dtype=i8))
                self.register_buffer(f"{name}_scale", torch.rand(shape[0]) / 50)
            self.register_buffer("zero", torch.zeros(70, dtype=torch.int64))

        def weight(self, name: str) -> torch.Tensor:
            scale = getattr(self, f"{name}_scale")
            w: torch.Tensor = Q.dequantize_per_channel(getattr(self, name), scale, self.zero[: len(scale)], 0, -127, 127, i8)
            return w

        def forward(self, index: torch.Tensor) -> Any:
            x = torch.nn.functional.embedding(index, self.weight("table"))
            q = Q.dequantize_per_tensor(Q.quantize_per_tensor(x, 0.02, 3, *LIMITS), 0.02, 3, *LIMITS)
            y = torch.nn.functional.conv2d(q.reshape(-1, 8, 2, 4), self.weight("conv"), padding=1)
            return torch.nn.functional.linear(q, self.weight("linear")), y

    module = Layers()
    model, text = compile_rows(module, torch.arange(5))
    assert text.count('code = "i8"') == 3
    for n in (1, 2, 33):
        index = torch.randint(0, 70, (n,))
        for got, want in zip(model(index), module(index), strict=True):
            close(got, want)


@pytest.mark.parametrize("dynamic", [False, True])
def test_pt2e_of_torchao(dynamic: bool) -> None:
    """Linear layers and convolutions as the quantiser for x86 leaves them."""
    pytest.importorskip("torchao")
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    torch.manual_seed(8)
    convs = [torch.nn.Conv2d(8, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3), torch.nn.ReLU(), torch.nn.Flatten()]
    module = torch.nn.Sequential(*convs, torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 48)).eval()
    rows = ({0: torch.export.Dim("rows", max=512)},)
    draw: Any = lambda n: torch.randn(n, 8, 4, 4)
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic))
    prepared = prepare_pt2e(torch.export.export(module, (draw(4),), dynamic_shapes=rows).module(), quantizer)
    prepared(draw(8))
    converted = convert_pt2e(prepared)
    texts: dict[str, str] = {}
    model = dhlo.compile(torch.export.export(converted, (draw(4),), dynamic_shapes=rows), dump=texts.__setitem__)
    assert texts["quantise-weights"].count("dhlo.dequantize") == 4
    for n in (1, 2, 17):
        x = draw(n)
        close(model(x), converted(x), 2e-2)  # a sum in another order may round to the next code


@pytest.mark.parametrize("weights", ["", "int8"])
def test_constants_without_elements(weights: str) -> None:
    class Empty(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.no_columns, self.no_rows = torch.nn.Parameter(torch.ones(64, 0)), torch.nn.Parameter(torch.ones(0, 5))

        def forward(self, x: torch.Tensor) -> Any:
            return x @ self.no_columns, x[:, :0] @ self.no_rows

    model, _ = compile_rows(module := Empty(), torch.randn(3, 64), weights=weights)
    for n in (0, 1, 7):
        for got, want in zip(model(x := torch.randn(n, 64)), module(x), strict=True):
            assert torch.equal(got, want)


@pytest.mark.parametrize("n", [16, 48, 64, 96, 176])
def test_packed_int4(n: int) -> None:
    """Rows in whole blocks of the processor's layout, and those left over; packed inside the program and outside."""
    w = torch.randint(0, 16, (n, 64), dtype=torch.int32)
    parameters = torch.rand(2, n, 2).bfloat16() / 10
    packed = A._convert_weight_to_int4pack_for_cpu(w, 1)

    def f(x: torch.Tensor) -> Any:
        inside = A._convert_weight_to_int4pack_for_cpu(w, 1)
        return A._weight_int4pack_mm_for_cpu(x, packed, 32, parameters), inside

    model = dhlo.compile(export(f, [torch.rand(3, 64).bfloat16()], ({0: torch.export.Dim("m")},)))
    for m in (1, 2, 33):
        x = torch.rand(m, 64).bfloat16()
        got, want = model(x), f(x)
        close(got[0], want[0], 1e-2)
        assert torch.equal(got[1], want[1])


@pytest.mark.skipif(VERSION < (2, 13), reason="torch 2.12 makes NaN of numbers beyond e4m3fn's largest")
def test_scaled_products() -> None:
    e4 = torch.float8_e4m3fn

    def f(x: torch.Tensor, y: torch.Tensor, s: torch.Tensor, t: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> Any:
        a, b = x.to(e4), y.to(e4).t()
        return (
            torch._scaled_mm(a, b, s, t, out_dtype=torch.float32),
            torch._scaled_mm(a, b, s, t, bias=columns[0].bfloat16(), out_dtype=torch.bfloat16),
            torch._scaled_mm(a, b, rows, columns, out_dtype=torch.bfloat16),
            A._scaled_mm_v2(a, b, [rows], [1], [0], [columns], [1], [0], None, torch.bfloat16),
            A._scaled_mm_v2(a, b, [s], [0], [0], [t], [0], [0], None, torch.float32),
        )

    def inputs(m: int) -> list[torch.Tensor]:
        return [torch.randn(m, 32), torch.randn(16, 32), torch.tensor(0.5), torch.tensor(2.0), torch.rand(m, 1), torch.rand(1, 16)]

    rows = {0: torch.export.Dim("m")}
    model = dhlo.compile(export(f, inputs(8), (rows, {}, {}, {}, rows, {})))
    for m in (1, 8, 33):
        args = inputs(m)
        for got, want in zip(model(*args), f(*args), strict=True):
            close(got, want, 1e-4 if want.dtype == torch.float32 else 1e-2)


# ------------------------------------------------------------------------------------------------ quantised by the compiler
ERRORS = {
    "int8": 8e-3,
    "int8:32": 6e-3,
    "int4": 0.11,
    "int4:32": 0.1,
    "mxfp4": 0.13,
    "f8e4m3fn": 0.03,
    "f8e5m2": 0.06,
    "bf16": 2e-3,
}


@pytest.mark.parametrize("name", ERRORS)
def test_weights_option(name: str) -> None:
    """The program is that of the rounded weights; the report says what was lost and saved."""
    module, how = Pair().eval(), Format.parse(name)
    model, _ = compile_rows(module, torch.randn(3, 64), weights=name)
    report = json.loads(model.metadata)["quantised"]
    assert [r["name"] for r in report] == ["up.weight", "down.weight"]
    rounded = Pair().eval()
    with torch.no_grad():
        for row, layer in zip(report, (rounded.up, rounded.down), strict=True):
            q, *scale = quantise(layer.weight, how, 1)
            w = dequantize(q, how.code, *scale) if scale else q.float()
            error = float((w - layer.weight).norm() / layer.weight.norm())
            assert abs(row["error"] - error) < 0.01 * error and row["error"] < ERRORS[name]
            assert row["format"] == name and row["before"] == 4 * w.numel() and row["after"] < 0.55 * row["before"]
            layer.weight.copy_(w)
        for n in (0, 1, 2, 33):
            x = torch.randn(n, 64)
            close(model(x), rounded(x))


def test_weights_by_name_and_error() -> None:
    module = Pair().eval()
    x = torch.randn(3, 64)

    def formats(weights: Any) -> list[str]:
        return [r["format"] for r in json.loads(compile_rows(module, x, weights=weights)[0].metadata)["quantised"]]

    assert formats({"default": "int8", "down*": "f32"}) == ["int8", "f32"]
    assert formats({"*.weight": "f32", "up.weight": "int4:16"}) == ["f32", "f32"]  # the first that matches
    assert formats({"up.weight": "int4:16"}) == ["int4:16", "f32"]
    assert formats({"default": "int4:64", "up*": "int8", "max_error": 0.02}) == ["int8", "f32"]
    for bad, message in {
        "int3": "no format 'int3'",
        "int8:x": "no format 'int8:x'",
        "bf16:64": "no format 'bf16:64'",
        ("head", "int8"): "no product has a constant called 'head'",
        ("max_error", "much"): "max_error is a number",
        ("max_error", None): "max_error is a number",
        ("max_error", -0.1): "max_error is 0 or more",
        ("max_error", float("nan")): "max_error is 0 or more",
        "int4:0": "no format 'int4:0'",
        "int8:²": "no format 'int8:²'",
        (1, "int8"): "formats by names",
    }.items():
        with pytest.raises(dhlo.CompileError, match=message):
            compile_rows(module, x, weights=bad if isinstance(bad, str) else dict([bad]))
    with pytest.raises(dhlo.CompileError, match="formats by names, not 5"):
        compile_rows(module, x, weights=5)


def test_weights_of_experts() -> None:
    """Products of groups of rows are products, too."""
    pytest.importorskip("transformers.integrations.moe")  # defines the operator
    grouped: Any = torch.ops.transformers.grouped_mm_fallback

    class Experts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(6)
            self.up = torch.nn.Parameter(torch.randn(4, 64, 96))
            self.down = torch.nn.Parameter(torch.randn(4, 32, 96))

        def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            y = grouped(x, self.up, ends).relu()
            out: torch.Tensor = grouped(y, self.down.transpose(1, 2), ends)
            return out

    module = Experts().eval()
    exported = export(module, (torch.randn(9, 64), torch.tensor([1, 1, 6, 9])), ({0: torch.export.Dim("rows", max=99)}, {}))
    model = dhlo.compile(exported, weights={"default": "int4:32", "up": "int8"})
    assert sorted(r["format"] for r in json.loads(model.metadata)["quantised"]) == ["int4:32", "int8"]
    assert constants(model) < 0.35 * 4 * 4 * 96 * (64 + 32)
    with torch.no_grad():
        for w, depth, name in ((module.up, 1, "int8"), (module.down, 2, "int4:32")):
            q, scale = quantise(w, how := Format.parse(name), depth)
            w.copy_(dequantize(q, how.code, scale))
        for ends in ([3, 3, 3, 5], [0, 17, 17, 40], [1, 1, 1, 1]):
            args = torch.randn(ends[-1], 64), torch.tensor(ends)
            close(model(*args), module(*args))


def test_routers_stay_as_they_are() -> None:
    """Unless they are named. What only decides a choice is a router, even if its results are an output, too; a wide head isn't."""

    class Mixture(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = torch.nn.Linear(64, 8)
            self.scores = torch.nn.Linear(64, 8)
            self.narrow = torch.nn.Linear(64, 16)
            self.head = torch.nn.Linear(64, 96)

        def forward(self, x: torch.Tensor) -> Any:
            p, chosen = self.router(x).softmax(-1).topk(2, -1)
            scores = self.scores(x).sigmoid()
            picked = scores.gather(1, (scores + 0.5).topk(2, -1).indices)
            narrow = self.narrow(x)
            return p, chosen, picked, narrow, narrow.argmax(-1) + narrow.exp().sum(-1), self.head(x).argmax(-1)

    torch.manual_seed(7)
    module, x = Mixture().eval(), torch.randn(5, 64)
    exported = export(module, (x,), ({0: torch.export.Dim("rows", max=99)},))

    def formats(weights: Any) -> dict[str, str]:
        rows = json.loads(dhlo.compile(exported, weights=weights).metadata)["quantised"]
        return {r["name"].partition(".")[0]: r["format"] for r in rows}

    plain = {"router": "f32", "scores": "f32", "narrow": "f32", "head": "int8"}
    assert formats("int8") == plain
    assert formats({"default": "int8", "router.*": "int8"}) == {**plain, "router": "int8"}
    model = dhlo.compile(exported, weights="int8")
    for got, want in zip(model(x)[:3], module(x)[:3], strict=True):
        torch.testing.assert_close(got, want)


def test_numbers_that_do_not_fit_a_format() -> None:
    """Weights stay as they are rather than become infinite; large and small ones lose no more than others."""
    torch.manual_seed(7)
    for value, name, used in (
        (float("nan"), "int8", "f32"),
        (float("inf"), "int4:16", "f32"),
        (-float("inf"), "bf16", "f32"),
        (1e5, "f16", "f32"),
        (1e30, "bf16", "bf16"),
    ):
        module = torch.nn.Linear(64, 48)
        module.weight.data[3, 5] = value
        model, _ = compile_rows(module, torch.randn(3, 64), weights=name)
        (row,) = json.loads(model.metadata, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))["quantised"]
        assert row["format"] == used and row["after"] == (row["before"] if used == "f32" else row["before"] // 2)
        x = torch.randn(5, 64)
        others = [n for n in range(48) if n != 3]
        torch.testing.assert_close(model(x)[:, others], module(x)[:, others], rtol=0, atol=2e-2 if used == "bf16" else 1e-5)
    w = torch.randn(32, 64)
    for factor in (1e-25, 1e25):
        for name, error in (("int8", 8e-3), ("int4:32", 0.11), ("f8e4m3fn", 0.03)):
            q, scale = quantise(w * factor, how := Format.parse(name), 1)
            assert (dequantize(q, how.code, scale) / factor - w).norm() < error * w.norm()


def test_a_table_of_a_head_is_read_as_codes() -> None:
    """A lookup and a product share one constant: both read its codes."""

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.randn(500, 64))

        def forward(self, index: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.embedding(index, self.table) @ self.table.T

    module = Tied().eval()
    model, _ = compile_rows(module, torch.arange(5), weights="int8")
    assert constants(model) < 0.6 * 4 * 500 * 64  # at most twice: as a table, and packed for products
    q, scale = quantise(module.table.detach(), Format.parse("int8"), 1)
    table = dequantize(q, "i8", scale)
    for n in (1, 40):
        index = torch.randint(0, 500, (n,))
        close(model(index), table[index] @ table.T)


def test_products_of_one_left_side_are_joined() -> None:
    """Codes of query, key and value become those of one product, as their weights would."""

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(4)
            self.q, self.k, self.v = (torch.nn.Linear(64, n) for n in (64, 32, 32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (p(x).unflatten(-1, (-1, 16)).transpose(0, 1) for p in (self.q, self.k, self.v))
            k, v = (t.repeat_interleave(2, 0) for t in (k, v))
            return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])

    module = Attention().eval()
    texts: dict[str, str] = {}
    rows = {0: torch.export.Dim("rows", max=99)}
    exported = torch.export.export(module, (torch.randn(5, 64),), dynamic_shapes=(rows,))
    model = dhlo.compile(exported, weights="int4:32", dump=texts.__setitem__)
    assert texts["cse-again"].count("dhlo.matmul") == 1 and texts["cse-again"].count("dhlo.dequantize") == 1
    with torch.no_grad():
        for p in (module.q, module.k, module.v):
            q, scale = quantise(p.weight, Format.parse("int4:32"), 1)
            p.weight.copy_(dequantize(q, "i4", scale))
        for n in (1, 7):
            x = torch.randn(n, 64)
            close(model(x), module(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_groups_that_kernels_have_no_form_for(dtype: torch.dtype) -> None:
    """330 has no divisor of 8 and more: the numbers that codes stand for are multiplied."""
    torch.manual_seed(5)
    module = torch.nn.Linear(330, 9).to(dtype).eval()
    rows = {0: torch.export.Dim("rows", max=99)}
    model = dhlo.compile(
        torch.export.export(module, (torch.randn(5, 330, dtype=dtype),), dynamic_shapes=(rows,)), weights="int4:64"
    )
    with torch.no_grad():
        q, scale = quantise(module.weight, Format.parse("int4:64"), 1)
        module.weight.copy_(dequantize(q, "i4", scale))
        for n in (0, 1, 5, 33):
            x = torch.randn(n, 330, dtype=dtype)
            want = x.double() @ module.weight.double().T + module.bias.double()
            torch.testing.assert_close(model(x).double(), want, rtol=0, atol=6 * torch.finfo(dtype).eps)


def test_scales_are_searched_for() -> None:
    """Better than that of the largest element; nothing is lost of zeros; groups that don't divide are made to."""
    torch.manual_seed(3)
    w = torch.randn(64, 128)
    w[0], w[1] = 0, w[1] * 1e-20
    for name, depth in (("int4:32", 1), ("int4:32", 0), ("mxfp4", 1), ("int8", 0), ("f8e5m2", 1), ("int4:48", 1)):
        how = Format.parse(name)
        q, scale = quantise(w, how, depth)
        got = dequantize(q, how.code, scale)
        assert got.isfinite().all() and (depth == 0 or not got[0].any())
        assert scale.shape[depth] == {"int4:32": w.shape[depth] // 32, "mxfp4": 4, "int4:48": 4}.get(name, 1)
        if how.code == "i4":
            groups = w.unflatten(depth, (scale.shape[depth], -1))
            plain = groups.abs().amax(depth + 1, keepdim=True) / 7
            usual = ((groups / plain.clamp(min=1e-30)).round() * plain).flatten(depth, depth + 1)
            assert (got - w).norm() < 0.97 * (usual - w).norm()
