"""Loading model files: good ones from disk and memory; bad ones refused with a text that says what is wrong."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dhlo import _runtime
from dhlo.codegen.abi import TRAILER_BYTES, TRAILER_FORMAT, append_trailer

BuildToy = Callable[..., Path]
X = torch.arange(12.0).reshape(3, 4)
Y = 2 * X + torch.tensor([1.0, 2.0, 3.0, 4.0])


def refused(path: Path, **options: bool) -> str:
    with pytest.raises(RuntimeError) as raised:
        _runtime.Model.from_file(path, **options)
    return str(raised.value)


def rewrite_trailer(path: Path, index: int, value: int) -> None:
    """Changes one field of the trailer (in the order of TRAILER_FORMAT)."""
    data = path.read_bytes()
    fields = list(struct.unpack(TRAILER_FORMAT, data[-TRAILER_BYTES:]))
    fields[index] = value
    path.write_bytes(data[:-TRAILER_BYTES] + struct.pack(TRAILER_FORMAT, *fields))


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_from_file_outlives_the_file(build_toy: BuildToy) -> None:
    path = build_toy()
    model = _runtime.Model.from_file(path, verify_constants=True)
    path.unlink()
    assert torch.equal(_runtime.Session(model)(X, 0)[0], Y)
    assert (model.name, model.producer, model.metadata) == ("toy", "toy 1.0", '{"toy": true}')
    assert (model.constants_bytes, model.state_bytes) == (24, 16)


def test_from_memory(build_toy: BuildToy) -> None:
    model = _runtime.Model.from_memory(bytearray(build_toy().read_bytes()), verify_constants=True)
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
    append_trailer(build_elf(), [blob, blob[:17]], path)
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
    append_trailer(b"not code" * 100, [], path)
    assert "not a 64-bit ELF shared object" in refused(path)


def test_other_architecture(build_elf: Callable[..., Path], tmp_path: Path) -> None:
    image = bytearray(build_elf().read_bytes())
    image[18:20] = struct.pack("<H", 20)  # e_machine: PowerPC
    path = tmp_path / "ppc.so"
    append_trailer(bytes(image), [], path)
    assert "built for ELF machine 20" in refused(path)


def test_newer(build_toy: BuildToy) -> None:
    path = build_toy()
    rewrite_trailer(path, 1, 7)
    message = refused(path)
    assert "version 7; this runtime reads version 3" in message
    assert "newer dhlo runtime" in message
    assert "code for ABI version 3" in refused(build_toy("TOY_VERSION=3"))


def test_damaged(build_toy: BuildToy) -> None:
    path = build_toy()
    flip(path, 4096)
    assert "damaged code: expected hash 0x" in refused(path)
    path = build_toy()
    flip(path, path.stat().st_size - TRAILER_BYTES - 24)
    assert "damaged constants: expected hash 0x" in refused(path, verify_constants=True)
    path = build_toy()
    rewrite_trailer(path, 4, 2**63)
    assert "do not fit" in refused(path)
    rewrite_trailer(path, 4, 2**64 - 8)
    assert "do not fit" in refused(path)


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
