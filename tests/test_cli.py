"""The command line: every command on a small model, and errors as one message without traceback."""

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.export import Dim
from typer.testing import CliRunner

import dhlo
from dhlo import _runtime
from dhlo.api import build
from dhlo.cli import app
from dhlo.codegen.kernel_ir.abi import SECTION
from dhlo.commands.shapes import complete_shapes, parse_shape
from dhlo.container import check_target
from dhlo.errors import ContractError
from dhlo.model_file import features_text, open_sections, write_model_file
from dhlo.pipeline import PASSES, Pass
from tests.test_kv_cache import Attends
from tests.test_kv_cache import program as kv_cache_program


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.exp(x * self.weight) + y


def call(*args: object, code: int = 0, stdin: str | None = None) -> tuple[str, str]:
    """Standard output and error of `dhlo ARGS`, which must end with `code` and without an unexpected exception."""
    result = CliRunner().invoke(app, [str(a) for a in args], input=stdin)
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result.stdout, result.stderr


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = {0: Dim("rows", min=1, max=100)}
    exported = torch.export.export(Small(), (torch.randn(3, 6), torch.randn(3, 6)), dynamic_shapes=(rows, rows))
    path = tmp_path_factory.mktemp("programs") / "small.pt2"
    torch.export.save(exported, path)
    return path


@pytest.fixture(scope="module")
def model(program: Path) -> Path:
    path = program.with_suffix(".so")
    assert "without weights" in call("compile", program, "-o", path, "--progress")[0]
    return path


@pytest.fixture(scope="module")
def text(program: Path) -> Path:
    path = program.with_suffix(".mlir")
    call("compile", program, "--emit", "mlir", "-o", path)
    return path


def test_version_and_help() -> None:
    assert call("--version")[0] == f"dhlo {dhlo.__version__}\n"
    module = subprocess.run([sys.executable, "-m", "dhlo", "--version"], capture_output=True, text=True, check=True)
    assert module.stdout == f"dhlo {dhlo.__version__}\n"
    out = call("--help")[0]
    assert all(command in out for command in ("compile", "run", "plan", "inspect", "sign", "verify", "opt", "flags"))


# ---------------------------------------------------------------------------------------------------- compile
def test_emit(program: Path, tmp_path: Path) -> None:
    for emit, expected in (("planned", "dhlo.group"), ("llvm", "@dhlo_model_v1 = "), ("asm", "dhlo_model_v1:")):
        path = tmp_path / f"out.{emit}"
        call("compile", program, "--emit", emit, "-o", path)
        assert expected in path.read_text()
    call("compile", program, "--emit", "obj", "-o", tmp_path / "out.o")
    assert (tmp_path / "out.o").read_bytes()[:4] == b"\x7fELF"
    assert (tmp_path / "out.constants").stat().st_size >= 24


def test_weights_in_a_file_of_their_own(program: Path, tmp_path: Path) -> None:
    path, weights = tmp_path / "out.so", tmp_path / "out.weights"
    call("compile", program, "-o", path, "--weights-file", "out.weights")
    call("weights", path, "-o", tmp_path / "w.safetensors")
    assert "can't be written" in call("weights", path, "-o", tmp_path / "none" / "w.safetensors", code=1)[1]
    call("update-weights", path, tmp_path / "w.safetensors", "--weights-only", "-o", tmp_path / "new.weights")
    assert "needs a name" in call("update-weights", path, tmp_path / "w.safetensors", "--weights-only", code=1)[1]
    weights.rename(tmp_path / "moved.weights")
    assert "out.weights' of model file" in call("run", path, "--shape", "x=2x6", code=1)[1]
    for other in ("new.weights", "moved.weights", "w.safetensors"):
        call("run", path, "--shape", "x=2x6", "--weights", tmp_path / other)
    assert "can't be read as safetensors" in call("run", path, "--weights", tmp_path / "none.safetensors", code=1)[1]
    assert "a plain file name" in call("compile", program, "-o", path, "--weights-file", "../x", code=1)[1]
    assert "own name" in call("compile", program, "-o", path, "--weights-file", "out.so", code=1)[1]
    assert "goes with --emit so" in call("compile", program, "--emit", "obj", "--weights-file", "x", code=1)[1]
    twin = tmp_path / program.name
    shutil.copyfile(program, twin)
    assert "used by the same command" in call("compile", twin, "-o", path, "--weights-file", twin.name, code=1)[1]
    assert "used by the same command" in call("weights", path, "-o", path, code=1)[1]
    assert twin.read_bytes() == program.read_bytes()


