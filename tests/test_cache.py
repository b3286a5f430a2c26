"""The cache of compiled programs: found again when nothing changed, not found when something did, shared by processes and users,
and never the reason why a compilation fails."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import dhlo
from dhlo import cache as cache_module
from dhlo.api import build
from dhlo.cache import Cache, program_key
from dhlo.codegen.target import parse_targets
from dhlo.compiler import Artifact, compile_program
from dhlo.container import atomic_write, write_sections
from dhlo.frontend import import_program
from tests.targets import TARGET

ROOT = Path(__file__).resolve().parents[1]
KEY = "0" * 64
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes the place of other users, which takes root")


def export(weight: float) -> torch.export.ExportedProgram:
    m = torch.nn.Linear(5, 3)
    torch.nn.init.constant_(m.weight, weight)
    torch.nn.init.zeros_(m.bias)
    return torch.export.export(m, (torch.ones(2, 5),), dynamic_shapes=({0: Dim.DYNAMIC},))


def entries(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return build(export(1.0), dhlo.Options(cache=""))[1]


@pytest.fixture
def no_warnings() -> Any:
    cache_module._warn.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def get(cache: Cache, key: str = KEY) -> Artifact | None:
    return cache.get(key, [TARGET])


# ---------------------------------------------------------------------------------------------------- keys
def test_found_again_unless_something_changed(tmp_path: Path) -> None:
    x = torch.ones(7, 5)
    folder = tmp_path / "cache"
    first = dhlo.compile(export(1.0), cache=str(folder))
    one = entries(folder)
    assert len(one) == 1
    again = dhlo.compile(export(1.0), cache=str(folder))
    assert entries(folder) == one
    assert torch.equal(first(x), again(x)) and again(x)[0, 0] == 5
    other = dhlo.compile(export(2.0), cache=str(folder))  # the same program with other weights
    assert len(entries(folder)) == 2 and other(x)[0, 0] == 10
    for entry in folder.iterdir():  # evicted: what was read from it is still there
        entry.unlink()
    again.save(tmp_path / "model.so")
    assert torch.equal(dhlo.load(tmp_path / "model.so")(x), first(x))


def test_options_that_make_another_program_make_another_entry(tmp_path: Path) -> None:
    """Formats of weights and Winograd's algorithm are part of the key; what is found tells how its weights are stored."""
    options: list[dict[str, Any]] = [
        {},
        {"weights": "int8"},
        {"weights": "int4"},
        {"weights": {"default": "int8", "weight": "f32"}},
        {"weights": {"default": "int8", "max_error": 0.5}},
        {"winograd": False},
    ]
    for _ in range(2):
        for given in options:
            model = dhlo.compile(export(1.0), cache=str(tmp_path), **given)
            formats = [r["format"] for r in json.loads(model.metadata)["quantised"]]
            assert formats == {0: [], 1: ["int8"], 2: ["int4"], 3: ["f32"], 4: ["int8"], 5: []}[options.index(given)]
            assert (model(torch.ones(2, 5)) - 5).abs().max() < 0.02
        assert len(entries(tmp_path)) == len(options)


class Scale(torch.nn.Module):
    def __init__(self, factors: list[float]) -> None:
        super().__init__()
        self.factors = torch.nn.Parameter(torch.tensor(factors))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factors


def scale(factors: list[float]) -> torch.export.ExportedProgram:
    return torch.export.export(Scale(factors), (torch.ones(2, 4),), dynamic_shapes=({0: Dim.DYNAMIC},))


def test_weights_that_differ_only_in_signs_are_different_programs(tmp_path: Path) -> None:
    ones = [1.0, 1.0, 1.0, 1.0]
    signs = [1.0, -1.0, -1.0, -1.0]
    assert dhlo.compile(scale(ones), cache=str(tmp_path))(torch.ones(1, 4)).tolist() == [ones]
    assert dhlo.compile(scale(signs), cache=str(tmp_path))(torch.ones(1, 4)).tolist() == [signs]


def test_the_key_holds_everything_that_makes_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def key() -> str:
        cache_module._compiler_parts.cache_clear()
        return program_key(import_program(export(1.0)), [TARGET], dhlo.Options(name="model"))

    try:
        first = key()
        assert key() == first
        for package in cache_module._PACKAGES:
            with monkeypatch.context() as m:
                m.setattr(cache_module, "version", lambda name, p=package: "other" if name == p else "same")
                changed = key()
                m.setattr(cache_module, "version", lambda name: "same")
                assert key() != changed, package
        read = Path.read_bytes
        for name in ("_runtime", "cache.py", "emit.py"):
            with monkeypatch.context() as m:
                m.setattr(Path, "read_bytes", lambda p, n=name: read(p) + b" " * (n in p.name))
                assert key() != first, name
    finally:
        cache_module._compiler_parts.cache_clear()


