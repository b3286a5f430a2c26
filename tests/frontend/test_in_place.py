"""Writes through views of every kind, operators in place, and operators that change arguments besides what they return."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import dhlo
from dhlo.frontend.decompose import decompositions_of
from dhlo.frontend.functionalize import functional_form
from dhlo.frontend.registry import LOWERINGS
from tests.frontend.helpers import Fn, check, export

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
    "dropout": lambda x: F.dropout(x.clone(), 0.3, False, inplace=True),
    "dropout of a view": lambda x: _changed(x.clone(), lambda y: F.dropout(y.T, 0.3, False, inplace=True).add_(1)),
    "alpha_dropout": lambda x: F.alpha_dropout(x.clone(), 0.3, False, inplace=True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x.clone(), 0.3, False, inplace=True),
    "feature_dropout": lambda x: F.dropout1d(x.clone()[None], 0.3, False, inplace=True),
}


def _changed(y: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    change(y)
    return y


def test_operators_in_place() -> None:
    check(lambda x: [f(x) for f in IN_PLACE.values()], [torch.randn(6, 4)], [torch.randn(1, 5)], [torch.randn(7, 17)])


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_in_place(p: float) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.clone()
        F.dropout(y.view(-1), p, True, inplace=True)
        return y, F.alpha_dropout(x.clone(), p, True, inplace=True)

    model = dhlo.compile(torch.export.export(Fn(f), (torch.ones(3, 40),), dynamic_shapes=(({0: Dim.AUTO},),)))
    plain, alpha = model(torch.ones(500, 40))
    kept = plain != 0
    assert abs(float(kept.float().mean()) - (1 - p)) < 0.02
    torch.testing.assert_close(plain[kept], torch.full_like(plain[kept], 1 / (1 - p) if p < 1 else 0.0))
    assert len(alpha.unique()) == (1 if p in (0, 1) else 2)


# PyTorch's own bookkeeping, and what has its operand elsewhere or writes to two.
WITHOUT_TWIN = {"_amp_update_scale_", "_fill_mem_eff_dropout_mask_", "polygamma_", "rrelu_with_noise_", "shallow_copy_data_"}


def test_operators_in_place_have_functional_twins() -> None:
    left = set()
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if space != "aten" or not packet.endswith("_") or packet.endswith("__"):
            continue
        op = getattr(getattr(A, packet), overload or "default")
        changes = op._schema.is_mutable and str(op._schema.arguments[0].type) == "Tensor"
        if changes and op not in LOWERINGS and functional_form(op) is None and not decompositions_of(op):
            left.add(packet)
    assert not left - WITHOUT_TWIN


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