def test_compile_writes_here_and_replaces_nothing(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call("compile", program, "--emit", "mlir")
    (path,) = tmp_path.iterdir()
    assert path.name == "small.mlir"
    path.write_text("precious")
    assert "'small.mlir' is there already" in call("compile", program, "--emit", "mlir", code=1)[1]
    assert path.read_text() == "precious"
    call("compile", program, "--emit", "mlir", "--force")
    assert "func.func" in path.read_text()
    before = program.read_bytes()
    assert "is used by the same command, too" in call("compile", program, "-o", program, "--force", code=1)[1]
    assert program.read_bytes() == before


def test_what_is_read_is_not_written(program: Path, model: Path, tmp_path: Path) -> None:
    """Nor one file by two options."""
    before = model.read_bytes()
    link = tmp_path / "link.json"
    link.symlink_to(model)
    for arguments in (
        ("compile", program, "-o", tmp_path / "x.h", "--header", tmp_path / "x.h"),
        ("inspect", model, "--html", model),
        ("run", model, "--shape", "rows=3", "--trace", link),
        ("run", model, "--shape", "rows=3", "--trace", tmp_path / "x.pt", "-o", tmp_path / "x.pt"),
        ("bench", model, "--json", tmp_path / "x.json", "--save-profile", tmp_path / "x.json"),
        ("update-weights", program, model, "-o", model),
    ):
        assert "is used by the same command, too" in call(*arguments, code=1)[1], arguments
    assert model.read_bytes() == before and sorted(tmp_path.iterdir()) == [link]
    assert "No space left on device: '/dev/full'" in call("inspect", model, "--html", "/dev/full", code=1)[1]


def test_names_of_files(model: Path, program: Path, tmp_path: Path) -> None:
    """Names that terminals, or the library that writes there, would take for something else."""
    path = tmp_path / os.fsdecode(b"[bold]\xff[") / "b].so"
    path.parent.mkdir()
    command = [sys.executable, "-m", "dhlo", "compile", str(program), "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONUTF8": "1"})
    assert done.returncode == 0 and r"/[bold]\udcff[/b].so: " in done.stdout, done.stderr
    assert path.exists()