def test_programs_for_other_targets_are_other_entries(tmp_path: Path) -> None:
    """Of a program for several targets each part is still known to be for its own."""
    program = import_program(export(1.0))
    names = ("x86-64-v3", "x86-64-v4", "x86-64-v4+bf16", "x86-64-v3,x86-64-v4", "x86-64-v4,x86-64-v4+bf16", "aarch64")
    assert len({program_key(program, parse_targets(n), dhlo.Options(name="model")) for n in names}) == len(names)
    targets = parse_targets("x86-64-v3,x86-64-v4")
    made = compile_program(program, dhlo.Options(), targets=targets)
    cache = Cache(tmp_path)
    cache.put(KEY, made)
    found = cache.get(KEY, targets)
    assert found is not None and found.targets == made.targets and found.objects == made.objects
    assert cache.get(KEY, targets[:1]) is None


# ---------------------------------------------------------------------------------------------------- damage
def test_entries_are_whole_programs(tmp_path: Path, artifact: Artifact, no_warnings: None) -> None:
    cache = Cache(tmp_path)
    assert get(cache) is None
    cache.put(KEY, artifact)
    found = get(cache)
    assert found is not None
    blob = b"".join(chunk.tobytes() for chunk in artifact.constants.chunks())
    assert b"".join(chunk.tobytes() for chunk in found.constants.chunks()) == blob
    for field in ("objects", "planned", "metadata", "llvm_ir"):
        assert getattr(found, field) == getattr(artifact, field), field


def test_damaged_or_lost_entries_are_replaced(tmp_path: Path) -> None:
    x = torch.ones(1, 5)
    assert dhlo.compile(export(1.0), cache=str(tmp_path))(x)[0, 0] == 5
    (entry,) = tmp_path.iterdir()
    good = entry.read_bytes()
    for damage in (good[:-1], good[:5000] + b"\xff" + good[5001:]):
        entry.write_bytes(damage)
        assert dhlo.compile(export(1.0), cache=str(tmp_path))(x)[0, 0] == 5
        assert entry.read_bytes() == good
    entry.unlink()
    assert dhlo.compile(export(1.0), cache=str(tmp_path))(x)[0, 0] == 5
    assert entry.read_bytes() == good


def test_an_entry_under_another_key_is_not_used(tmp_path: Path, artifact: Artifact) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, artifact)
    (entry,) = tmp_path.iterdir()
    entry.rename(tmp_path / entry.name.replace("0", "1"))
    assert get(cache, "1" * 64) is None


def test_nothing_in_an_entry_is_unpickled(tmp_path: Path, artifact: Artifact) -> None:
    Cache(tmp_path).put(KEY, artifact)
    (entry,) = tmp_path.iterdir()
    assert b"\x80\x04\x95" not in entry.read_bytes()
    assert "pickle" not in Path(cache_module.__file__).read_text().replace("unpickled", "")


# ---------------------------------------------------------------------------------------------------- bounds
def test_old_entries_go_when_the_folder_is_full(tmp_path: Path, artifact: Artifact) -> None:
    keys = [str(n) * 64 for n in range(4)]
    Cache(tmp_path).put(keys[0], artifact)
    (entry,) = tmp_path.iterdir()
    cache = Cache(tmp_path, max_bytes=3 * entry.stat().st_size)
    (tmp_path / "foreign").write_bytes(bytes(10))
    for n, key in enumerate(keys[1:3], 1):
        cache.put(key, artifact)
        os.utime(tmp_path / f"{key}.entry", (n, n))
    os.utime(entry, (0, 0))
    assert get(cache, keys[0]) is not None  # now the one used last
    cache.put(keys[3], artifact)
    assert [get(cache, k) is not None for k in keys] == [True, False, True, True]
    Cache(tmp_path, max_bytes=0).put(keys[1], artifact)
    assert entries(tmp_path) == [f"{keys[1]}.entry", "foreign"]


# Puts and gets entries as fast as it can, in a folder that is always too small.
RACER = """
import sys, random
from tests.test_cache import KEY, get
from dhlo.cache import Cache
artifact = get(Cache(sys.argv[1]))
cache = Cache(sys.argv[2], max_bytes=150_000)
choose = random.Random(int(sys.argv[3]))
hits = 0
for _ in range(int(sys.argv[4])):
    key = str(choose.randrange(4)) * 64
    found = get(cache, key)
    if found is None:
        cache.put(key, artifact)
    else:
        hits += 1
        assert found.objects == artifact.objects
print(hits)
"""


