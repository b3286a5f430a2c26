"""Branches, loops and sizes known only at run time: one compile serves every way through them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch._higher_order_ops.map import map as map_
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim, export
from torch.utils._pytree import tree_leaves

import dhlo

D = Dim.DYNAMIC


def check(module: torch.nn.Module, args: tuple[Any, ...], dims: Any, others: Sequence[tuple[Any, ...]]) -> dhlo.CompiledModel:
    model = dhlo.compile(export(module, args, dynamic_shapes=dims))
    for x in [args, *others]:
        with torch.no_grad():
            want = tree_leaves(module(*x))
        for g, w in zip(tree_leaves(model(*x)), want, strict=True):
            torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)
    return model


def zero() -> torch.Tensor:
    return torch.zeros((), dtype=torch.int64)


def turns(*shapes: tuple[int, int, int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Arguments [rows, columns] and a number of turns."""
    return [(torch.randn(r, c), torch.tensor(n)) for r, c, n in shapes]


class Loop(torch.nn.Module):
    def forward(self, x, n):
        return while_loop(lambda i, y: i < n, lambda i, y: (i + 1, (y * 1.5).tanh() + x), (zero(), x + 1))


class NestedLoop(torch.nn.Module):
    """The inner loop's result is swapped with another carried value; a product of what the loops capture."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x, n):
        z = x.sin()

        def body(i, a, b):
            _, c = while_loop(lambda j, c: j < i, lambda j, c: (j + 1, self.linear(c).relu() + z), (zero(), a))
            return i + 1, b.clone(), c * 0.5

        _, a, b = while_loop(lambda i, a, b: i < n, body, (zero(), x.clone(), x * 2))
        return a + b, z


class BranchInLoop(torch.nn.Module):
    def forward(self, x, n):
        def body(i, a):
            return i + 1, torch.cond((i % 2) == 0, lambda a: a * 2 + 1, lambda a: a.softmax(-1), (a,))

        return while_loop(lambda i, a: i < n, body, (zero(), x.clone()))[1]


class SizeInLoop(torch.nn.Module):
    """Each turn takes a prefix of another length."""

    def forward(self, x, n):
        def body(i, a):
            k = i.item()
            torch._check(k >= 0)
            torch._check(k < x.shape[0])
            return i + 1, a + x[:k].sum(0) + torch.arange(k).sum()

        return while_loop(lambda i, a: i < n, body, (zero(), x[0] * 0))


class CountingLoop(torch.nn.Module):
    """Carries a Python number, which is also a size."""

    def forward(self, x, n):
        return while_loop(lambda i, y: i < x.shape[0], lambda i, y: (i + 1, y + x[:i].sum(0) * i), (1, x[0] * n))


class ManyCarried(torch.nn.Module):
    """As a language model's loop carries all its caches; types alternate."""

    def forward(self, x, n):
        def body(i, *caches):
            return i + 1, *[(v * 0.9 + x.sum() if k % 3 else v + i).clone() for k, v in enumerate(caches)]

        return while_loop(lambda i, *_: i < n, body, (zero(), *(x * k if k % 2 else x.sum(0) + k for k in range(40))))


LOOPS = {
    "loop": (Loop, turns((4, 5, 3), (7, 3, 0), (1, 3, 1), (7, 3, 2), (2, 33, 9))),
    "nested": (NestedLoop, turns((4, 8, 3), (7, 8, 0), (1, 8, 1), (5, 8, 2), (3, 8, 5))),
    "branch": (BranchInLoop, turns((4, 8, 3), (7, 2, 0), (1, 8, 1), (5, 40, 4))),
    "counting": (CountingLoop, turns((6, 4, 3), (9, 4, 1), (2, 4, 0))),
    "many": (ManyCarried, turns((3, 4, 3), (5, 4, 4), (1, 4, 0))),
    "size": (SizeInLoop, turns((9, 3, 4), (20, 3, 0), (20, 3, 15))),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n == "many" else ()) for n in LOOPS])
def test_loop(name: str) -> None:
    make, sets = LOOPS[name]
    columns = {1: D} if name in ("loop", "branch") else {}
    torch.manual_seed(0)
    check(make(), sets[0], ({0: D, **columns}, {}), sets[1:])


