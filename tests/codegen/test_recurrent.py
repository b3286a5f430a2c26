"""Recurrent layers and cells of every kind and float dtype, in both directions, against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.utils._pytree import tree_leaves

import dhlo

LAYERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "rnn": (nn.RNN, {}),
    "rnn of relu": (nn.RNN, {"nonlinearity": "relu", "bidirectional": True, "num_layers": 2, "batch_first": True}),
    "lstm": (nn.LSTM, {"bidirectional": True}),
    "lstm with projections": (nn.LSTM, {"proj_size": 5, "batch_first": True}),
    "lstm with projections without biases": (nn.LSTM, {"proj_size": 3, "bidirectional": True, "num_layers": 2, "bias": False}),
    "gru": (nn.GRU, {"bidirectional": True, "batch_first": True, "bias": False}),
}
HALF = {"rtol": 3e-2, "atol": 2e-2}
TOLERANCE = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.float64: {"rtol": 1e-6, "atol": 1e-7}}
NARROW = [torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in LAYERS), *zip(("rnn", "lstm with projections", "gru"), NARROW, strict=True)],
)
def test_layers(name: str, dtype: torch.dtype) -> None:
    cls, options = LAYERS[name]
    module = cls(6, 20, **options).to(dtype).eval()
    batch = 0 if "batch_first" in options else 1
    make: Any = lambda n: torch.randn((n, 3, 6) if batch == 0 else (3, n, 6), dtype=dtype)
    with torch.no_grad():
        model = dhlo.compile(export(module, (make(4),), dynamic_shapes=({batch: Dim.DYNAMIC},)))
        for n in (4, 0, 1, 17, 130):
            x = make(n)
            for got, want in zip(tree_leaves(model(x)), tree_leaves(module(x)), strict=True):
                torch.testing.assert_close(got, want, **TOLERANCE.get(dtype, HALF))


@pytest.mark.filterwarnings("ignore")
def test_layers_without_batch() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.lstm = nn.RNN(6, 7), nn.LSTM(7, 9, proj_size=2)

        def forward(self, x: torch.Tensor) -> Any:
            y, h = self.rnn(x)
            return h, self.lstm(y)

    module = Both().eval()
    with torch.no_grad():
        x = torch.randn(5, 6)
        for got, want in zip(tree_leaves(dhlo.compile(export(module, (x,)))(x)), tree_leaves(module(x)), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_cells(activation: str) -> None:
    cell = nn.RNNCell(6, 7, nonlinearity=activation)
    with torch.no_grad():
        model = dhlo.compile(export(cell, (torch.randn(3, 6), torch.randn(3, 7)), dynamic_shapes=({0: Dim.AUTO}, {0: Dim.AUTO})))
        for n in (3, 1, 0, 20):
            x, h = torch.randn(n, 6), torch.randn(n, 7)
            torch.testing.assert_close(model(x, h), cell(x, h), rtol=1e-4, atol=1e-5)
