"""Mutated model files and cache entries: each is refused with an error of its own, or is the file that it was; never a crash, a
hang, another answer or a traceback. Code and weights with digests that were made right again are another model: not touched."""

import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim
from typer.testing import CliRunner

import dhlo
from dhlo import _runtime
from dhlo import cache as cache_module
from dhlo.api import build
from dhlo.cache import Cache
from dhlo.cli import app
from dhlo.codegen.kernel_ir.abi import ABI_VERSION, SECTION, TRAILER_MAGIC, WEIGHTS_MAGIC
from dhlo.compiler import Artifact
from dhlo.container import SECTION_BYTES, TRAILER_BYTES, Container, pack_table, pack_trailer, write_sections
from dhlo.model_file import open_sections, open_weights, write_weights_file
from tests.targets import TARGET

KEY = "0" * 64
COUNTS = [300, pytest.param(10_000, marks=pytest.mark.slow)]
NUMBERS = (0, 1, 7, 63, 64, 65, 1 << 20, 1 << 31, 1 << 32, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 64, (1 << 64) - 1)
VALUES: tuple[Any, ...] = (None, True, -1, 0, 1 << 70, 0.5, "", "x", "\0", "\x1b[2J", [], {}, [[]], {"a": {}}, "nan", ["x"] * 3)


# ---------------------------------------------------------------------------------------------------- mutators
def any_bytes(data: bytes, r: random.Random) -> bytes:
    """Bits, bytes or whole parts changed, lost, added, doubled or exchanged, anywhere in a file, more often near its end."""
    out = bytearray(data)

    def place() -> int:
        return r.randrange(len(out)) if r.random() < 0.5 else max(0, len(out) - 1 - r.randrange(400))

    for _ in range(r.choice((1, 1, 1, 2, 5))):
        at, length = place(), r.choice((1, 2, 8, 64, 1000))
        match r.randrange(8):
            case 0 | 1:
                out[at] ^= 1 << r.randrange(8)
            case 2:
                out[at : at + length] = r.randbytes(length)
            case 3:
                del out[at : at + r.choice((length, len(out)))]
            case 4:
                out[at:at] = r.choice((bytes(length), r.randbytes(length)))
            case 5:
                out += r.choice((bytes(length), r.randbytes(length), data, data[-TRAILER_BYTES:]))
            case 6:
                out[at : at + 8] = struct.pack("<Q", r.choice(NUMBERS))
            case _:
                other = place()
                out[at : at + length], out[other : other + length] = out[other : other + length], out[at : at + length]
        if not out:
            break
    return bytes(out)


def table_that_lies(data: bytes, magic: int, abi: int, names: dict[str, int], r: random.Random) -> bytes:
    """Other rows in the table of sections, with digests that are right for them."""
    with parse(data, magic, abi, names) as sections:
        rows = list(sections.sections)
    at = len(data) - TRAILER_BYTES - SECTION_BYTES * len(rows)
    for _ in range(r.choice((1, 1, 2))):
        n = r.randrange(len(rows)) if rows else 0
        match r.randrange(6):
            case 0:
                rows[n:n] = rows[n : n + 1] * r.choice((1, 2, 300))
            case 1:
                rows[n : n + 1] = []
            case 2:
                r.shuffle(rows)
            case _:
                field = r.choice(("kind", "offset", "nbytes"))
                if rows:
                    value = r.choice((*NUMBERS, rows[n].offset + r.randrange(-70, 70)))
                    rows[n] = replace(rows[n], **{field: value % (1 << (32 if field == "kind" else 64))})
    table = pack_table(rows)
    return data[:at] + table + pack_trailer(magic, abi, at, table)


def other_texts(data: bytes, magic: int, abi: int, names: dict[str, int], texts: Iterable[str], r: random.Random) -> bytes:
    """Sections of text changed, with digests that are right for them."""
    with parse(data, magic, abi, names) as sections:
        content = [(s.kind, sections.read(s)) for s in sections.sections]
    kinds = [names[t] for t in texts]
    chosen = r.choice(kinds)
    return assemble(magic, abi, [(k, other_json(x, r) if k == chosen else x) for k, x in content])


