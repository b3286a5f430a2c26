"""Images whose channels are multiplied by gates as a convolution packs them, beside PyTorch, at image sizes of every kind."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import dhlo

SIZES = [(1, 1, 1), (3, 7, 9), (2, 33, 65), (1, 56, 56), (0, 3, 3), (5, 1, 17), (2, 14, 14), (1, 2, 130), (4, 16, 16)]


class Excited(nn.Module):
    """Squeeze and excitation, and the projection behind it. Whatever the order of the factors."""

    def __init__(self, channels: int, outs: int, kernel: int = 1, again: bool = False, residual: bool = False) -> None:
        super().__init__()
        self.mix = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.squeeze, self.excite = nn.Conv2d(channels, 5, 1), nn.Conv2d(5, channels, 1)
        self.project = nn.Conv2d(channels, outs, kernel, padding=kernel // 2)
        self.again, self.residual = again, residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.hardswish(self.mix(x))
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(nn.functional.adaptive_avg_pool2d(y, 1)))))
        product = gate * y if self.residual else y * gate
        out: torch.Tensor = self.project(product)
        if self.residual:
            out = out + x
        return out + product.mean() if self.again else out


def compiled(model: nn.Module, channels: int, dtype: torch.dtype = torch.float32) -> Any:
    dims = {0: Dim("b"), 2: Dim("h"), 3: Dim("w")}
    exported = torch.export.export(model, (torch.randn(2, channels, 20, 24, dtype=dtype),), dynamic_shapes=(dims,))
    return dhlo.compile(exported, cache="")


def gated(model: Any) -> bool:
    """Whether a convolution has taken in the product that it reads."""
    groups = [g["ops"] for g in json.loads(model.native.metadata)["groups"] if "dhlo.conv" in g["ops"]]
    return any("dhlo.mul" in ops[: ops.index("dhlo.conv")] for ops in groups)


NARROW = [
    (channels, outs, d) for channels, outs in ((48, 20), (7, 3), (16, 16), (300, 33)) for d in (torch.bfloat16, torch.float16)
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "channels,outs,dtype",
    [
        *((channels, outs, torch.float32) for channels, outs in ((48, 20), (7, 3), (16, 16), (700, 33))),
        (2, 5, torch.float64),
        *NARROW,
    ],
    ids=str,
)
def test_gates_at_all_sizes(channels: int, outs: int, dtype: torch.dtype) -> None:
    """Beside double precision of the same numbers: narrow results are no further from it than eager's are."""
    torch.manual_seed(0)
    model = Excited(channels, outs, residual=channels == outs).to(dtype).eval()
    ours, wide = compiled(model, channels, dtype), copy.deepcopy(model).double()
    assert gated(ours)
    for b, h, w in SIZES:
        x = torch.randn(b, channels, h, w, dtype=dtype)
        want, got = wide(x.double()), ours(x)
        assert got.shape == want.shape and got.dtype == dtype
        if b and dtype.itemsize == 2:
            bound = torch.finfo(dtype).eps * want.abs().max()
            assert (got - want).abs().max() <= max((model(x) - want).abs().max(), bound)
        elif b:
            assert (got - want).abs().max() <= 5e-6 * want.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_infinite_and_missing_numbers_stay_in_their_image(dtype: torch.dtype) -> None:
    model = Excited(9, 4).to(dtype).eval()
    ours = compiled(model, 9, dtype)
    assert gated(ours)
    x = torch.randn(4, 9, 13, 11, dtype=dtype)
    x[1, 3, 5, 5], x[2, 0, 0, 0] = float("nan"), float("inf")
    want, got = model(x), ours(x)
    assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.isinf(), want.isinf())
    near = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2**-7, "atol": 2**-7}
    assert torch.allclose(got, want, **near, equal_nan=True)


@pytest.mark.parametrize("form", [{"again": True}, {"kernel": 3}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products_that_others_read_or_windows_share_stay_apart(form: dict[str, Any], dtype: torch.dtype) -> None:
    model = Excited(12, 6, **form).to(dtype).eval()
    ours = compiled(model, 12, dtype)
    assert not gated(ours)
    x = torch.randn(2, 12, 9, 10, dtype=dtype)
    near = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2**-7, "atol": 2**-7}
    assert torch.allclose(ours(x), model(x), **near)
