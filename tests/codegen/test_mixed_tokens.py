"""Products of what is transposed, whose results are transposed back."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import dhlo

BATCH = Dim("batch", min=0, max=4096)


class Mixer(nn.Module):
    """Token mixing of MLP-Mixer."""

    def __init__(self, tokens: int, channels: int, hidden: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(channels), nn.Linear(tokens, hidden), nn.Linear(hidden, tokens, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x).transpose(1, 2)))).transpose(1, 2)


class Forecast(nn.Module):
    """A linear forecast of each channel's series from where it stands last (NLinear)."""

    def __init__(self, past: int, future: int) -> None:
        super().__init__()
        self.linear = nn.Linear(past, future)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last = x[:, -1:]
        return self.linear((x - last).permute(0, 2, 1)).permute(0, 2, 1) + last


class Gated(nn.Module):
    """Two ways from one transposed value, the second of which is read elsewhere, too."""

    def __init__(self, tokens: int, channels: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(tokens, 2 * tokens), nn.Linear(2 * tokens, tokens)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        across = x.transpose(-1, -2)
        hidden = self.a(across)
        return self.b(torch.tanh(hidden) * torch.sigmoid(hidden)).transpose(-1, -2), hidden.relu()


class Batched(nn.Module):
    """Matrices of their own for each of a batch of a known size, as they are and transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = (nn.Parameter(torch.randn(n, m, 48)) for n, m in ((4, 31), (4, 20)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(x.transpose(-1, -2) @ self.up)
        return (hidden @ self.down.transpose(-1, -2)).transpose(-1, -2)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mixer": (lambda: Mixer(49, 96, 33), (49, 96)),
    "one token": (lambda: Mixer(1, 16, 1), (1, 16)),
    "many tokens": (lambda: Mixer(1500, 64, 17), (1500, 64)),
    "rows that don't fill vectors": (lambda: Mixer(49, 7, 33), (49, 7)),
    "forecast": (lambda: Forecast(96, 24), (96, 321)),
    "one number": (lambda: Forecast(96, 1), (96, 64)),
    "no past": (lambda: Forecast(1, 3), (1, 64)),
    "gated": (lambda: Gated(31, 48), (31, 48)),
    "heads": (lambda: Gated(31, 48), (3, 31, 48)),
    "batched": (Batched, (4, 31, 64)),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_as_in_pytorch(name: str, dtype: torch.dtype, target: str) -> None:
    make, sizes = CASES[name]
    torch.manual_seed(0)
    module = make().eval().to(dtype)
    example = torch.randn(3, *sizes).to(dtype)
    run = dhlo.compile(torch.export.export(module, (example,), dynamic_shapes=({0: BATCH},)), target=target)
    rng = random.Random(name)
    tolerance = {torch.float32: 3e-6, torch.float64: 1e-13, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    for batch in (0, 1, 2, 17, rng.randint(3, 40)):
        x = torch.randn(batch, *sizes).to(dtype)
        for given in (x, x.transpose(-1, -2).contiguous().transpose(-1, -2)):
            got, want = run(given), module(x)
            for g, w in zip(*(t if isinstance(t, tuple) else (t,) for t in (got, want)), strict=True):
                assert g.shape == w.shape and g.dtype == w.dtype
                torch.testing.assert_close(
                    g, w, rtol=tolerance, atol=tolerance * max(1.0, w.abs().max().item() if w.numel() else 1.0)
                )


def test_weights_are_exchanged(tmp_path: Path) -> None:
    torch.manual_seed(1)
    module, other = (Mixer(49, 96, 33).eval() for _ in range(2))
    program = torch.export.export(module, (torch.randn(3, 49, 96),), dynamic_shapes=({0: BATCH},))
    path = tmp_path / "model.so"
    dhlo.compile(program).save(path)
    dhlo.update_weights(path, other.state_dict())
    x = torch.randn(5, 49, 96)
    torch.testing.assert_close(dhlo.load(path)(x), other(x), rtol=3e-6, atol=3e-6)
