"""Real models: each program, imported, serves all its other input sets as eager does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from dhlo import interp
from dhlo.frontend import Program, import_program
from tests import zoo

pytestmark = zoo.marks


def _inputs(program: Program, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensor arguments of @main; keyword arguments in the order of the export."""
    order = program.in_spec.children()[1].context or []
    leaves = tree_leaves((args, {k: kwargs[k] for k in order}))
    return [
        x if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=s.type.dtype.torch)
        for s, x in zip(program.inputs, leaves, strict=True)
        if s.type is not None
    ]


@pytest.mark.parametrize("name", zoo.NAMES)
def test_model(name: str) -> None:
    zoo.in_own_process(check, name)


def check(name: str) -> None:
    case, exported = zoo.exported(name)
    pristine = copy.deepcopy(case.module)  # caches are no part of every module's state_dict
    program = import_program(exported)
    for args, kwargs in [(case.args, case.kwargs), *case.others]:
        module = copy.deepcopy(pristine)
        with torch.no_grad(), program.context:
            got = interp.run(program.module, _inputs(program, *copy.deepcopy((args, kwargs))), program.weights)
            want = tree_leaves(module(*copy.deepcopy(args), **copy.deepcopy(kwargs)))
        outputs = [o.constant if o.index is None else got[o.index] for o in program.outputs]
        want, outputs = ([x for x in xs if isinstance(x, torch.Tensor)] for xs in (want, outputs))
        assert len(outputs) == len(want)
        for g, w in zip(outputs, want, strict=True):
            torch.testing.assert_close(g, w, rtol=1e-3, atol=2e-5, equal_nan=True)
