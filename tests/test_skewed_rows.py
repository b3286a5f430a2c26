"""Rows of one length that are read as rows of another, as the scores of relative positions are: vectors lie in a row of memory or
cross from one to the next, with gaps where there is nothing to read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.export import Dim

import dhlo


def relative_scores(x: torch.Tensor) -> torch.Tensor:
    """Shaw's scores of distances, as Transformer-XL brings them to keys: a column of zeros in front, rows one shorter."""
    b, t, s = x.shape
    return torch.nn.functional.pad(x, (1, 0)).view(b, s + 1, t)[:, 1:].reshape(b, t, s)


def symmetric_scores(x: torch.Tensor) -> torch.Tensor:
    """The same of distances in both directions, as Conformers have them."""
    b, t, s = x.shape
    rows = torch.cat([torch.zeros(b, t, 1, dtype=x.dtype), x], -1).view(b, s + 1, t)
    return rows[:, 1:].reshape(b, t, s)[:, :, : s // 2 + 1]


def diagonals(x: torch.Tensor) -> torch.Tensor:
    """Each row one further to the right, in rows that are as much longer."""
    b, t, s = x.shape
    return torch.nn.functional.pad(x, (0, t)).view(b, t * (s + t))[:, : t * (s + t - 1)].reshape(b, t, s + t - 1)


def behind_both_ends(x: torch.Tensor) -> torch.Tensor:
    """Gaps in front and behind, and rows that end in the middle of others."""
    b, t, s = x.shape
    return torch.nn.functional.pad(x, (2, 3), value=-1).reshape(b, (s + 5), t).flip(1) * 2


CASES: list[Callable[[torch.Tensor], torch.Tensor]] = [relative_scores, symmetric_scores, diagonals, behind_both_ends]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.int64])
@pytest.mark.parametrize("f", CASES, ids=lambda f: f.__name__)
def test_rows_of_another_length(f: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> None:
    """Few and many columns: within a vector, of about its length, of many; the first and the last element of memory included."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return f(x)

    def image(b: int, t: int, s: int) -> torch.Tensor:
        return torch.arange(1, b * t * s + 1).reshape(b, t, s).remainder(101).to(dtype)

    exported = torch.export.export(Model(), (image(2, 5, 9),), dynamic_shapes=({d: Dim.AUTO for d in range(3)},))
    model = dhlo.compile(exported)
    for b, t, s in [
        (2, 5, 9),
        (3, 4, 7),
        (1, 17, 33),
        (2, 40, 79),
        (1, 100, 199),
        (3, 16, 31),
        (2, 3, 65),
        (1, 50, 16),
        (5, 2, 15),
    ]:
        x = image(b, t, s)
        assert torch.equal(model(x), f(x)), (b, t, s)
