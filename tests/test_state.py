"""Buffers that the program changes live in the session: updated by every call, readable, resettable."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

import dhlo


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.total.add_(x.sum(0))
        self.calls += 1
        return x * self.total, self.calls + 0


def test_state_follows_eager_and_can_be_reset() -> None:
    torch.manual_seed(0)
    compiled = dhlo.compile(torch.export.export(Counter(), (torch.randn(4, 3),), dynamic_shapes=({0: Dim.DYNAMIC},)))
    reference = Counter()
    for n in (1, 5, 17, 0):
        x = torch.randn(n, 3)
        for got, want in zip(compiled(x), reference(x), strict=True):
            torch.testing.assert_close(got, want)
    torch.testing.assert_close(compiled.read_state("total"), reference.total)
    with pytest.raises(dhlo.ContractError):
        compiled(torch.randn(2, 4))
    assert compiled.read_state("calls") == 4  # a failed call changes nothing
    compiled.write_state("calls", torch.tensor(41))
    assert compiled(torch.ones(1, 3))[1] == 42
    compiled.reset_state()
    assert compiled.read_state("calls") == 0 and torch.equal(compiled.read_state("total"), torch.zeros(3))
    with pytest.raises(dhlo.ContractError, match=r"state 'calls' is int64\[\], got float32\[2\]"):
        compiled.write_state("calls", torch.zeros(2))
    with pytest.raises(KeyError):
        compiled.read_state("nothing")
