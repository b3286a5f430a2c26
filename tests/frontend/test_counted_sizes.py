"""Sizes that a program counts, and what it and others say of them: parts that masks choose are changed and written back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, randn
from torch.export import Dim, export

import dhlo
from dhlo.errors import ContractError

Case = tuple[Callable[..., Tensor], list[tuple[Tensor, ...]], list[tuple[tuple[Tensor, ...], str]]]
"""A function, arguments, and arguments that are refused, with what the refusal says."""


class Calls(torch.nn.Module):
    def __init__(self, fn: Callable[..., Tensor]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Tensor) -> Tensor:
        return self.fn(*args)


def mask(text: str) -> Tensor:
    return torch.tensor([c == "x" for c in text], dtype=torch.bool)


def masks(*shape: int) -> Tensor:
    return torch.rand(shape) > 0.5


def scaled(x: Tensor, m: Tensor) -> Tensor:
    x = x * 1.0
    x[m] *= 0.5
    return x


def written(x: Tensor, m: Tensor) -> Tensor:
    y = x.clone()
    y[m] = x[m] + 1
    return y


def from_another(x: Tensor, m: Tensor, n: Tensor) -> Tensor:
    y = x.clone()
    y[m] = x[n] * 2
    return y


def added(x: Tensor, m: Tensor, n: Tensor) -> Tensor:
    a, b = x[m], x[n]
    torch._check(a.shape[0] == b.shape[0])
    return a + b


def by_index(x: Tensor, m: Tensor) -> Tensor:
    at = m.nonzero()
    y = torch.zeros_like(x)
    y[at[:, 0], at[:, 1]] = x[m]
    return y


def both(x: Tensor, m: Tensor) -> Tensor:
    x = x.clone()
    x[m] = torch.relu(x[m])
    x[~m] = x[~m] * 3
    return x


def beside_argument(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    a = x[m]
    torch._check(a.shape[0] == y.shape[0])
    return a + y


def unique(x: Tensor, y: Tensor) -> Tensor:
    a = x.unique()
    torch._check(a.shape[0] == y.shape[0])
    return a + y


def number_first(x: Tensor, m: Tensor, number: Tensor) -> Tensor:
    k: Any = number.item()
    torch._check(k >= 0)
    a = x[m]
    torch._check(a.shape[0] == k)
    return a + torch.arange(k)


def number_last(x: Tensor, m: Tensor, number: Tensor) -> Tensor:
    a = x[m]
    k: Any = number.item()
    torch._check(k >= 0)
    torch._check(a.shape[0] == 2 * k)
    return a + torch.arange(k).repeat(2)


def joined(x: Tensor, m: Tensor) -> Tensor:
    a, b = x[m], x[~m]
    torch._check(a.shape[0] + b.shape[0] == x.shape[0])  # to torch.export x is no longer than two sizes can be, which is no bound
    return torch.cat([a, b]) + x


def put(x: Tensor, m: Tensor) -> Tensor:
    return x.index_put((m,), torch.tensor(5.0))  # torch.export doesn't say that both are of one size


def in_branch(x: Tensor, m: Tensor) -> Tensor:
    def written_there(x: Tensor, m: Tensor) -> Tensor:
        y = x.clone()
        z = y[m]
        torch._check(z.shape[0] <= x.shape[0])
        y[m] = z + x[: z.shape[0]]
        return y

    result: Tensor = torch.cond(m.any(), written_there, lambda x, m: x * 2, (x, m))
    return result


CASES: dict[str, Case] = {
    "in a branch": (in_branch, [(randn(6), mask("xx..x.")), (randn(4), mask("....")), (randn(2), mask("xx"))], []),
    "joined": (joined, [(randn(4), mask("x.xx")), (randn(6), mask("......")), (randn(2), mask("xx"))], []),
    "put": (
        put,
        [(randn(6), mask("x.xx.x")), (randn(1), mask("x")), (randn(0), mask(""))],
        [((randn(6), mask("x.xx")), "'args_1' dim 0 must be"), ((randn(4), mask("x.xx..")), "'args_1' dim 0 must be")],
    ),
    "scaled": (scaled, [(randn(b, s, 3), masks(b, s)) for b, s in ((2, 5), (3, 7), (1, 1), (0, 4), (17, 16))], []),
    "written": (written, [(randn(4, 3), mask("x.xx")), (randn(6, 3), mask("......")), (randn(1, 3), mask("x"))], []),
    "from another": (
        from_another,
        [(randn(4), mask("x.xx"), mask(".xxx")), (randn(5), mask("....."), mask(".....")), (randn(3), mask("xxx"), mask("xxx"))],
        [((randn(6), mask("x.xx.x"), mask("x..x.x")), "sizes must agree")],
    ),
    "added": (
        added,
        [(randn(4), mask("x.xx"), mask(".xxx")), (randn(2), mask(".x"), mask("x."))],
        [((randn(6), mask("x.xx.x"), mask("x..x.x")), "sizes must agree")],
    ),
    "by index": (by_index, [(randn(b, s), masks(b, s)) for b, s in ((2, 5), (3, 7), (1, 33))], []),
    "both": (both, [(randn(b, s), masks(b, s)) for b, s in ((2, 5), (3, 7), (0, 2))], []),
    "beside an argument": (
        beside_argument,
        [(randn(4), randn(3), mask("x.xx")), (randn(6), randn(2), mask("x....x"))],
        [((randn(4), randn(2), mask("x.xx")), "sizes must agree: .* where s[0-9]+ = 'args_1' dim 0")],
    ),
    "unique": (
        unique,
        [(torch.tensor([1, 2, 1]), torch.tensor([3, 4])), (torch.tensor([1, 2, 1, 3, 3]), torch.tensor([3, 4, 5]))],
        [((torch.tensor([1, 2, 1, 3, 3]), torch.tensor([3, 4])), "sizes must agree")],
    ),
    "a number before": (
        number_first,
        [(randn(4), mask("x.xx"), torch.tensor(3)), (randn(6), mask("x.x..."), torch.tensor(2))],
        [((randn(4), mask("x.xx"), torch.tensor(4)), "sizes must agree")],
    ),
    "a number after": (
        number_last,
        [(randn(4), mask("x.x."), torch.tensor(1)), (randn(6), mask("x.xx.x"), torch.tensor(2))],
        [((randn(4), mask("x.xx"), torch.tensor(2)), "requires")],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_counted(name: str) -> None:
    fn, calls, refused = CASES[name]
    dims = tuple(dict.fromkeys(range(x.dim() if x.dim() == 1 else 2), Dim.AUTO) for x in calls[0])
    compiled = dhlo.compile(export(Calls(fn), calls[0], dynamic_shapes=(dims,)))
    for args in calls:
        torch.testing.assert_close(compiled(*args), fn(*args), rtol=0, atol=0)
    for args, message in refused:
        with pytest.raises(dhlo.ContractError, match=message):
            compiled(*args)
    torch.testing.assert_close(compiled(*calls[0]), fn(*calls[0]), rtol=0, atol=0)


def test_nothing_is_scattered() -> None:
    """Where a mask chooses nothing, its source, which what was chosen decides, has nothing either; fewer elements are an error."""

    class Chosen(torch.nn.Module):
        def forward(self, x, mask):
            return x.masked_scatter(mask[..., None], torch.tanh(x[mask]))

    class Given(torch.nn.Module):
        def forward(self, x, mask, source):
            return x.masked_scatter(mask, source)

    x, mask = torch.randn(2, 5, 8), torch.rand(2, 5) > 0.5
    sizes: Any = {0: Dim.AUTO, 1: Dim.AUTO}
    model = dhlo.compile(export(Chosen(), (x, mask), dynamic_shapes=(sizes, sizes)))
    for m in (mask, torch.zeros_like(mask), torch.ones_like(mask)):
        torch.testing.assert_close(model(x, m), Chosen()(x, m))
    x, some = torch.randn(3, 4), torch.tensor([[True], [False], [True]]).expand(3, 4).clone()
    given = dhlo.compile(export(Given(), (x, some, torch.randn(12)), dynamic_shapes=(sizes, sizes, {0: Dim.AUTO})))
    for rows, length in ((3, 12), (3, 8), (2, 4), (0, 3), (0, 0)):
        args = (x[:rows], some[:rows], torch.randn(length))
        torch.testing.assert_close(given(*args), Given()(*args))
    for length in (7, 0):
        with pytest.raises(ContractError, match="index out of range"):
            given(x, some, torch.randn(length))
