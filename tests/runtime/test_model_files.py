"""Loading model files: good ones from disk and memory; bad ones refused, before any of their code runs, with a text that says what
is wrong."""

import hashlib
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dhlo import _runtime
from dhlo.codegen.kernel_ir.abi import ABI_VERSION, SECTION, TRAILER_MAGIC
from dhlo.container import SECTION_ALIGN, SECTION_BYTES, TRAILER_BYTES, Section, pack_table, pack_trailer
from dhlo.model_file import open_sections, write_model_file
from tests.runtime.conftest import TOY_CONSTANTS, TOY_METADATA

BuildToy = Callable[..., Path]
X = torch.arange(12.0).reshape(3, 4)
Y = 2 * X + torch.tensor([1.0, 2.0, 3.0, 4.0])


def refused(path: Path, **options: bool) -> str:
    with pytest.raises(RuntimeError) as raised:
        _runtime.Model.from_file(path, **options)
    return str(raised.value)


def rewrite_trailer(path: Path, offset: int, layout: str, value: int) -> None:
    """Changes one field of the trailer."""
    data = bytearray(path.read_bytes())
    struct.pack_into(layout, data, len(data) - TRAILER_BYTES + offset, value)
    path.write_bytes(data)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def table_of(path: Path) -> list[Section]:
    with open_sections(path) as sections:
        return sections.sections


def rewrite_table(path: Path, sections: list[Section]) -> None:
    """Another table, with digests that are right for it."""
    data = path.read_bytes()
    at = len(data) - TRAILER_BYTES - SECTION_BYTES * 4
    table = pack_table(sections)
    path.write_bytes(data[:at] + table + pack_trailer(TRAILER_MAGIC, ABI_VERSION, at, table))


def test_from_file_outlives_the_file(build_toy: BuildToy) -> None:
    path = build_toy()
    model = _runtime.Model.from_file(path, verify=True)
    path.unlink()
    assert torch.equal(_runtime.Session(model)(X, 0)[0], Y)
    assert (model.name, model.producer, model.metadata) == ("toy", "toy 1.0", '{"toy": true}')
    assert (model.constants_bytes, model.state_bytes) == (24, 16)


def test_from_memory(build_toy: BuildToy) -> None:
    model = _runtime.Model.from_memory(bytearray(build_toy().read_bytes()), verify=True)
    assert torch.equal(_runtime.Session(model)(X, 0)[0], Y)
    with pytest.raises(RuntimeError, match="model in memory: not a dhlo model"):
        _runtime.Model.from_memory(b"hello")


def test_different_models_do_not_mix(build_toy: BuildToy) -> None:
    """The dynamic loader knows libraries by path; two models must not be taken for one."""
    for _ in range(3):
        first = _runtime.Model.from_file(build_toy())
        second = _runtime.Model.from_file(build_toy(add_one=True))
        assert len(first.inputs) == 2
        assert len(second.inputs) == 1
        del first
        third = _runtime.Model.from_file(build_toy())
        assert len(third.inputs) == 2
        assert torch.equal(_runtime.Session(second)(torch.zeros(2))[0], torch.ones(2))


def test_large_constants(build_elf: Callable[..., Path], tmp_path: Path) -> None:
    """More than the model declares is refused, after being read by several threads and hashed."""
    path = tmp_path / "large.so"
    blob = bytes(range(256)) * (40 << 12)
    write_model_file(path, build_elf().read_bytes(), [blob, blob[:17]], TOY_METADATA, "")
    assert "expected 24 bytes of constants, got 41943057" in refused(path)


def test_missing(tmp_path: Path) -> None:
    message = refused(tmp_path / "no.so")
    assert "no.so' cannot be opened" in message.replace(":", "")
    assert "No such file" in message
    assert "is not a regular file" in refused(tmp_path)


@pytest.mark.parametrize("cut", [1, 63, 64, 100, 5000])
def test_truncated(build_toy: BuildToy, cut: int) -> None:
    path = build_toy()
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-cut])
    message = refused(path)
    assert "truncated" in message
    assert str(path) in message
    assert str(size - cut) in message


def test_appended(build_toy: BuildToy) -> None:
    path = build_toy()
    data = path.read_bytes()
    path.write_bytes(data + bytes(4096) + data[-TRAILER_BYTES:])
    size = len(data)
    assert f"expected {size} bytes, got {size + 4096 + TRAILER_BYTES}" in refused(path)