def test_loop_reuses_memory() -> None:
    """The arena of a loop does not grow with its turns."""
    (first, *rest) = turns((4, 5, 3), (4, 5, 200))
    model = check(Loop(), first, ({0: D, 1: D}, {}), [])
    before = model.counters["arena_bytes"]
    model(*rest[0])
    assert model.counters["arena_bytes"] == before


class NestedBranch(torch.nn.Module):
    def forward(self, x):
        def positive(x):
            return torch.cond(x.mean() > 0.5, lambda x: x * 2, lambda x: x.sin() @ x.cos().t() @ x, (x,))

        return torch.cond(x.sum() > 0, positive, lambda x: (x - 1).softmax(-1), (x,)) + 1


class SizeInBranch(torch.nn.Module):
    def forward(self, x):
        def positive(x):
            places = x.nonzero()
            return places.to(torch.float32).sum(0) + x[places[:, 0]].sum(0)

        return torch.cond(x.sum() > 0, positive, lambda x: x.sum(0), (x,))


class BranchesOfTwoSizes(torch.nn.Module):
    def forward(self, x):
        y = torch.cond(x.sum() > 0, lambda x: x[:2].clone(), lambda x: torch.cat([x, x]), (x,))
        return y * 2, y.sum(0), y


class BranchesOfManyResults(torch.nn.Module):
    def forward(self, x):
        def positive(x):
            return [x * k if k % 2 else x.sum(0) + k for k in range(30)]

        return torch.cond(x.sum() > 0, positive, lambda x: [x - k if k % 2 else x.sum(0) - k for k in range(30)], (x,))


class BranchInMap(torch.nn.Module):
    def forward(self, x):
        def row(r, y):
            return r.sum() + y, torch.cond(r.sum() > 0, lambda r: r + 1, lambda r: r * 2, (r,)).clone()

        return map_(row, x, x[0].clone())


class ScanBackwards(torch.nn.Module):
    def forward(self, x):
        return scan(lambda c, r: (c * 0.5 + r, c * r), torch.zeros_like(x[0]), x, reverse=True)


@pytest.mark.parametrize(
    "make", [NestedBranch, SizeInBranch, BranchesOfTwoSizes, BranchesOfManyResults, BranchInMap, ScanBackwards]
)
def test_branch(make: type[torch.nn.Module]) -> None:
    torch.manual_seed(0)
    others = [(torch.ones(3, 2),), (torch.ones(5, 2) * 0.1,), (-torch.ones(6, 2),)]
    check(make(), (torch.randn(4, 2),), ({0: D},), others)


class Numbers(torch.nn.Module):
    """As many sizes as `index` has elements."""

    def forward(self, x, index):
        out = []
        for k in range(index.shape[0]):
            n = index[k].item()
            torch._check(n >= 0)
            torch._check(n <= x.shape[0])
            out.append(x[:n].sum(0))
        return torch.stack(out)


def test_many_sizes_from_data() -> None:
    torch.manual_seed(0)
    others = [(torch.randn(rows, 4), torch.randint(0, rows + 1, (24,))) for rows in (1, 17)]
    check(Numbers(), (torch.randn(50, 4), torch.randint(0, 50, (24,))), ({0: D}, None), others)


def test_counts_in_branches_and_behind() -> None:
    """Branches are traced apart, so that their symbols may have the names of ones that come later."""

    def branches(m: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        def true(m, x):
            return (x * m.nonzero().sum().float(),)

        def false(m, x):
            return (x - m.logical_not().nonzero().sum() - (x > 0).nonzero().sum(),)

        result: torch.Tensor = torch.cond(x.sum() > 0, true, false, (m, x))[0]
        return result

    class Counts(torch.nn.Module):
        def forward(self, m, x):
            y = branches(m, x)
            return y, m.nonzero(), (y > 0).nonzero(), branches(x > 1, y)

    def example(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(n) < 0.5, torch.randn(n)

    torch.manual_seed(0)
    dims = ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC})
    check(Counts(), example(5), dims, [example(n) for n in (2, 3, 3, 17, 40)])
