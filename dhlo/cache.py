"""Compiled programs kept on disk, found again by everything that went into them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dhlo import _runtime
from dhlo.container import Container, atomic_write, clean_leftovers, write_bytes, write_sections
from dhlo.errors import ModelFileError
from dhlo.schema import read_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from dhlo.codegen.backends.artifact import Artifact
    from dhlo.codegen.target import Target
    from dhlo.frontend.program import Program
    from dhlo.options import CustomPass, Options

__all__ = ["Cache", "compiler_version", "model_key", "program_key"]

_MAGIC: Final = 0x45484341434F4C48  # "HLOCACHE" little-endian
_VERSION: Final = 4
_SUFFIX: Final = ".entry"
_MODEL: Final = ".so"
_ABOUT: Final = ".json"
_FILES: Final = r"[0-9a-f]{64}\.(entry|so|json)"
_KINDS: Final = {"facts": 1, "constants": 2, "objects": 3, "LLVM IR": 4, "planned module": 5, "source": 6}
_FACTS: Final = {
    "key": str, "parts": [int], "entries": [{"externs": {str: str}, "constants_bytes": int, "levels": [{"cpu_features": str}]}],
}  # fmt: skip
_PACKAGES: Final = ("torch", "torch-mlir", "llvmlite", "numpy", "sympy")


@cache
def _compiler_parts() -> tuple[str, ...]:
    """Changes with every edit of the compiler, its native extension, or the packages that it makes code with."""
    root = Path(__file__).parent
    folders = (root, *(p.resolve() for p in root.iterdir() if p.is_dir()))
    files = {p for d in folders for p in d.rglob("*.py")} | {Path(_runtime.__file__)}
    whole = hashlib.sha256()
    for path in sorted(files):
        whole.update(f"{path.name} ".encode() + hashlib.sha256(path.read_bytes()).digest())
    return (sys.version, *(f"{name} {_version(name)}" for name in _PACKAGES), whole.hexdigest())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def compiler_version() -> str:
    """SHA-256 of all that the compiler is; "" where its own files can't be read."""
    try:
        return hashlib.sha256(repr(_compiler_parts()).encode()).hexdigest()
    except OSError:
        return ""