def test_several_processes(tmp_path: Path, artifact: Artifact) -> None:
    Cache(tmp_path / "whole").put(KEY, artifact)
    folder = tmp_path / "raced"
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", RACER, str(tmp_path / "whole"), str(folder)]
    children = [subprocess.Popen([*command, str(n), "60"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for n in range(3)]  # fmt: skip
    for child in children:
        out, err = child.communicate()
        assert child.returncode == 0, err
        assert int(out) > 0
    assert all(name.endswith(".entry") for name in entries(folder))
    Cache(folder, max_bytes=150_000).put(KEY, artifact)
    assert sum(p.stat().st_size for p in folder.iterdir()) <= 150_000 + os.path.getsize(folder / f"{KEY}.entry")


# ---------------------------------------------------------------------------------------------------- killed
PUTTER = """
import os, sys
from tests.test_cache import KEY, get
from dhlo.cache import Cache
cache = Cache(sys.argv[1])
artifact = get(cache)
print("ready", flush=True)
while sys.stdin.readline():
    pid = os.fork()
    if pid == 0:
        while True:
            cache.put(KEY, artifact)
    print(pid, flush=True)
    os.waitpid(pid, 0)
"""


@pytest.mark.parametrize("times", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_while_putting(tmp_path: Path, artifact: Artifact, times: int) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, artifact)
    command = [sys.executable, "-c", PUTTER, str(tmp_path)]
    parent = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin is not None and parent.stdout is not None and parent.stdout.readline() == b"ready\n"
    pause = random.Random(0)
    for _ in range(times):
        parent.stdin.write(b"\n")
        parent.stdin.flush()
        pid = int(parent.stdout.readline())
        time.sleep(pause.uniform(0, 0.02))
        os.kill(pid, 9)
        found = get(cache)
        assert found is not None and found.objects == artifact.objects
        assert len(entries(tmp_path)) <= 3
    parent.communicate()
    cache.put(KEY, artifact)
    assert entries(tmp_path) == [f"{KEY}.entry"]


# ---------------------------------------------------------------------------------------------------- trouble with folders
def failing_after(calls: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with an error in place of every call after the first ones."""
    left = iter(range(calls))

    def replaced(*args: Any, **keywords: Any) -> Any:
        if next(left, None) is None:
            raise OSError(errno.EIO, "injected")
        return function(*args, **keywords)

    return replaced


def test_every_error_of_the_disk_is_a_miss(tmp_path: Path, artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each function of the operating system that the cache calls fails, in turn, on each of its calls."""
    names = ("open", "fstat", "pread", "write", "replace", "utime", "scandir", "unlink", "mkdir", "stat")
    for name in names:
        for failing in range(4):
            with monkeypatch.context() as m:
                m.setattr(os, name, failing_after(failing, getattr(os, name)))
                cache = Cache(tmp_path / name)
                cache.put(KEY, artifact)
                get(cache)
            cache.put(KEY, artifact)
            assert get(cache) is not None
            assert entries(tmp_path / name) == [f"{KEY}.entry"]


def test_folders_that_cannot_be_used(tmp_path: Path, artifact: Artifact) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nosuch"), Path("/dev/null")):
        cache = Cache(folder)
        cache.put(KEY, artifact)
        assert get(cache) is None
    (tmp_path / "cache" / f"{KEY}.entry").mkdir(parents=True)
    assert dhlo.compile(export(1.0), cache=str(tmp_path / "cache"))(torch.ones(1, 5))[0, 0] == 5
    os.rmdir(tmp_path / "cache" / f"{KEY}.entry")
    os.mkfifo(tmp_path / "cache" / f"{KEY}.entry")
    assert get(Cache(tmp_path / "cache")) is None
    os.unlink(tmp_path / "cache" / f"{KEY}.entry")
    os.symlink(__file__, tmp_path / "cache" / f"{KEY}.entry")
    assert get(Cache(tmp_path / "cache")) is None


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077, 0o000])
def test_entries_follow_the_umask_and_are_never_writable_by_others(tmp_path: Path, artifact: Artifact, umask: int) -> None:
    before = os.umask(umask)
    try:
        cache = Cache(tmp_path / "cache")
        cache.put(KEY, artifact)
    finally:
        os.umask(before)
    (entry,) = (tmp_path / "cache").iterdir()
    assert entry.stat().st_mode & 0o777 == 0o644 & ~umask
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o755 & ~umask
    assert get(cache) is not None


def test_what_others_can_write_is_not_read(tmp_path: Path, artifact: Artifact) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, artifact)
    (entry,) = tmp_path.iterdir()
    for path, mode in ((entry, 0o664), (entry, 0o646), (tmp_path, 0o775), (tmp_path, 0o1777)):
        usual = path.stat().st_mode
        path.chmod(mode)
        with pytest.warns(RuntimeWarning, match="others may write to it"):
            assert get(cache) is None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert get(cache) is None  # said once
        cache_module._warn.cache_clear()
        path.chmod(usual & 0o7777)
        assert get(cache) is not None


