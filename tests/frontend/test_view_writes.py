"""Writes through views whose rows aren't the tensor's, into arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim, export

import dhlo

WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "column": lambda x: x.view(-1, 2)[:, 0].mul_(2),
    "from another": lambda x: x.view(-1, 3)[:, 1].copy_(x.view(-1, 3)[:, 0] * 2),
    "rows": lambda x: x.view(-1, 2)[1:].add_(1),
    "inner": lambda x: x.view(x.shape[0], 2, -1)[:, 0].mul_(3),
    "flat": lambda x: x.view(-1)[2:5].zero_(),
    "one row": lambda x: x.view(1, -1)[:, 3:].neg_(),
    "as it is": lambda x: x.view(-1, 12)[:, 3].neg_(),
}


class Write(torch.nn.Module):
    def __init__(self, write: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.write = write

    def forward(self, x):
        self.write(x)
        return x + 1


@pytest.mark.parametrize("dynamic", (False, True))
@pytest.mark.parametrize("name", WRITES)
def test_argument_and_result(name: str, dynamic: bool) -> None:
    module = Write(WRITES[name])
    model = dhlo.compile(export(module, (torch.randn(6, 12),), dynamic_shapes=({0: Dim.DYNAMIC},) if dynamic else None))
    for n in (6, 2, 1, 9, 30) if dynamic else (6,):
        x = torch.randn(n, 12)
        want, got = x.clone(), x.clone()
        result = module(want)
        torch.testing.assert_close(model(got), result, rtol=0, atol=0)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
