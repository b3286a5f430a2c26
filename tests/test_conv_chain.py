"""Depthwise convolutions that take in the convolution before them, beside PyTorch, at image sizes of every kind."""

from __future__ import annotations

import copy
import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import dhlo
from dhlo.api import build
from dhlo.codegen.backends.cpu.llvm import Jit, compile_object, lower_to_llvm_ir
from dhlo.codegen.families.conv.chain_expand import emit_pack
from dhlo.codegen.families.conv.chain_window import First, Window
from dhlo.codegen.kernel_ir.builder import I64, PTR, Fn, KernelModule
from dhlo.options import Options
from tests.targets import TARGET, TILES
from tests.unreadable import check_beside_unreadable

SIZES = [(1, 1, 1), (1, 7, 7), (2, 14, 14), (1, 15, 13), (3, 9, 33), (1, 56, 57), (1, 2, 130), (2, 40, 3), (1, 21, 500)]


class Chain(nn.Module):
    def __init__(self, channels: int, hidden: int, k: int, stride: int = 1, dilation: int = 1, act: Any = nn.ReLU6) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(channels, hidden, 1), act())
        padding = dilation * (k - 1) // 2
        self.mix = nn.Sequential(nn.Conv2d(hidden, hidden, k, stride, padding, dilation, groups=hidden), act())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.mix(self.expand(x))
        return y


def compiled(model: nn.Module, channels: int, dtype: torch.dtype = torch.float32, least: int = 1) -> Any:
    """`least`: sizes below give one row, which export makes a case of its own."""
    dims = {0: Dim("b", max=64), 2: Dim("h", min=least, max=512), 3: Dim("w", min=least, max=512)}
    exported = torch.export.export(model, (torch.randn(2, channels, 20, 24, dtype=dtype),), dynamic_shapes=(dims,))
    return dhlo.compile(exported, cache="")


def chains(model: Any) -> int:
    """How many groups hold two convolutions."""
    return sum(g["ops"].count("dhlo.conv") == 2 for g in json.loads(model.native.metadata)["groups"])


@pytest.mark.parametrize(
    "channels,hidden,k,stride,dilation",
    [
        (16, 96, 3, 2, 1),
        (24, 72, 5, 1, 1),
        (8, 33, 3, 1, 1),
        (3, 5, 3, 1, 2),
        (17, 64, 5, 2, 1),
        (40, 31, 7, 1, 1),
        (64, 96, 1, 1, 1),
        (1, 40, 3, 1, 1),
    ],
)
def test_matches_pytorch_at_all_sizes(channels: int, hidden: int, k: int, stride: int, dilation: int) -> None:
    torch.manual_seed(0)
    model = Chain(channels, hidden, k, stride, dilation).eval()
    least = 2 * stride - 1
    ours = compiled(model, channels, least=least)
    wide = Chain(channels, hidden, k, stride, dilation).eval()
    wide.load_state_dict(model.state_dict())
    wide.double()
    assert chains(ours) == 1
    for b, h, w in (s for s in SIZES if min(s[1:]) >= least):
        x = torch.randn(b, channels, h, w)
        want = wide(x.double())
        got = ours(x)
        assert got.shape == want.shape
        assert (got - want).abs().max() <= 5e-6 * want.abs().max()


