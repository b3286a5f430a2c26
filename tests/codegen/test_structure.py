"""Groups that differ only in buffers and in their sizes' names are lowered once, and each computes with its own."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import dhlo
from dhlo.codegen.families.structure import Structure
from dhlo.ir.symbols import parse, renamed, symbol


class Twice(nn.Module):
    """The same work over tensors of unrelated sizes: a lookup, arithmetic with a size, a reduction."""

    def forward(self, x: torch.Tensor, i: torch.Tensor, y: torch.Tensor, j: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def work(t: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return (t + t.shape[0])[k].exp(), (t * 2).sum(1)

        return (*work(x, i), *work(y, j))


def args(n: int, m: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(n, 5), torch.randint(0, n, (4,)), torch.randn(m, 5), torch.randint(0, m, (4,))


DIMS = ({0: Dim("n")}, None, {0: Dim("m")}, None)


def test_each_has_its_own_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    adopted = []
    adopt = Structure.adopt
    monkeypatch.setattr(Structure, "adopt", lambda self, *a: adopted.append(self) or adopt(self, *a))
    model = dhlo.compile(export(Twice(), args(6, 9), dynamic_shapes=DIMS))
    assert len(adopted) >= 2 and all(s.symbols for s in adopted)
    for n, m in [(6, 9), (1, 50), (33, 2), (7, 7)]:
        given = args(n, m)
        for got, want in zip(model(*given), Twice()(*given), strict=True):
            torch.testing.assert_close(got, want)
    x, i, y, j = args(6, 40)
    with pytest.raises(dhlo.ContractError, match=r"index out of range"):
        model(x, torch.full((4,), 15), y, j)  # 15 is in range for y alone
    torch.testing.assert_close(model(x, i, y, j)[3], (y * 2).sum(1))


@pytest.mark.parametrize(
    "text", ["s0 + 2*s1", "floordiv(s0 + 15, 16)", "min(s1, floordiv(s0*s1, 64) + 1)", "ite(Eq(mod(s0, 2), 0), s1, 3)"]
)
def test_renamed(text: str) -> None:
    names = {symbol("s0"): symbol("s9"), symbol("s1"): symbol("s0")}
    assert renamed(parse(text), names) == parse(text.replace("s0", "s9").replace("s1", "s0"))
