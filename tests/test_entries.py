"""Models of several entries: one copy of code, weights and state."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram, export
from typer.testing import CliRunner

import dhlo
from dhlo.cli import app

N = Dim("n", max=100)


class Body(nn.Module):
    """What the entries have in common; `total` and `count` are what they all see."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 64)
        self.up, self.down = nn.Linear(64, 200), nn.Linear(200, 64, bias=False)
        self.register_buffer("total", torch.zeros(64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(self.up(self.embed(ids)).relu())
        return result


class Prefill(nn.Module):
    def __init__(self, m: Body) -> None:
        super().__init__()
        self.m = m

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.m(ids)
        self.m.total.add_(x.sum(0))
        self.m.count.add_(ids.shape[0])
        return x


class Decode(Prefill):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.m(ids)
        self.m.total.add_(x)
        self.m.count.add_(1)
        return torch.softmax(self.m.total / self.m.count, 0)


class Mean(Prefill):
    """Changes nothing, but reads what others change."""

    def forward(self, scale: torch.Tensor) -> torch.Tensor:
        return self.m.total / self.m.count * scale


def programs(m: Body) -> dict[str, ExportedProgram]:
    return {
        "prefill": export(Prefill(m), (torch.arange(5),), dynamic_shapes=({0: N},)),
        "decode": export(Decode(m), (torch.tensor(3),)),
        "mean": export(Mean(m), (torch.ones(7, 1),), dynamic_shapes=({0: N},)),
    }


@pytest.fixture(scope="module")
def body() -> Body:
    torch.manual_seed(0)
    return Body()


@pytest.fixture(scope="module", params=["", "x86-64-v3,x86-64-v4"])
def compiled(request: pytest.FixtureRequest, body: Body) -> dhlo.CompiledModel:
    options = {"target": request.param} if request.param else {}
    return dhlo.compile(programs(body), **options)


@pytest.fixture
def reference(body: Body) -> Iterator[Body]:
    with torch.no_grad():
        yield body
        body.total.zero_()
        body.count.zero_()


def check_calls(session: dhlo.Session, reference: Body) -> None:
    """Calls of all entries in turns, beside the modules that they were exported from."""
    prefill, decode, mean = Prefill(reference), Decode(reference), Mean(reference)
    for n in (3, 1, 100, 16):
        ids = torch.arange(n) % 50
        torch.testing.assert_close(session["prefill"](ids), prefill(ids))
        token = torch.tensor(n % 50)
        torch.testing.assert_close(session["decode"](token), decode(token))
        scale = torch.randn(n, 1)
        torch.testing.assert_close(session["mean"](scale), mean(scale))
        assert session["decode"].read_state("m.count") == reference.count


def test_entries_share_state(compiled: dhlo.CompiledModel, reference: Body, tmp_path: Path) -> None:
    assert compiled.entries == ["prefill", "decode", "mean"]
    check_calls(compiled.session(), reference)
    compiled.save(tmp_path / "model.so")
    loaded = dhlo.load(tmp_path / "model.so")
    assert loaded.entries == compiled.entries
    reference.total.zero_()
    reference.count.zero_()
    check_calls(loaded["decode"].session(), reference)
    assert [loaded[n].signature for n in loaded.entries] == [compiled[n].signature for n in compiled.entries]


def test_weights_are_stored_once(compiled: dhlo.CompiledModel, body: Body) -> None:
    weights = sum(p.numel() * 4 for p in body.parameters())
    assert compiled.native.constants_bytes < 1.05 * weights + 4096


def test_weights_of_other_names_are_stored_once() -> None:
    """Equal content is one constant, whatever programs call it; other content of the same name isn't."""
    torch.manual_seed(0)
    first, second, third = nn.Linear(256, 256), nn.Sequential(nn.Linear(256, 256)), nn.Linear(256, 256)
    second[0].load_state_dict(first.state_dict())
    x = torch.randn(3, 256)
    model = dhlo.compile({n: export(m, (x,)) for n, m in (("a", first), ("b", second), ("c", third))})
    assert 2 * 256 * 256 * 4 <= model.native.constants_bytes < 2.1 * 256 * 256 * 4
    for entry, module in (("a", first), ("b", second), ("c", third)):
        torch.testing.assert_close(model[entry](x), module(x))


def test_calls_without_a_session_share_state(compiled: dhlo.CompiledModel, reference: Body) -> None:
    ids = torch.arange(9)
    compiled.reset_state()
    compiled(ids)  # the first entry
    compiled["decode"](torch.tensor(3))
    assert compiled["mean"].read_state("m.count") == 10
    assert compiled["decode"] is compiled["decode"]
    assert compiled["prefill"] is compiled
    Prefill(reference)(ids)
    Decode(reference)(torch.tensor(3))
    torch.testing.assert_close(compiled["mean"](torch.ones(1, 1)), Mean(reference)(torch.ones(1, 1)))
    compiled["mean"].reset_state()
    assert compiled.read_state("m.count") == 0


def test_sessions_are_apart(compiled: dhlo.CompiledModel) -> None:
    one, two = compiled.session(), compiled.session()
    one["prefill"](torch.arange(4))
    assert (one["mean"].read_state("m.count"), two["mean"].read_state("m.count")) == (4, 0)
    copied = one["decode"].copy()
    copied(torch.tensor(1))
    assert (one.read_state("m.count"), copied["prefill"].read_state("m.count")) == (4, 5)
    two["decode"].restore(copied.snapshot())
    assert two["mean"].read_state("m.count") == 5
    arena = one["prefill"].counters["arena_bytes"]
    assert one["mean"].counters["arena_bytes"] == arena


def test_wrong_names(compiled: dhlo.CompiledModel, body: Body) -> None:
    with pytest.raises(KeyError, match="the model has no entry 'train'; it has prefill, decode, mean"):
        compiled["train"]
    with pytest.raises(KeyError, match="the model has no entry 'train'"):
        compiled.session()["train"]
    program = export(Decode(body), (torch.tensor(3),))
    alone = dhlo.compile(program)
    assert alone.entries == [""]
    with pytest.raises(KeyError, match="it has only one"):
        alone["decode"]
    for name in ("", "two words", "9", "a=b"):
        with pytest.raises(dhlo.CompileError, match="an entry can't be called"):
            dhlo.compile({name: program, "other": program})
    with pytest.raises(dhlo.CompileError, match="1 to 1024 entries, not 0"):
        dhlo.compile({})
    other = dhlo.compile({"decode": program})
    assert other.entries == ["decode"]
    with pytest.raises(ValueError, match="different models"):
        compiled.session().native.sharing(other.native)


def test_states_that_differ(body: Body) -> None:
    other = Body()
    other.register_buffer("total", torch.ones(64))
    with pytest.raises(dhlo.CompileError, match=r"entry 'b': its state 'm\.total' begins with another content"):
        dhlo.compile({"a": export(Decode(body), (torch.tensor(3),)), "b": export(Decode(other), (torch.tensor(3),))})
    other.total = torch.zeros(1)
    with pytest.raises(dhlo.CompileError, match=r"entry 'b': its state 'm\.total' is float32\[1\], in another entry it is float32"):
        dhlo.compile({"a": export(Decode(body), (torch.tensor(3),)), "b": export(Mean(other), (torch.ones(7, 1),))})


def test_options_by_name(body: Body) -> None:
    """A pattern has to match in one of the entries."""
    mean = export(Mean(body), (torch.ones(7, 1),))
    decode = export(Decode(body), (torch.tensor(3),))
    model = dhlo.compile({"mean": mean, "decode": decode}, weights={"*up*": "int8"})
    whole = dhlo.compile({"mean": mean, "decode": decode})
    assert model.native.constants_bytes < whole.native.constants_bytes
    with pytest.raises(dhlo.CompileError, match="no product has a constant called 'nothing'"):
        dhlo.compile({"mean": mean, "decode": decode}, weights={"nothing": "int8"})
    with pytest.raises(dhlo.CompileError, match="grow: no argument is called 'nothing'"):
        dhlo.compile({"mean": mean, "decode": decode}, grow={"nothing": 1})
    with pytest.raises(dhlo.CompileError, match="kv_cache: nothing to store as int8"):
        dhlo.compile({"mean": mean, "decode": decode}, kv_cache="int8")


def test_cache(body: Body, tmp_path: Path, reference: Body) -> None:
    folder = str(tmp_path / "cache")
    made = programs(body)
    first = dhlo.compile(made, cache=folder)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    second = dhlo.compile(made, cache=folder)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert second.entries == first.entries
    check_calls(second.session(), reference)
    dhlo.compile({"only": made["prefill"]}, cache=folder)
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_command_line(body: Body, tmp_path: Path) -> None:
    for name, program in programs(body).items():
        torch.export.save(program, tmp_path / f"{name}.pt2")
    model, runner = tmp_path / "model.so", CliRunner()
    sources = [f"{name}={tmp_path}/{name}.pt2" for name in ("prefill", "decode", "mean")]
    assert runner.invoke(app, ["compile", *sources, "-o", str(model)], catch_exceptions=False).exit_code == 0
    assert dhlo.load(model).entries == ["prefill", "decode", "mean"]
    shown = runner.invoke(app, ["inspect", str(model), "--entry", "mean"], catch_exceptions=False).output
    assert "entries: prefill, decode, mean; this is mean" in shown
    assert "scale: float32[" in shown
    ran = runner.invoke(app, ["run", str(model), "--entry", "mean", "--shape", "scale=5x1"], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    planned = runner.invoke(app, ["plan", str(model), "--entry", "mean", "--shape", "scale=5x1"], catch_exceptions=False)
    assert planned.exit_code == 0 and re.search(r"input +scale +float32 +5x1", planned.output), planned.output

    def refused(*arguments: str) -> str:
        result = runner.invoke(app, arguments)
        assert result.exit_code == 1
        return " ".join(result.output.split())

    assert "no entry 'train'" in refused("run", str(model), "--entry", "train")
    assert "no entry 'train'" in refused("plan", str(model), "--entry", "train")
    assert "--entry is for model files" in refused("plan", str(tmp_path / "mean.pt2"), "--entry", "mean")
    assert "no entry 'train'" in refused("inspect", str(model), "--entry", "train")
    assert "needs a name for its file" in refused("compile", *sources)
    assert "each needs a name" in refused("compile", str(tmp_path / "mean.pt2"), sources[0], "-o", str(model))
    assert "two programs are called 'mean'" in refused("compile", sources[2], sources[2], "-o", str(model))


class Slots(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("big", torch.zeros(4, 4))
        self.register_buffer("row", self.big[1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.row + x
        return result


class Write(nn.Module):
    def __init__(self, m: Slots) -> None:
        super().__init__()
        self.m = m

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.m.big.add_(x)
        return x + 1


class Read(nn.Module):
    def __init__(self, m: Slots) -> None:
        super().__init__()
        self.model = m

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model.big + x
        return result


def test_memory_by_two_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A view of what another entry changes, or the same buffer by another name, would not see the change. Of files memory doesn't
    tell: names that differ in the first module alone are logged."""
    m, x = Slots(), torch.ones(4)
    write = export(Write(m), (x,))
    for read, name in ((export(m, (x,)), "row"), (export(Read(m), (x,)), r"model\.big"), (export(Write(m), (x,)), "")):
        made = {"read": read, "write": write}
        if not name:
            dhlo.compile(made)
            continue
        with pytest.raises(
            dhlo.CompileError, match=rf"'m\.big', which entry 'write' changes, shares memory with '{name}' of entry 'read'"
        ):
            dhlo.compile(made)
    for name, program in (("read", export(Read(m), (x,))), ("write", write)):
        torch.export.save(program, tmp_path / f"{name}.pt2")
    session = dhlo.compile({name: tmp_path / f"{name}.pt2" for name in ("read", "write")}).session()
    assert "entry 'read': its tensor 'model.big' isn't the state 'm.big' of another entry" in caplog.text
    session["write"](x)
    torch.testing.assert_close(session["read"](x), torch.ones(4, 4))
