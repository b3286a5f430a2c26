"""`dhlo.compile` of modules and files, and what it says of arguments that don't fit."""

import logging
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import dhlo
from dhlo.arguments import explain_mismatch


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)

    def forward(
        self, ids: torch.Tensor, masks: list[torch.Tensor], *, scale: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        x: torch.Tensor = self.embed(ids)
        for mask in masks:
            x = x * mask[..., None]
        x = x * scale
        return x if bias is None else x + bias


def arguments(b: int, t: int) -> tuple[tuple[torch.Tensor, list[torch.Tensor]], dict[str, torch.Tensor]]:
    return (torch.randint(0, 10, (b, t)), [torch.rand(b, t), torch.rand(b, t)]), {"scale": torch.tensor(2.0)}


@pytest.fixture(scope="module")
def module() -> Model:
    torch.manual_seed(0)
    return Model()


@pytest.fixture(scope="module")
def compiled(module: Model) -> dhlo.CompiledModel:
    return dhlo.compile(module, *arguments(2, 3))


def test_module(module: Model, compiled: dhlo.CompiledModel, caplog: pytest.LogCaptureFixture) -> None:
    """All dims are dynamic that can be, and the logger says which."""
    for b, t in ((5, 7), (1, 1), (0, 3), (2, 0), (64, 33)):
        args, kwargs = arguments(b, t)
        torch.testing.assert_close(compiled(*args, **kwargs), module(*args, **kwargs))
    with caplog.at_level(logging.INFO, "dhlo"):
        dhlo.compile(module, *arguments(1, 3))
    assert "fixed, since the example has size 0 or 1 there: ids dim 0, masks_0 dim 0, masks_1 dim 0" in caplog.text
    assert "exported with ids[1, s" in caplog.text
    batch = torch.export.Dim("batch", max=9)
    one = nn.Linear(4, 2)
    model = dhlo.compile(one, (torch.randn(3, 4),), dynamic_shapes=({0: batch},))
    assert "x: float32[batch, 4]" in repr(model) or "input: float32[batch, 4]" in repr(model)
    with pytest.raises(dhlo.ContractError, match="at most 9"):
        model(torch.randn(10, 4))


def test_file(module: Model, tmp_path: Path) -> None:
    args, kwargs = arguments(2, 3)
    torch.export.save(torch.export.export(module, args, kwargs), tmp_path / "m.pt2")
    for path in (tmp_path / "m.pt2", str(tmp_path / "m.pt2")):
        torch.testing.assert_close(dhlo.compile(path)(*args, **kwargs), module(*args, **kwargs))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda m, _: dhlo.compile(m), r"with example arguments, or exported first\n  hint: torch\.export\.export\(module, args"),
        (lambda m, a: dhlo.compile(m, a[0]), "args: is a tuple of the module's arguments"),
        (lambda m, a: dhlo.compile(m, (*a, *a)), "the module isn't called so: too many positional arguments"),
        (lambda m, a: dhlo.compile(m, a), "the module isn't called so: missing a required (keyword-only )?argument: 'scale'"),
        (lambda m, a: dhlo.compile(m, "ab"), "args: is a tuple of the module's arguments"),
        (lambda m, a: dhlo.compile(m, a, 5), "kwargs: is a dict of the module's arguments by name"),
        (lambda m, a: dhlo.compile(m, None, [1]), "kwargs: is a dict of the module's arguments by name"),
        (lambda m, a: dhlo.compile(lambda x: x, a), "a program of torch.export.export is compiled, not a function"),
        (lambda m, a: dhlo.compile(3), "a program of torch.export.export is compiled, not an int"),
        (lambda m, a: dhlo.compile("nothing.pt2"), "'nothing.pt2' is not a file"),
        (lambda m, a: dhlo.compile("nothing.pt2", a), "args: is for a module that isn't exported yet"),
        (lambda m, a: dhlo.compile(m, a, {"scale": 1}, tarjet="x"), "unknown option: 'tarjet'\n  hint: options are name, progress"),
    ],
)
def test_what_is_no_program(module: Model, wrong: object, text: str) -> None:
    with pytest.raises(dhlo.CompileError, match=text):
        wrong(module, arguments(2, 3)[0])  # type: ignore[operator]


