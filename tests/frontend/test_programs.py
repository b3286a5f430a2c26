"""Whole programs: mutation, branches, loops, weights, locations, errors, the text form, and users' own ops."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dhlo import interp
from dhlo.errors import ContractError, InternalError, UnsupportedError
from dhlo.frontend import import_program, register_lowering
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.ir.dialect import build
from dhlo.ir.mlir import func, ir
from dhlo.ir.ops.elementwise import Add
from dhlo.ir.types import TensorType
from tests.frontend.helpers import Fn, check, export, import_fn, run

rn = torch.randn
AUTO = torch.export.Dim.AUTO


# ---------------------------------------------------------------------------------------------------- mutation
def in_place(x: torch.Tensor) -> Any:
    y = x.clone()
    y[1:] += 1
    y[:, 0] = 7
    y.t()[1].mul_(2)
    a, b = y.chunk(2, 1)
    a.neg_()
    y.view(-1)[::2].add_(1)
    b.copy_(x[:, 2:] * 3)
    return y, a, b


def test_writes_through_views_reach_their_base() -> None:
    check(in_place, [rn(3, 4)], [rn(5, 4)], [rn(4, 4)], shapes=({0: AUTO},))


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        self.steps.add_(1)
        state[:, 0].copy_(x[:, 0])
        return x * self.steps + state.sum()


def test_mutated_inputs_and_buffers_become_results() -> None:
    p = import_program(export(Counter(), [rn(3, 2), rn(3, 2)]))
    assert {(m.kind, m.target) for m in p.mutations} == {("input", "state"), ("buffer", "steps")}
    x, state = rn(4, 2), rn(4, 2)
    with p.context:
        got = interp.run(p.module, [x, state], p.weights)
    by_target = {m.target: got[m.index] for m in p.mutations}
    assert by_target["steps"].item() == 1
    assert torch.equal(by_target["state"], torch.stack([x[:, 0], state[:, 1]], 1))


# ---------------------------------------------------------------------------------------------------- control
def test_cond_with_results_of_different_types() -> None:
    def f(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: (x + 1, x.argmax()), lambda x: (x - 1, x.argmin()), (x,))

    check(f, [torch.ones(3)], [-torch.ones(4)], shapes=({0: AUTO},))


def test_while_loop() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def f(x: torch.Tensor) -> Any:
        return while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 1.5 + x), (torch.zeros((), dtype=torch.int64), x))

    check(f, [rn(3)], [rn(7)], shapes=({0: AUTO},))


# ---------------------------------------------------------------------------------------------------- weights, text,
# locations
class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.unused = torch.nn.Parameter(rn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


def test_shared_weights_are_imported_once_and_unused_ones_not_at_all() -> None:
    p = import_program(export(Tied(), [rn(2, 4)], ({0: AUTO},)))
    assert sorted(p.weights) in (["a.bias", "a.weight", "b.bias"], ["a.bias", "b.bias", "b.weight"])


def test_the_text_stands_alone() -> None:
    p = import_fn(lambda x: (x[:, :2].softmax(-1), x.nonzero()), [rn(3, 4)])
    with p.context:
        again = ir.Module.parse(str(p.module))
        assert str(again) == str(p.module)
        x = rn(5, 3)
        for a, b in zip(interp.run(p.module, [x], p.weights), interp.run(again, [x], p.weights), strict=True):
            assert torch.equal(a, b)


def test_ops_know_the_users_line() -> None:
    p = import_program(export(Tied(), [rn(2, 4)], ({0: AUTO},)))
    with p.context:
        asm = p.module.operation.get_asm(enable_debug_info=True)
    line = Tied.forward.__code__.co_firstlineno + 1
    assert f'test_programs.py":{line}:0' in asm


# ---------------------------------------------------------------------------------------------------- users' ops and
# errors
@torch.library.custom_op("dhlo_frontend_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("dhlo_frontend_test::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() * 2)  # can't be traced


@unknown.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_own_lowering() -> None:
    @register_lowering(torch.ops.dhlo_frontend_test.twice)
    def lower(b: OpBuilder, x: Value) -> Value:
        return b.add(x, x)

    check(lambda x: torch.ops.dhlo_frontend_test.twice(x) + 1, [rn(3)], [rn(5)])


def test_unknown_ops_are_listed_all_at_once_with_their_lines() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.ops.dhlo_frontend_test.unknown(x)
            return torch.ops.dhlo_frontend_test.unknown(y) + 1

    with pytest.raises(UnsupportedError) as e:
        import_program(export(Model(), [rn(3)]))
    assert len(e.value.problems) == 2 and "dhlo_frontend_test.unknown" in str(e.value)
    line = Model.forward.__code__.co_firstlineno + 1
    assert f"test_programs.py:{line}" in str(e.value)


# ---------------------------------------------------------------------------------------------------- the interpreter
def test_inputs_are_checked() -> None:
    p = import_fn(lambda x, y: x + y, [rn(3, 4), rn(3, 4)])
    with pytest.raises(ContractError, match="expected 2 inputs"), p.context:
        interp.run(p.module, [rn(3, 4)], p.weights)
    with pytest.raises(ContractError, match="args_1: size of dim 1 is 5"):
        run(p, (rn(3, 4), rn(3, 5)))
    with pytest.raises(ContractError, match="args_0: expected"):
        run(p, (rn(3, 4).double(), rn(3, 4)))


def test_wrong_result_types_are_internal_errors() -> None:
    p = import_fn(lambda x: x + 1, [rn(3)])
    with p.context, ir.Location.unknown():
        module, t, wrong = ir.Module.create(), TensorType.of("f32", ["s0"]), TensorType.of("f32", ["s0 + 1"])
        with ir.InsertionPoint(module.body):
            f = func.FuncOp("main", ([t.mlir()], [wrong.mlir()]))
        with ir.InsertionPoint(f.add_entry_block()) as at:
            x = at.block.arguments[0]
            func.ReturnOp(list(build(Add, [x, x], results=[wrong]).results))
        with pytest.raises(InternalError, match="dhlo.add"):
            interp.run(module, [rn(2)], {})


def test_modules_are_exported_as_they_are() -> None:
    assert isinstance(export(Fn(torch.sin), [rn(3)], (({0: AUTO},),)), torch.export.ExportedProgram)
