"""Model files: called like the compiled model, run from C++ without Python, refused where they are bad."""

import fcntl
import hashlib
import json
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

import dhlo
from dhlo.callspec import read_call, write_call
from dhlo.codegen.backends.cpu.link import constants_path, link_shared
from dhlo.codegen.kernel_ir.abi import SECTION
from dhlo.container import TRAILER_BYTES, write_bytes
from dhlo.model_file import open_sections, write_model_file
from dhlo.signing import generate_key, sign_file, verify_file

ROOT = Path(__file__).resolve().parents[1]


class Mixed(torch.nn.Module):
    """Nested inputs, a keyword argument, an input that changes, constants and numbers among the results."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor, state: dict[str, list[torch.Tensor]], mode: str, *, scale: torch.Tensor) -> Any:
        state["a"][0].add_(1)
        return {"y": x * self.weight + state["a"][0], "z": [x.sin(), 3, x.shape[0]]}, scale * x.exp()


def mixed_inputs(n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(n, 5), {"a": [torch.randn(n, 5)]}, "plain"), {"scale": torch.randn(n, 5)}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dhlo.CompiledModel, Path]:
    n = {0: Dim("n", min=1, max=50)}
    args, kwargs = mixed_inputs(4)
    exported = torch.export.export(Mixed(), args, kwargs, dynamic_shapes={"x": n, "state": {"a": [n]}, "mode": None, "scale": n})
    compiled = dhlo.compile(exported, name="mixed")
    path = tmp_path_factory.mktemp("mixed") / "mixed.so"
    compiled.save(path)
    return compiled, path


def clone(tree: Any) -> Any:
    return pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, tree)


@pytest.mark.parametrize("n", [1, 7, 50])
def test_loaded_model_is_called_like_the_compiled_one(mixed: tuple[dhlo.CompiledModel, Path], n: int) -> None:
    compiled, path = mixed
    loaded = dhlo.load(path)
    args, kwargs = mixed_inputs(n)
    first, second = clone(args), clone(args)
    expected, got = compiled(*first, **kwargs), loaded(*second, **kwargs)
    assert pytree.tree_structure(got) == pytree.tree_structure(expected)
    assert got[0]["z"][1:] == [3, n]
    for a, b in zip(pytree.tree_leaves((expected, first)), pytree.tree_leaves((got, second)), strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    assert torch.equal(second[1]["a"][0], args[1]["a"][0] + 1)
    assert loaded.signature == compiled.signature


def test_loaded_model_checks_its_call(mixed: tuple[dhlo.CompiledModel, Path]) -> None:
    loaded = dhlo.load(mixed[1])
    args, kwargs = mixed_inputs(3)
    with pytest.raises(dhlo.ContractError, match="missing: scale"):
        loaded(*args)
    with pytest.raises(dhlo.ContractError, match="'mode' was exported as the constant 'plain', got 'other'"):
        loaded(*args[:2], "other", **kwargs)
    with pytest.raises(dhlo.ContractError, match="at most 50"):
        too_many = mixed_inputs(51)
        loaded(*too_many[0], **too_many[1])
    assert loaded(*args, **kwargs)[1].shape == (3, 5)


def test_constants_survive_json(mixed: tuple[dhlo.CompiledModel, Path]) -> None:
    native = mixed[0].native
    data = json.loads(native.metadata)["call"]
    values = [
        None,
        True,
        7,
        "text",
        0.1,
        float("inf"),
        torch.float16,
        torch.device("cpu"),
        torch.strided,
        torch.channels_last,
    ]
    call = read_call(data, native.inputs, native.outputs)
    for value in values:
        call.outputs[3] = type(call.outputs[3])("k", None, value)
        written = json.loads(json.dumps(write_call(call), allow_nan=False))
        assert read_call(written, native.inputs, native.outputs).outputs[3].constant == value


def test_unknown_pytree_types_give_flat_sequences(mixed: tuple[dhlo.CompiledModel, Path]) -> None:
    native = mixed[0].native
    data = json.loads(native.metadata)["call"]
    data["out_spec"] = data["out_spec"].replace("builtins.dict", "somewhere.Output")
    call = read_call(data, native.inputs, native.outputs)
    loaded = dhlo.CompiledModel(native, {"": call})
    (x, state, _), kwargs = mixed_inputs(3)
    results = loaded(x, state["a"][0], kwargs["scale"])
    assert [tuple(r.shape) for r in results] == [(3, 5), (3, 5), (), (3, 5)]


def test_only_the_descriptor_is_exported(mixed: tuple[dhlo.CompiledModel, Path]) -> None:
    symbols = subprocess.run(["nm", "-D", "--defined-only", str(mixed[1])], capture_output=True, text=True, check=True).stdout
    assert [line.split()[-1] for line in symbols.splitlines()] == ["dhlo_model_v1"]
    headers = subprocess.run(["readelf", "-lW", str(mixed[1])], capture_output=True, text=True, check=True).stdout
    loads = [line.split() for line in headers.splitlines() if line.split()[:1] in (["LOAD"], ["GNU_STACK"])]
    assert loads and not any("W" in "".join(row[6:-1]) and "E" in "".join(row[6:-1]) for row in loads)
    assert "RWE" not in headers


@pytest.mark.parametrize(
    ("compiler", "message"),
    [("no-such-compiler", "'no-such-compiler' can't be run: No such file"), ("false", "linking with 'false' failed")],
)
def test_no_compiler(
    mixed: tuple[dhlo.CompiledModel, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, message: str
) -> None:
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(dhlo.CompileError, match=message) as raised:
        mixed[0].save(tmp_path / "model.so")
    assert "--emit=obj" in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_loaded_models_are_not_saved(mixed: tuple[dhlo.CompiledModel, Path], tmp_path: Path) -> None:
    with pytest.raises(dhlo.DhloError, match="copy the file"):
        dhlo.load(mixed[1]).save(tmp_path / "again.so")


# ---------------------------------------------------------------------------------------------------- bad files
def test_truncated(mixed: tuple[dhlo.CompiledModel, Path], tmp_path: Path) -> None:
    data = mixed[1].read_bytes()
    path = tmp_path / "cut.so"
    for size in (len(data) - 1, len(data) - TRAILER_BYTES, len(data) // 2, 100):
        path.write_bytes(data[:size])
        with pytest.raises(dhlo.ModelFileError, match=f"cut.so'.*(truncated|not a dhlo model).*{size}"):
            dhlo.load(path)


def test_foreign(tmp_path: Path) -> None:
    library = next(Path("/").glob("lib*/**/libm.so.6"))
    with pytest.raises(dhlo.ModelFileError, match="libm.so.6': not a dhlo model"):
        dhlo.load(library)
    with pytest.raises(dhlo.ModelFileError, match="is not a regular file"):
        dhlo.load(tmp_path)
    with pytest.raises(dhlo.ModelFileError, match="No such file"):
        dhlo.load(tmp_path / "none.so")


def test_newer(mixed: tuple[dhlo.CompiledModel, Path], tmp_path: Path) -> None:
    data = mixed[1].read_bytes()
    path = tmp_path / "newer.so"
    for field, offset in (("file format", 8), ("ABI", 12)):
        changed = bytearray(data)
        struct.pack_into("<I", changed, len(data) - TRAILER_BYTES + offset, 999)
        path.write_bytes(changed)
        with pytest.raises(dhlo.ModelFileError, match=rf"{field} version 999; this runtime reads version \d+: use a newer dhlo"):
            dhlo.load(path)


def test_weights_are_verified_unless_told_not_to(mixed: tuple[dhlo.CompiledModel, Path], tmp_path: Path) -> None:
    path = tmp_path / "damaged.so"
    data = bytearray(mixed[1].read_bytes())
    with open_sections(mixed[1]) as sections:
        at = sections.only(SECTION["constants"]).offset
    data[at + 3] ^= 0x80
    path.write_bytes(data)
    with pytest.raises(dhlo.ModelFileError, match="damaged.so': damaged constants: expected SHA-256"):
        dhlo.load(path)
    args, kwargs = mixed_inputs(3)
    assert dhlo.load(path, verify=False)(*args, **kwargs)[1].shape == (3, 5)


# ---------------------------------------------------------------------------------------------------- saving
def test_saved_files_follow_the_umask(mixed: tuple[dhlo.CompiledModel, Path], tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        mixed[0].save(tmp_path / "model.so")
    finally:
        os.umask(before)
    assert (tmp_path / "model.so").stat().st_mode & 0o777 == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["model.so"]


def test_leftovers_of_killed_processes_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    living = tmp_path / f".model.so.{'1' * 16}.part"
    others = [tmp_path / n for n in (f".other.so.{'2' * 16}.part", ".model.so.part", ".model.so.mine.part")]
    for path in (tmp_path / f".model.so.{'0' * 16}.part", living, *others):
        path.write_bytes(b"half")
    with living.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_bytes(tmp_path / "model.so", b"whole")
    assert set(tmp_path.iterdir()) == {living, *others, tmp_path / "model.so"}


def test_a_full_disk_loses_nothing(mixed: tuple[dhlo.CompiledModel, Path], tmp_path: Path) -> None:
    """Writing fails after each number of bytes in turn, as on a disk that is full: the old file stays, nothing else is left."""
    path = tmp_path / "model.so"
    path.write_bytes(b"before")
    compiler = mixed[0]._artifact
    assert compiler is not None
    with tempfile.TemporaryDirectory() as folder:
        link_shared(compiler.objects, Path(folder) / "code.so", {}, compiler.targets[0])
        code = (Path(folder) / "code.so").read_bytes()

    def save(path: Path) -> None:
        write_model_file(path, code, (c.data for c in compiler.constants.chunks()), json.dumps(compiler.metadata), "")

    save(tmp_path / "whole.so")
    size = (tmp_path / "whole.so").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for limit in (0, 1, 4096, len(code), size - 1):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            with pytest.raises(OSError, match="too large"):
                save(path)
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert path.read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    mixed[0].save(path)
    dhlo.load(path)


# A child that saves the same file over and over, until it is killed.
SAVER = """
import sys
from pathlib import Path
from dhlo.model_file import write_model_file
path, chunk = Path(sys.argv[1]), bytes(1 << 18)
print("ready", flush=True)
while True:
    write_model_file(path, b"code" * 1000, [chunk] * 4, "{}", "")
