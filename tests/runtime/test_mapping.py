"""Constants of model files as pages that processes share, and what is remembered of their verification."""

import mmap
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import dhlo
from dhlo import _runtime
from dhlo.codegen.kernel_ir.abi import SECTION
from dhlo.model_file import write_model_file
from tests.runtime.conftest import TOY_CONSTANTS, TOY_METADATA
from tests.runtime.test_model_files import X, Y, flip, table_of

BuildElf = Callable[..., Path]
_CONSTANTS = 64 << 20
_HOST = """
import sys, dhlo._runtime as r
print("ready", flush=True)
sys.stdin.readline()
models = [r.Model.from_file(sys.argv[1], memory=int(sys.argv[2])) for _ in range(2)]
print("loaded", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def large(build_elf: BuildElf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy model with 64 MB of constants, which nobody has changed for some time."""
    path = tmp_path_factory.mktemp("large") / "large.so"
    code = build_elf(f"TOY_CONSTANTS_BYTES={_CONSTANTS}").read_bytes()
    write_model_file(path, code, [TOY_CONSTANTS, os.urandom(_CONSTANTS - len(TOY_CONSTANTS))], TOY_METADATA, "")
    return path


def proportional_bytes(pid: int) -> int:
    """Of a process's memory: its own pages, and of pages that n processes share the nth part."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.findall(r"^Pss: +(\d+) kB", text, re.MULTILINE)[0]) << 10


@pytest.mark.parametrize(("memory", "copies"), [(2, 1), (4, 4)])
def test_two_processes_of_two_models_hold_constants_once(large: Path, memory: int, copies: int) -> None:
    """What loading adds to the proportional sizes of both processes together: the constants once where they are mapped, of four
    copies where copied."""
    command = [sys.executable, "-c", _HOST, str(large), str(memory)]
    hosts = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    sizes = list[int]()
    for answer in ("ready", "loaded"):
        for host in hosts:
            assert host.stdin is not None and host.stdout is not None
            assert host.stdout.readline().strip() == answer
        sizes.append(sum(proportional_bytes(host.pid) for host in hosts))
        for host in hosts:
            host.stdin.write("\n")  # type: ignore[union-attr]
            host.stdin.flush()  # type: ignore[union-attr]
    for host in hosts:
        host.communicate()
        assert host.returncode == 0
    assert copies * _CONSTANTS * 0.99 < sizes[1] - sizes[0] < copies * _CONSTANTS + (8 << 20)


def huge_bytes(path: Path) -> int:
    """Of a file: how many bytes of it this process has mapped by huge pages."""
    total, of_file = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match("[0-9a-f]+-", line):
            of_file = line.endswith(str(path))
        elif of_file and line.startswith("FilePmdMapped:"):
            total += int(line.split()[1]) << 10
    return total


def test_populated_constants_are_in_huge_pages_where_the_file_system_has_them(large: Path) -> None:
    with large.open("rb") as file:
        # What is cached in small pages, as it was written, stays so.
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as probe:
            probe.madvise(mmap.MADV_HUGEPAGE)
            assert sum(probe[at] for at in range(0, len(probe), mmap.PAGESIZE)) > 0
            has = huge_bytes(large) > 0
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if not has:
        pytest.skip("this file system has no huge pages")
    model = _runtime.Model.from_file(large, memory=2, verify=0)
    assert huge_bytes(large) > _CONSTANTS // 2
    del model


@pytest.mark.parametrize("memory", ["auto", "mapped", "populated", "locked", "copied"])
def test_constants_are_the_same_wherever_they_are(build_elf: BuildElf, tmp_path: Path, memory: str) -> None:
    path = tmp_path / "toy.so"
    write_model_file(path, build_elf().read_bytes(), [TOY_CONSTANTS], TOY_METADATA, "")
    number = ["auto", "mapped", "populated", "locked", "copied"].index(memory)
    model = _runtime.Model.from_file(path, memory=number)
    mapped = sum(str(path) in line for line in Path("/proc/self/maps").read_text().splitlines())
    assert mapped == (memory != "copied")
    if memory == "copied":
        path.write_bytes(b"")  # which ends processes that have mapped it
    path.unlink()
    assert torch.equal(_runtime.Session(model)(X, 0)[0], Y)
    del model
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_a_model_without_constants(build_elf: BuildElf, tmp_path: Path) -> None:
    path = tmp_path / "toy.so"
    write_model_file(path, build_elf("TOY_ADD_ONE").read_bytes(), [], TOY_METADATA, "")
    for memory in range(5):
        assert len(_runtime.Model.from_file(path, memory=memory).inputs) == 1


def test_a_limit_on_locked_memory_is_named(large: Path) -> None:
    code = (
        "import sys, resource, ctypes, dhlo._runtime as r\n"
        f"resource.setrlimit(resource.RLIMIT_MEMLOCK, ({mmap.PAGESIZE}, {mmap.PAGESIZE}))\n"
        # Root may lock what it likes: without the capability the limit counts.
        "ctypes.CDLL(None).prctl(24, 14, 0, 0, 0)\n"  # PR_CAPBSET_DROP, CAP_IPC_LOCK
        "import os\n"
        "if os.geteuid() == 0: os.setresuid(65534, 65534, 65534)\n"
        "try: r.Model.from_file(sys.argv[1], memory=3)\n"
        "except (MemoryError, RuntimeError) as e: print(e)\n"
        "print(len(r.Model.from_file(sys.argv[1], memory=1).inputs))\n"
    )
    for folder in (large.parent, *large.parent.parents[:-1]):
        if os.stat(folder).st_uid == os.geteuid() and folder != Path("/tmp"):
            os.chmod(folder, os.stat(folder).st_mode | 0o011)
    os.chmod(large, 0o644)
    result = subprocess.run([sys.executable, "-c", code, str(large)], capture_output=True, text=True, check=False)
    if "Permission denied" in result.stderr or "cannot be opened" in result.stdout + result.stderr:
        pytest.skip("another user can't read this folder")
    assert f"{_CONSTANTS} bytes of constants can't be locked in memory: " in result.stdout, result.stderr
    assert "RLIMIT_MEMLOCK" in result.stdout
    assert result.stdout.splitlines()[-1] == "2"
    assert resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] != mmap.PAGESIZE  # of the child alone


# ------------------------------------------------------------------ remembered verification
@pytest.fixture
def aged(build_elf: BuildElf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model file that was last changed long enough ago, and an empty cache."""
    path = tmp_path / "toy.so"
    write_model_file(path, build_elf().read_bytes(), [TOY_CONSTANTS], TOY_METADATA, "")
    monkeypatch.setenv("DHLO_CACHE_DIR", str(tmp_path / "cache"))
    wait(path)
    return path