def test_a_module_that_cannot_be_exported() -> None:
    class Refuses(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(dhlo.CompileError, match=r"torch\.export\.export failed: "):
        dhlo.compile(Refuses(), (torch.randn(3),))


def test_arguments_that_do_not_fit(compiled: dhlo.CompiledModel) -> None:
    (ids, masks), kwargs = arguments(2, 3)

    def refused(*args: object, **kwargs: object) -> str:
        with pytest.raises(dhlo.ContractError) as error:
            compiled(*args, **kwargs)
        return str(error.value)

    begin = "arguments don't match the exported program's: "
    assert refused(ids, **kwargs) == begin + "takes 2 positional arguments (ids, masks), got 1"
    assert refused(ids, masks) == begin + "missing: scale"
    assert refused(ids, masks, **kwargs, extra=1) == begin + "unknown: extra"
    assert refused(ids, masks=masks, **kwargs) == (
        begin + "takes 2 positional arguments (ids, masks), got 1; unknown: masks; "
        "give masks by position, as when the program was exported"
    )
    assert refused(ids, masks[:1], **kwargs) == begin + "'masks' is a list of 1, expected a list of 2"
    assert refused([ids], masks, **kwargs) == begin + "'ids' is a list of 1, expected a tensor or number"
    assert refused(ids, masks, scale={"a": ids}) == begin + "'scale' is a dict with 'a', expected a tensor or number"
    assert "index out of range in 'ids': index 10 is out of range for size 10" in refused(torch.full((2, 3), 10), masks, **kwargs)
    torch.testing.assert_close(compiled(ids, masks, **kwargs).shape, torch.Size([2, 3, 8]))


def test_parts_of_arguments_that_do_not_fit() -> None:
    """The place of the difference is told, however deep it lies."""
    x = torch.ones(2)
    example = {"a": {"m": (x, x), "n": x}, "b": [x, defaultdict(list, k=x)]}
    spec = pytree.tree_structure(((example,), {}))
    names = ["d['a']['m'][0]", "d['a']['m'][1]", "d['a']['n']", "d['b'][0]", "d['b'][1]['k']"]

    def explained(**changes: object) -> str:
        text = explain_mismatch(spec, names, (example | changes,), {})
        return text.removeprefix("arguments don't match the exported program's: ")

    assert explained(a={"m": (x,), "n": x}) == "'d['a']['m']' is a tuple of 1, expected a tuple of 2"
    assert explained(a={"m": [x, x], "n": x}) == "'d['a']['m']' is a list of 2, expected a tuple of 2"
    assert explained(a={"n": x, "m": (x, x)}) == "'d['a']' has its keys in the order 'n', 'm', expected 'm', 'n'"
    assert explained(a={"m": (x, x), "o": x}) == "'d['a']' lacks 'n' and has the unknown 'o'"
    assert explained(b=[x, defaultdict(list)], a={"m": (x, {}), "n": x}) == (
        "'d['a']['m'][1]' is a dict of 0, expected a tensor or number; 'd['b'][1]' lacks 'k'"
    )
    assert explained(b=[x, defaultdict(dict, k=x)]) == "'d['b'][1]' is a defaultdict made otherwise than the exported program's"
    assert explain_mismatch(spec, names, ({"b": example["b"], "a": example["a"]},), {}).endswith("'b', 'a', expected 'a', 'b'")


def test_shown(compiled: dhlo.CompiledModel, tmp_path: Path) -> None:
    assert repr(compiled).startswith("<dhlo.CompiledModel model (ids: int64[s")
    with pytest.raises(FileNotFoundError, match="its folder doesn't exist: .*/nowhere/model.so"):
        compiled.save(tmp_path / "nowhere" / "model.so")


class Several(nn.Module):
    def forward(self, *xs: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        return xs[0] * xs[1] + sum(more.values())


def test_arguments_of_any_number() -> None:
    x = torch.randn(3)
    compiled = dhlo.compile(Several(), (x, x))
    for n in (1, 5):
        y = torch.randn(n)
        torch.testing.assert_close(compiled(y, y), y * y)
    with pytest.raises(dhlo.CompileError, match="no dynamic sizes for keywords that the module's forward doesn't name"):
        dhlo.compile(Several(), (x, x), {"a": x})


@dataclass
class Pair:
    a: torch.Tensor
    b: torch.Tensor


class TakesPair(nn.Module):
    def forward(self, pair: Pair) -> torch.Tensor:
        return pair.a + pair.b


def test_dataclass() -> None:
    torch.export.register_dataclass(Pair)
    compiled = dhlo.compile(TakesPair(), (Pair(torch.randn(3), torch.randn(3)),))
    x = torch.randn(5)
    torch.testing.assert_close(compiled(Pair(x, x)), x + x)


@pytest.mark.parametrize("wrong", [None, "text", object()])
def test_what_is_no_tensor_breaks_the_contract(wrong: object) -> None:
    compiled = dhlo.compile(nn.Linear(3, 2), (torch.randn(4, 3),))
    with pytest.raises(dhlo.ContractError, match="expected a tensor or a number, got"):
        compiled(wrong)
    with pytest.raises(dhlo.ContractError, match="expected a tensor or a number, got"):
        compiled.session()(wrong)