"""


@pytest.mark.parametrize("times", [3, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_while_saving(tmp_path: Path, times: int) -> None:
    path = tmp_path / "model.so"
    write_model_file(path, b"old", [], "{}", "")
    pause = random.Random(0)
    for _ in range(times):
        child = subprocess.Popen([sys.executable, "-c", SAVER, str(path)], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        time.sleep(pause.uniform(0, 0.03))
        child.kill()
        child.wait()
        child.stdout.close()
        with open_sections(path) as sections:  # the old one or a new one, whole
            sections.verify()
        assert len(list(tmp_path.iterdir())) <= 2
    write_model_file(path, b"new", [], "{}", "")
    assert [p.name for p in tmp_path.iterdir()] == ["model.so"]


# ---------------------------------------------------------------------------------------------------- signatures
@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A private key, its public key, and somebody else's public key."""
    folder = tmp_path_factory.mktemp("keys")
    paths = [folder / n for n in ("a.pem", "a.pub", "b.pem", "b.pub")]
    generate_key(*paths[:2])
    generate_key(*paths[2:])
    assert paths[0].stat().st_mode & 0o077 == 0
    return paths[0], paths[1], paths[3]


def test_signed_files(mixed: tuple[dhlo.CompiledModel, Path], keys: tuple[Path, Path, Path], tmp_path: Path) -> None:
    private, public, other = keys
    path = tmp_path / "model.so"
    path.write_bytes(mixed[1].read_bytes())
    with pytest.raises(dhlo.SignatureError, match=r"isn't signed: .*model.so.sig': No such file"):
        dhlo.load(path, require_key=public)
    sign_file(path, private)
    args, kwargs = mixed_inputs(3)
    raw = bytes.fromhex(json.loads((tmp_path / "model.so.sig").read_text())["key"])
    for key in (public, str(public), public.read_bytes(), raw):
        assert dhlo.load(path, require_key=key)(*clone(args), **kwargs)[1].shape == (3, 5)
    with pytest.raises(dhlo.SignatureError, match="signed with another key"):
        dhlo.load(path, require_key=other)
    with pytest.raises(dhlo.DhloError, match="isn't an? (Ed25519|public) key"):
        dhlo.load(path, require_key=private)
    text = (tmp_path / "model.so.sig").read_text()
    record = json.loads(text)
    for changed, message in (
        ({"signature": "00" * 64}, "forged"),
        ({"signature": "00"}, "forged"),
        ({"digest": "00" * 32}, "signature of another file"),
        ({"format": 2}, "of a kind that this dhlo doesn't know"),
        ({"key": "xy"}, "isn't a signature"),
    ):
        (tmp_path / "model.so.sig").write_text(json.dumps(record | changed))
        with pytest.raises(dhlo.SignatureError, match=message):
            dhlo.load(path, require_key=public)
    (tmp_path / "model.so.sig").write_bytes(b"\xff" * 70000)
    with pytest.raises(dhlo.SignatureError, match="isn't a signature"):
        dhlo.load(path, require_key=public)
    (tmp_path / "model.so.sig").write_text(text)
    write_model_file(path, b"other code", [], "{}", "")
    with pytest.raises(dhlo.SignatureError, match="signature of another file"):
        dhlo.load(path, require_key=public)