@pytest.mark.parametrize("dtype,tolerance", [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
@pytest.mark.parametrize("channels,hidden,k,stride", [(16, 96, 3, 1), (17, 33, 5, 2), (3, 5, 3, 1)])
def test_of_reduced_floats_at_all_sizes(
    dtype: torch.dtype, tolerance: float, channels: int, hidden: int, k: int, stride: int
) -> None:
    """Weights of the first convolution are kept as they are, and decoded in scratch."""
    torch.manual_seed(0)
    model = Chain(channels, hidden, k, stride).to(dtype).eval()
    least = 2 * stride - 1
    ours = compiled(model, channels, dtype, least)
    wide = copy.deepcopy(model).double()
    assert chains(ours) == 1
    for b, h, w in (s for s in SIZES if min(s[1:]) >= least):
        x = torch.randn(b, channels, h, w).to(dtype)
        want = wide(x.double())
        got = ours(x)
        assert got.dtype == dtype and got.shape == want.shape
        assert (got - want).abs().max() <= tolerance * want.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels,stride", [(3, 1), (16, 1), (5, 2)])
def test_nothing_beside_the_image_is_read(channels: int, stride: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Chain(channels, 20, 3)
    model.expand[0] = nn.Conv2d(channels, 20, 2 * stride - 1, stride, stride - 1)
    ours = compiled(model.to(dtype).eval(), channels, dtype, least=7)
    assert chains(ours) == 1
    check_beside_unreadable(ours, torch.randn(1, channels, 9, 11).to(dtype))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "channels,hidden,k,stride,padding,dilation,act",
    [
        (3, 32, 3, 2, 1, 1, nn.SiLU),
        (3, 16, 3, 2, 1, 1, nn.Hardswish),
        (1, 40, 5, 3, 2, 1, nn.ReLU),
        (4, 33, (3, 5), (2, 3), (0, 3), (2, 1), nn.GELU),
        (24, 8, 2, 2, 0, 1, nn.Identity),
        (12, 48, 1, 2, 0, 1, nn.ReLU6),
    ],
)
@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 5e-6), (torch.float64, 1e-13), (torch.bfloat16, 2e-2)])
def test_strided_windows_before_the_depthwise_ones(
    channels: int, hidden: int, k: Any, stride: Any, padding: Any, dilation: Any, act: Any, dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(0)
    model = Chain(channels, hidden, 3, act=act)
    model.expand[0] = nn.Conv2d(channels, hidden, k, stride, padding, dilation)
    narrow = model.to(dtype).eval()
    wide, least = copy.deepcopy(narrow).double(), 7
    ours = compiled(narrow, channels, dtype, least=least)
    assert chains(ours) == 1
    for b, h, w in (*(s for s in SIZES if min(s[1:]) >= least), (0, 9, 9), (2, 112, 31), (1, 33, 64)):
        x = torch.randn(b, channels, h, w, dtype=torch.float64).to(dtype)
        want, got = wide(x.double()), ours(x)
        assert got.shape == want.shape
        assert not want.numel() or (got - want).abs().max() <= tolerance * want.abs().max()


def test_windows_that_winograd_may_compute_stay_on_their_own() -> None:
    model = Chain(8, 24, 3).eval()
    model.expand[0] = nn.Conv2d(8, 24, 3, padding=1)
    assert chains(compiled(model, 8)) == 0


def test_double_precision_and_an_empty_batch() -> None:
    torch.manual_seed(0)
    model = Chain(9, 40, 3, act=nn.Hardswish).double().eval()
    ours = compiled(model, 9, torch.float64)
    assert chains(ours) == 1
    for b, h, w in (*SIZES, (0, 5, 6)):
        x = torch.randn(b, 9, h, w, dtype=torch.float64)
        torch.testing.assert_close(ours(x), model(x), rtol=1e-12, atol=1e-12)


def test_padding_that_differs_by_side_and_by_dim() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.expand, self.mix = nn.Conv2d(6, 37, 1), nn.Conv2d(37, 37, (3, 5), (1, 2), groups=37, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.mix(nn.functional.pad(self.expand(x).relu(), (0, 4, 2, 1)))
            return y

    torch.manual_seed(0)
    model = Net().eval()
    ours = compiled(model, 6, least=4)
    assert chains(ours) == 1
    for b, h, w in ((1, 4, 4), (2, 17, 31), (1, 30, 64)):
        x = torch.randn(b, 6, h, w)
        torch.testing.assert_close(ours(x), model(x), rtol=1e-5, atol=1e-5)


def test_a_nan_reaches_the_windows_that_hold_it_and_no_others() -> None:
    torch.manual_seed(0)
    model = Chain(8, 48, 3, act=nn.Identity).eval()
    x = torch.randn(2, 8, 19, 23)
    x[1, 3, 0, 0] = x[0, 2, 7, 11] = float("nan")
    assert torch.equal(compiled(model, 8)(x).isnan(), model(x).isnan())


def test_bands_and_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Chain(16, 80, 3).eval()
    results = []
    x = torch.randn(2, 16, 61, 70)
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("DHLO_NUM_THREADS", threads)
        results.append(compiled(model, 16)(x))
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


class _Shared(Chain):
    """The expansion's result is read again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.expand(x)
        z: torch.Tensor = self.mix(y) + y
        return z


class _Scaled(Chain):
    """What is done to the expansion's result depends on positions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.mix(self.expand(x) * x[:, :1])
        return y


@pytest.mark.parametrize("kind", [_Shared, _Scaled])
def test_what_else_reads_or_feeds_the_expansion_keeps_it_in_memory(kind: type[Chain]) -> None:
    torch.manual_seed(0)
    model = kind(8, 32, 3).eval()
    ours = compiled(model, 8)
    assert chains(ours) == 0
    x = torch.randn(2, 8, 12, 17)
    torch.testing.assert_close(ours(x), model(x), rtol=1e-5, atol=1e-5)


def test_blocks_in_a_row_share_kernels() -> None:
    torch.manual_seed(0)

    def block(i: int, o: int, stride: int) -> list[nn.Module]:
        return [Chain(i, 6 * i, 3, stride), nn.Conv2d(6 * i, o, 1)]

    model = nn.Sequential(*block(8, 12, 1), *block(12, 12, 1), *block(12, 16, 2), nn.AdaptiveAvgPool2d(1)).eval()
    ours = compiled(model, 8, least=3)
    assert chains(ours) == 3
    assert len({k for k in ours.native.launches if k.startswith("conv_chain_")}) == 2  # of strides 1 and 2
    for b, h, w in ((1, 8, 8), (2, 33, 20)):
        x = torch.randn(b, 8, h, w)
        torch.testing.assert_close(ours(x), model(x), rtol=1e-5, atol=1e-5)


def test_threads_do_not_change_bits(tmp_path: Path) -> None:
    """Workers keep a band's packed rows for all its panels that they get, of which there are more than each gets at a time."""
    torch.manual_seed(0)
    file = tmp_path / "chain.so"
    compiled(Chain(24, 500, 3).eval(), 24).save(file)
    models = [dhlo.load(file, num_threads=n) for n in (1, 2, 3, 16)]
    for size in (*SIZES, *SIZES[::-1]):
        x = torch.randn(size[0], 24, *size[1:])
        want, *others = (model(x) for model in models)
        assert all(torch.equal(want, y) for y in others), size


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "aarch64"])
def test_every_target_has_a_kernel(target: str) -> None:
    dims = {0: Dim("b", max=64), 2: Dim("h", min=3, max=512)}
    exported = torch.export.export(Chain(8, 40, 5, 2).eval(), (torch.randn(2, 8, 20, 24),), dynamic_shapes=(dims,))
    _, artifact = build(exported, Options(target=target))
    assert artifact is not None


