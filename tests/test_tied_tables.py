"""Embeddings that are a product's right side, too, are stored once: rows are looked up in the product's panels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

import dhlo
from dhlo.errors import ContractError

ROWS, WIDTH = 16_387, 37  # neither whole panels nor whole units


class Tied(nn.Module):
    """Rows of a table, and the product of its transpose with rows of it."""

    def __init__(self, rows: int = ROWS, width: int = WIDTH, *, elsewhere: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width)
        self.elsewhere = elsewhere

    def forward(self, ids: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        w = self.table.weight
        found = self.table(ids) + (w * ids.sum()).amax() if self.elsewhere else self.table(ids)
        return found, torch.tanh(self.table(tokens)) @ w.t()


class Mixture(nn.Module):
    """A table that is looked up, and multiplied as it lies."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(ROWS, WIDTH))

    def forward(self, ids: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        return torch.nn.functional.embedding(ids, self.table), shares @ self.table


EXAMPLE = (torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5, 6]))


def compiled(module: nn.Module, example: tuple[Tensor, Tensor] = EXAMPLE, **options: Any) -> dhlo.CompiledModel:
    dims = ({0: Dim("n", min=0, max=1 << 16)}, {0: Dim("m", min=0, max=4096)})
    return dhlo.compile(export(module, example, dynamic_shapes=dims), **options)


def table_bytes(dtype: torch.dtype, rows: int = ROWS) -> int:
    return rows * WIDTH * dtype.itemsize


