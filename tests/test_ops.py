"""Every op through the whole compiler at sizes 0, 1, odd and large, against its reference semantics and PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from dhlo.codegen.elementwise.rules import rule_of
from dhlo.codegen.elementwise.vmath_base import NATIVE
from dhlo.codegen.kernel_ir.builder import F32, F64
from dhlo.errors import CompileError, ContractError, InternalError
from dhlo.ir.dialect import OPS, Kind, TypeError_, build
from dhlo.ir.ops import compute, host
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops import movement as mv
from dhlo.ir.ops.collective import Collective
from dhlo.ir.types import TensorType, from_mlir
from dhlo.model import CompiledModel
from tests import (
    op_cases_compute,
    op_cases_elementwise,
    op_cases_factor,
    op_cases_movement,
    op_cases_opaque,
    op_cases_quantised,
    op_cases_recurrence,
    op_cases_vision,
)
from tests.fuzz.guarded import guarded, isolated
from tests.programs import SOURCE, Module, Part, plain, t

CASES = {
    **op_cases_elementwise.CASES,
    **op_cases_movement.CASES,
    **op_cases_compute.CASES,
    **op_cases_opaque.CASES,
    **op_cases_quantised.CASES,
    **op_cases_factor.CASES,
    **op_cases_recurrence.CASES,
    **op_cases_vision.CASES,
}
HOST = {c.OPERATION_NAME for c in OPS.values() if c.__module__ == host.__name__}  # passes write them, of others' cases
COLLECTIVE = {c.OPERATION_NAME for c in OPS.values() if issubclass(c, Collective)}
ELSEWHERE = {"dhlo.extern", "dhlo.random_key", "dhlo.state", *COLLECTIVE, *HOST}  # have tests of their own
WEIGHTS = {**op_cases_movement.WEIGHTS, **op_cases_compute.WEIGHTS, **op_cases_quantised.WEIGHTS}
EXPANDED = {"dhlo.dequantize"}  # other ops stand in its place where elements are computed on demand
SIZES = [(0, 3), (5, 0), (1, 1), (2, 1), (1, 2), (3, 15), (16, 17), (17, 16), (31, 5), (2, 33), (7, 1031)]
GUARDED = [*SIZES, (15, 16), (16, 15), (17, 1), (1, 17)]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_every_op_has_cases() -> None:
    assert sorted(OPS) == sorted([*CASES, *ELSEWHERE])


def test_every_op_that_is_computed_on_demand_says_how() -> None:
    for name, cls in OPS.items():
        if cls.kind is Kind.ELEMENTWISE:
            assert name in EXPANDED or callable(rule_of(cls)), name
            assert cls.work > 0, name
        elif cls.kind.pullable:
            assert callable(cls.pull), name
        if issubclass(cls, ew.MathOp):
            assert (name.removeprefix("dhlo."), F32) in NATIVE and (name.removeprefix("dhlo."), F64) in NATIVE, name


def test_an_op_without_an_emit_rule_is_named() -> None:
    with pytest.raises(InternalError, match="dhlo.matmul has no emit rule"):
        rule_of(compute.Matmul)


@pytest.mark.parametrize("name", sorted(CASES))
def test_op(name: str) -> None:
    module = Module(CASES[name], WEIGHTS)
    model, artifact = module.compile()
    assert f'"{name}"' in (module.text() if name != "dhlo.group" else artifact.planned)
    for seed, (n, m) in enumerate(SIZES):
        module.check(model, {"n": n, "m": m}, seed)

    def between_guard_pages(note: Callable[[str], None]) -> None:
        for threads in (1, 2):
            with guarded(artifact, threads) as run:
                for seed, (n, m) in enumerate(GUARDED):
                    note(f"{name} on {threads} threads at n={n}, m={m}")
                    module.check(run, {"n": n, "m": m}, seed)

    isolated(between_guard_pages)


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


def typed(cls: Any, types: Sequence[TensorType], attrs: dict[str, Any], out: TensorType | None = None) -> Part:
    results = None if out is None else [out]
    return Part([(ty, plain) for ty in types], lambda *v: build(cls, v, attrs, results=results).results)


WINDOW = {"how": "avg", "window": [2], "stride": [2], "padding": [0], "dilation": [1], "count_pad": False, "divisor": 0}
CONV = {"stride": [1], "padding": [0], "dilation": [1], "transposed": False, "output_padding": [0], "groups": 1}
# Dtypes and sizes for which an op that has a kernel has none yet.
UNSUPPORTED = {
    "matmul of integers": typed(compute.Matmul, [t("i64", "n", "m"), t("i64", "m", 5)], {}),
    "attention of f64": typed(
        compute.Attention, [t("f64", "n", 2, "m", 16)] * 3, {"scale": 0.25, "softcap": 0.0, "causal": False, "past": "0"}
    ),
    "attention of any head size": typed(
        compute.Attention, [t("f32", "n", 2, 3, "m")] * 3, {"scale": 0.25, "softcap": 0.0, "causal": False, "past": "0"}
    ),
    "averages of integers": typed(compute.Pool, [t("i64", "n", 2, "2*m + 2")], WINDOW, t("i64", "n", 2, "m + 1")),
    "convolution of any channels": typed(compute.Conv, [t("f32", "n", "m", 8), t("f32", 4, "m", 3)], CONV, t("f32", "n", 4, 6)),
    "complex arithmetic": typed(ew.Add, [t("complex<f32>", "n")] * 2, {}),
    "a complex view": typed(mv.Transpose, [t("complex<f64>", "n", "m")], {"perm": [1, 0]}),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unsupported_dtypes_and_sizes_are_errors(case: str) -> None:
    with pytest.raises(CompileError, match=rf"has no kernel yet\n  at {SOURCE}:41"):
        Module([UNSUPPORTED[case]], line=41).compile()


@pytest.mark.parametrize(
    ("cls", "dtype"), [(ew.Sin, "i64"), (ew.Div, "i32"), (ew.Sub, "i1"), (ew.And, "f32"), (ew.ShiftLeft, "f64")]
)
def test_meaningless_dtypes_are_rejected(cls: Any, dtype: str) -> None:
    with pytest.raises(TypeError_, match="no such operation"):
        Module([typed(cls, [t(dtype, "n")] * (1 if cls is ew.Sin else 2), {})])


def test_state_is_kept_between_calls_and_starts_as_the_weight() -> None:
    def body(x: Any) -> list[Any]:
        ty = from_mlir(x)
        total = build(ew.Add, [x, build(mv.Weight, [], {"name_": "w"}, results=[ty]).results[0]]).results[0]
        return [build(ew.Neg, [total]).results[0], total]

    start = torch.arange(5, dtype=torch.float32)
    module = Module([Part([(t("f32", 5), plain)], body)], {"w": start.clone()}, updates={1: "w"})
    model, artifact = module.compile()
    assert '"dhlo.state"' in artifact.planned
    want = start.clone()
    for k in range(3):
        x = torch.full((5,), float(k + 1))
        want = want + x
        got = model(x)
        assert torch.equal(got, -want)
    with pytest.raises(ContractError):
        model(torch.ones(6))
    assert torch.equal(model(torch.zeros(5)), -want)
