"""Other weights in model files: what follows from them is made again, and what doesn't fit is refused."""

import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.export import Dim, export

import dhlo
from dhlo.codegen.backends.cpu.link import write_model
from dhlo.codegen.kernel_ir.abi import SECTION
from dhlo.model_file import open_sections, write_model_file
from dhlo.update import update_weights


class Net(nn.Module):
    """Weights that are packed, folded, joined, scaled into a convolution, tied, kept as state, looked up and left out of state
    dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 24)
        self.conv = nn.Conv1d(24, 24, 3, padding=1)
        self.norm = nn.BatchNorm1d(24)
        self.q, self.k, self.v = (nn.Linear(24, 24) for _ in range(3))
        self.scale = nn.Parameter(torch.tensor(2.5))
        self.out = nn.Linear(24, 50, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("offset", torch.randn(24), persistent=False)
        self.register_buffer("seen", torch.zeros(24))
        self.register_buffer("large", torch.zeros(1 << 19), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.offset * torch.tensor([1.0, 2.0]).sum()
        x = self.norm(self.conv(x.transpose(1, 2))).transpose(1, 2)
        self.seen.add_(x.mean((0, 1)))
        q, k, v = self.q(x), self.k(x), torch.nn.functional.linear(x, self.v.weight / self.scale, self.v.bias)
        return self.out(torch.softmax(q @ k.transpose(1, 2), -1) @ v + self.seen + self.large[:24])


IDS = torch.arange(14).reshape(2, 7) % 50


def trained(seed: int) -> Net:
    """Random weights, statistics of the norm among them, and other buffers that aren't persistent only where told to."""
    torch.manual_seed(seed)
    net = Net().eval().requires_grad_(False)
    for name, t in net.state_dict().items():
        if t.is_floating_point() and name != "seen":
            t.copy_(torch.rand_like(t) + 0.5 if name == "norm.running_var" else torch.randn_like(t) * 0.3)
    return net


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Net, Path]:
    """A network and a model file of it."""
    net = trained(1)
    with torch.no_grad():
        program = export(net, (IDS,), dynamic_shapes=({0: Dim("batch", max=64), 1: Dim("seq", max=64)},))
    path = tmp_path_factory.mktemp("models") / "net.so"
    compiled = dhlo.compile(program, name="net")
    assert compiled._artifact is not None
    write_model(compiled._artifact, path)
    return net, path


def other(net: Net) -> Net:
    """Other weights, and the buffers that state dicts lack as in `net`."""
    twin = trained(2)
    twin.offset, twin.large = net.offset, net.large
    return twin


def test_new_weights_give_the_new_modules_results(model: tuple[Net, Path], tmp_path: Path) -> None:
    net, path = model
    twin = other(net)
    save_file({n: t.clone() for n, t in twin.state_dict().items()}, tmp_path / "new.safetensors")
    out = update_weights(path, tmp_path / "new.safetensors", tmp_path / "out.so")
    before = net(IDS)
    net.seen.zero_()
    torch.testing.assert_close(dhlo.load(path)(IDS), before, rtol=1e-3, atol=2e-4)
    for ids in (IDS, IDS[:1, :1]):
        twin.seen.zero_()
        torch.testing.assert_close(dhlo.load(out)(ids), twin(ids), rtol=1e-3, atol=2e-4)
    with open_sections(path) as old, open_sections(out) as new:
        for kind in ("code", "metadata", "features"):
            assert old.only(SECTION[kind]).digest == new.only(SECTION[kind]).digest
    again = update_weights(out, {n: t for n, t in net.state_dict().items() if n != "out.weight"}, tmp_path / "again.so")
    assert again.read_bytes() == path.read_bytes()