@pytest.mark.parametrize("target", ["native", "x86-64-v3,native"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_come_from_the_panels_of_the_product(dtype: torch.dtype, target: str) -> None:
    module = Tied().to(dtype).eval()
    model = compiled(module, target=target)
    assert table_bytes(dtype) <= model.native.constants_bytes < 1.1 * table_bytes(dtype)
    g = torch.Generator().manual_seed(0)
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    for n, m in ((0, 0), (1, 0), (0, 1), (1, 1), (16, 17), (300, 33)):
        args = (torch.randint(ROWS, (n,), generator=g), torch.randint(ROWS, (m,), generator=g))
        if n > 1:
            args[0][:2] = torch.tensor([0, ROWS - 1])
        found, product = model(*args)
        expected, expected_product = module(*args)
        assert torch.equal(found, expected)
        torch.testing.assert_close(product, expected_product, rtol=tolerance, atol=tolerance)


# Format, of activations, width, bytes an element at most.
FORMATS = [
    ("int4", "", 37, 0.9),
    ("int4:32", "", 64, 0.7),
    ("int4:32", "int8", 64, 0.7),
    ("int8", "", 37, 1.5),
    ("int8", "int8", 37, 1.5),
]
FORMATS += [("f8e4m3fn", "", 37, 1.5), ("f8e5m2", "", 37, 1.5), ("mxfp4", "", 64, 0.7), ("f16", "", 37, 2.4), ("bf16", "", 37, 2.4)]


@pytest.mark.parametrize(("form", "activations", "width", "most"), FORMATS)
def test_rows_of_codes_are_what_the_product_multiplies(form: str, activations: str, width: int, most: float) -> None:
    """What is looked up of all rows, multiplied by PyTorch, is what the product of codes gives: one copy, decoded in two ways."""
    module = Tied(width=width).eval()
    model = compiled(module, weights=form, activations=activations)
    assert model.native.constants_bytes < most * ROWS * width
    tokens = torch.tensor([0, 5, ROWS - 1, 77])
    table, product = model(torch.arange(ROWS), tokens)
    error = (table - module.table.weight).norm() / module.table.weight.norm()
    assert error < (0.15 if "4" in form[:5] else 0.06)
    torch.testing.assert_close(model(tokens, tokens)[0], table[tokens], rtol=0, atol=0)
    expected = torch.tanh(table[tokens]) @ table.t()
    scale = float(expected.abs().max())
    torch.testing.assert_close(product, expected, rtol=0, atol=scale * (2e-2 if activations else 1e-4))


@pytest.mark.parametrize("asymmetric", [False, True])
def test_lookups_decode_the_rows_that_they_find(asymmetric: bool) -> None:
    """No table is decoded for them, whatever decoding takes."""
    texts: dict[str, str] = {}

    class Codes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            g = torch.Generator().manual_seed(0)
            self.codes = nn.Buffer(torch.randint(-8, 8, (500, 48), generator=g, dtype=torch.int8))
            self.scale = nn.Buffer(torch.rand(500, 3, generator=g))
            self.zero = nn.Buffer(torch.randint(-8, 8, (500, 3), generator=g).float())

        def forward(self, ids: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
            wide = self.codes.float().unflatten(1, (3, 16))
            wide = wide - self.zero[:, :, None] if asymmetric else wide
            table = (wide * self.scale[:, :, None]).flatten(1)
            return table[ids], tokens.float()

    module = Codes().eval()
    model = compiled(module, dump=lambda name, text: texts.__setitem__(name, text))
    assert "tensor<500x48xf32>" not in texts["lower-groups"]
    ids = torch.tensor([499, 0, -1, 7])
    torch.testing.assert_close(model(ids, ids)[0], module(ids, ids)[0], rtol=1e-6, atol=1e-6)


def test_unsigned_bytes_that_panels_keep_as_signed_ones() -> None:
    class Bytes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            g = torch.Generator().manual_seed(0)
            self.codes = nn.Buffer(torch.randint(0, 256, (ROWS, WIDTH), generator=g, dtype=torch.uint8))
            self.scale = nn.Buffer(torch.rand(ROWS, 1, generator=g))

        def forward(self, ids: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            table = (self.codes.float() - 128) * self.scale
            return table[ids], x @ table.t()

    module = Bytes().eval()
    ids, x = torch.tensor([0, ROWS - 1, 7]), torch.randn(5, WIDTH)
    model = compiled(module, (ids, x))
    assert model.native.constants_bytes < 1.6 * ROWS * WIDTH
    found, product = model(ids, x)
    torch.testing.assert_close(found, module(ids, x)[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(product, module(ids, x)[1], rtol=1e-4, atol=1e-2)


def test_codes_that_the_product_keeps_as_numbers_lie_by_themselves() -> None:
    """Groups of four codes have no form in panels: products of f16 keep f16."""

    class Groups(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            g = torch.Generator().manual_seed(0)
            self.codes = nn.Buffer(torch.randint(0, 16, (ROWS, 16), generator=g, dtype=torch.int8))
            self.scale = nn.Buffer(torch.rand(ROWS, 4, generator=g) + 0.1)

        def forward(self, ids: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            table = (self.codes.float().unflatten(1, (4, 4)) * self.scale[:, :, None]).flatten(1).half()
            return table[ids], x.half() @ table.t()

    module = Groups().eval()
    ids, x = torch.tensor([0, ROWS - 1, 7]), torch.randn(5, 16)
    found, product = compiled(module, (ids, x))(ids, x)
    assert torch.equal(found, module(ids, x)[0])
    torch.testing.assert_close(product, module(ids, x)[1], rtol=1e-2, atol=1e-1)


def test_nan_and_infinite_weights_come_as_they_are() -> None:
    module = Tied().eval()
    with torch.no_grad():
        module.table.weight[5, 3:6] = torch.tensor([torch.nan, torch.inf, -0.0])
    ids = torch.tensor([5, 6])
    found, _ = compiled(module)(ids, ids)
    assert torch.equal(found.view(torch.int32), module.table(ids).view(torch.int32))


@pytest.mark.parametrize("bad", [ROWS, -1, 1 << 62])
def test_indices_beyond_the_table_fail_though_panels_go_on(bad: int) -> None:
    module = Tied().eval()
    ids = torch.tensor([1, 2])
    model = compiled(module)
    with pytest.raises(ContractError, match=f"index {bad} is out of range for size {ROWS}"):
        model(torch.tensor([3, bad]), ids)
    assert torch.equal(model(ids, ids)[0], module.table(ids))


def test_a_table_that_is_multiplied_as_it_lies() -> None:
    module = Mixture().eval()
    model = compiled(module, (torch.tensor([1, 2]), torch.randn(3, ROWS)))
    assert model.native.constants_bytes < 64 / WIDTH * table_bytes(torch.float32) * 1.01
    ids, shares = torch.tensor([0, ROWS - 1, 77]), torch.randn(5, ROWS)
    found, product = model(ids, shares)
    assert torch.equal(found, module.table[ids])
    torch.testing.assert_close(product, shares @ module.table, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("rows", "elsewhere"), [(1000, False), (ROWS, True)])
def test_small_tables_and_those_with_other_readers_lie_by_themselves(rows: int, elsewhere: bool) -> None:
    module = Tied(rows, elsewhere=elsewhere).eval()
    ids = torch.tensor([1, 2])
    model = compiled(module)
    assert model.native.constants_bytes >= 2 * table_bytes(torch.float32, rows)
    found, product = model(ids, ids)
    expected, expected_product = module(ids, ids)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(product, expected_product, rtol=1e-4, atol=1e-4)


def test_the_planned_module_says_where_rows_are() -> None:
    texts: dict[str, str] = {}
    compiled(Tied().eval(), dump=lambda name, text: texts.__setitem__(name, text))
    assert texts["lower-groups"].count('"dhlo.packed"') == 1
    assert '"dhlo.packed"' not in texts["stage-inputs"]


def test_weights_are_read_back_and_replaced(tmp_path: Path) -> None:
    module, other = Tied().eval(), Tied().eval()
    compiled(module).save(tmp_path / "model.so")
    kept = dhlo.read_weights(tmp_path / "model.so")
    assert {name: torch.equal(w, module.table.weight) for name, w in kept.items()} == {"table.weight": True}
    dhlo.update_weights(tmp_path / "model.so", other.state_dict())
    ids = torch.tensor([5, ROWS - 1])
    model = dhlo.load(tmp_path / "model.so")
    found, product = model(ids, ids)
    assert torch.equal(found, other.table(ids))
    torch.testing.assert_close(product, other(ids, ids)[1], rtol=1e-5, atol=1e-5)


def test_entries_share_the_table() -> None:
    """One that looks up, and multiplies, and one that does so for other sizes."""
    module = Tied().eval()
    dims = ({0: Dim("n", min=0, max=4096)}, {0: Dim("m", min=0, max=4096)})
    programs = {name: export(module, EXAMPLE[::step], dynamic_shapes=dims) for name, step in (("a", 1), ("b", -1))}
    model = dhlo.compile(programs)
    assert model.native.constants_bytes < 1.1 * table_bytes(torch.float32)
    for name in programs:
        found, product = model[name](*EXAMPLE)
        assert torch.equal(found, module(*EXAMPLE)[0])
        torch.testing.assert_close(product, module(*EXAMPLE)[1], rtol=1e-5, atol=1e-5)


def test_tables_without_columns() -> None:
    module = Tied(width=0).eval()
    found, product = compiled(module)(*EXAMPLE)
    assert found.shape == (3, 0)
    assert torch.equal(product, torch.zeros(4, ROWS))
