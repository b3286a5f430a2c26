"""No kernel reads or makes subnormal numbers where its operands and results are normal: CPUs take a hundred cycles for each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim, export

import dhlo
from tests.codegen.subnormals import CAN_TELL, touches_subnormals
from tests.codegen.test_attention import run, tensors

pytestmark = pytest.mark.skipif(not CAN_TELL, reason="needs the status register of x86")

INF = float("inf")


def test_the_flags_tell() -> None:
    x = torch.full((16,), 1e-30)
    assert touches_subnormals(lambda: x.mul_(1e-10)) == "made"
    assert "read" in touches_subnormals(lambda: x.add(1.0))
    assert touches_subnormals(lambda: torch.ones(16).mul_(0.3)) == ""


class Function(torch.nn.Module):
    def __init__(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fn(x)


def _steps(x: torch.Tensor) -> torch.Tensor:
    """Whole numbers far apart: their exponentials are normal numbers or vanish."""
    return (x * 4).round() * 44


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax masked": lambda x: x.masked_fill(x < 0.3, -INF).softmax(-1),
    "softmax 88 below": lambda x: (x - (x < 0.3) * 88).softmax(-1),
    "softmax far below": lambda x: _steps(x).softmax(-1),
    "softmax across": lambda x: _steps(x).softmax(0),
    "log_softmax": lambda x: _steps(x).log_softmax(-1),
    "logsumexp": lambda x: _steps(x).logsumexp(-1),
    "logcumsumexp": lambda x: _steps(x).logcumsumexp(-1),
    "sigmoid": lambda x: _steps(x.abs()).sigmoid(),
    "silu": lambda x: F.silu(_steps(x.abs())),
    "gelu": lambda x: F.gelu(_steps(x)),
    "gelu tanh": lambda x: F.gelu(_steps(x), approximate="tanh"),
    "mish": lambda x: F.mish(_steps(x.abs())),
    "elu": lambda x: F.elu(_steps(x)),
    "softplus": lambda x: F.softplus(_steps(x.abs())),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "variance": lambda x: x.var(-1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_compiled_functions(name: str) -> None:
    dims = ({0: Dim("m", max=1 << 12), 1: Dim("n", max=1 << 12)},)
    module = Function(FUNCTIONS[name])
    model = dhlo.compile(export(module, (torch.randn(3, 5),), dynamic_shapes=dims))
    for shape in ((1, 7), (5, 131), (33, 40)):  # so small that the calling thread does all
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(model(x), module(x), rtol=1e-5, atol=1e-6)
        assert not touches_subnormals(lambda x=x: model(x)), shape  # type: ignore[misc]


def _inverted_residual() -> torch.nn.Module:
    expand, depthwise = torch.nn.Conv2d(8, 48, 1, bias=False), torch.nn.Conv2d(48, 48, 3, padding=1, groups=48, bias=False)
    project = torch.nn.Conv2d(48, 8, 1, bias=False)
    return torch.nn.Sequential(expand, torch.nn.SiLU(), depthwise, torch.nn.SiLU(), project, torch.nn.SiLU())


def _with_silu(layer: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.Sequential(layer, torch.nn.SiLU())


LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "groups at a stride": lambda: torch.nn.Conv2d(8, 16, 3, 2, 1, groups=2, bias=False),
    "stride": lambda: _with_silu(torch.nn.Conv2d(8, 40, 3, 2, 1, bias=False)),
    "windows": lambda: _with_silu(torch.nn.Conv2d(8, 40, (5, 3), padding=(2, 0), bias=False)),
    "points": lambda: _with_silu(torch.nn.Conv2d(8, 40, 1, bias=False)),
    "depthwise": lambda: _with_silu(torch.nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)),
    "transposed": lambda: _with_silu(torch.nn.ConvTranspose2d(8, 12, 4, 2, 1, bias=False)),
    "inverted residual": _inverted_residual,
    "columns": lambda: _with_silu(torch.nn.Linear(28, 29, bias=False)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_of_what_scratch_held(name: str, dtype: torch.dtype) -> None:
    """A call whose numbers are subnormal leaves them in the scratch; the next one multiplies none of them, nor what lies behind the
    last position or column."""
    module = LAYERS[name]().to(dtype).eval()
    dims = ({0: Dim("b", max=8), 2: Dim("h", min=6, max=64)},)
    model = dhlo.compile(export(module, (torch.randn(2, 8, 28, 28, dtype=dtype),), dynamic_shapes=dims))
    for height in (14, 9, 28, 6, 11):
        model(torch.full((4, 8, 29, 28), 1e-310 if dtype == torch.float64 else 1e-39, dtype=dtype))
        x = torch.randn(1, 8, height, 28, dtype=dtype)
        assert "read" not in touches_subnormals(lambda x=x: model(x)), height  # type: ignore[misc]


@pytest.mark.parametrize("kind", [None, "causal", "bool", "float", "low", "alibi"])
@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_of_attention(kind: str | None, spread: float) -> None:
    for sq, skv in ((1, 130), (1, 900), (7, 77), (40, 113), (130, 130)):
        q, k, v = tensors(1, 2, 2, sq, skv, 24, 24, seed=sq)
        keep = torch.rand(sq, skv, generator=torch.Generator().manual_seed(1)) > 0.4
        least = {"float": -INF, "low": -88.0}.get(kind or "", 0.0)
        mask: torch.Tensor | str | None = {"bool": keep, "alibi": "alibi"}.get(kind or "")
        mask = torch.where(keep, 0.0, least) if kind in ("float", "low") else mask
        assert not touches_subnormals(lambda q=q, k=k, v=v, m=mask: run(q * spread, k, v, causal=kind == "causal", mask=m))  # type: ignore[misc]