def test_weights_beside_the_model_file(model: tuple[Net, Path], tmp_path: Path) -> None:
    """New weights stay there; under the same name where the model is replaced, else under the output's. Alone they are loaded with
    the model that they were made for, and no other."""
    net, path = model
    twin = other(net)
    state, changed = net.state_dict(), {**twin.state_dict()}
    embedded, own, apart = tmp_path / "embedded.so", tmp_path / "own.so", tmp_path / "apart.so"
    shutil.copyfile(path, embedded)
    with open_sections(path) as sections:
        code, metadata, features, source, constants = (
            sections.read(sections.only(SECTION[k])) for k in ("code", "metadata", "features", "source", "constants")
        )
    write_model_file(own, code, [constants], metadata.decode(), features.decode(), source, "own.weights")
    before = (tmp_path / "own.weights").stat().st_ino
    update_weights(own, state, apart)
    assert own.read_bytes() != apart.read_bytes()  # the weights file's name
    assert (tmp_path / "own.weights").read_bytes() == (tmp_path / "apart.weights").read_bytes()
    update_weights(own, changed)
    assert (tmp_path / "own.weights").stat().st_ino != before
    expected = dhlo.load(update_weights(embedded, changed, tmp_path / "new.so"))(IDS)
    assert torch.equal(dhlo.load(own)(IDS), expected)
    new = update_weights(embedded, changed, tmp_path / "new.weights", weights_only=True)
    save_file({n: t.clone() for n, t in changed.items()}, tmp_path / "new.safetensors")
    for model_file in (embedded, own, apart):
        for weights in (new, str(new), changed, tmp_path / "new.safetensors", [str(tmp_path / "new.safetensors")]):
            loaded = dhlo.load(model_file, weights=weights)
            assert torch.equal(loaded(IDS), expected)
        assert torch.equal(dhlo.load(model_file, weights=new, memory="copied")(IDS), expected)
    with pytest.raises(TypeError, match="without other weights, can be pickled"):
        pickle.dumps(loaded)
    with pytest.raises(dhlo.CompileError, match="weights are missing"):
        dhlo.load(embedded, weights={})
    with pytest.raises(dhlo.DhloError, match="expected tensors by name"):
        dhlo.load(embedded, weights=3)  # type: ignore[arg-type]
    (tmp_path / "text.weights").write_text("x")
    with pytest.raises(dhlo.ModelFileError, match="truncated, or not a dhlo weights file"):
        dhlo.load(embedded, weights=tmp_path / "text.weights")
    with pytest.raises(dhlo.DhloError, match="used by the same command"):
        update_weights(embedded, changed, embedded, weights_only=True)
    with pytest.raises(dhlo.DhloError, match="needs a name"):
        update_weights(embedded, changed, weights_only=True)
    other_model = saved(tmp_path / "linear.so", export(Linear().eval(), (torch.randn(3, 64),)))
    with pytest.raises(dhlo.ModelFileError, match="weren't made for its code"):
        dhlo.load(other_model, weights=new)


