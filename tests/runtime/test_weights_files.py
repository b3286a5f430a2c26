"""Constants in a file beside the model file, or that a host brings: found, shared, and refused where they are others."""

import os
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import dhlo
from dhlo import _runtime
from dhlo.api import build
from dhlo.cli import app
from dhlo.codegen.backends.cpu.link import write_model
from dhlo.codegen.kernel_ir.abi import ABI_VERSION, SECTION, TRAILER_MAGIC, WEIGHTS_MAGIC
from dhlo.container import SECTION_BYTES, TRAILER_BYTES, atomic_write, pack_table, pack_trailer
from dhlo.model_file import open_sections, open_weights, weights_of, write_model_file, write_weights_file
from tests.runtime.conftest import ROOT, TOY_CONSTANTS, TOY_METADATA
from tests.runtime.test_model_files import X, Y, flip

BuildElf = Callable[..., Path]
BuildNative = Callable[..., Path]
OTHER = struct.pack("<4fq", 5, 6, 7, 8, 0)
Z = 2 * X + torch.tensor([5.0, 6.0, 7.0, 8.0])


@pytest.fixture
def model(build_elf: BuildElf, tmp_path: Path) -> Path:
    """A toy model whose constants are beside it."""
    path = tmp_path / "toy.so"
    write_model_file(path, build_elf().read_bytes(), [TOY_CONSTANTS], TOY_METADATA, "", weights_file="toy.weights")
    return path


def result(model: _runtime.Model) -> torch.Tensor:
    return _runtime.Session(model)(X, 0)[0]


def refused(path: Path, **options: object) -> str:
    with pytest.raises(RuntimeError) as raised:
        _runtime.Model.from_file(path, **options)  # type: ignore[arg-type]
    return str(raised.value)


def code_of(path: Path) -> bytes:
    with open_sections(path) as sections:
        return sections.only(SECTION["code"]).digest


@pytest.mark.parametrize("memory", range(5))
def test_constants_beside_the_model_file(model: Path, memory: int) -> None:
    weights = model.with_name("toy.weights")
    loaded = _runtime.Model.from_file(model, memory=memory)
    mapped = any(str(weights) in line for line in Path("/proc/self/maps").read_text().splitlines())
    assert mapped == (memory != 4)
    assert loaded.constants_bytes == len(TOY_CONSTANTS)
    weights.unlink()
    assert torch.equal(result(loaded), Y)


def test_the_folder_is_the_model_files(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    assert torch.equal(result(_runtime.Model.from_file("toy.so")), Y)
    monkeypatch.chdir("/")
    assert torch.equal(result(_runtime.Model.from_file(os.path.relpath(model, "/"))), Y)


def test_models_with_equal_constants_share_a_file(model: Path, build_elf: BuildElf) -> None:
    """What is there isn't written again, so that all map the same pages; damaged, it is."""
    weights, second = model.with_name("toy.weights"), model.with_name("second.so")
    inode = weights.stat().st_ino
    code = build_elf('TOY_CPU_FEATURES=""').read_bytes()
    write_model_file(second, code, [TOY_CONSTANTS[:7], TOY_CONSTANTS[7:]], TOY_METADATA, "", weights_file="toy.weights")
    assert weights.stat().st_ino == inode
    models = [_runtime.Model.from_file(path) for path in (model, second)]
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(weights) in line]
    assert len(lines) == 2 and {line[4] for line in lines} == {str(inode)}
    assert all(torch.equal(result(m), Y) for m in models)
    flip(weights, 3)
    write_model_file(second, code, [TOY_CONSTANTS], TOY_METADATA, "", weights_file="toy.weights")
    assert weights.stat().st_ino != inode
    assert torch.equal(result(_runtime.Model.from_file(second)), Y)


