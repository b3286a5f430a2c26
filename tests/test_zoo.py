"""Real models: each program, compiled once, serves all its input sets as eager does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import dhlo
from tests import zoo
from tests.plans import assert_plan_is_run

pytestmark = zoo.marks


def _tensors(outputs: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(outputs) if isinstance(x, torch.Tensor)]


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal up to rounding, relative to the largest element."""
    assert got.shape == want.shape and got.dtype == want.dtype
    low = want.dtype in (torch.bfloat16, torch.float16)
    wide = torch.complex128 if want.is_complex() else torch.float64
    got, want = got.to(wide), want.to(wide)
    finite = want[want.isfinite()].abs()
    scale = max(1.0, float(finite.max())) if finite.numel() else 1.0
    torch.testing.assert_close(got, want, rtol=2e-2 if low else 1e-3, atol=(1e-2 if low else 1e-4) * scale, equal_nan=True)


@pytest.mark.parametrize("name", zoo.NAMES)
def test_model(name: str) -> None:
    zoo.in_own_process(check, name)


def check(name: str) -> None:
    case, exported = zoo.exported(name)
    pristine = copy.deepcopy(case.module)
    model = dhlo.compile(exported)
    for args, kwargs in [(case.args, case.kwargs), *case.others]:
        given = copy.deepcopy((args, kwargs))
        with torch.no_grad():
            want = copy.deepcopy(pristine)(*given[0], **given[1])
        model.reset_state()
        taken = copy.deepcopy((args, kwargs))
        got = model(*taken[0], **taken[1])
        assert len(_tensors(got)) == len(_tensors(want))
        for g, w in zip(_tensors(got), _tensors(want), strict=True):
            assert_close(g, w)
        changed = copy.deepcopy((args, kwargs))  # eager changes objects too, such as caches: no business of the program's
        with torch.no_grad():
            exported.module()(*changed[0], **changed[1])
        for g, w in zip(_tensors(taken), _tensors(changed), strict=True):
            assert_close(g, w)
        planned = copy.deepcopy((args, kwargs))
        assert_plan_is_run(model, *planned[0], **planned[1])
    assert model.counters["compilations"] == 1
