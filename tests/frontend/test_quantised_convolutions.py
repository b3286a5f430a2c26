"""Convolutions of quantised images and weights, as PyTorch 2 Export's quantisers and `weights=` leave them."""

from __future__ import annotations

import copy
import functools
import json
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines the operators

import dhlo
from dhlo.codegen.families.conv.winograd import Winograd
from dhlo.ir.ops.quantised import CODES, dequantize
from dhlo.passes.quantise_weights import Format, quantise
from tests.targets import TILES
from tests.unreadable import check_beside_unreadable

Q = torch.ops.quantized_decomposed
BYTES = {torch.uint8: (0, 255), torch.int8: (-128, 127)}
STEP = 0.02


def close(got: torch.Tensor, want: torch.Tensor, tol: float) -> None:
    assert got.shape == want.shape
    if want.numel():
        assert float((got - want).abs().max()) <= tol * float(want.abs().max())


class Step(torch.nn.Module):
    """Quantises and dequantises."""

    def __init__(self, dtype: torch.dtype, zero: int) -> None:
        super().__init__()
        self.numbers = (STEP, zero, *BYTES[dtype], dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = Q.dequantize_per_tensor(Q.quantize_per_tensor(x, *self.numbers), *self.numbers)
        return y


class Layer(torch.nn.Module):
    """A convolution between images of bytes, with a scale for each output channel."""

    def __init__(self, dtype: torch.dtype, zero: int, shape: tuple[int, ...], **given: Any) -> None:
        super().__init__()
        self.before, self.given, rank = Step(dtype, zero), given, len(shape) - 2
        self.conv = [torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d][rank - 1]
        self.register_buffer("weight", torch.randint(-128, 128, shape, dtype=torch.int8))
        self.register_buffer("scale", torch.rand(shape[0]) / 50 + 0.001)
        self.register_buffer("zero", torch.zeros(shape[0], dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = Q.dequantize_per_channel(self.weight, self.scale, self.zero, 0, -128, 127, torch.int8)
        return self.conv(self.before(x), w, **self.given)


LAYERS: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {
    "3x3": ((40, 8, 3, 3), 1, {"padding": 1}),
    "first": ((64, 3, 7, 7), 1, {"padding": 3, "stride": 2}),
    "patches": ((20, 3, 4, 4), 1, {"padding": (0, 2), "stride": (1, 4)}),
    "few channels": ((9, 2, 3, 3), 1, {"padding": 1}),
    "few channels in groups": ((10, 2, 3, 7), 5, {"padding": (1, 3), "stride": (1, 3), "groups": 5}),
    "few channels, far columns": ((9, 2, 1, 3), 1, {"padding": (0, 4), "dilation": (1, 4)}),
    "few channels in one dim": ((70, 3, 9), 1, {"padding": 8, "stride": 2, "dilation": 2}),
    "few channels, 3d": ((33, 3, 3, 3, 7), 1, {"padding": (1, 1, 3), "stride": (1, 2, 2)}),
    "pointwise": ((24, 70, 1, 1), 1, {"stride": 2}),
    "deep": ((35, 330, 3), 1, {"padding": 1}),
    "grouped": ((8, 3, 3, 3), 4, {"padding": 1, "dilation": 2, "groups": 4}),
    "depthwise": ((48, 1, 3, 3), 24, {"padding": 1, "groups": 24}),
    "depthwise 5x5": ((10, 1, 5, 5), 10, {"padding": 2, "stride": 2, "groups": 10}),
    "depthwise in one dim": ((6, 1, 11), 6, {"padding": 5, "groups": 6}),
    "depthwise, two outputs of each": ((10, 1, 3, 2), 5, {"padding": (2, 1), "stride": (1, 2), "dilation": (2, 1), "groups": 5}),
    "depthwise of far columns": ((4, 1, 2, 3), 4, {"padding": (0, 9), "dilation": (1, 9), "groups": 4}),
    "depthwise of wide strides": ((4, 1, 3, 5), 4, {"padding": 2, "stride": (3, 4), "groups": 4}),
    "depthwise of many points": ((3, 1, 17, 13), 3, {"padding": 8, "groups": 3}),
    "depthwise, 3d": ((6, 1, 3, 3, 3), 6, {"padding": 1, "groups": 6}),
    "depthwise, flat 3d": ((6, 1, 1, 3, 3), 6, {"padding": (0, 1, 1), "groups": 6}),
    "3d": ((10, 6, 3, 1, 2), 1, {"padding": (1, 0, 1)}),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("dtype", "zero"), [(torch.uint8, 125), (torch.int8, -7)])
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str, dtype: torch.dtype, zero: int) -> None:
    """Padding, groups, strides and dilation, beside the arithmetic as written."""
    torch.manual_seed(1)
    shape, groups, given = LAYERS[name]
    module, rank = Layer(dtype, zero, shape, **given), len(shape) - 2
    sizes = [torch.export.Dim(f"s{i}", min=5, max=512) for i in range(rank)]
    draw: Any = lambda n, *s: torch.randn(n, shape[1] * groups, *s[:rank]) * 2
    dims = ({0: torch.export.Dim("n", max=64), **{2 + i: d for i, d in enumerate(sizes)}},)
    texts: dict[str, str] = {}
    model = dhlo.compile(torch.export.export(module, (draw(2, 9, 11, 10),), dynamic_shapes=dims), dump=texts.__setitem__)
    assert texts["fuse"].count("dhlo.conv_bytes") == 1
    for n, *s in ((0, 7, 7, 7), (1, 5, 6, 7), (2, 17, 33, 8), (3, 70, 16, 5)):
        x = draw(n, *s)
        close(model(x), module(x), 1e-5)


def test_new_weights_whose_sums_are_too_large_for_winograd(tmp_path: Path) -> None:
    """The same code multiplies them in order, and others by Winograd's algorithm again: both exactly."""
    torch.manual_seed(4)
    modules = [Layer(torch.uint8, 0, (20, 300, 3, 3), padding=1) for _ in range(3)]
    modules[0].weight //= 4
    modules[1].weight.fill_(127)
    modules[2].weight //= 8
    dims = {0: torch.export.Dim("n", max=64), 2: torch.export.Dim("h", min=5, max=64), 3: torch.export.Dim("w", min=5, max=64)}
    program = torch.export.export(modules[0], (torch.randn(2, 300, 20, 20),), dynamic_shapes=(dims,))
    with mock.patch.object(Winograd, "cost", lambda self, host, out, cut: host.fn.i64(0)):
        dhlo.compile(program, cache="").save(tmp_path / "model.so")
        for module in modules[1:]:
            dhlo.update_weights(tmp_path / "model.so", module.state_dict())
            again = dhlo.compile(torch.export.export(module, (torch.randn(2, 300, 20, 20),), dynamic_shapes=(dims,)), cache="")
            model = dhlo.load(tmp_path / "model.so")
            for size in ((1, 300, 5, 9), (2, 300, 17, 33)):
                x = torch.rand(size) * 6
                close(model(x), module(x), 1e-5)
                assert torch.equal(model(x), again(x))


class OfBoth(torch.nn.Module):
    """Weights that bytes with a sign allow to be multiplied by Winograd's algorithm, and others don't."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.full((16, 150, 3, 3), 127, dtype=torch.int8))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        w = Q.dequantize_per_tensor(self.weight, 1.0, 0, -128, 127, torch.int8)
        images = (Q.dequantize_per_tensor(x, 1.0, 0, *BYTES[x.dtype], x.dtype) for x in (y, x))
        signed, unsigned = (torch.nn.functional.conv2d(image, w, padding=1) for image in images)
        return unsigned, signed


@pytest.mark.parametrize("target", ["native", "x86-64-v3", "x86-64-v4"])
def test_images_of_both_kinds_share_weights(target: str) -> None:
    """But not what says whether sums fit."""
    if target != "native" and (not TILES.target.is_x86 or TILES.lanes("f32") < 16):
        pytest.skip("runs code for x86-64-v4")
    module = OfBoth()
    dims = {0: torch.export.Dim("n", max=64), 2: torch.export.Dim("h", min=5, max=64), 3: torch.export.Dim("w", min=5, max=64)}
    x = torch.full((2, 150, 28, 28), 255, dtype=torch.uint8)
    y = torch.randint(-128, 128, (2, 150, 28, 28), dtype=torch.int8)
    with mock.patch.object(Winograd, "cost", lambda self, host, out, cut: host.fn.i64(0)):
        model = dhlo.compile(torch.export.export(module, (x, y), dynamic_shapes=(dims, dims)), target=target, cache="")
    for got, image in zip(model(x, y), (x, y), strict=True):
        want = torch.nn.functional.conv2d(image.double(), module.weight.double(), padding=1)  # type: ignore[operator]
        assert torch.equal(got, want.float())  # rounded once, as sums that no f32 holds are


_WIDTHS = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 511, 513, 1100)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("dtype", "zero"), [(torch.uint8, 200), (torch.int8, 127)])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (7, 2), (4, 3)])
def test_depthwise_rows_of_all_sizes(kernel: int, stride: int, dtype: torch.dtype, zero: int) -> None:
    """Whole register tiles and rests of them, in rows and in columns, at both edges of an image."""
    torch.manual_seed(2)
    module = Layer(dtype, zero, (5, 1, kernel, kernel), padding=kernel // 2, stride=stride, groups=5)
    least = stride + 1 if stride > 1 else 1  # torch.export doesn't take sizes of one output beside those of more
    height, width = (torch.export.Dim(name, min=least, max=2048) for name in "hw")
    dims = {0: torch.export.Dim("n", max=64), 2: height, 3: width}
    program = torch.export.export(module, (torch.randn(2, 5, 20, 20),), dynamic_shapes=(dims,))
    model = dhlo.compile(program)
    for rows, columns in [(9, w) for w in _WIDTHS] + [(h, 20) for h in (1, 2, 7, 8, 10, 16, 17)]:
        if min(rows, columns) >= least:
            x = torch.randn(2, 5, rows, columns) * 2
            close(model(x), module(x), 1e-5)


class Pooled(torch.nn.Module):
    """A pooling between a convolution of bytes and another one, all of images that are quantised in one way."""

    def __init__(self, dtype: torch.dtype, zero: int, again: int) -> None:
        super().__init__()
        self.first, self.second = Layer(dtype, zero, (6, 3, 3, 3), stride=2), Layer(dtype, again, (5, 6, 3, 3), padding=1)
        self.between = Step(dtype, zero)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.nn.functional.max_pool2d(self.between(self.first(x) / 20), 3, 2, 1)
        return self.second(y), y


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize(("dtype", "zero"), [(torch.uint8, 125), (torch.int8, -7)])
def test_pooled_bytes(dtype: torch.dtype, zero: int, same: bool) -> None:
    """Bytes are pooled as they are, and read by the next convolution, if that wants them in the same way."""
    torch.manual_seed(3)
    module = Pooled(dtype, zero, zero if same else zero + 3)
    dims = {0: torch.export.Dim("n", max=64), 2: torch.export.Dim("h", min=9, max=512), 3: torch.export.Dim("w", min=9, max=512)}
    texts: dict[str, str] = {}
    program = torch.export.export(module, (torch.randn(2, 3, 21, 40),), dynamic_shapes=(dims,))
    model = dhlo.compile(program, dump=texts.__setitem__)
    pooled = re.search(r"(%\d+) = \"dhlo.pool\"", texts["keep-codes"])
    assert pooled is not None
    assert (re.search(rf"dhlo.conv_bytes\"\({pooled[1]},", texts["keep-codes"]) is not None) == same
    for n, *s in ((1, 9, 9), (2, 64, 33), (1, 12, 511), (3, 40, 264)):
        x = torch.randn(n, 3, *s)
        for got, want in zip(model(x), module(x), strict=True):
            close(got, want, 0.05)
        assert torch.equal(model(x)[1], module(x)[1]) or float((model(x)[1] - module(x)[1]).abs().max()) <= 1.01 * STEP


class OfBytes(torch.nn.Module):
    """A convolution of bytes as the caller gives them."""

    def __init__(self, kernel: int, stride: int, groups: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-128, 128, (6, 6 // groups, kernel, kernel), dtype=torch.int8))
        self.stride, self.padding, self.groups = stride, kernel // 2, groups

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = Q.dequantize_per_tensor(x, STEP, 77, 0, 255, torch.uint8)
        w = Q.dequantize_per_tensor(self.weight, 0.01, 0, -128, 127, torch.int8)
        return torch.nn.functional.conv2d(image, w, stride=self.stride, padding=self.padding, groups=self.groups)


@pytest.mark.parametrize(("kernel", "stride", "groups"), [(3, 1, 6), (3, 2, 6), (7, 1, 6), (7, 2, 2), (3, 1, 3)])
def test_nothing_beside_images_is_read(kernel: int, stride: int, groups: int) -> None:
    """Of depthwise convolutions, and of few channels."""
    torch.manual_seed(0)
    module = OfBytes(kernel, stride, groups)
    dims = {0: torch.export.Dim("n", max=64), 2: torch.export.Dim("h", min=5, max=64), 3: torch.export.Dim("w", min=5, max=64)}
    draw: Any = lambda *size: torch.randint(0, 256, size, dtype=torch.uint8)
    texts: dict[str, str] = {}
    program = torch.export.export(module, (draw(2, 6, 20, 20),), dynamic_shapes=(dims,))
    model = dhlo.compile(program, dump=texts.__setitem__)
    assert texts["fuse"].count("dhlo.conv_bytes") == 1
    x = draw(1, 6, 13, 11)
    close(model(x), module(x), 1e-5)
    check_beside_unreadable(model, x)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Conv2d(20, 72, 3, padding=1), torch.nn.Conv2d(72, 33, 1)
        self.c, self.d = torch.nn.Conv2d(33, 130, 3, stride=2, padding=1), torch.nn.Conv2d(130, 40, 3, padding=1, groups=2)
        self.e = torch.nn.Conv2d(40, 40, 3, groups=40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.e(self.d(self.c(self.b(self.a(x).relu()).relu()).relu()).relu())
        return y


IMAGE = {0: torch.export.Dim("n", max=8), 2: torch.export.Dim("h", min=9, max=200), 3: torch.export.Dim("w", min=9, max=200)}
SIZES = ((1, 20, 9, 11), (2, 20, 33, 40), (1, 20, 70, 64))


def net() -> tuple[Net, Any]:
    torch.manual_seed(0)
    module = Net().eval()
    return module, torch.export.export(module, (torch.randn(2, 20, 24, 26),), dynamic_shapes=(IMAGE,))


@functools.cache
def plain_bytes() -> int:
    """Of the constants as they are."""
    n: int = dhlo.compile(net()[1]).native.constants_bytes
    return n


_FORMATS = ["int8", "int4", "int4:64", "f8e4m3fn", "f8e5m2", "bf16", "f16"]


@pytest.mark.parametrize(("weights", "winograd"), [(w, i % 2 == 0) for i, w in enumerate(_FORMATS)])
def test_weights_stay_codes(weights: str, winograd: bool) -> None:
    """Beside the same network with what the codes stand for; depthwise weights stay as they are."""
    module, program = net()
    model = dhlo.compile(program, weights=weights, winograd=winograd)
    rows = json.loads(model.metadata)["quantised"]
    assert sorted(r["name"] for r in rows) == ["a.weight", "b.weight", "c.weight", "d.weight"]
    assert {r["format"] for r in rows} == {weights}
    for name in "abcd":
        w, how = getattr(module, name).weight.data, Format.parse(weights)
        q, *scale = quantise(w.flatten(1), Format(how.name, how.code, None if how.group is None else 0), 1)
        values = dequantize(q, how.code, *scale) if how.code in CODES else q.float()
        getattr(module, name).weight.data = values.reshape(w.shape)
    for size in SIZES:
        x = torch.randn(size)
        close(model(x), module(x), 1e-4)
    bits = {"int8": 8, "int4": 4, "bf16": 16, "f16": 16}.get(weights.split(":")[0], 8)
    assert model.native.constants_bytes < plain_bytes() * (bits / 32 + 0.1)


@pytest.mark.parametrize("weights", ["int8", "int4:64", "bf16"])
def test_windows_in_one_dim(weights: str) -> None:
    """Winograd's kernels, taken wherever they can be, beside products in order of the same codes."""
    torch.manual_seed(0)
    layers = torch.nn.Conv1d(24, 72, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv1d(72, 33, 3, stride=2)
    dims = {0: torch.export.Dim("n", max=8), 2: torch.export.Dim("t", min=5, max=900)}
    program = torch.export.export(torch.nn.Sequential(*layers), (torch.randn(2, 24, 50),), dynamic_shapes=(dims,))
    with mock.patch.object(Winograd, "cost", lambda self, host, out, cut: host.fn.i64(0)):
        model = dhlo.compile(program, weights=weights, cache="")
    ordered = dhlo.compile(program, weights=weights, winograd=False)
    for size in ((1, 24, 5), (2, 24, 65), (1, 24, 801)):
        x = torch.randn(size)
        got, want = model(x), ordered(x)
        close(got, want, 5e-5)
        assert not torch.equal(got, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_take_two_bytes(dtype: torch.dtype) -> None:
    module, _ = net()
    half = copy.deepcopy(module).to(dtype)
    x = torch.randn(2, 20, 24, 26, dtype=dtype)
    model = dhlo.compile(torch.export.export(half, (x,), dynamic_shapes=(IMAGE,)))
    wide = copy.deepcopy(half).float()
    for size in SIZES:
        x = torch.randn(size, dtype=dtype)
        close(model(x).float(), wide(x.float()), 2e-2)
    assert model.native.constants_bytes < 0.6 * plain_bytes()


def test_weights_with_zero_points_and_codes_of_other_scales() -> None:
    """Integer codes with a zero point for each channel are kept; scales of input channels are not those of results."""

    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("q", torch.randint(0, 256, (48, 40, 3, 3), dtype=torch.uint8))
            self.register_buffer("zero", torch.randint(100, 128, (48, 1, 1, 1)))
            self.register_buffer("scale", torch.rand(48, 1, 1, 1) / 100)
            self.register_buffer("columns", torch.rand(1, 40, 1, 1) / 100)

        def forward(self, x: torch.Tensor) -> Any:
            w = (self.q.float() - self.zero) * self.scale
            v = (self.q[:, :, :1, :1].float() - 7.0) * self.columns
            return torch.nn.functional.conv2d(x, w, padding=1), torch.nn.functional.conv2d(x, v)

    torch.manual_seed(3)
    module = Odd()
    model = dhlo.compile(torch.export.export(module, (torch.randn(2, 40, 12, 13),), dynamic_shapes=(IMAGE,)))
    for n, h, w in ((1, 9, 9), (2, 17, 30)):
        x = torch.randn(n, 40, h, w)
        for got, want in zip(model(x), module(x), strict=True):
            close(got, want, 1e-4)


def test_codes_are_bounded_as_integers_for_scales_of_any_usual_size(tmp_path: Path) -> None:
    """The same code serves weights whose scales are some orders of magnitude apart."""

    class Codes(torch.nn.Module):
        def __init__(self, times: float) -> None:
            super().__init__()
            self.layer = Layer(torch.int8, 3, (8, 8, 3, 3), padding=1)
            self.layer.scale *= times

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.nn.functional.relu6(self.layer(x))
            codes: torch.Tensor = Q.quantize_per_tensor(y, 0.03, -7, -128, 127, torch.int8)
            return codes

    torch.manual_seed(5)
    modules = [Codes(times) for times in (1.0, 35.0, 1e-3, 1e3)]
    module = modules[0]
    texts: dict[str, str] = {}
    exported = torch.export.export(module, (torch.randn(2, 8, 12, 13),), dynamic_shapes=(IMAGE,))
    model = dhlo.compile(exported, dump=texts.__setitem__)
    assert "dhlo.nearest" in texts["round-codes"] and not re.search(r"dhlo.m\w+imum.*f32", texts["round-codes"].split("nearest")[1])
    model.save(tmp_path / "model.so")
    for other in modules:
        dhlo.update_weights(tmp_path / "model.so", other.state_dict(), tmp_path / "other.so")
        updated = dhlo.load(tmp_path / "other.so")
        for n, h, w in ((1, 9, 9), (2, 17, 30)):
            x = torch.randn(n, 8, h, w)
            assert torch.equal(updated(x), other(x))
