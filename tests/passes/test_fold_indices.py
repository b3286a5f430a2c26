"""Indices that many steps make of numbers are found at compile time, once for all layers, if weights leave room for them."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

import dhlo

fold_weights = importlib.import_module("dhlo.passes.fold_weights")
SIDE = 7


def relative_positions(side: int) -> Tensor:
    """Of each pair of places of an image, and of a place before them, as BEiT numbers them: int64 [1 + side^2, 1 + side^2]."""
    places = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")).flatten(1)
    apart = (places[:, :, None] - places[:, None, :]).permute(1, 2, 0) + side - 1
    inner = torch.cat([apart[..., :1] * (2 * side - 1), apart[..., 1:]], -1).sum(-1)
    count = (2 * side - 1) ** 2
    below = torch.cat([torch.full((side * side, 1), count + 1), inner], 1)
    return torch.cat([torch.full((1, side * side + 1), count), below], 0)


class Layers(nn.Module):
    """Two layers of attention whose bias is looked up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tables = nn.ParameterList(torch.randn((2 * SIDE - 1) ** 2 + 2, 2) for _ in range(2))
        self.project = nn.Linear(width, 3 * width)
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        for table in self.tables:
            q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.project(x).split(self.width, -1))
            n = SIDE * SIDE + 1
            bias = table[relative_positions(SIDE).reshape(-1)].reshape(n, n, 2).permute(2, 0, 1)
            x = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)
        return x


def compiled(width: int) -> dhlo.CompiledModel:
    torch.manual_seed(0)
    module = Layers(width).eval().requires_grad_(False)
    model = dhlo.compile(export(module, (torch.randn(2, SIDE * SIDE + 1, width),), dynamic_shapes=({0: Dim("b", min=0, max=64)},)))
    for batch in (1, 0, 3, 2):
        x = torch.randn(batch, SIDE * SIDE + 1, width)
        torch.testing.assert_close(model(x), module(x), rtol=1e-4, atol=1e-5)
    return model


def test_indices_of_all_layers_are_one_constant() -> None:
    model = compiled(512)
    assert "dhlo.iota" not in model.planned
    assert model.planned.count(f"-> tensor<{(SIDE * SIDE + 1) ** 2}xi64>") == 1


def test_indices_that_weigh_too_much_are_computed() -> None:
    assert "dhlo.iota" in compiled(32).planned


@pytest.mark.parametrize("wrong", [-1, 64])
def test_lookups_in_an_index_that_fail_fail_in_the_call(wrong: int) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(64, 512), requires_grad=False)
            self.register_buffer("places", torch.tensor([3, wrong, 5]))
            self.register_buffer("numbers", torch.arange(64))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            made = torch.index_select(torch.arange(64) * 2 + 1, 0, self.places)
            return x + self.table[(made * 2 + 1) % 64].sum(), x + torch.index_select(self.numbers, 0, self.places).sum()

    model = dhlo.compile(export(Model(), (torch.randn(3),), dynamic_shapes=({0: Dim("n", max=64)},)))
    with pytest.raises(dhlo.ContractError, match="out of range"):
        model(torch.randn(5))


def test_long_chains_that_weigh_too_much_arent_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluated(*args: object) -> None:
        raise AssertionError("evaluated")

    monkeypatch.setattr(fold_weights, "constant_of", evaluated)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(64), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            i = torch.arange(300)[:, None] * torch.arange(300)
            for k in range(9):
                i = (i * 3 + k) % 64
            return x + self.table[i].sum()

    x, module = torch.randn(3), Model()
    model = dhlo.compile(export(module, (x,), dynamic_shapes=({0: Dim("n", max=64)},)))
    torch.testing.assert_close(model(x), module(x), rtol=1e-4, atol=1e-3)
