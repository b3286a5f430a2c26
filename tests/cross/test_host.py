"""The runtime, its tests and the host examples built for aarch64, and what surrounds them: the linker, features, refusals."""

from __future__ import annotations

import json
import os
import platform
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.export import Dim, ExportedProgram, export

import dhlo
from dhlo.api import build
from dhlo.codegen.backends.cpu.link import cross_compiler, write_model
from dhlo.codegen.target import parse_target
from dhlo.errors import CompileError, ModelFileError
from dhlo.model_file import write_model_file
from dhlo.options import Options
from tests.cross.remote import ROOT, Hosts, RemoteModel, built, command

AARCH64 = parse_target("aarch64")
ALL = frozenset({"dotprod", "i8mm", "bf16"})


def run(*words: object, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=timeout, check=False)


class Gelu(torch.nn.Module):
    """A product, an epilogue and a reduction, in f32 and bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(24, 40), torch.nn.Linear(24, 40).bfloat16()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.nn.functional.gelu(self.first(x)).softmax(-1), self.second(x.bfloat16())


@pytest.fixture(scope="module")
def exported() -> ExportedProgram:
    torch.manual_seed(0)
    return export(Gelu().eval(), (torch.randn(3, 24),), dynamic_shapes=({0: Dim.DYNAMIC},))


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The hand-written model, and its small variant `add_one`, for aarch64."""
    folder, made = tmp_path_factory.mktemp("toys"), {}
    constants = struct.pack("<4fq", 1, 2, 3, 4, 0)
    for name, define, blob in (("toy", [], [constants]), ("add_one", ["-DTOY_ADD_ONE"], [])):
        elf = folder / f"{name}.elf"
        flags = ["-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'runtime/include'}"]
        done = run(cross_compiler(AARCH64), *flags, *define, ROOT / "tests/runtime/toy_model.c", "-o", elf)
        assert done.returncode == 0, done.stderr
        made[name] = folder / f"{name}.dhlo"
        write_model_file(made[name], elf.read_bytes(), blob, '{"toy": true}', "")
    return made


@pytest.mark.parametrize("extras", [frozenset(), pytest.param(ALL, marks=pytest.mark.slow)], ids=["cortex-a53", "max"])
def test_runtime(toys: dict[str, Path], extras: frozenset[str]) -> None:
    """Its C++ tests: SHA-256 by instructions and without, threads, hostile hosts, failures of every allocation."""
    done = run(*command(built("runtime_tests"), extras), toys["toy"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "all passed, allocations counted\n"


def test_example_hosts(toys: dict[str, Path], exported: ExportedProgram, tmp_path: Path) -> None:
    assert run(*command(built("host_c")), toys["add_one"], 3).stdout == "1\n1\n1\n"
    _, artifact = build(exported, Options(target="aarch64"))
    write_model(artifact, tmp_path / "model.dhlo")
    x = np.random.default_rng(0).standard_normal((7, 24), dtype=np.float32)
    x.tofile(tmp_path / "x.bin")
    host = command(built("host_cpp"))
    done = run("env", "DHLO_NUM_THREADS=4", *host, tmp_path / "model.dhlo", "--out", tmp_path, f"7x24={tmp_path}/x.bin")
    assert done.returncode == 0, done.stderr
    got = np.fromfile(tmp_path / "0_0.bin", dtype=np.float32).reshape(7, 40)
    with torch.no_grad():
        want = exported.module()(torch.from_numpy(x))[0]
    torch.testing.assert_close(torch.from_numpy(got), want)


def test_the_dynamic_loader_alone_is_needed(exported: ExportedProgram, tmp_path: Path) -> None:
    """Conversions of f16 and bf16 call nothing that a host may lack."""
    for target in ("aarch64", "aarch64+bf16"):
        _, artifact = build(exported, Options(target=target))
        write_model(artifact, tmp_path / "model.dhlo")
        header = run("readelf", "-h", "-d", tmp_path / "model.dhlo").stdout
        assert "Machine:                           AArch64" in header
        assert {line.split("[")[1].rstrip("]") for line in header.splitlines() if "NEEDED" in line} <= {"libc.so.6", "libm.so.6"}
        wanted = run("nm", "-D", "--undefined-only", tmp_path / "model.dhlo").stdout.split()
        assert not [name for name in wanted if name.startswith("__")]


def test_features_are_asked_for_where_code_uses_them(exported: ExportedProgram, hosts: Hosts) -> None:
    x = torch.randn(5, 24)
    with torch.no_grad():
        want = exported.module()(x)
    program, artifact = build(exported, Options(target="aarch64+bf16"))
    model = RemoteModel(artifact, hosts("aarch64+bf16")).compiled(program)
    for got, w in zip(model(x), want, strict=True):
        torch.testing.assert_close(got, w, rtol=2e-2, atol=2e-2)
    with pytest.raises(RuntimeError, match="lacks bf16"):
        RemoteModel(artifact, hosts("aarch64")).load()


def test_a_model_of_another_machine_is_refused(toys: dict[str, Path]) -> None:
    if platform.machine() != "aarch64":
        with pytest.raises(ModelFileError, match="built for aarch64, this machine is x86-64"):
            dhlo.load(toys["toy"])


def test_a_missing_linker_is_named(exported: ExportedProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, artifact = build(exported, Options(target="aarch64"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompileError, match="aarch64-linux-gnu-gcc.*can't be run") as raised:
        write_model(artifact, tmp_path / "model.dhlo")
    assert "gcc-aarch64-linux-gnu" in str(raised.value)
    assert os.listdir(tmp_path) == []
    monkeypatch.setenv("CC", "/usr/bin/no-such-compiler")
    with pytest.raises(CompileError, match="no-such-compiler"):
        write_model(artifact, tmp_path / "model.dhlo")


def test_metadata_names_the_features(exported: ExportedProgram) -> None:
    _, artifact = build(exported, Options(target="aarch64"))
    assert "avx" not in json.dumps(artifact.metadata)