class Plain(nn.Module):
    """Weights of several dtypes that are moved alone: joined, packed, tied, scaled where they are read, kept as state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 24)
        self.norm = nn.LayerNorm(24)
        self.q, self.k = nn.Linear(24, 24), nn.Linear(24, 24)
        self.conv = nn.Conv1d(24, 40, 3, padding=1)
        self.narrow = nn.Parameter(torch.randn(24, 24).bfloat16())
        self.out = nn.Linear(24, 50, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros(40))
        self.register_buffer("order", torch.randperm(40))
        self.register_buffer("large", torch.randn(1 << 19), persistent=False)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.norm(self.embed(ids)) + self.large[:24]
        y = torch.softmax(self.q(x) @ self.k(x).transpose(1, 2), -1) @ x
        z = self.conv(y.transpose(1, 2))
        self.seen.add_(z.sum((0, 2)))
        return self.out(y + (y.bfloat16() @ self.narrow).float()), z[:, self.order] + self.seen[:, None]


def test_weights_are_had_back(tmp_path: Path) -> None:
    """Bit for bit, and from the command line; with them the file is what it was."""
    torch.manual_seed(0)
    net = Plain().eval().requires_grad_(False)
    for p in net.parameters():
        p.copy_(torch.randn_like(p))
    path = saved(tmp_path / "plain.so", export(net, (IDS,), dynamic_shapes=({0: Dim("batch", max=64), 1: Dim("seq", max=64)},)))
    found = dhlo.read_weights(path)
    expected = {**net.state_dict(), "large": net.large}
    assert found.keys() == expected.keys()
    for name, t in found.items():
        assert t.dtype == expected[name].dtype and torch.equal(t, expected[name]), name
    command = [sys.executable, "-m", "dhlo", "weights", path, "-o", tmp_path / "out.safetensors"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    out = update_weights(path, tmp_path / "out.safetensors", tmp_path / "out.so")
    assert out.read_bytes() == path.read_bytes()


def test_weights_that_cant_be_had_back_are_named(model: tuple[Net, Path], tmp_path: Path) -> None:
    net, path = model
    with pytest.raises(
        dhlo.CompileError, match=r"can't be had back exactly: 'scale', 'norm.weight', .*quantised, converted, or folded"
    ) as e:
        dhlo.read_weights(path)
    lost = set(re.findall(r"'([\w.]+)'", str(e.value).partition(";")[0]))
    found = dhlo.read_weights(path, partial=True)
    state = {n: t for n, t in net.state_dict().items() if n != "norm.num_batches_tracked"}  # which the program doesn't read
    assert found.keys() | lost == state.keys() and not found.keys() & lost
    assert {"conv.weight", "q.weight", "k.bias", "embed.weight", "out.weight", "seen"} <= found.keys()
    for name, t in found.items():
        assert torch.equal(t, state[name]), name


@pytest.mark.slow
def test_another_process_makes_the_same_file(model: tuple[Net, Path], tmp_path: Path) -> None:
    """Whether code is the same must not depend on what a process did before, nor on its hash seed; from the command line."""
    net, path = model
    half = list(net.state_dict().items())
    save_file(dict(half[:5]), tmp_path / "a.safetensors")
    save_file({n: t.clone() for n, t in half[5:]}, tmp_path / "b.safetensors")
    command = [sys.executable, "-m", "dhlo", "update-weights", path, tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    result = subprocess.run([*command, "-o", tmp_path / "out.so"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out.so").read_bytes() == path.read_bytes()


def test_what_state_dicts_lack_may_be_given(model: tuple[Net, Path], tmp_path: Path) -> None:
    net, path = model
    twin = trained(3)
    twin.large = torch.randn(1 << 19)
    weights = {**twin.state_dict(), "offset": twin.offset, "large": twin.large}
    out = update_weights(path, weights, tmp_path / "out.so")
    torch.testing.assert_close(dhlo.load(out)(IDS), twin(IDS), rtol=1e-3, atol=2e-4)


def test_weights_that_dont_fit(model: tuple[Net, Path], tmp_path: Path) -> None:
    net, path = model
    state, before = dict(net.state_dict()), path.read_bytes()

    def refused(**changes: torch.Tensor | None) -> str:
        weights = {n: t for n, t in {**state, **{k.replace("__", "."): t for k, t in changes.items()}}.items() if t is not None}
        with pytest.raises(dhlo.CompileError) as raised:
            update_weights(path, weights)
        assert path.read_bytes() == before
        return str(raised.value)

    assert "weights are missing: 'q.weight'" in refused(q__weight=None)
    assert "weight 'q.weight': expected float32[24, 24], got float32[24, 23]" in refused(q__weight=torch.zeros(24, 23))
    assert "weight 'scale': expected float32[], got float32[1]" in refused(scale=torch.zeros(1))
    assert "weight 'q.weight': expected float32[24, 24], got float64[24, 24]" in refused(q__weight=torch.zeros(24, 24).double())
    assert "weight 'q.bias': expected a tensor, got list" in refused(q__bias=[0.0] * 24)  # type: ignore[arg-type]
    with FakeTensorMode():
        fake = torch.zeros(24, 24)
    for t in (fake, torch.zeros(24, 24, device="meta"), torch.eye(24).to_sparse(), torch.nested.nested_tensor([torch.eye(24)])):
        assert "weight 'q.weight': expected a plain tensor on the CPU" in refused(q__weight=t)
    for strange in (net, [1], b"w.safetensors"):
        with pytest.raises(dhlo.DhloError, match=r"weights: expected tensors by name, or paths .* got (Net|list|bytes)"):
            update_weights(path, strange)  # type: ignore[arg-type]
    assert "no weights called 'q.wieght'" in refused(q__wieght=torch.zeros(24, 24))
    assert "'embed.weight' and 'out.weight' are one tensor in the model, and differ" in refused(out__weight=torch.zeros(50, 24))
    update_weights(path, {**state, "strange": torch.zeros(3)}, tmp_path / "out.so", strict=False)
    assert (tmp_path / "out.so").read_bytes() == before
    (tmp_path / "cut.safetensors").write_bytes(b"\x80\0\0\0\0\0\0\0{")
    with pytest.raises(dhlo.DhloError, match="cut.safetensors' can't be read as safetensors"):
        update_weights(path, tmp_path / "cut.safetensors")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(dhlo.DhloError, match="pipe' can't be read as safetensors: it is not a regular file"):
        update_weights(path, tmp_path / "pipe")
    with pytest.raises(dhlo.DhloError, match="missing.safetensors' can't be read as safetensors"):
        update_weights(path, tmp_path / "missing.safetensors")


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def saved(path: Path, program: object, **options: object) -> Path:
    compiled = dhlo.compile(program, **options)
    assert compiled._artifact is not None
    write_model(compiled._artifact, path)
    return path


def test_weights_are_quantised_like_the_first_ones(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first, second = (Linear().eval().requires_grad_(False) for _ in range(2))
    x = torch.randn(3, 64)
    rows = ({0: Dim("rows", max=99)},)
    path = saved(tmp_path / "m.so", export(first, (x,), dynamic_shapes=rows), weights="int8")
    out = update_weights(path, second.state_dict(), tmp_path / "out.so")
    direct = dhlo.compile(export(second, (x,), dynamic_shapes=rows), weights="int8")
    assert torch.equal(dhlo.load(out)(x), direct(x))


def test_entries_and_files_that_keep_nothing(tmp_path: Path) -> None:
    """A name that means one tensor in all entries is given once; where it is another in each, by the entry and the name."""
    torch.manual_seed(0)
    a, b = (Linear().eval().requires_grad_(False) for _ in range(2))
    b.first = a.first
    x = torch.randn(3, 64)
    programs = {name: export(m, (x,), dynamic_shapes=({0: Dim("rows", max=99)},)) for name, m in (("a", a), ("b", b))}
    path = saved(tmp_path / "m.so", programs)
    c = Linear().eval().requires_grad_(False)
    weights = {**c.state_dict(), "b:second.weight": b.second.weight}
    model = dhlo.load(update_weights(path, weights, tmp_path / "out.so"))
    torch.testing.assert_close(model["a"](x), c(x), rtol=1e-3, atol=2e-4)
    b.first = c.first
    torch.testing.assert_close(model["b"](x), b(x), rtol=1e-3, atol=2e-4)
    # Equal where they weren't: one constant would do, which is other code.
    with pytest.raises(dhlo.CompileError, match="can't take these weights: the code was made for values of another kind"):
        update_weights(path, {**c.state_dict(), "b:second.weight": c.second.weight})
    fixed = saved(tmp_path / "fixed.so", programs["a"], updatable=False)
    with pytest.raises(dhlo.ModelFileError, match="compiled with updatable=False"):
        update_weights(fixed, a.state_dict())
