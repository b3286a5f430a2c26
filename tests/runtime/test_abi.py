"""`codegen/kernel_ir/abi.py` mirrors `abi.h`: the C compiler's offsets, sizes and enum values against Python's."""

import hashlib
import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dhlo import _runtime, container
from dhlo.codegen.kernel_ir import abi

ROOT = Path(__file__).resolve().parents[2]
STRUCTS = {
    "dhlo_tensor": (abi.TENSOR, abi.TENSOR_BYTES),
    "dhlo_abi_call": (abi.CALL, abi.CALL_BYTES),
    "dhlo_abi_check": (abi.CHECK, abi.CHECK_BYTES),
    "dhlo_abi_value": (abi.VALUE, abi.VALUE_BYTES),
    "dhlo_abi_state": (abi.STATE, abi.STATE_BYTES),
    "dhlo_abi_symbol": (abi.SYMBOL, abi.SYMBOL_BYTES),
    "dhlo_abi_level": (abi.LEVEL, abi.LEVEL_BYTES),
    "dhlo_abi_pool": (abi.POOL, abi.POOL_BYTES),
    "dhlo_abi_page_group": (abi.PAGE_GROUP, abi.PAGE_GROUP_BYTES),
    "dhlo_abi_adapted": (abi.ADAPTED, abi.ADAPTED_BYTES),
    "dhlo_abi_adapters": (abi.ADAPTERS, abi.ADAPTERS_BYTES),
    "dhlo_abi_paging": (abi.PAGING, abi.PAGING_BYTES),
    "dhlo_abi_process_group": (abi.PROCESS_GROUP, abi.PROCESS_GROUP_BYTES),
    "dhlo_abi_collective": (abi.COLLECTIVE, abi.COLLECTIVE_BYTES),
    "dhlo_abi_code": (abi.CODE, abi.CODE_BYTES),
    "dhlo_abi_entry": (abi.ENTRY, abi.ENTRY_BYTES),
    "dhlo_abi_model": (abi.MODEL, abi.MODEL_BYTES),
}
DTYPE_ENUM = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "float16": "F16",
    "bfloat16": "BF16", "float32": "F32", "float64": "F64", "complex64": "C64", "complex128": "C128",
    "float8_e4m3fn": "F8E4M3FN", "float8_e5m2": "F8E5M2", "complex32": "C32", "uint64": "U64",
}  # fmt: skip


def evaluate(expressions: list[str], folder: Path) -> dict[str, int]:
    """Values of integer C expressions over abi.h."""
    lines = "".join(f'printf("%llu\\n", (unsigned long long)({e}));' for e in expressions)
    source = folder / "values.c"
    source.write_text(f'#include <stddef.h>\n#include <stdio.h>\n#include "dhlo/abi.h"\nint main(void) {{{lines} return 0; }}')
    subprocess.run(["cc", f"-I{ROOT / 'runtime/include'}", str(source), "-o", str(folder / "values")], check=True)
    output = subprocess.run([str(folder / "values")], check=True, capture_output=True, text=True).stdout
    return dict(zip(expressions, map(int, output.split()), strict=True))