def test_dumps(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module after each pass, each of which `dhlo opt` reads; and what failed, to be run alone."""
    folder = tmp_path / "dump"
    folder.mkdir()
    (folder / "999-old.mlir").write_text("old")
    (folder / "notes.txt").write_text("mine")
    call("compile", program, "-o", tmp_path / "x.so", "--dump-dir", folder, "--shape-range", "x.0=1:4:9")
    names = sorted(p.name for p in folder.glob("*.mlir"))
    assert names[0] == "000-import.mlir" and names[1] == "001-grow.mlir" and names[-1].endswith("-schedule-launches.mlir")
    assert len(names) == len(PASSES) + 4 and (folder / "notes.txt").exists()
    call("opt", folder / names[0], "--pipeline", "-o", tmp_path / "out.mlir")
    assert "usually 4" in call("inspect", tmp_path / "x.so", "--contract")[0]
    assert "is not a folder" in call("compile", program, "-o", tmp_path / "x.so", "--dump-dir", tmp_path / "x.so", code=1)[1]

    def fail(module: object, weights: object) -> None:
        raise dhlo.CompileError("no luck")

    failing = [Pass(p.name, fail) if p.name == "fuse" else p for p in PASSES]
    monkeypatch.setattr("dhlo.compiler.PASSES", tuple(failing))
    out, error = call("compile", program, "-o", tmp_path / "x.so", "--dump-dir", folder, code=1)
    assert "no luck" in error and "how to run what failed" in out
    script = (folder / "reproduce.sh").read_text()
    alone = r"^DHLO_VERIFY_PASSES=1 dhlo opt \d+-round-codes.mlir --fuse -o /dev/null$"
    assert re.search(alone, script, re.MULTILINE), script
    assert "# no luck" in script and "\n# dhlo" in script
    subprocess.run(["sh", "-n", folder / "reproduce.sh"], check=True)
    monkeypatch.setattr("dhlo.compiler.PASSES", PASSES)
    call("compile", program, "-o", tmp_path / "x.so", "--dump-dir", folder, "--pass", "os.path:join", code=1)
    script = (folder / "reproduce.sh").read_text()
    assert re.search(r"^# what stood before pass join: \d+-round-codes.mlir$", script, re.MULTILINE), script


def test_completion() -> None:
    env = dict(os.environ, _DHLO_COMPLETE="complete_bash", COMP_WORDS="dhlo comp", COMP_CWORD="1")
    run = subprocess.run([sys.executable, "-c", "from dhlo.cli import app; app(prog_name='dhlo')"], env=env, capture_output=True)
    assert run.stdout.split() == [b"compile"]


def test_compile_refuses(program: Path, tmp_path: Path) -> None:
    assert "is not a file" in call("compile", tmp_path / "none.pt2", code=1)[1]
    other = tmp_path / "other.pt2"
    other.write_text("hello")
    assert "can't be read as a program of torch.export.save" in call("compile", other, code=1)[1]
    assert "is not a folder" in call("compile", program, "-o", tmp_path / "no" / "model.so", code=1)[1]
    assert "'exe' is none of so, obj" in call("compile", program, "--emit", "exe", code=2)[1]
    assert "module 'nosuchmodule' can't be imported" in call("compile", program, "--import", "nosuchmodule", code=1)[1]
    for wrong in ("x", "", "-1", "16:", "16:8:", "16::", "16:8:q_proj,", "16:8:q_proj:v_proj,", "99999999", "１"):
        assert f"'{wrong}' is not RANK[:ADAPTERS[:TARGETS]]" in call("compile", program, "--lora", wrong, code=1)[1]
    out = ("-o", tmp_path / "model.so")
    for right in ("16", "16:8", "16:8:q_proj,v_proj"):
        assert "the program is no step over sequences" in call("compile", program, *out, "--lora", right, code=1)[1]
    assert "max_rank=0" in call("compile", program, *out, "--lora", "0:8", code=1)[1]


def test_weights_in_fewer_bits(tmp_path: Path) -> None:
    """What was quantised, what that saved and lost: said when compiling, kept in the file, measured on results."""
    source, model = tmp_path / "two.pt2", tmp_path / "two.so"
    layers = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.Linear(48, 32))
    torch.export.save(torch.export.export(layers, (torch.randn(3, 64),), dynamic_shapes=({0: Dim("rows", max=99)},)), source)
    out = call("compile", source, "-o", model, "--weights", "int8", "--weights", "1.*=f32")[0]
    assert "1 of 2 constants of products quantised: 9.2 KB for 18.0 KB" in out and "(0.weight)" in out
    out = call("inspect", model)[0]
    assert re.search(r"0\.weight +int8 +0\.00\d+ +12\.0 KB +3\.2 KB", out) and re.search(r"1\.weight +f32 +0 ", out)
    assert "no format 'int3'" in call("compile", source, "-o", model, "--weights", "int3", code=1)[1]
    out = call("bench", source, "--accuracy", "int8", "--accuracy", "int4:32", "--range", "input.0=1:5:4")[0]
    assert len(re.findall(r"^(?:f32|int8|int4:32) .*input.0=[15] ", out, re.M)) == 6 and "int4:32: 2 of 2" in out
    assert "needs the exported program" in call("bench", model, "--accuracy", "int8", code=1)[1]


def test_caches_in_fewer_bits(tmp_path: Path) -> None:
    """What was stored in fewer bits and what that saved: said when compiling, kept in the file, measured on results."""
    source, model = tmp_path / "cache.pt2", tmp_path / "cache.so"
    torch.export.save(kv_cache_program(Attends()), source)
    out = call("compile", source, "-o", model, "--kv-cache", "int8")[0]
    assert "2 of 2 states stored as int8: 7.5 KB for 25.0 KB" in out
    out = call("inspect", model)[0]
    assert "2 of 2 states stored as int8" in out
    assert re.search(r"keys +int8 +2x2x40x20 +3\.1 KB +12\.5 KB +0\.0039", out)
    assert re.search(r"keys\.scale +float32 +2x2x40x1 +640 B", out)
    assert "no format 'int3'" in call("compile", source, "-o", model, "--kv-cache", "int3", code=1)[1]
    out = call("bench", source, "--accuracy", "kv_cache=int8", "--shape", "at=3")[0]
    assert re.search(r"^kv_cache=int8 .* 0\.00\d", out, re.M) and "kv_cache=int8: 2 of 2 states" in out


def test_winograd_is_an_option(tmp_path: Path) -> None:
    source = tmp_path / "conv.pt2"
    images = {0: Dim("batch"), 2: Dim("height", min=2), 3: Dim("width", min=2)}
    layer = torch.nn.Conv2d(32, 32, 3, padding=1)
    torch.export.save(torch.export.export(layer, (torch.randn(2, 32, 8, 8),), dynamic_shapes=(images,)), source)
    for flags, used in (((), True), (("--winograd",), True), (("--no-winograd",), False)):
        call("compile", source, "--emit", "llvm", "-o", tmp_path / "conv.ll", *flags)
        assert ("@winograd_" in (tmp_path / "conv.ll").read_text()) is used


@torch.library.custom_op("dhlo_test::mystery", mutates_args=())
def mystery(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() + 1)  # can't be traced


@mystery.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Unsupported(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = mystery(x)  # first use
        return mystery(y * 2)  # second use


def test_unsupported_operators_are_listed_with_source_lines(tmp_path: Path) -> None:
    path = tmp_path / "unsupported.pt2"
    torch.export.save(torch.export.export(Unsupported(), (torch.randn(3),)), path)
    message = call("compile", path, "-o", tmp_path / "model.so", code=1)[1]
    assert "2 operator use(s) can't be compiled" in message
    assert message.count("dhlo_test.mystery") >= 2
    message = call("compile", f"good={path}", f"bad={path}", "-o", tmp_path / "model.so", code=1)[1]
    assert "entry 'good': dhlo_test.mystery" in message
    lines = Path(__file__).read_text().splitlines()
    for comment in ("# first use", "# second use"):
        number = next(n for n, line in enumerate(lines, 1) if line.endswith(comment))
        assert f"test_cli.py:{number}" in message
    assert not (tmp_path / "model.so").exists()


# ---------------------------------------------------------------------------------------------------- run
def test_run_on_files(model: Path, tmp_path: Path) -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    np.save(tmp_path / "x.npy", x.numpy())
    torch.save(y, tmp_path / "y.pt")
    for name in ("out.pt", "out.npz", "out.npy"):
        call(
            "run",
            model,
            "--input",
            f"x={tmp_path / 'x.npy'}",
            "--input",
            f"y={tmp_path / 'y.pt'}",
            "-o",
            tmp_path / name,
        )
    expected = dhlo.load(model)(x, y)
    (saved,) = torch.load(tmp_path / "out.pt").values()
    assert torch.equal(saved, expected)
    (array,) = np.load(tmp_path / "out.npz").values()
    assert np.array_equal(array, expected.numpy())
    assert np.array_equal(np.load(tmp_path / "out.npy"), expected.numpy())


def test_run_on_shapes(model: Path) -> None:
    out = call("run", model, "--shape", "x=7x6", "--repeat", 3, "--profile")[0]
    assert "7x6" in out
    assert "3 runs after a first one: min" in out
    assert "kernels" in out
    assert "float32" in out


def test_run_refuses(model: Path, tmp_path: Path) -> None:
    assert "no shape for 'x'" in call("run", model, code=1)[1]
    assert "must be at most 100: expected at most 100, got 101" in call("run", model, "--shape", "x=101x6", code=1)[1]
    assert "no input or size 'z'; inputs: x, y" in call("run", model, "--shape", "z=3", code=1)[1]
    assert "no input 'z'" in call("run", model, "--input", "z=3", code=1)[1]
    assert "neither a .npy or .pt file nor a number" in call("run", model, "--input", "x=what", code=1)[1]
    assert "none.npy' can't be read" in call("run", model, "--input", "x=none.npy", code=1)[1]
    assert "outputs are saved as .pt" in call("run", model, "--shape", "x=2x6", "-o", tmp_path / "out.txt", code=1)[1]
    (tmp_path / "foreign.so").write_bytes(b"\x7fELF" + bytes(500))
    assert "not a dhlo model" in call("run", tmp_path / "foreign.so", code=1)[1]


def test_shapes() -> None:
    assert (parse_shape("2x7"), parse_shape("scalar"), parse_shape("0")) == ((2, 7), (), (0,))
    for bad in ("2x", "-1", "a", ""):
        with pytest.raises(ContractError, match="is not a shape"):
            parse_shape(bad)
    value = {"dtype": "float32", "sizes": ()}
    inputs = [{"name": "x", "dims": ("s0", "2*s1"), **value}, {"name": "y", "dims": ("s1", "s0 + 1", "3"), **value}]
    assert complete_shapes(inputs, {"y": "4x6x3", "s0": "5"}) == [(5, 8), (4, 6, 3)]
    with pytest.raises(ContractError, match="or s0, e.g."):
        complete_shapes(inputs, {"s1": "4"})


# ---------------------------------------------------------------------------------------------------- inspect
def test_inspect(model: Path, program: Path) -> None:
    out = call("inspect", model, "--groups", "--kernels", "--buffers")[0]
    assert "mul, exp, add" in out
    assert "launch sites" in out
    assert "buffers in the arena" in out
    assert "float32[" not in out and re.search(r"f32\[s\d+, 6\]", out)
    default = call("inspect", model)[0]
    assert "x: float32[" in default and "<= 100" in default and "weights:" in default
    assert "weights:" not in call("inspect", model, "--contract")[0]
    assert "x: float32[" in call("inspect", program, "--contract")[0]
    assert "all sections verified" in default and "signature: none" in default


def test_compile_for_several_machines(program: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code for each level in one file; what each needs, and which one this machine takes, can be seen without executing any."""
    monkeypatch.delenv("DHLO_TARGET", raising=False)
    path = tmp_path / "model.so"
    call("compile", program, "--target", "x86-64-v3,x86-64-v4+bf16", "-o", path)
    out = " ".join(call("inspect", path)[0].split())
    best = "x86-64-v4+bf16" if _runtime.cpu_supports("avx512vl") else "x86-64-v3"
    assert "host program: one for all levels" in out and "host program" not in call("inspect", model)[0]
    assert "CPU: x86-64-v3, " in out and "avx512vl" in out and f"CPU: {best}, taken by this machine" in out
    assert f"kernels, launch sites of {best}" in re.sub(r"\d+ ", "", call("inspect", path, "--kernels")[0])
    assert json.loads(dhlo.load(path).metadata)["levels"][0]["name"] == "x86-64-v3"
    monkeypatch.setenv("DHLO_TARGET", "x86-64-v3")
    assert "CPU: x86-64-v3, taken by this machine" in call("inspect", path)[0]
    assert "7x6" in call("run", path, "--shape", "x=7x6")[0]
    monkeypatch.setenv("DHLO_TARGET", "aarch64")
    assert "this machine can run none of them" in call("inspect", path)[0]
    assert "DHLO_TARGET asks for 'aarch64'; the model has the levels" in call("run", path, "--shape", "x=7x6", code=1)[1]
    assert "has no AVX2" in call("compile", program, "--target", "x86-64-v2", code=1)[1]
    assert "has no AVX2" in call("compile", program, "--target", "x86-64-v2", "--emit", "asm", code=1)[1]


def test_inspect_executes_nothing(program: Path, tmp_path: Path) -> None:
    """A file whose code writes a file as soon as it is mapped; and one whose metadata would command the terminal."""
    source = tmp_path / "constructor.c"
    source.write_text(
        '#include <stdio.h>\n__attribute__((constructor)) static void f(void) { fclose(fopen("%s", "w")); }' % (tmp_path / "ran")
    )
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(tmp_path / "code")], check=True)
    artifact = build(torch.export.load(program), dhlo.Options(name="\x1b]0;title\x07", cache=""))[1]
    path = tmp_path / "model.so"
    code, features = (tmp_path / "code").read_bytes(), features_text(artifact.metadata["levels"])
    write_model_file(path, code, [], json.dumps(artifact.metadata), features)
    out = call("inspect", path)[0] + call("inspect", path, "--groups", "--kernels", "--buffers")[0] + call("verify", path)[0]
    assert re.search(r"x: float32\[s\d+, 6\]", out) and "\x1b" not in out
    assert not (tmp_path / "ran").exists()
    for key, value in (("inputs", 3), ("groups", [{}]), ("symbols", {"s": []}), ("states", {"a": None}), ("levels", [])):
        write_model_file(path, code, [], json.dumps(artifact.metadata | {key: value}), features)
        assert "malformed metadata" in call("inspect", path, code=1)[1], key
    for text in ("", "[" * 100000, "{}", "7", "\0"):
        write_model_file(path, code, [], text, features)
        assert "malformed metadata" in call("inspect", path, code=1)[1]
    write_model_file(path, code, [], json.dumps(artifact.metadata), "sse2")
    assert "disagree" in call("inspect", path, code=1)[1]


