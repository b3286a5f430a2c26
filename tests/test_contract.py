"""What the contract says, in the signature and in errors: in names of inputs and dims, and operators that people read."""

from __future__ import annotations

import re

import pytest
import torch
from torch.export import Dim, export

import dhlo
from dhlo.ir.symbols import describe, parse


class Conditions(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n, m = x.shape[0], y.shape[0]
        torch._check(3 * n <= m + 7)
        torch._check(n % 4 == 0)
        count = y.sum().int().item()
        torch._check(count <= n + 9, lambda: "too many")
        return x[: min(n, 2 * m)] * 2, torch.ones(count)


def test_conditions_are_written_for_people() -> None:
    batch = Dim("batch", max=64)
    program = export(Conditions(), (torch.ones(8, 2), torch.ones(18)), dynamic_shapes=({0: 4 * Dim("quarter")}, {0: batch}))
    compiled = dhlo.compile(program)
    assert "L['" not in compiled.signature and ".size()" not in compiled.signature
    text = r"the exported program requires 12\*(s\d+) <= batch \+ 7, where batch = 'y' dim 0, 4\*\1 = 'x' dim 0"
    assert re.search(text, compiled.signature)
    with pytest.raises(dhlo.ContractError, match=text):
        compiled(torch.ones(4, 2), torch.ones(2))
    with pytest.raises(dhlo.ContractError, match=r"requires u\d+ <= 4\*s\d+ \+ 9, where 4\*s\d+ = 'x' dim 0"):
        compiled(torch.ones(4, 2), 20 * torch.ones(8))


class Top(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*x.topk(2, 0), *x.topk(y.shape[0], 1))


def test_topk_selects_no_more_than_there_are() -> None:
    """torch.export takes two and more for granted of a dynamic dim, and leaves a number that is one to the call."""
    program = export(Top(), (torch.randn(5, 7), torch.randn(3)), dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO}))
    compiled = dhlo.compile(program)
    for rows, columns, k in ((1, 100, 2), (0, 100, 2), (3, 7, 8), (3, 0, 2)):
        with pytest.raises(dhlo.ContractError):
            compiled(torch.randn(rows, columns), torch.randn(k))
    for rows, columns, k in ((2, 100, 100), (3, 8, 8), (40, 33, 2), (2, 5, 0)):
        x, y = torch.randn(rows, columns), torch.randn(k)
        torch.testing.assert_close(compiled(x, y), Top()(x, y))


@pytest.mark.parametrize(
    "text,described",
    [
        ("Eq(mod(s7, 8), 0)", "batch % 8 == 0"),
        ("floordiv(3*s7, 4) + 1 <= s1", "((3*batch) // 4) + 1 <= s1"),
        ("And(s1 <= s7, Ne(s1, 3))", "(s1 != 3) and (s1 <= batch)"),
        ("s1 - s7 >= 0", "s1 >= batch"),
        ("s1 - 2*s7 < -3", "s1 + 3 < 2*batch"),
        ("ite(s1 < 3, s1, s7 + 1) >= 2", "(s1 if s1 < 3 else batch + 1) >= 2"),
        ("mod(floordiv(s7 + 1, 2), max(s1, 2)) <= 1", "((batch + 1) // 2) % max(2, s1) <= 1"),
        ("Or(Not(s1 < 3), Eq(s1, s7))", "(s1 == batch) or (s1 >= 3)"),
    ],
)
def test_described(text: str, described: str) -> None:
    assert describe(parse(text), {"s7": "batch"}) == described