@pytest.mark.parametrize("content", [b"", b"short", b"\x7fELF" + bytes(500), b"x" * 5000])
def test_foreign(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign.so"
    path.write_bytes(content)
    message = refused(path)
    assert "not a dhlo model" in message
    assert "expected trailer magic" in message


def test_trailer_on_something_else(tmp_path: Path) -> None:
    path = tmp_path / "text.so"
    write_model_file(path, b"not code" * 100, [], "{}", "")
    assert "not a 64-bit ELF shared object" in refused(path)


def test_other_architecture(build_elf: Callable[..., Path], tmp_path: Path) -> None:
    image = bytearray(build_elf().read_bytes())
    image[18:20] = struct.pack("<H", 20)  # e_machine: PowerPC
    path = tmp_path / "ppc.so"
    write_model_file(path, bytes(image), [], "{}", "")
    assert "built for ELF machine 20" in refused(path)


def test_other_versions(build_toy: BuildToy) -> None:
    path = build_toy()
    rewrite_trailer(path, 8, "<I", 7)
    assert "made for file format version 7; this runtime reads version 3: use a newer dhlo runtime or compile" in refused(path)
    rewrite_trailer(path, 8, "<I", 2)
    assert "file format version 2; this runtime reads version 3: compile the model again" in refused(path)
    path = build_toy()
    rewrite_trailer(path, 12, "<I", ABI_VERSION - 1)
    assert f"ABI version {ABI_VERSION - 1}; this runtime reads version {ABI_VERSION}: compile" in refused(path)
    for version in (ABI_VERSION - 1, ABI_VERSION + 1):
        assert f"code for ABI version {version}" in refused(build_toy(f"TOY_VERSION={version}"))


def test_every_part_is_verified(build_toy: BuildToy) -> None:
    """A flipped bit in any section, the table, the trailer or between them is found and named."""
    table = {s.kind: s for s in table_of(build_toy())}
    for name, kind in SECTION.items():
        if kind in table and table[kind].nbytes:
            path = build_toy()
            flip(path, table[kind].offset + table[kind].nbytes // 2)
            assert f"damaged {name}: expected SHA-256 " in refused(path), name
    path = build_toy()
    size = path.stat().st_size
    flip(path, size - TRAILER_BYTES - 10)
    assert "damaged table of sections: expected SHA-256" in refused(path)
    path = build_toy()
    end = table[SECTION["constants"]].offset + table[SECTION["constants"]].nbytes
    assert end % SECTION_ALIGN
    flip(path, end)
    assert f"damaged padding at {end}" in refused(path)
    for value in (2**63, 2**64 - 8, size):
        path = build_toy()
        rewrite_trailer(path, 24, "<Q", value)
        assert "damaged trailer: its table of sections" in refused(path)


def test_constants_are_verified_unless_told_not_to(build_toy: BuildToy) -> None:
    path = build_toy()
    (constants,) = (s for s in table_of(path) if s.kind == SECTION["constants"])
    flip(path, constants.offset)
    assert "damaged constants" in refused(path)
    assert "damaged constants" in refused(path, verify=True)
    with pytest.raises(RuntimeError, match="damaged constants"):
        _runtime.Model.from_memory(path.read_bytes())
    model = _runtime.Model.from_file(path, verify=False)
    assert not torch.equal(_runtime.Session(model)(X, 0)[0], Y)


def test_tables_that_lie(build_toy: BuildToy) -> None:
    """Tables whose own digest is right."""
    good = table_of(build_toy())

    def with_row(n: int, **changes: int) -> list[Section]:
        rows = [Section(**{**vars(s), **(changes if i == n else {})}) for i, s in enumerate(good)]
        return rows

    cases = {
        "unknown kind 9": with_row(1, kind=9),
        "two sections of code": with_row(1, kind=1),
        "constants of 24 bytes at 64 overlaps": with_row(1, offset=64),
        "overlaps its neighbours": with_row(3, nbytes=2**64 - 1),
        "leaves a gap": with_row(3, offset=2**64 - 1),
        "code of": with_row(0, nbytes=good[0].nbytes + 200),
    }
    for text, rows in cases.items():
        path = build_toy()
        rewrite_table(path, rows)
        message = refused(path)
        assert "damaged table of sections" in message and text in message, message
    path = build_toy()
    rewrite_table(path, good[:-1])
    assert "there is no section of features" in refused(path) or "gap" in refused(path)


def test_code_and_sections_must_agree(build_elf: Callable[..., Path], tmp_path: Path) -> None:
    for metadata, features in (("{}", ""), (TOY_METADATA, "sse2")):
        path = tmp_path / "other.so"
        write_model_file(path, build_elf().read_bytes(), [TOY_CONSTANTS], metadata, features)
        assert "code and sections describe different models" in refused(path)


def test_a_model_for_another_cpu_runs_none_of_its_code(build_elf: Callable[..., Path], tmp_path: Path) -> None:
    """Nor its constructors."""
    source = tmp_path / "constructor.c"
    source.write_text(
        '#include <stdio.h>\n__attribute__((constructor)) static void f(void) { fclose(fopen("%s", "w")); }' % (tmp_path / "ran")
    )
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(tmp_path / "code")], check=True)
    path = tmp_path / "model.so"
    write_model_file(path, (tmp_path / "code").read_bytes(), [], "{}", "sse2,nosuch")
    assert "processor lacks nosuch" in refused(path)
    write_model_file(path, (tmp_path / "code").read_bytes(), [b"12345678"], "{}", "")
    flip(path, next(s.offset for s in table_of(path) if s.kind == SECTION["constants"]))
    assert "damaged constants" in refused(path)
    with pytest.raises(RuntimeError, match="doesn't authorize"):
        _runtime.Model.from_file(path, authorize=lambda digest: False)
    write_model_file(path, (tmp_path / "code").read_bytes(), [], "{}", "")
    assert "does not export" in refused(path)
    assert not (tmp_path / "ran").exists()