def wait(path: Path) -> None:
    """Until a file's last change is so long ago that another one would have another time."""
    while time.time() < path.stat().st_ctime + 4:
        time.sleep(0.1)


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache/verified").glob("*.txt"))


def test_verification_is_remembered_until_the_file_changes(aged: Path, tmp_path: Path) -> None:
    _runtime.Model.from_file(aged)
    (record,) = kept(tmp_path)
    written = record.stat().st_mtime_ns
    model = _runtime.Model.from_file(aged)
    assert record.stat().st_mtime_ns == written  # nothing was verified, so nothing kept
    del model
    mtime = aged.stat().st_mtime_ns
    (constants,) = (s for s in table_of(aged) if s.kind == SECTION["constants"])
    with aged.open("r+b") as file:  # in place, and with the old time put back
        file.seek(constants.offset)
        file.write(b"\xff")
    os.utime(aged, ns=(mtime, mtime))
    with pytest.raises(RuntimeError, match="damaged constants"):
        _runtime.Model.from_file(aged)
    with pytest.raises(RuntimeError, match="damaged constants"):
        _runtime.Model.from_file(aged, memory=4)


def test_always_doesnt_believe_what_is_kept(aged: Path, tmp_path: Path) -> None:
    """A record that says that a damaged file is whole stands for a disk that lost a bit without anybody writing."""
    _runtime.Model.from_file(aged)
    (record,) = kept(tmp_path)
    (constants,) = (s for s in table_of(aged) if s.kind == SECTION["constants"])
    before = aged.stat()
    flip(aged, constants.offset)
    os.utime(aged, ns=(before.st_atime_ns, before.st_mtime_ns))
    forge(record, before.st_ctime_ns, aged.stat().st_ctime_ns)
    _runtime.Model.from_file(aged)
    with pytest.raises(RuntimeError, match="damaged constants"):
        _runtime.Model.from_file(aged, verify=2)
    with pytest.raises(dhlo.ModelFileError, match="damaged constants"):
        dhlo.load(aged, verify="always")
    with pytest.raises(RuntimeError, match="damaged constants"):
        _runtime.Model.from_file(aged, authorize=lambda digest: True)


def forge(record: Path, old_ns: int, new_ns: int) -> None:
    """Writes another time of change, with the digest that goes with it."""
    import hashlib

    old, new = (f"changed {ns // 10**9} {ns % 10**9}\n" for ns in (old_ns, new_ns))
    text = record.read_text().rpartition("sha256 ")[0]
    assert old in text
    text = text.replace(old, new)
    record.write_text(text + f"sha256 {hashlib.sha256(text.encode()).hexdigest()}\n")
    while time.time() < new_ns / 1e9 + 4:
        time.sleep(0.1)


def test_records_of_others_and_damaged_ones_count_for_nothing(aged: Path, tmp_path: Path) -> None:
    _runtime.Model.from_file(aged)
    (record,) = kept(tmp_path)
    good = record.read_bytes()
    for content in (b"", good[:-3], good.replace(b"bytes", b"bites"), bytes(5000), good + good):
        record.write_bytes(content)
        _runtime.Model.from_file(aged)
        assert record.read_bytes() == good  # verified, and kept again
    record.chmod(0o666)
    inode = record.stat().st_ino
    _runtime.Model.from_file(aged)
    assert record.stat().st_ino != inode


def test_a_file_that_was_just_written_isnt_remembered(build_elf: BuildElf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DHLO_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "toy.so"
    write_model_file(path, build_elf().read_bytes(), [TOY_CONSTANTS], TOY_METADATA, "")
    _runtime.Model.from_file(path)
    assert not kept(tmp_path)


def test_options_that_arent(aged: Path) -> None:
    with pytest.raises(dhlo.DhloError, match="memory: expected 'auto', 'mapped', .* got 'shared'"):
        dhlo.load(aged, memory="shared")  # type: ignore[arg-type]
    with pytest.raises(dhlo.DhloError, match="verify: expected True, False or 'always', got 'never'"):
        dhlo.load(aged, verify="never")  # type: ignore[arg-type]
    for options in ({"memory": 5}, {"memory": -1}, {"verify": 3}, {"verify": -1}):
        with pytest.raises((RuntimeError, ValueError), match=r"model options: (constants_memory|verify_constants): expected"):
            _runtime.Model.from_file(aged, **options)
