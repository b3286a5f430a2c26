"""Every op through the whole compiler at sizes 0, 1, odd and large, against its reference semantics and PyTorch."""

from __future__ import annotations

import pytest

from dhlo.dialect import OPS
from tests.op_cases_elementwise import CASES as ELEMENTWISE
from tests.op_cases_movement import CASES as MOVEMENT
from tests.programs import Module

CASES = {**ELEMENTWISE, **MOVEMENT}
SIZES = [(0, 3), (5, 0), (1, 1), (2, 1), (1, 2), (3, 15), (16, 17), (17, 16), (31, 5), (2, 33), (7, 1031)]


@pytest.mark.parametrize("name", sorted(OPS))
def test_op(name: str) -> None:
    module = Module(CASES[name])
    assert f'"{name}"' in module.text()
    model, _ = module.compile()
    for seed, (n, m) in enumerate(SIZES):
        module.check(model, {"n": n, "m": m}, seed)