def test_authorize(build_toy: BuildToy) -> None:
    path = build_toy()
    seen: list[bytes] = []

    def accept(digest: bytes) -> bool:
        seen.append(digest)
        return True

    model = _runtime.Model.from_file(path, authorize=accept)
    assert torch.equal(_runtime.Session(model)(X, 0)[0], Y)
    _runtime.Model.from_memory(path.read_bytes(), authorize=accept)
    assert seen == [hashlib.sha256(path.read_bytes()[-TRAILER_BYTES:]).digest()] * 2
    with pytest.raises(RuntimeError, match=f"doesn't authorize the file with SHA-256 {seen[0].hex()}") as raised:
        _runtime.Model.from_file(path, authorize=lambda digest: 0)
    assert raised.value.status == "untrusted"  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError):
        _runtime.Model.from_file(path, authorize=lambda digest: 1 // 0)


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in refused(tmp_path / "pipe")


# Two models whose inputs differ in number, loaded by a host that closes all its descriptors after each.
CLOSING_HOST = """
import os, sys
from dhlo import _runtime
models = []
for path, inputs in zip(sys.argv[1:], (2, 1, 2, 1)):
    models.append(_runtime.Model.from_file(path))
    assert len(models[-1].inputs) == inputs, (path, len(models[-1].inputs))
    os.closerange(3, 1000)
import torch
assert torch.equal(_runtime.Session(models[1])(torch.zeros(2))[0], torch.ones(2))
print("done")
"""


def run_host(*paths: Path, prefix: tuple[str, ...] = (), **environment: str) -> str:
    """Standard output of CLOSING_HOST."""
    command = [*prefix, sys.executable, "-c", CLOSING_HOST, *map(str, paths)]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_host_that_closes_its_descriptors_gets_the_right_code(build_toy: BuildToy) -> None:
    assert run_host(build_toy(), build_toy(add_one=True), build_toy(), build_toy(add_one=True)) == "done\n"


def test_nothing_stays_open(build_toy: BuildToy) -> None:
    before = len(os.listdir("/proc/self/fd"))
    models = [_runtime.Model.from_file(build_toy()) for _ in range(5)]
    assert len(models) == 5 and len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="hides /proc, which takes root")
def test_without_proc(build_toy: BuildToy, tmp_path: Path) -> None:
    """And without a folder that could be executed from."""
    mounts = 'mount -t tmpfs none /proc && mount -t tmpfs -o noexec none "$TMPDIR"'
    prefix = ("unshare", "-m", "sh", "-c", mounts + ' && exec "$@"', "sh")
    paths = (build_toy(), build_toy(add_one=True), build_toy(), build_toy(add_one=True))
    assert run_host(*paths, prefix=prefix, TMPDIR=str(tmp_path)) == "done\n"


def test_a_missing_function_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "f.c").write_text("int nosuchfunction(void); int f(void) { return nosuchfunction(); }")
    subprocess.run(["cc", "-shared", "-fPIC", str(tmp_path / "f.c"), "-o", str(tmp_path / "f.so")], check=True)
    write_model_file(tmp_path / "model.so", (tmp_path / "f.so").read_bytes(), [], "{}", "")
    assert refused(tmp_path / "model.so").count("nosuchfunction") == 1


def test_missing_cpu_feature(build_toy: BuildToy) -> None:
    path = build_toy('TOY_CPU_FEATURES="sse2,frobnicate512,avx1024"')
    with pytest.raises(RuntimeError, match="processor lacks frobnicate512, avx1024") as raised:
        _runtime.Model.from_file(path)
    assert raised.value.status == "cpu"  # type: ignore[attr-defined]


def test_cpu_features_against_the_kernel() -> None:
    """Linux's own list, where it spells a feature differently or hides it, is mapped to LLVM's names."""
    flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")).split()
    same = ["sse", "sse2", "ssse3", "sse4a", "avx", "fma", "f16c", "avx2", "bmi2", "popcnt", "movbe", "aes", "avx512f",
            "avx512bw", "avx512dq", "avx512vl", "avx512cd", "avx512ifma", "avx512vbmi", "gfni", "vaes",
            "vpclmulqdq", "adx", "clwb"]  # fmt: skip
    different = {"sse4.1": "sse4_1", "sse4.2": "sse4_2", "avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16",
                 "avx512fp16": "avx512_fp16", "amx-tile": "amx_tile", "bmi": "bmi1", "lzcnt": "abm", "sse3": "pni",
                 "avxvnni": "avx_vnni", "avx512vbmi2": "avx512_vbmi2", "avx512bitalg": "avx512_bitalg"}  # fmt: skip
    for llvm, linux in {**{name: name for name in same}, **different}.items():
        assert _runtime.cpu_supports(llvm) == (linux in flags), llvm
    assert not _runtime.cpu_supports("nosuch")