def test_plan(model: Path, program: Path) -> None:
    out = call("plan", model, "--shape", "x=5x6", "--shape", "x=1x6")[0]
    assert "plan at x=5x6" in out and "plan at x=1x6" in out
    assert "plan at x=5x6" in call("plan", program, "--shape", "x=5x6")[0]
    assert "must be at most 100" in call("plan", model, "--shape", "x=101x6", code=1)[1]
    assert "no shape for 'x'" in call("plan", model, code=1)[1]


def test_signatures(model: Path, tmp_path: Path) -> None:
    path, private, public = tmp_path / "signed.so", tmp_path / "private.pem", tmp_path / "public.pem"
    path.write_bytes(model.read_bytes())
    call("keygen", private, public)
    assert "isn't overwritten" in call("keygen", private, public, code=1)[1]
    assert "isn't signed" in call("verify", path, "--key", public, code=1)[1]
    assert "wasn't checked" in call("verify", path)[0]
    assert "signed.so.sig" in call("sign", path, "--key", private)[0]
    assert "signed with" in call("verify", path, "--key", public)[0]
    assert "by the Ed25519 key" in call("inspect", path)[0]
    assert "7x6" in call("run", path, "--shape", "x=7x6", "--require-key", public)[0]
    assert "7x6" in call("plan", path, "--shape", "x=7x6", "--require-key", public)[0]
    assert "isn't signed" in call("run", model, "--shape", "x=7x6", "--require-key", public, code=1)[1]
    assert "isn't an unencrypted private key" in call("sign", path, "--key", public, code=1)[1]
    assert "No such file" in call("verify", path, "--key", tmp_path / "none.pem", code=1)[1]
    path.write_bytes(b"hello")
    assert "not a dhlo model" in call("sign", path, "--key", private, code=1)[1]