def other_json(text: bytes, r: random.Random) -> bytes:
    """A value somewhere in it replaced or left out; or the text damaged."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or r.random() < 0.3:
        return r.choice((any_bytes(text or b"{}", r), b"", b"[" * 100_000, b'{"a":' * 5000, b"\xff\xfe", b"9" * 5000, b"NaN"))
    node: Any = value
    while True:
        places = list(node) if isinstance(node, dict) else range(len(node))
        if not places:
            return json.dumps(value).encode()
        key = r.choice(list(places))
        if isinstance(node[key], (dict, list)) and r.random() < 0.7:
            node = node[key]
            continue
        if r.random() < 0.3:
            del node[key]
        else:
            node[key] = r.choice(VALUES)
        return json.dumps(value).encode()


def parse(data: bytes, magic: int, abi: int, names: dict[str, int]) -> Container:
    fd = os.memfd_create("whole")
    os.write(fd, data)
    return Container(fd, "whole", magic, abi, {k: n for n, k in names.items()})


def assemble(magic: int, abi: int, content: list[tuple[int, bytes]]) -> bytes:
    fd = os.memfd_create("changed")
    try:
        write_sections(fd, magic, abi, [(k, [x]) for k, x in content])
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


def mutations(
    data: bytes, magic: int, abi: int, names: dict[str, int], texts: list[str], count: int, seed: int
) -> Iterable[tuple[str, bytes]]:
    """`count` mutations, each with words to find it again."""
    kinds: list[Callable[[random.Random], bytes]] = [
        lambda r: any_bytes(data, r), lambda r: any_bytes(data, r), lambda r: table_that_lies(data, magic, abi, names, r),
        lambda r: other_texts(data, magic, abi, names, texts, r)]  # fmt: skip
    for n in range(count):
        yield f"mutation {n} of seed {seed}", kinds[n % len(kinds)](random.Random(f"{seed} {n}"))


# ---------------------------------------------------------------------------------------------------- model files
class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(6.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x * self.weight)


@pytest.fixture(scope="module")
def compiled() -> dhlo.CompiledModel:
    return dhlo.compile(torch.export.export(Small(), (torch.randn(3, 6),), dynamic_shapes=({0: Dim("rows")},)), cache="")


@pytest.mark.parametrize("count", COUNTS)
def test_model_files(compiled: dhlo.CompiledModel, tmp_path: Path, count: int) -> None:
    path = tmp_path / "model.so"
    compiled.save(path)
    data, x = path.read_bytes(), torch.randn(2, 6)
    expected = compiled(x)
    refused = 0
    for n, (what, changed) in enumerate(mutations(data, TRAILER_MAGIC, ABI_VERSION, SECTION, ["metadata", "features"], count, 1)):
        try:
            model = _runtime.Model.from_memory(changed)
        except RuntimeError as e:
            assert e.status in ("format", "version", "cpu"), (what, e)  # type: ignore[attr-defined]
            refused += 1
        else:
            assert changed == data and torch.equal(_runtime.Session(model)(x)[0], expected), what
        if n % 10 == 0:
            path.write_bytes(changed)
            for command in (["inspect"], ["verify"], ["inspect", "--groups", "--kernels", "--buffers"]):
                result = CliRunner().invoke(app, [command[0], str(path), *command[1:]])
                assert result.exit_code in (0, 1), (what, command, result.exception)
                assert result.exception is None or isinstance(result.exception, SystemExit), (what, result.exception)
    assert refused > 0.9 * count


@pytest.mark.parametrize("count", COUNTS)
def test_weights_files(compiled: dhlo.CompiledModel, tmp_path: Path, count: int) -> None:
    """Beside a model file, and brought by a host; and model files that name one."""
    path, x = tmp_path / "model.so", torch.randn(2, 6)
    compiled.save(path, weights_file="model.weights")
    weights, expected = tmp_path / "model.weights", compiled(x)
    with open_sections(path) as sections:
        code = sections.only(SECTION["code"]).digest
        row = sections.read(sections.only(SECTION["weights_file"]))
    with open_weights(weights) as held:
        constants = held.read(held.only(SECTION["constants"]))
    write_weights_file(weights, [constants], [bytes(32), code])
    model, data = path.read_bytes(), weights.read_bytes()

    def check(what: str, same: bool, load: Callable[[], _runtime.Model]) -> bool:
        try:
            loaded = load()
        except RuntimeError as e:
            assert e.status in ("format", "version", "cpu", "input/output"), (what, e)  # type: ignore[attr-defined]
            return True
        assert same or torch.equal(_runtime.Session(loaded)(x)[0], expected), what
        return False

    refused = 0
    for n, (what, changed) in enumerate(mutations(data, WEIGHTS_MAGIC, ABI_VERSION, SECTION, ["code_digests"], count // 2, 4)):
        refused += check(what, changed == data, lambda data=changed: _runtime.Model.from_file(path, weights=data))  # type: ignore[misc]
        if n % 10 == 0:
            weights.write_bytes(changed)
            check(what, changed == data, lambda: _runtime.Model.from_file(path))
            for command in ("inspect", "verify"):
                result = CliRunner().invoke(app, [command, str(path)])
                assert result.exit_code in (0, 1) and isinstance(result.exception, SystemExit | None), (what, result.exception)
    weights.write_bytes(data)
    for what, changed in mutations(model, TRAILER_MAGIC, ABI_VERSION, SECTION, ["weights_file"], count // 2, 5):
        other = tmp_path / "other.so"
        other.write_bytes(changed)
        refused += check(what, changed == model, lambda path=other: _runtime.Model.from_file(path))  # type: ignore[misc]
    assert len(row) == 40 + len("model.weights") and refused > 0.5 * count


def test_a_running_host_survives_all(compiled: dhlo.CompiledModel, tmp_path: Path) -> None:
    """Mutations of files on disk, in a process of its own, which must end well."""
    path = tmp_path / "model.so"
    compiled.save(path)
    data = path.read_bytes()
    paths = []
    for n, (_, changed) in enumerate(mutations(data, TRAILER_MAGIC, ABI_VERSION, SECTION, ["metadata", "features"], 40, 2)):
        paths.append(tmp_path / f"{n}.so")
        paths[-1].write_bytes(changed)
    script = (
        "import sys, dhlo\nrefused = 0\nfor path in sys.argv[2:]:\n"
        "    try: dhlo.load(path)\n    except dhlo.ModelFileError: refused += 1\n"
        "dhlo.load(sys.argv[1])\nprint(refused)\n"
    )
    command = [sys.executable, "-c", script, str(path), *map(str, paths)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) >= 35


# ---------------------------------------------------------------------------------------------------- cache entries
@pytest.mark.parametrize("count", COUNTS)
def test_cache_entries(tmp_path: Path, count: int) -> None:
    exported = torch.export.export(Small(), (torch.randn(3, 6),), dynamic_shapes=({0: Dim("rows")},))
    artifact = build(exported, dhlo.Options(cache=""))[1]
    cache = Cache(tmp_path)
    cache.put(KEY, artifact)
    (entry,) = tmp_path.iterdir()
    data = entry.read_bytes()
    missed = 0
    names = cache_module._KINDS
    for what, changed in mutations(data, cache_module._MAGIC, cache_module._VERSION, names, ["facts"], count, 3):
        entry.write_bytes(changed)
        found = cache.get(KEY, [TARGET])
        if found is None:
            missed += 1
        else:
            assert same_code(found, artifact), what
    assert missed > 0.7 * count  # much of the metadata may be anything
    cache.put(KEY, artifact)
    assert entry.read_bytes() == data


def same_code(a: Artifact, b: Artifact) -> bool:
    blobs = [b"".join(chunk.tobytes() for chunk in x.constants.chunks()) for x in (a, b)]
    return a.objects == b.objects and a.planned == b.planned and a.llvm_ir == b.llvm_ir and blobs[0] == blobs[1]
