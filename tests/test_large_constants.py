"""Constants of more than 2 GiB: offsets of more than 32 bits in code and files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import dhlo

ROWS, COLUMNS = 600_000, 1024


class Large(nn.Module):
    """A table of 2.3 GiB between layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(8, 8), nn.Linear(COLUMNS, 40)
        table = torch.arange(ROWS, dtype=torch.float32)[:, None] / ROWS + torch.arange(COLUMNS) / COLUMNS
        self.table = nn.Embedding.from_pretrained(table)

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.table(ids)
        return self.after(found) + self.before(x).sum(), found


@pytest.mark.slow
def test_more_than_two_gigabytes(tmp_path: Path) -> None:
    model = Large().eval()
    example = (torch.tensor([1, ROWS - 1, 5]), torch.randn(2, 8))
    program = export(model, example, dynamic_shapes=({0: Dim("ids", max=100)}, {0: Dim("rows", max=100)}))
    with torch.no_grad():
        want = [model(*example), model(ids := torch.arange(0, ROWS, 7001), x := torch.randn(1, 8))]
    compiled = dhlo.compile(program)
    compiled.save(tmp_path / "model.so")
    assert (tmp_path / "model.so").stat().st_size > 4 * ROWS * COLUMNS
    for m in (compiled, dhlo.load(tmp_path / "model.so")):
        for args, outputs in zip((example, (ids, x)), want, strict=True):
            for got, expected in zip(m(*args), outputs, strict=True):
                torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