@pytest.mark.parametrize("iw", [37, (1 << 31) + 5, 1 << 32, (1 << 33) + 1])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_columns_beyond_32_bits(iw: int, stride: int) -> None:
    """Packing of the first columns of a row, and of the row above the image."""
    padding, channels, width = 2, 3, 9
    first = First((1, 3), (1, stride), ((1, 0), (padding, padding)), (1, 1))
    window = Window((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), "f32", TILES, first)
    module = KernelModule(TARGET)
    pack = emit_pack(window, module)
    fn = Fn(module, "pack_row", [("x", PTR), ("y", I64), ("to", PTR)], internal=False)
    x, y, to = fn.args
    fn.call(pack, [x, *map(fn.i64, (64, channels, 4, iw)), y, fn.i64(width), fn.i64(1024), to])
    fn.done()
    jit = Jit([compile_object(lower_to_llvm_ir(module.text(), TARGET), TARGET)])
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(jit.address("pack_row"))
    image = np.random.default_rng(0).standard_normal((channels + 4, 64), np.float32)
    for row in (0, 1):
        out = np.full(4096, 7, np.float32)
        call(image.ctypes.data, row, out.ctypes.data)
        parts = -(-width // TILES.mr)
        for part in range(parts):
            begin, end = width * part // parts, width * (part + 1) // parts
            packed = out[1024 * part :][: 3 * channels * TILES.mr].reshape(3, channels, TILES.mr)[:, :, : end - begin]
            columns = np.arange(begin, end) * stride - padding + np.arange(3)[:, None]
            inside = (columns >= 0) & (columns < iw) & (row > 0)
            want = np.where(inside[:, None], image[:channels, np.maximum(columns, 0)].transpose(1, 0, 2), 0)
            assert (packed == want).all()
