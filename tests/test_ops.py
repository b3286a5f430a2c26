"""Every op through the whole compiler at sizes 0, 1, odd and large, against its reference semantics and PyTorch."""

from __future__ import annotations

import pytest
import torch

from dhlo.dialect import OPS
from dhlo.errors import CompileError, ContractError
from dhlo.model import CompiledModel
from tests import op_cases_compute, op_cases_elementwise, op_cases_movement, op_cases_opaque
from tests.programs import SOURCE, Module

CASES = {**op_cases_elementwise.CASES, **op_cases_movement.CASES, **op_cases_compute.CASES, **op_cases_opaque.CASES}
NOT_YET = op_cases_opaque.NOT_YET
WEIGHTS = {**op_cases_movement.WEIGHTS, **op_cases_compute.WEIGHTS}
SIZES = [(0, 3), (5, 0), (1, 1), (2, 1), (1, 2), (3, 15), (16, 17), (17, 16), (31, 5), (2, 33), (7, 1031)]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_every_op_has_cases() -> None:
    assert sorted(OPS) == sorted(CASES) and set(CASES) >= NOT_YET


@pytest.mark.parametrize("name", sorted(set(CASES) - NOT_YET))
def test_op(name: str) -> None:
    module = Module(CASES[name], WEIGHTS)
    model, artifact = module.compile()
    assert f'"{name}"' in (module.text() if name != "dhlo.group" else artifact.planned)
    for seed, (n, m) in enumerate(SIZES):
        module.check(model, {"n": n, "m": m}, seed)


@pytest.mark.parametrize("name", sorted(NOT_YET))
def test_not_compiled_yet(name: str) -> None:
    module = Module(CASES[name], line=41)
    for seed, (n, m) in enumerate(SIZES[:-1]):
        inputs = module.draw({"n": n, "m": m}, seed)
        module.check(lambda *_, x=inputs: tuple(module.interpret(x)), {"n": n, "m": m}, seed)
    with pytest.raises(CompileError) as error:
        module.compile()
    assert name in str(error.value) and f"{SOURCE}:41" in str(error.value)


@pytest.mark.parametrize(("n", "bad"), [(1, 7), (3, -8), (16, 7), (17, 1 << 40), (40, -(1 << 62))])
@pytest.mark.parametrize("part", [0, 1], ids=["along lanes", "along rows"])
def test_index_out_of_range_fails_the_call(lookups: tuple[Module, CompiledModel], part: int, n: int, bad: int) -> None:
    module, model = lookups
    inputs = module.draw({"n": n, "m": 5}, n)
    index = inputs[1 + 2 * part]
    index[n // 2] = bad
    with pytest.raises(ContractError, match=rf"(?s)dhlo.take at {SOURCE}:{1 + part}:1: index out of range.*{bad}"):
        model(*inputs)
    module.check(model, {"n": n, "m": 5}, n)


@pytest.fixture(scope="module")
def lookups() -> tuple[Module, CompiledModel]:
    """Two lookups, one of single elements and one of rows."""
    chosen = [
        op_cases_movement.take("f32", [7], [("i64", ["n"], op_cases_movement.ROWS)], [0], 0, lambda x, i: [x[i]]),
        op_cases_movement.take("f32", [7, "m"], [("i64", ["n"], op_cases_movement.ROWS)], [0], 0, lambda x, i: [x[i]]),
    ]
    module = Module(chosen)
    return module, module.compile()[0]


def test_failed_assertions_leave_the_model_usable() -> None:
    module = Module(CASES["dhlo.assert"])
    model, _ = module.compile()
    x, ok = torch.ones(5), torch.tensor(True)
    with pytest.raises(ContractError, match="too many rows"):
        model(torch.ones(2001), ok)
    with pytest.raises(ContractError, match="not ok"):
        model(x, torch.tensor(False))
    with pytest.raises(ContractError, match="rank 1"):
        model(x[None], ok)
    with pytest.raises(ContractError, match="float32"):
        model(x.double(), ok)
    assert torch.equal(model(x, ok), -x)