def program_key(program: Program, targets: Sequence[Target], options: Options, passes: Sequence[CustomPass] = ()) -> str:
    """SHA-256 over an imported program with its weights, the targets, those of the options that the program doesn't say itself,
    users' passes and the compiler. Raises OSError where the compiler's own files can't be read."""
    from dhlo.codegen.families.constants import raw  # needs PyTorch, which finding a model file doesn't

    with program.context:
        text = program.module.operation.get_asm(enable_debug_info=True)  # index errors name locations
    parts = (
        text,
        program.symbols,
        program.user_names,
        program.inputs,
        program.outputs,
        program.mutations,
        str(program.in_spec),
        str(program.out_spec),
        [(t.name, t.tune) for t in targets],
        (options.name, options.winograd, options.updatable, options.debug_info),
        [p.key for p in passes],
        _compiler_parts(),
        [(n, str(t.dtype), tuple(t.shape), _runtime.section_digest(raw(t).data).hex()) for n, t in program.weights.items()],
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def model_key(
    programs: Mapping[str, Program], targets: Sequence[Target], options: Options, passes: Sequence[CustomPass] = ()
) -> str:
    """The key of a model of several entries. Raises the errors of `program_key`."""
    keys = [(entry, program_key(p, targets, options, passes)) for entry, p in programs.items()]
    return hashlib.sha256(repr(keys).encode()).hexdigest()


class Cache:
    """A folder of compiled programs, one file an entry, which several processes and users may share and any of them may leave at
    any time: programs as `dhlo.compile` needs them, and model files, whose keys are their makers' affair.

    Nothing that is wrong with the folder or a file in it fails a call: what can't be read, isn't whole, or could have been written
    by somebody else than this user or root is a miss, and the next `put` replaces it. Entries appear whole or not at all; the
    least recently used go when they take more than `max_bytes`.
    """

    def __init__(self, folder: str | Path, max_bytes: int = 20 << 30) -> None:
        self.folder, self.max_bytes = Path(folder), max_bytes

    def get(self, key: str, targets: Sequence[Target]) -> Artifact | None:
        """The entry of a key, whole and verified, for the targets that the key was made of; None if there is none."""
        try:
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, ValueError):  # ValueError: a name that no folder can have
            return None
        try:
            if not _is_safe(os.fstat(folder), self.folder):
                return None
            fd = os.open(key + _SUFFIX, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except OSError:
            return None
        finally:
            os.close(folder)
        return self._read(fd, key, targets)

    def _read(self, fd: int, key: str, targets: Sequence[Target]) -> Artifact | None:
        path = self.folder / (key + _SUFFIX)
        try:
            with Container(fd, f"cache entry '{path}'", _MAGIC, _VERSION, {k: n for n, k in _KINDS.items()}) as entry:
                if not _is_safe(os.fstat(fd), path):
                    return None
                artifact = _unpack(entry, key, targets)
                with suppress(OSError):  # somebody else's, or read-only
                    os.utime(fd)
                return artifact
        except (OSError, ModelFileError, ValueError):  # gone, unreadable, damaged
            return None

    def put(self, key: str, artifact: Artifact) -> None:
        """Keeps a compiled program; a full or read-only disk, or a folder of somebody else's, only means that it isn't kept."""
        try:
            if not self._prepare():
                return
            fill = partial(write_sections, magic=_MAGIC, abi=_VERSION, sections=_pack(key, artifact))
            # Not durable: an entry that a power failure damages is found out by its digests.
            atomic_write(self.folder / (key + _SUFFIX), fill, mode=0o644, durable=False)
            self._trim(key + _SUFFIX)
        except (OSError, ValueError):
            pass

    def _prepare(self) -> bool:
        """Whether the folder, which is made if need be, is one to write to. Raises OSError and ValueError."""
        # Never writable by others, whatever the umask, as it would not be read again.
        self.folder.mkdir(0o755, parents=True, exist_ok=True)
        if not _is_safe(self.folder.stat(), self.folder):
            return False
        clean_leftovers(self.folder, _FILES)
        return True

    def find_model(self, key: str) -> Path | None:
        """The model file of a key, which whoever loads it verifies; None if there is none that may be trusted."""
        path, facts = (self.folder / (key + suffix) for suffix in (_MODEL, _ABOUT))
        try:
            if path.is_symlink() or not all(_is_safe(p.stat(), p) for p in (self.folder, path)):
                return None
        except (OSError, ValueError):
            return None
        with suppress(OSError):  # somebody else's, or read-only
            os.utime(facts)  # not the model file's, by which the runtime knows that it has verified the file before
        return path

    def put_model(self, key: str, write: Callable[[Path], object], about: Mapping[str, Any]) -> Path | None:
        """The model file that `write` makes at a path, whole or not at all, and beside it, as JSON, what it is; None where the
        folder can't hold it."""
        path, facts = (self.folder / (key + suffix) for suffix in (_MODEL, _ABOUT))
        try:
            if not self._prepare():
                return None
            write(path)
            path.chmod(0o644)
            write_bytes(facts, json.dumps(about, indent=1).encode() + b"\n")
            self._trim(path.name)
        except (OSError, ValueError):
            return None
        return path

    def _trim(self, newest: str) -> None:
        """Removes what was used least recently; others may do the same at the same time."""
        entries: dict[str, tuple[int, int, list[str]]] = {}  # by key: when it was used, bytes, files
        with os.scandir(self.folder) as found:
            for e in found:
                if re.fullmatch(_FILES, e.name):  # other files aren't the cache's
                    with suppress(OSError):
                        info = e.stat(follow_symlinks=False)
                        used, size, names = entries.get(e.name[:64], (0, 0, []))
                        entries[e.name[:64]] = max(used, info.st_mtime_ns), size + info.st_size, [*names, e.name]
        total = sum(size for _, size, _ in entries.values())
        for _, size, names in sorted(entries.values()):
            if total <= self.max_bytes:
                break
            if newest not in names:
                for name in names:
                    with suppress(OSError):
                        (self.folder / name).unlink(missing_ok=True)
                total -= size


def _is_safe(info: os.stat_result, path: Path) -> bool:
    """Whether nobody but this user and root can have written a file or folder. Warns where not, once for each."""
    if info.st_uid not in (0, os.geteuid()):
        _warn(path, f"it belongs to user {info.st_uid}")
    elif stat.S_IMODE(info.st_mode) & 0o022:
        _warn(path, f"others may write to it (mode {stat.S_IMODE(info.st_mode):03o}; chmod go-w)")
    else:
        return True
    return False


@cache
def _warn(path: Path, why: str) -> None:
    with suppress(RuntimeWarning):  # where warnings are errors, a call still doesn't fail
        warnings.warn(f"'{path}' isn't used as a cache of compiled programs: {why}", RuntimeWarning, stacklevel=6)


def _pack(key: str, artifact: Artifact) -> Iterator[tuple[int, Iterable[Buffer]]]:
    order = list(dict.fromkeys(artifact.targets))
    facts = {"key": key, "parts": [order.index(t) for t in artifact.targets], "entries": artifact.entries}
    yield _KINDS["facts"], [json.dumps(facts).encode()]
    yield _KINDS["planned module"], [artifact.planned.encode()]
    yield _KINDS["source"], [artifact.source]
    for data in artifact.objects:
        yield _KINDS["objects"], [data]
    for text in artifact.llvm_ir:
        yield _KINDS["LLVM IR"], [text.encode()]
    yield _KINDS["constants"], (chunk.data for chunk in artifact.constants.chunks())


def _unpack(entry: Container, key: str, targets: Sequence[Target]) -> Artifact:
    """The program of an entry, every byte of it verified. Raises ValueError, ModelFileError and OSError."""
    from dhlo.codegen.backends.artifact import Artifact, StoredConstants

    facts: dict[str, Any] = read_json(entry.read(entry.only(_KINDS["facts"])), _FACTS)
    if facts["key"] != key:
        raise ValueError("the entry of another key")
    constants = entry.only(_KINDS["constants"])
    if {e["constants_bytes"] for e in facts["entries"]} != {constants.nbytes}:
        raise ValueError("constants of another program")
    memory = _runtime.Buffer(max(constants.nbytes, 64))
    entry.read_into(constants, memoryview(memory)[: constants.nbytes])
    objects = [entry.read(s) for s in entry.of_kind(_KINDS["objects"])]
    texts = [entry.read(s).decode() for s in entry.of_kind(_KINDS["LLVM IR"])]
    planned = entry.read(entry.only(_KINDS["planned module"])).decode()
    source = entry.read(entry.only(_KINDS["source"]))
    if not objects or not len(objects) == len(texts) == len(facts["parts"]):
        raise ValueError("parts are missing")
    if not all(0 <= n < len(targets) for n in facts["parts"]):
        raise ValueError("parts for other targets")
    of = [targets[n] for n in facts["parts"]]
    return Artifact(objects, StoredConstants(memory, constants.nbytes), planned, facts["entries"], texts, of, source)
