"""Writes through views of every kind, operators in place, and operators that change arguments besides what they return."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import dhlo
from tests.frontend.helpers import check, export

A: Any = torch.ops.aten
VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "movedim": lambda y: y.movedim(0, 1),
    "moveaxis": lambda y: torch.moveaxis(y, (0, 1), (1, 0)),
    "swapdims": lambda y: y.swapdims(0, 1),
    "mT": lambda y: y.mT,
    "T": lambda y: y.T,
    "adjoint": lambda y: y.adjoint(),
    "tensor_split": lambda y: y.tensor_split((1, 3)),
    "tensor_split in sections": lambda y: y.tensor_split(2),
    "hsplit": lambda y: y.hsplit(2),
    "expand_as": lambda y: y.expand_as(y),
    "broadcast_to": lambda y: y.broadcast_to(y.shape),
    "positive": lambda y: y.positive(),
    "resolve_conj": lambda y: y.resolve_conj(),
    "unfold": lambda y: y.unfold(0, 2, 3),
    "unfold touching": lambda y: y.unfold(1, 1, 1),
    "diagonal": lambda y: y.diagonal(1),
    "unflatten": lambda y: y.unflatten(0, (-1, 2)),
}


def test_writes_through_views() -> None:
    def f(x: torch.Tensor) -> list[torch.Tensor]:
        written = []
        for view in VIEWS.values():
            y = x.clone()
            views = view(y)
            for k, part in enumerate(views if isinstance(views, list | tuple) else [views]):
                part.mul_(k + 2)
            written.append(y)
        return written

    check(f, [torch.randn(6, 4)], [torch.randn(8, 4)])


def test_views_show_what_is_written_later() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x.clone()
        windows, moved = y.unfold(0, 2, 1), y.movedim(0, 1)
        y.mul_(2)
        return windows, moved

    check(f, [torch.randn(5, 3)], [torch.randn(9, 4)], [torch.randn(2, 1)])


def test_overlapping_windows_cannot_be_written() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.unfold(0, 3, 1).zero_()
        return y

    with pytest.raises(dhlo.CompileError, match="windows that overlap are written in place"):
        dhlo.compile(export(f, [torch.randn(5)]))


IN_PLACE: dict[str, Callable[[torch.Tensor], Any]] = {
    "other names": lambda x: x.clone().arctan_().negative_().absolute_(),
    "renorm": lambda x: x.clone().renorm_(2, 0, 1.0),
    "ldexp": lambda x: x.clone().ldexp_(x),
    "divide": lambda x: x.clone().divide_(x.abs() + 0.3, rounding_mode="floor"),
    "xlogy": lambda x: x.clone().xlogy_(2.0),
    "swapdims": lambda x: x.clone().swapdims_(0, 1),
}


def test_operators_in_place() -> None:
    check(lambda x: [f(x) for f in IN_PLACE.values()], [torch.randn(6, 4)], [torch.randn(1, 5)], [torch.randn(7, 17)])


class Norms(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.batch = torch.nn.BatchNorm2d(5)
        self.instance = torch.nn.InstanceNorm2d(5, affine=True, track_running_stats=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.batch(x) + self.instance(x)
        return y


def test_statistics_of_training_are_kept() -> None:
    module = Norms().train()
    program = torch.export.export(module, (torch.randn(6, 5, 3, 4),), dynamic_shapes=({0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO},))
    model = dhlo.compile(program)
    for shape in ((6, 5, 3, 4), (1, 5, 2, 3), (1, 5, 1, 9), (33, 5, 4, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(model(x), module(x), rtol=1e-4, atol=1e-5)
        for name, want in module.named_buffers():
            if "running" in name:
                torch.testing.assert_close(model.read_state(name), want, rtol=1e-4, atol=1e-5)


def test_nothing_leaves_statistics_alone() -> None:
    module = torch.nn.BatchNorm1d(5).train()
    model = dhlo.compile(torch.export.export(module, (torch.randn(6, 5),), dynamic_shapes=({0: Dim.DYNAMIC},)))
    for n in (3, 0, 40):
        x = torch.randn(n, 5)
        torch.testing.assert_close(model(x), module(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model.read_state("running_var"), module.running_var, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", [A.batch_norm, A.native_batch_norm, A._native_batch_norm_legit, A.instance_norm])
def test_statistics_that_are_arguments(op: Any) -> None:
    class Norm(torch.nn.Module):
        def forward(self, x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
            result = op(x, None, None, mean, var, True, 0.1, 1e-5, *([False] if op in (A.batch_norm, A.instance_norm) else []))
            y: torch.Tensor = result if isinstance(result, torch.Tensor) else result[0]
            return y

    args = (torch.randn(6, 5, 3), torch.rand(5), torch.rand(5))
    model = dhlo.compile(torch.export.export(Norm(), args, dynamic_shapes=({0: Dim.AUTO, 2: Dim.AUTO}, {}, {})))
    for x in (args[0], torch.randn(2, 5, 7)):
        ours, theirs = ((x, *copy.deepcopy(args[1:])) for _ in range(2))
        torch.testing.assert_close(model(*ours), Norm()(*theirs), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours, theirs)