# ---------------------------------------------------------------------------------------------------- opt
def test_opt_runs_passes_in_the_order_given(text: Path) -> None:
    out, err = call("opt", text, "--simplify", "--fuse", "--print-after=simplify", "--print-after", "fuse")
    assert "dhlo.group" in out
    assert err.index("after simplify") < err.index("after fuse")
    err = call("opt", text, "--cse-again", "--cse", "--simplify", "--cse", "--print-after=all")[1]
    assert [line.split()[-2] for line in err.splitlines() if line.startswith("// -----")] == [
        "cse-again",
        "cse",
        "simplify",
        "cse",
    ]


def test_opt_round_trips(text: Path, tmp_path: Path) -> None:
    source = text.read_text()
    out = call("opt", "-", stdin=source)[0]
    assert out.strip() == source.strip()
    call("opt", text, "--pipeline", "-o", tmp_path / "planned.mlir")
    assert call("opt", tmp_path / "planned.mlir")[0].strip() == (tmp_path / "planned.mlir").read_text().strip()
    assert call("opt", text, "--verify-only")[0] == ""


def test_locations(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "located.mlir"
    call("compile", program, "--emit", "mlir", "--locations", "-o", path)
    number = next(n for n, x in enumerate(Path(__file__).read_text().splitlines(), 1) if "torch.exp(x" in x)
    assert f'test_cli.py":{number}:' in path.read_text()
    assert f'test_cli.py":{number}:' in call("opt", path, "--fuse", "--locations")[0]
    assert "test_cli.py" not in call("opt", path, "--fuse")[0]


def test_opt_has_a_flag_for_every_pass() -> None:
    out = call("opt", "--help")[0]
    assert all(f"--{p.name}" in out for p in PASSES)


def test_opt_refuses(text: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.mlir"
    source = text.read_text()
    line = next(n for n, x in enumerate(source.splitlines(), 1) if "dhlo.exp" in x)
    path.write_text(source.replace("dhlo.exp", "dhlo.nosuch"))
    assert f"bad.mlir:{line}:" in call("opt", path, code=1)[1]
    path.write_text(
        'func.func @f(%x: tensor<4xf32>) -> tensor<5xf32> {\n  %y = "dhlo.exp"(%x) : (tensor<4xf32>) -> tensor<5xf32>\n'
        "  return %y : tensor<5xf32>\n}\n"
    )
    message = call("opt", path, "--verify-only", code=1)[1]
    assert "bad.mlir:2:" in message and "dhlo.exp: result type must be tensor<4xf32>" in message
    path.write_text("func.func {")
    assert "bad.mlir:1:" in call("opt", path, code=1)[1]
    assert "can't be read" in call("opt", tmp_path / "none.mlir", code=1)[1]
    assert "there is no pass 'nosuch'" in call("opt", text, "--print-after=nosuch", code=1)[1]
    assert "No such option" in call("opt", text, "--nosuch", code=2)[1]


# ---------------------------------------------------------------------------------------------------- what isn't a file
class Flagged(torch.nn.Module):
    def forward(self, x: torch.Tensor, flag: torch.Tensor) -> torch.Tensor:
        return torch.where(flag, x, -x).bfloat16()


def test_numbers_and_bfloat16(tmp_path: Path) -> None:
    """Inputs without dims are made up, and outputs that numpy has no type for are saved."""
    exported = torch.export.export(Flagged(), (torch.randn(3), torch.tensor(True)))
    torch.export.save(exported, tmp_path / "flagged.pt2")
    call("compile", tmp_path / "flagged.pt2", "-o", tmp_path / "flagged.so")
    for name in ("y.npz", "y.npy", "y.pt"):
        call("run", tmp_path / "flagged.so", "-o", tmp_path / name)
        assert (tmp_path / name).stat().st_size > 0
    assert np.load(tmp_path / "y.npy").dtype == np.float32


def test_devices_and_links_stay_what_they_are(program: Path, tmp_path: Path) -> None:
    (tmp_path / "target.mlir").write_text("old")
    (tmp_path / "link.mlir").symlink_to("target.mlir")
    call("compile", program, "--emit=mlir", "-o", tmp_path / "link.mlir")
    assert (tmp_path / "link.mlir").is_symlink() and "func.func" in (tmp_path / "target.mlir").read_text()
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        text = pool.submit((tmp_path / "pipe").read_text)
        call("compile", program, "--emit=mlir", "-o", tmp_path / "pipe")
        assert "func.func" in text.result(60)
    with pytest.raises(OSError, match="regular"):
        check_target(tmp_path / "pipe")
    with pytest.raises(OSError, match="directory"):
        check_target(tmp_path)


def test_a_pipe_is_no_signature_and_no_key(model: Path, tmp_path: Path) -> None:
    copied = tmp_path / "model.so"
    copied.write_bytes(model.read_bytes())
    os.mkfifo(tmp_path / "model.so.sig")
    assert "signature" in call("inspect", copied)[0]
    call("keygen", tmp_path / "private.pem", tmp_path / "public.pem")
    with pytest.raises(dhlo.SignatureError, match="egular"):
        dhlo.load(copied, require_key=tmp_path / "public.pem")
    with pytest.raises(OSError, match="egular"):
        dhlo.load(copied, require_key=tmp_path / "model.so.sig")


def test_a_key_has_weights_verified(tmp_path: Path) -> None:
    compiled = dhlo.compile(torch.export.export(torch.nn.Linear(64, 64).eval(), (torch.randn(2, 64),)))
    path = tmp_path / "linear.so"
    compiled.save(path)
    call("keygen", tmp_path / "private.pem", tmp_path / "public.pem")
    call("sign", path, "--key", tmp_path / "private.pem")
    dhlo.load(path, verify=False, require_key=tmp_path / "public.pem")
    with open_sections(path) as sections:
        at = sections.only(SECTION["constants"]).offset
    data = bytearray(path.read_bytes())
    data[at + 3] ^= 0x7F
    path.write_bytes(data)
    with pytest.raises(dhlo.ModelFileError, match="constants"):
        dhlo.load(path, verify=False, require_key=tmp_path / "public.pem")
