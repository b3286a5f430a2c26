"""Real models: each program, compiled once, serves all its input sets as eager does, and so does each through torch.compile."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import dhlo
from tests import zoo
from tests.plans import assert_plan_is_run
from tests.torch_compile_zoo import measure

pytestmark = zoo.marks


def _tensors(outputs: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(outputs) if isinstance(x, torch.Tensor)]


@pytest.mark.parametrize("name", zoo.NAMES)
def test_model(name: str) -> None:
    zoo.in_own_process(check, name)


@pytest.mark.parametrize("name", zoo.NAMES)
def test_torch_compile(name: str) -> None:
    zoo.in_own_process(check_compiled, name)


def check_compiled(name: str) -> None:
    """What is traced again at another size is so by any backend."""
    try:
        outcome = measure(name, marked=True)
    except ImportError as e:
        pytest.skip(str(e))
    if outcome.again:
        assert outcome.again == measure(name, marked=True, backend="aot_eager").again, outcome.row()


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
            zoo.assert_close(g, w)
        changed = copy.deepcopy((args, kwargs))  # eager changes objects too, such as caches: no business of the program's
        with torch.no_grad():
            exported.module()(*changed[0], **changed[1])
        for g, w in zip(_tensors(taken), _tensors(changed), strict=True):
            zoo.assert_close(g, w)
        planned = copy.deepcopy((args, kwargs))
        assert_plan_is_run(model, *planned[0], **planned[1])
    assert model.counters["compilations"] == 1