def other_user(folder: Path) -> tuple[bool, bool]:
    """Whether user 12345 finds the entry, and whether he can put another, in a process of his own."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(12345)
            os.setuid(12345)
            warnings.simplefilter("ignore")
            found = get(Cache(folder))
            if found is not None:
                Cache(folder).put("1" * 64, found)
            os.write(writable, bytes([found is not None, get(Cache(folder), "1" * 64) is not None]))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(writable)
    answer = os.read(readable, 2)
    os.close(readable)
    assert len(answer) == 2
    return bool(answer[0]), bool(answer[1])


@needs_root
def test_other_users(artifact: Artifact) -> None:
    """A folder that root filled hits for others, though they can't write to it; one of a third user hits for nobody but him."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        cache = Cache(folder)
        cache.put(KEY, artifact)
        (entry,) = folder.iterdir()
        assert other_user(folder) == (True, False)
        os.chown(entry, 54321, 54321)
        assert other_user(folder) == (False, False)
        cache_module._warn.cache_clear()
        with pytest.warns(RuntimeWarning, match="it belongs to user 54321"):
            assert get(cache) is None
        os.chown(entry, 12345, 12345)
        assert other_user(folder) == (True, False)
        os.chown(entry, 0, 0)
        os.chown(folder, 54321, 54321)
        assert other_user(folder) == (False, False)
        os.chown(folder, 12345, 12345)
        assert other_user(folder) == (True, True)
        os.chown(folder, 0, 0)


def test_entries_whose_digests_are_right_and_facts_are_not(tmp_path: Path, artifact: Artifact) -> None:
    """Whoever can write entries can give code; but what isn't an entry is refused, not stumbled over."""
    good = {"key": KEY, "parts": [0], "entries": artifact.entries}
    kinds = cache_module._KINDS
    rest: list[tuple[int, list[bytes]]] = [
        (kinds["objects"], artifact.objects[:1]), (kinds["LLVM IR"], [b""]), (kinds["planned module"], [b""]),
        (kinds["source"], [b""])]  # fmt: skip
    blob = (kinds["constants"], [b"".join(c.tobytes() for c in artifact.constants.chunks())])

    def entry(facts: bytes, sections: list[tuple[int, list[bytes]]]) -> Artifact | None:
        content = [(kinds["facts"], [facts]), *sections]
        path = tmp_path / f"{KEY}.entry"
        atomic_write(path, lambda fd: write_sections(fd, cache_module._MAGIC, cache_module._VERSION, content), mode=0o644)
        return get(Cache(tmp_path))

    text = json.dumps(good).encode()
    assert entry(text, [*rest, blob]) is not None
    bad = (b"", b"[]", b"\xff", b"{" * 5000, b"[" * 200000, b"1" * 10000, json.dumps({**good, "key": 3}).encode(),
           json.dumps({**good, "entries": [{}]}).encode(), json.dumps({**good, "entries": []}).encode(),
           json.dumps({"key": KEY, "entries": None}).encode())  # fmt: skip
    for facts in bad:
        assert entry(facts, [*rest, blob]) is None, facts[:20]
    other = (kinds["constants"], [b"x"])
    for sections in ([], rest, [*rest, blob, blob], [*rest[1:], blob], [*rest, rest[0], blob], [*rest, other]):
        assert entry(text, sections) is None
    assert entry(text, [rest[0], (kinds["LLVM IR"], [b"\xff"]), *rest[2:], blob]) is None


def test_folder_that_cannot_be(tmp_path: Path) -> None:
    cache = Cache("a\0b")
    cache.put("0" * 64, None)  # type: ignore[arg-type]
    assert cache.get("0" * 64, None) is None  # type: ignore[arg-type]


def test_unsafe_folder_where_warnings_are_errors(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Cache(folder).get("0" * 64, None) is None  # type: ignore[arg-type]


def test_trimming_leaves_other_files(tmp_path: Path) -> None:
    other, entry = tmp_path / "notes.entry", tmp_path / ("0" * 64 + ".entry")
    for path in (other, entry):
        path.write_bytes(b"x" * 100)
    Cache(tmp_path, max_bytes=10)._trim("")
    assert other.exists() and not entry.exists()