def test_a_damaged_signed_file_is_refused(
    mixed: tuple[dhlo.CompiledModel, Path], keys: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    path = tmp_path / "model.so"
    path.write_bytes(mixed[1].read_bytes())
    sign_file(path, keys[0])
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    with pytest.raises(dhlo.ModelFileError, match="damaged code"):
        dhlo.load(path, require_key=keys[1])
    with pytest.raises(dhlo.ModelFileError, match="damaged code"):
        verify_file(path, keys[1])
    with pytest.raises(dhlo.ModelFileError, match="damaged code"):
        sign_file(path, keys[0])


# ---------------------------------------------------------------------------------------------------- C++ hosts
FRAMEWORKS = ("python", "torch", "llvm", "mlir")


def needed(binary: Path) -> str:
    return subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=True).stdout.lower()


def test_cpp_host_equals_python(encoder: Any, build_host: Any, tmp_path: Path) -> None:
    compiled = dhlo.compile(encoder.exported, name="encoder")
    path = tmp_path / "encoder.so"
    compiled.save(path)
    host = build_host(tmp_path / "host", ROOT / "runtime/examples/host.cpp")
    assert not [name for name in FRAMEWORKS if name in needed(host)]
    shapes = [(1, 1), (3, 17), (16, 64)]
    words, expected = [], []
    for n, shape in enumerate(shapes):
        inputs = encoder.inputs(*shape)
        files = [tmp_path / f"in{n}_{i}.bin" for i in range(len(inputs))]
        for file, x in zip(files, inputs, strict=True):
            file.write_bytes(x.numpy().tobytes())
        words.append(",".join(f"{shape[0]}x{shape[1]}={file}" for file in files))
        expected.append(compiled(*inputs))
        torch.testing.assert_close(expected[-1], encoder.model(*inputs), rtol=1e-4, atol=1e-5)
    result = subprocess.run([str(host), str(path), "--out", str(tmp_path), *words], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for n, tensor in enumerate(expected):
        assert (tmp_path / f"{n}_0.bin").read_bytes() == tensor.numpy().tobytes(), shapes[n]


def test_cpp_host_reports_errors(mixed: tuple[dhlo.CompiledModel, Path], build_host: Any, tmp_path: Path) -> None:
    host = build_host(tmp_path / "host", ROOT / "runtime/examples/host.cpp")
    result = subprocess.run([str(host), str(mixed[1]), "51x5"], capture_output=True, text=True, check=False)
    assert (result.returncode, "must be at most 50" in result.stderr) == (1, True), result.stderr
    bad = tmp_path / "bad.so"
    bad.write_bytes(b"hello")
    result = subprocess.run([str(host), str(bad), "1x5"], capture_output=True, text=True, check=False)
    assert (result.returncode, "not a dhlo model" in result.stderr) == (1, True), result.stderr


STATIC_HOST = """
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include "dhlo/runtime.hpp"
extern "C" const dhlo_abi_model scale_descriptor;
int main(int, char** argv) {
  std::ifstream file(argv[1], std::ios::binary);
  const std::vector<char> data{std::istreambuf_iterator<char>(file), {}};
  std::vector<char> memory(data.size() + 64);
  void* place = memory.data();
  std::size_t space = memory.size();
  std::align(64, data.size(), place, space);
  std::copy(data.begin(), data.end(), static_cast<char*>(place));
  const dhlo::Model model = dhlo::Model::from(scale_descriptor, place, data.size());
  dhlo::Session session(model);
  std::vector<float> x = {1, 2, 3};
  session.run({dhlo::Tensor::of(x.data(), {3})});
  const dhlo::Tensor y = session.output(0);
  for (int i = 0; i < 3; ++i) std::printf("%g ", static_cast<double>(y.data<float>()[i]));
}
"""


def test_object_links_into_a_host(build_host: Any, tmp_path: Path) -> None:
    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = torch.nn.Parameter(torch.tensor([10.0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor + 1

    compiled = dhlo.compile(torch.export.export(Scale(), (torch.randn(4),), dynamic_shapes=({0: Dim("n")},)))
    compiled.save_object(tmp_path / "scale.o", symbol="scale")
    source = tmp_path / "static_host.cpp"
    source.write_text(STATIC_HOST)
    host = build_host(tmp_path / "static_host", source, tmp_path / "scale.o")
    result = subprocess.run([str(host), str(constants_path(tmp_path / "scale.o"))], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["11", "21", "31"]
    check = ["sha256sum", "--check", "scale.constants.sha256"]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=True).stdout == "scale.constants: OK\n"


LOADING_HOST = """
#include <dlfcn.h>
#include <pthread.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include "dhlo/runtime.hpp"
static int created = 0;
static bool refuse = false;
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* arg) {
  if (refuse) return EAGAIN;
  ++created;
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return real(thread, attributes, start, arg);
}
struct Hook {
  int calls = 0, behaviour = 0;
  unsigned char digest[32];
};
static int32_t authorize(void* ctx, const uint8_t* digest, size_t bytes) {
  auto* hook = static_cast<Hook*>(ctx);
  ++hook->calls;
  if (bytes == 32) std::memcpy(hook->digest, digest, bytes);
  if (hook->behaviour == 2) throw 2;
  return hook->behaviour;
}
int main(int, char** argv) {
  dhlo_model_options options;
  dhlo_model_options_init(&options);
  Hook hook;
  options.authorize = authorize;
  options.authorize_ctx = &hook;
  for (int threads = 1; threads <= 4; ++threads) {
    created = 0;
    options.num_threads = threads;
    dhlo::Model::load(argv[1], &options);
    std::printf("%d ", created);
  }
  refuse = true;
  dhlo::Model::load(argv[1], &options);
  refuse = false;
  for (hook.behaviour = 1; hook.behaviour <= 2; ++hook.behaviour) {
    dhlo_model* model = nullptr;
    const dhlo_status status = dhlo_model_load_file(argv[1], &options, &model);
    std::printf("%s %d ", dhlo_status_name(status), model == nullptr);
  }
  std::printf("%d ", hook.calls);
  for (unsigned char byte : hook.digest) std::printf("%02x", byte);
}
"""


def test_hosts_decide_what_is_loaded_and_by_how_many_threads(build_host: Any, tmp_path: Path) -> None:
    """Authorize hooks that accept, refuse and throw; threads while loading, and none to be had."""

    class Large(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = torch.nn.Parameter(torch.zeros(4_000_000))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    dhlo.compile(torch.export.export(Large(), (torch.randn(1),))).save(tmp_path / "large.so")
    (tmp_path / "host.cpp").write_text(LOADING_HOST)
    host = build_host(tmp_path / "host", tmp_path / "host.cpp")
    environment = {k: v for k, v in os.environ.items() if k != "DHLO_NUM_THREADS"}
    result = subprocess.run([str(host), str(tmp_path / "large.so")], capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    digest = hashlib.sha256((tmp_path / "large.so").read_bytes()[-TRAILER_BYTES:]).hexdigest()
    assert result.stdout == f"0 1 2 3 untrusted 1 untrusted 1 7 {digest}"
