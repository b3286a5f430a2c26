"""Every op through the whole compiler at sizes 0, 1, odd and large, against its reference semantics and PyTorch."""

from __future__ import annotations

import pytest
import torch

from dhlo.dialect import OPS
from dhlo.errors import CompileError
from tests import op_cases_compute, op_cases_elementwise, op_cases_movement
from tests.programs import SOURCE, Module

CASES = {**op_cases_elementwise.CASES, **op_cases_movement.CASES, **op_cases_compute.CASES}
UNCOMPILED = op_cases_compute.UNCOMPILED
WEIGHTS = {**op_cases_movement.WEIGHTS, **op_cases_compute.WEIGHTS}
SIZES = [(0, 3), (5, 0), (1, 1), (2, 1), (1, 2), (3, 15), (16, 17), (17, 16), (31, 5), (2, 33), (7, 1031)]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_every_op_has_cases() -> None:
    assert sorted(OPS) == sorted([*CASES, *UNCOMPILED])


@pytest.mark.parametrize("name", sorted(CASES))
def test_op(name: str) -> None:
    module = Module(CASES[name], WEIGHTS)
    model, artifact = module.compile()
    assert f'"{name}"' in (module.text() if name != "dhlo.group" else artifact.planned)
    for seed, (n, m) in enumerate(SIZES):
        module.check(model, {"n": n, "m": m}, seed)


@pytest.mark.parametrize("name", sorted(UNCOMPILED))
def test_not_compiled_yet(name: str) -> None:
    module = Module([UNCOMPILED[name]], line=41)
    inputs = module.draw({"n": 4, "m": 3}, 0)
    module.interpret(inputs)
    with pytest.raises(CompileError) as error:
        module.compile()
    assert name in str(error.value) and f"{SOURCE}:41" in str(error.value)