def test_offsets_enums_and_constants(tmp_path: Path) -> None:
    expected: dict[str, int] = {
        "DHLO_ABI_MAGIC": abi.ABI_MAGIC,
        "DHLO_ABI_VERSION": abi.ABI_VERSION,
        "DHLO_ABI_MAX_RANK": abi.MAX_RANK,
        "DHLO_ABI_MAX_LEVELS": abi.MAX_LEVELS,
        "DHLO_ABI_MAX_ENTRIES": abi.MAX_ENTRIES,
        "DHLO_MACHINE_FIELDS": abi.MACHINE_FIELDS,
        "DHLO_PLAN_FIELDS": abi.PLAN_FIELDS,
        "DHLO_TRAILER_MAGIC": abi.TRAILER_MAGIC,
        "DHLO_DTYPE_COUNT": len(abi.DTYPES),
        "DHLO_FILE_FORMAT": container.FILE_FORMAT,
        "DHLO_SECTION_ALIGN": container.SECTION_ALIGN,
        "DHLO_DIGEST_PIECE": container.PIECE,
        "DHLO_MAX_SECTIONS": container.MAX_SECTIONS,
        "sizeof(dhlo_section)": container.SECTION_BYTES,
        "sizeof(dhlo_trailer)": container.TRAILER_BYTES,
    }
    for name, (fields, size) in STRUCTS.items():
        expected[f"sizeof({name})"] = size
        expected.update({f"offsetof({name}, {field})": offset for field, offset in fields.items()})
    expected.update({f"DHLO_{DTYPE_ENUM[name]}": code for name, code in abi.DTYPES.items()})
    expected.update({f"DHLO_SECTION_{name.upper()}": code for name, code in abi.SECTION.items()})
    expected.update({f"DHLO_MACHINE_{name.upper()}": index for name, index in abi.MACHINE.items()})
    expected.update({f"DHLO_CHECK_{name.upper()}": code for name, code in abi.CHECK_KIND.items()})
    expected.update({f"DHLO_{name.upper()}": code for name, code in (abi.COLLECTIVE_KIND | abi.REDUCTION).items()})
    assert evaluate(list(expected), tmp_path) == expected


def test_every_field_is_mirrored() -> None:
    header = (ROOT / "runtime/include/dhlo/abi.h").read_text()
    header = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    for name, (fields, _) in STRUCTS.items():
        body = re.search(rf"struct {name} \{{(.*?)\n\}}", header, flags=re.S)
        assert body is not None, name
        for declaration in filter(None, (d.strip() for d in body[1].split(";"))):
            pointer = re.match(r"[^(]*\(\*(\w+)\)", declaration, flags=re.S)
            names = [pointer[1]] if pointer else re.findall(r"(\w+)\s*(?=,|$)", declaration)
            assert set(names) <= set(fields), (name, declaration)
    assert f'"{abi.ABI_SYMBOL}"' in header


def test_dtype_sizes_agree_with_the_models_view(build_toy: Callable[..., Path]) -> None:
    assert abi.DTYPE_BYTES.keys() == abi.DTYPES.keys()
    model = _runtime.Model.from_file(build_toy())
    assert [v["dtype"] for v in model.inputs] == ["float32", "int64"]


@pytest.mark.parametrize("portable", [False, True])
def test_sha256_is_the_librarys(portable: bool) -> None:
    generator = random.Random(0)
    for length in [*range(200), 1000, 4095, 4096, 4097, 1 << 16, (1 << 20) + 13]:
        data = generator.randbytes(length)
        assert _runtime.sha256(data, portable) == hashlib.sha256(data).digest(), length
        assert _runtime.sha256(memoryview(data)[length // 3 :], portable) == hashlib.sha256(data[length // 3 :]).digest()


@pytest.mark.parametrize("length", [0, 1, 63, 1 << 20, (1 << 20) + 1, 2 << 20, (3 << 20) + 77, 4 << 20])
def test_section_digest_is_the_documented_one(length: int, tmp_path: Path) -> None:
    data = random.Random(length).randbytes(length)
    pieces = [hashlib.sha256(data[at : at + (1 << 20)]).digest() for at in range(0, length, 1 << 20)]
    expected = hashlib.sha256(b"".join(pieces)).digest()
    assert _runtime.section_digest(data) == expected
    path = tmp_path / "data"
    path.write_bytes(b"12345" + data)
    memory = bytearray(length)
    with path.open("rb") as file:
        assert _runtime.read_section(file.fileno(), 5, memory) == expected
        assert memory == data
        with pytest.raises(OSError, match="shorter"):
            _runtime.read_section(file.fileno(), 5, bytearray(length + 1))
        with pytest.raises((TypeError, BufferError)):
            _runtime.read_section(file.fileno(), 5, bytes(length))