def test_two_writers_at_once_leave_what_fits(build_elf: BuildElf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes between the two files of another waits: else there were weights of one, code of the other."""
    path, code = tmp_path / "toy.so", build_elf().read_bytes()

    def write(constants: bytes) -> None:
        write_model_file(path, code, [constants], TOY_METADATA, "", weights_file="toy.weights")

    def interrupted(target: Path, fill: Callable[[int], object]) -> None:
        if target == path and not later.ident:
            later.start()
            later.join(0.3)
        atomic_write(target, fill)

    later = threading.Thread(target=write, args=(OTHER,))
    monkeypatch.setattr("dhlo.model_file.atomic_write", interrupted)
    write(TOY_CONSTANTS)
    later.join()
    assert torch.equal(result(_runtime.Model.from_file(path)), Z)


def test_weights_files_that_dont_fit(model: Path) -> None:
    """Each refusal names both files."""
    weights = model.with_name("toy.weights")
    data = weights.read_bytes()

    def message() -> str:
        text = refused(model)
        assert f"weights file '{weights}' of model file '{model}': " in text
        with pytest.raises(dhlo.ModelFileError, match="toy.weights' of model file"), open_sections(model) as sections:
            dhlo.model_file.verify_files(model, sections)
        shown = CliRunner().invoke(app, ["verify", str(model)])
        assert shown.exit_code == 1
        return text

    weights.unlink()
    assert "cannot be opened: No such file" in message()
    weights.mkdir()
    assert "is not a regular file" in refused(model)
    weights.rmdir()
    for cut in (1, 64, 100, len(data)):
        weights.write_bytes(data[: len(data) - cut])
        assert "truncated" in message()
    weights.write_bytes(model.read_bytes())
    assert "is a model file" in refused(model)
    weights.write_bytes(b"x" * 1000)
    assert "truncated, or not a dhlo weights file" in refused(model)
    weights.write_bytes(data)
    flip(weights, 3)
    assert "damaged constants: expected SHA-256" in message()
    weights.unlink()
    write_weights_file(weights, [OTHER])
    assert "holds other constants than the model was written with: expected SHA-256" in message()
    assert "other constants" in refused(model, verify=0)
    # Beside the model only those that it names are taken, whatever they say that they were made for.
    write_weights_file(weights, [OTHER], [code_of(model)])
    assert "other constants" in message()


def test_a_model_whose_section_lies(model: Path) -> None:
    """What it names is a plain name, with digests that are right for it."""
    with open_sections(model) as sections:
        rows = [(s.kind, sections.read(s)) for s in sections.sections]
    reference = dict(rows)[SECTION["weights_file"]][:40]
    for name in (b"", b".", b"..", b"/etc/passwd", b"../toy.weights", b"a\nb", b"a\0b", b"x" * 300):
        content = [(k, reference + name if k == SECTION["weights_file"] else d) for k, d in rows]
        rewrite(model, TRAILER_MAGIC, content)
        assert "isn't a plain file name" in refused(model)
        with pytest.raises(dhlo.ModelFileError, match="a plain file name"), open_sections(model) as sections:
            weights_of(sections)
    rewrite(model, TRAILER_MAGIC, [(k, d[:39] if k == SECTION["weights_file"] else d) for k, d in rows])
    assert "the section is too small" in refused(model)
    rewrite(model, TRAILER_MAGIC, [*rows, (SECTION["constants"], TOY_CONSTANTS)])
    assert "a section of constants doesn't belong here" in refused(model)
    rewrite(model, TRAILER_MAGIC, [r for r in rows if r[0] != SECTION["weights_file"]])
    assert "there is no section of constants" in refused(model)
    for name in ("", "..", "a/b", "toy.so", "a\nb", "x" * 300):
        with pytest.raises(dhlo.DhloError, match="weights file"):
            write_model_file(model, b"", [], "", "", weights_file=name)


def rewrite(path: Path, magic: int, content: list[tuple[int, bytes]]) -> None:
    from dhlo.container import write_sections

    with path.open("w+b") as file:
        write_sections(file.fileno(), magic, ABI_VERSION, [(k, [d]) for k, d in content])


def test_weights_that_a_host_brings(model: Path, build_elf: BuildElf) -> None:
    """By path or whole in memory, for models whose constants are in the file or beside it: those that the model was written with,
    or others that were made for its code."""
    embedded = model.with_name("embedded.so")
    write_model_file(embedded, build_elf().read_bytes(), [TOY_CONSTANTS], TOY_METADATA, "")
    moved, new, strange = (model.with_name(n) for n in ("moved.weights", "new.weights", "strange.weights"))
    model.with_name("toy.weights").rename(moved)
    write_weights_file(new, [OTHER], [bytes(32), code_of(model)])
    write_weights_file(strange, [OTHER])
    for path in (model, embedded):
        for weights, expected in ((moved, Y), (new, Z)):
            assert torch.equal(result(_runtime.Model.from_file(path, weights=weights)), expected)
            assert torch.equal(result(_runtime.Model.from_file(path, weights=weights.read_bytes())), expected)
            assert torch.equal(result(_runtime.Model.from_memory(path.read_bytes(), weights=weights)), expected)
            assert torch.equal(result(_runtime.Model.from_memory(path.read_bytes(), weights=weights.read_bytes())), expected)
        assert "and they weren't made for its code" in refused(path, weights=strange)
        assert "weights in memory, for model file" in refused(path, weights=strange.read_bytes())
        assert "cannot be opened" in refused(path, weights=path.with_name("none.weights"))
        assert "truncated, or not a dhlo weights file" in refused(path, weights=b"")
        # Who vouches for a model file vouches for its own constants alone.
        assert torch.equal(result(_runtime.Model.from_file(path, weights=moved, authorize=lambda _: True)), Y)
        assert "other weights than those of the file that the host authorized" in refused(
            path, weights=new, authorize=lambda _: True
        )
    with pytest.raises((RuntimeError, ValueError), match="its constants are in the weights file 'toy.weights': say where that is"):
        _runtime.Model.from_memory(model.read_bytes())
    assert "is a weights file; load the model file" in refused(new)
    with pytest.raises(dhlo.ModelFileError, match="is a weights file; name the model file"):
        open_sections(new)


def test_a_weights_file_for_several_models(tmp_path: Path) -> None:
    """The digests of the code that it was made for add up, where the constants are the same."""
    path = tmp_path / "x.weights"
    for codes, expected in (([b"a" * 32], 1), ([b"b" * 32], 2), ([b"a" * 32], 2), ([], 2)):
        write_weights_file(path, [OTHER], codes)
        with open_weights(path) as sections:
            sections.verify()
            assert len(sections.read(sections.only(SECTION["code_digests"]))) == 32 * expected
    write_weights_file(path, [TOY_CONSTANTS], [b"c" * 32])
    with open_weights(path) as sections:
        assert sections.read(sections.only(SECTION["code_digests"])) == b"c" * 32
    rewrite(path, WEIGHTS_MAGIC, [(SECTION["constants"], OTHER), (SECTION["code_digests"], b"short")])
    assert [p.name for p in tmp_path.iterdir()] == ["x.weights"]


def test_a_table_of_a_weights_file_that_lies(model: Path) -> None:
    weights = model.with_name("toy.weights")
    data = weights.read_bytes()
    with open_weights(weights) as sections:
        (row,) = sections.sections
    at = len(data) - TRAILER_BYTES - SECTION_BYTES
    for rows in ([], [row, row], [type(row)(SECTION["code"], 0, row.nbytes, row.digest)]):
        table = pack_table(rows)
        weights.write_bytes(data[:at] + table + pack_trailer(WEIGHTS_MAGIC, ABI_VERSION, at, table))
        assert "damaged table of sections" in refused(model)


def test_inspect_says_where_weights_are(model: Path, tmp_path: Path) -> None:
    compiled = dhlo.compile(torch.nn.Linear(5, 3).eval().requires_grad_(False), (torch.randn(2, 5),), cache="")
    path = tmp_path / "linear.so"
    compiled.save(path, weights_file="linear.weights")
    x = torch.randn(4, 5)
    assert torch.equal(dhlo.load(path)(x), compiled(x))
    shown = CliRunner().invoke(app, ["inspect", str(path)])
    assert shown.exit_code == 0 and "weights file: linear.weights, SHA-256 of its constants" in shown.output
    assert CliRunner().invoke(app, ["verify", str(path)]).exit_code == 0
    (tmp_path / "linear.weights").unlink()
    shown = CliRunner().invoke(app, ["inspect", str(path)])
    assert shown.exit_code == 0 and "linear.weights, can't be used: weights file" in shown.output
    with pytest.raises(dhlo.ModelFileError, match="linear.weights' of model file"):
        dhlo.load(path)


HOST = r"""
#include <cstdio>
#include <vector>
#include "dhlo/runtime.hpp"
int main(int, char** argv) {
  dhlo_model_options options;
  dhlo_model_options_init(&options);
  options.weights_path = argv[2];
  std::vector<float> x{0, 0, 0, 0};
  int64_t mode = 0;
  for (int way = 0; way < 2; ++way) {
    std::vector<char> data;
    if (way == 1) {
      FILE* file = std::fopen(argv[2], "rb");
      char part[4096];
      for (size_t n; (n = std::fread(part, 1, sizeof part, file)) > 0;) data.insert(data.end(), part, part + n);
      std::fclose(file);
      options.weights_path = nullptr;
      options.weights_data = data.data();
      options.weights_bytes = data.size();
    }
    try {
      dhlo::Session session(dhlo::Model::load(argv[1], &options));
      data.assign(data.size(), 0);
      session.run({dhlo::Tensor::of(x.data(), {1, 4}), dhlo::Tensor::of(&mode, {})});
      std::printf("%g\n", session.output(0).data<float>()[3]);
    } catch (const dhlo::RuntimeError& e) {
      std::printf("%s\n", e.what());
    }
  }
}
"""


def test_a_host_brings_weights(model: Path, build_native: BuildNative, tmp_path: Path) -> None:
    new, source, host = tmp_path / "new.weights", tmp_path / "host.cpp", tmp_path / "host"
    write_weights_file(new, [OTHER], [code_of(model)])
    source.write_text(HOST)
    library = build_native("dhlo_runtime") / "libdhlo_runtime.a"
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'runtime/include'}", str(source), str(library), "-lpthread"]
    subprocess.run(["c++", *flags, "-ldl", "-o", str(host)], check=True)
    command = [host, model, new]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "8\n8\n"
    new.write_bytes(new.read_bytes()[:-3])
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.count("truncated") == 2


@pytest.mark.parametrize("count", [200, pytest.param(300_000, marks=pytest.mark.slow)])
def test_damaged_files_under_sanitizers(model: Path, build_native: BuildNative, count: int) -> None:
    weights = model.with_name("toy.weights")
    write_weights_file(weights, [TOY_CONSTANTS], [bytes(32), code_of(model)])
    fuzz = build_native("sections_fuzz", "address,undefined") / "sections_fuzz"
    result = subprocess.run([fuzz, str(count), model, weights], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    read, refused = map(int, result.stdout.split())
    assert read > 0.1 * count and refused > 0.2 * count


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = torch.nn.Linear(64, 100), torch.nn.LayerNorm(100), torch.nn.Linear(100, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.norm(self.first(x))))


def test_targets_and_bounds_of_one_network_share_a_file(tmp_path: Path) -> None:
    """Constants don't depend on them."""
    net, x = Net().eval().requires_grad_(False), torch.randn(3, 64)
    weights = tmp_path / "net.weights"
    inodes = set()
    for name, target, most in (("a", "x86-64-v3", 99), ("b", "x86-64-v4", 99), ("c", "x86-64-v3", 1000)):
        program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("rows", max=most)},))
        artifact = build(program, dhlo.Options(name=name, target=target, cache=""))[1]
        write_model(artifact, tmp_path / f"{name}.so", weights.name)
        inodes.add(weights.stat().st_ino)
    assert len(inodes) == 1
    if all(_runtime.cpu_supports(f) for f in ("avx2", "fma")):
        torch.testing.assert_close(dhlo.load(tmp_path / "c.so")(x), net(x), rtol=1e-4, atol=1e-5)
