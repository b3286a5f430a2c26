"""The tensors that a module holds: what state is called, memory that several names share, and tensors that can't be compiled."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import export

import dhlo
from dhlo.compiler import compile_program
from dhlo.frontend import import_program
from dhlo.options import Options

x3 = torch.ones(3)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept = [torch.zeros(3), torch.ones(3)]
        self.count = torch.zeros(())

    def forward(self, x):
        self.kept[0].add_(x)
        self.kept[1].mul_(2)
        self.count.add_(1)
        return self.kept[0] * self.kept[1] + self.count


class Registered(torch.nn.Module):
    """Holds references to what it registers later, as static caches do; one buffer has two names, one isn't persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = [torch.zeros(3), torch.zeros(3)]
        self.register_buffer("keys", self.rows[0], persistent=False)
        self.register_buffer("values", self.rows[1])
        self.register_buffer("again", self.values)

    def forward(self, x):
        self.rows[0].add_(x)
        self.rows[1].add_(1)
        return self.rows[0] * self.rows[1] + self.again


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()

    def forward(self, x):
        return self.layer(x)


class OnlyWritten(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x):
        self.last.copy_(x)
        return x + 1


class Tied(torch.nn.Module):
    """Changes parameters, one of them under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        with torch.no_grad():
            self.first.weight.mul_(2)
        return self.second(x)


def saved(exported: Any) -> Any:
    file = io.BytesIO()
    torch.export.save(exported, file)
    return torch.export.load(io.BytesIO(file.getvalue()))


@pytest.mark.parametrize(
    ("module", "form", "names"),
    [
        (Registered, None, {"keys", "values"}),
        (Registered, saved, {"keys", "constant_0"}),  # a file keeps 'values' apart from the constant that it was
        (Outer, None, {"layer.constant_0", "layer.constant_1", "layer.count"}),
        (OnlyWritten, None, {"last"}),
        (OnlyWritten, lambda exported: exported.run_decompositions({}), {"last"}),
        (Tied, None, {"first.weight"}),
    ],
)
def test_state_has_its_modules_names(module: Any, form: Any, names: set[str]) -> None:
    exported = export(module().eval(), (x3,))
    exported = exported if form is None else form(exported)
    model, theirs = dhlo.compile(exported), exported.module()
    assert set(compile_program(import_program(exported), Options()).metadata["states"]) == names
    for _ in range(3):
        x = torch.randn(3)
        with torch.no_grad():
            torch.testing.assert_close(model(x), theirs(x))


def test_state_is_read_by_name() -> None:
    model = dhlo.compile(export(Registered(), (x3,)))
    model(x3)
    torch.testing.assert_close(torch.as_tensor(model.read_state("keys")), x3)


class Overlapping(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 3))
        self.first = self.cache[0]

    def forward(self, x):
        self.first.add_(x)
        return self.cache * 1


def test_state_that_shares_memory_with_another_tensor_is_refused() -> None:
    with pytest.raises(dhlo.CompileError, match="'first', which the program changes, shares memory with 'cache'"):
        dhlo.compile(export(Overlapping(), (x3,)))


class Fn(torch.nn.Module):
    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)


@pytest.mark.parametrize("f", [lambda x: x.to("meta") + 1, lambda x: torch.zeros(3, device="meta")], ids=["moved", "made"])
def test_other_devices_are_refused(f: Callable[..., Any]) -> None:
    with pytest.raises(dhlo.UnsupportedError, match=r"makes a tensor on the device 'meta'\n  at .*test_module_tensors.py:\d+"):
        dhlo.compile(export(Fn(f), (x3,)))


def test_sparse_inputs_are_refused() -> None:
    exported = export(Fn(lambda x: x.to_dense() + 1), (torch.eye(3).to_sparse(),))
    with pytest.raises(dhlo.CompileError, match="input 'x' is a tensor of layout sparse_coo"):
        dhlo.compile(exported)


def test_sparse_and_meta_constants_are_refused() -> None:
    for data, kind in ((torch.eye(3).to_sparse(), "of layout sparse_coo"), (torch.zeros(3, device="meta"), "on the device 'meta'")):
        module = Fn(lambda x: x + 1)
        module.register_buffer("table", torch.zeros(3))
        exported = export(module, (x3,))
        exported._state_dict["table"] = data
        with pytest.raises(dhlo.CompileError, match=f"constant 'table' is a tensor {kind}"):
            dhlo.compile(exported)


def test_asserted_metadata_is_checked() -> None:
    exported = export(Fn(lambda x: x.to(torch.float64)), (x3,))
    asserts = [n for n in exported.graph.nodes if n.target is torch.ops.aten._assert_tensor_metadata.default]
    assert asserts
    asserts[0].kwargs = {**asserts[0].kwargs, "dtype": torch.int32}
    with pytest.raises(dhlo.CompileError, match=r"takes for granted that this is torch.int32, and it is torch.float32"):
        dhlo.compile(exported)
