"""Model files as the compiler writes them and as tools look at them: nothing here executes any of their code."""

from __future__ import annotations

import fcntl
import json
import os
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from dhlo import _runtime
from dhlo.codegen.kernel_ir.abi import ABI_VERSION, SECTION, TRAILER_MAGIC, WEIGHTS_MAGIC
from dhlo.container import TRAILER_BYTES, Container, Section, add_section, atomic_write, write_sections
from dhlo.errors import DhloError, ModelFileError
from dhlo.schema import read_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from dhlo._runtime import State, Value

__all__ = [
    "ModelInfo",
    "WeightsReference",
    "check_weights_name",
    "features_text",
    "is_weights_file",
    "open_sections",
    "open_weights",
    "read_infos",
    "verify_files",
    "verify_weights",
    "weights_of",
    "write_model_file",
    "write_weights",
    "write_weights_file",
]

_REFERENCE: Final = struct.Struct("<Q32s")  # dhlo_weights_file
_DIGEST: Final = 32  # bytes
_NAMES: Final = {k: n.replace("_", " ") for n, k in SECTION.items()}
_NONE = type(None)
_VALUE = {"name": str, "dtype": str, "sizes": [int], "dims": [str]}
_METADATA = {
    "name": str, "entry": str, "producer": str, "inputs": [_VALUE], "outputs": [_VALUE],
    "constants_bytes": int, "state_bytes": int, "symbols": {str: [(int, float, _NONE)]},
    "states": {str: {"dtype": str, "shape": [int], "bytes": int}}, "checks": [{"kind": str, "input": int, "text": str}],
    "groups": [{"anchor": str, "ops": [str], "results": [str], "module": str, "source": int, "step": int, "lines": [int],
                "reads": [(int, str)], "flops": str, "bytes": str, "weight_bytes": str, "variants": {str: str}}],
    "sources": [str],
    "levels": [{"name": str, "cpu_features": str, "launches": [str], "groups": [[int]],
                "arena": [{"name": str, "bytes": str, "first": int, "last": int, "segment": int, "group": int, "use": str}],
                "arrangements": [{"segment": int, "order": [int]}]}],
}  # fmt: skip


def features_text(levels: Iterable[Mapping[str, Any]]) -> str:
    """The text of a file's section of features, for the levels of its metadata: see DHLO_SECTION_FEATURES in abi.h."""
    return "\n".join(f"{x['name']}: {x['cpu_features']}" if x["name"] else x["cpu_features"] for x in levels)


def write_model_file(
    path: Path,
    code: bytes,
    constants: Iterable[Buffer],
    metadata: str,
    features: str,
    source: bytes = b"",
    weights_file: str | None = None,
) -> None:
    """Writes a model file; it appears under its name when it is complete and on the disk.

    Args:
        path: the file.
        code: the ELF image.
        constants: contiguous buffers whose concatenation is the blob; never joined in memory.
        metadata: JSON of each entry, a line each, the same texts as in the code's descriptor.
        features: what processor features each level of the code needs: see `features_text`.
        source: what other constants can be made with: see `dhlo.source`; there is no such section if it is empty.
        weights_file: name of the file in the same folder that the constants are written to, before the model file; None for in the
            model file.

    Raises:
        OSError: a file can't be written. Whatever had the model file's name before is still there.
        DhloError: the weights file's name isn't the plain name of another file.
    """
    rest: list[tuple[int, Iterable[Buffer]]] = [
        (SECTION["metadata"], [metadata.encode()]),
        (SECTION["features"], [features.encode()]),
    ]
    if source:
        rest.append((SECTION["source"], [source]))

    def write(held: tuple[int, Iterable[Buffer]]) -> None:
        sections = [(SECTION["code"], [code]), held, *rest]
        atomic_write(path, lambda fd: write_sections(fd, TRAILER_MAGIC, ABI_VERSION, sections))

    if weights_file is None:
        write((SECTION["constants"], constants))
        return
    check_weights_name(weights_file, path)
    with _one_writer(path.parent):
        row = write_weights_file(path.parent / weights_file, constants)
        write((SECTION["weights_file"], [_REFERENCE.pack(row.nbytes, row.digest) + os.fsencode(weights_file)]))


@contextmanager
def _one_writer(folder: Path) -> Iterator[None]:
    """Others that write a model file and its weights file there wait, so that two files of one writer stay. Where the file system
    has no locks nobody waits."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # which writing there tells better
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def check_weights_name(name: str, model: Path) -> None:
    """Raises DhloError where this can't be the name of a weights file beside the model file."""
    plain = isinstance(name, str) and name.isprintable() and "/" not in name and name not in ("", ".", "..")
    if not plain or len(os.fsencode(name)) > 255:
        raise DhloError(f"weights file {name!r}: a plain file name is expected, of a file in the model file's folder")
    if name == model.name:
        raise DhloError(f"weights file {name!r}: is the model file's own name")


class _Unchanged(Exception):
    """The file is there already."""


def write_weights_file(path: Path, constants: Iterable[Buffer], made_for: Iterable[bytes] = ()) -> Section:
    """Writes constants to a file of their own, which appears when it is whole; returns their section. A file that has them already,
    and is whole, is left as it is, for those that have mapped it.

    `made_for` are the digests of the sections of code of models that a host may bring this file for, besides those that name it;
    they join those of a file that has the same constants. Raises OSError.
    """
    old, codes = _summary(path), set(made_for)
    written = list[Section]()

    def fill(fd: int) -> None:
        written.append(write_weights(fd, constants, codes))
        if old is None or old[0] != written[0].digest or not _is_whole(path):
            return
        if codes <= old[1]:
            raise _Unchanged
        if old[1]:
            _add_codes(fd, written[0], codes | old[1])

    with suppress(_Unchanged):
        atomic_write(path, fill)
    return written[0]


def write_weights(fd: int, constants: Iterable[Buffer], made_for: Collection[bytes]) -> Section:
    """The same to an empty file that is open for reading and writing."""
    (row,) = write_sections(fd, WEIGHTS_MAGIC, ABI_VERSION, [(SECTION["constants"], constants)])
    if made_for:
        _add_codes(fd, row, made_for)
    return row


def _add_codes(fd: int, row: Section, codes: Collection[bytes]) -> None:
    add_section(fd, WEIGHTS_MAGIC, ABI_VERSION, [row], SECTION["code_digests"], b"".join(sorted(codes)))


def _summary(path: Path) -> tuple[bytes, set[bytes]] | None:
    """Digest of a weights file's constants, and those of the code that it was made for; None if there is none, or none that can be
    read."""
    try:
        with open_weights(path) as there:
            return there.only(SECTION["constants"]).digest, _code_digests(there)
    except (ModelFileError, OSError):
        return None


def _is_whole(path: Path) -> bool:
    try:
        with open_weights(path) as there:
            there.verify()
    except (ModelFileError, OSError):
        return False
    return True


def _code_digests(weights: Container) -> set[bytes]:
    found = weights.of_kind(SECTION["code_digests"])
    data = weights.read(found[0]) if found else b""
    return {data[at : at + _DIGEST] for at in range(0, len(data), _DIGEST)}


def open_sections(path: str | Path) -> Container:
    """A model file's sections, each of which is verified when it is read. Raises ModelFileError."""
    if is_weights_file(path):
        raise ModelFileError(f"'{path}': is a weights file; name the model file that it belongs to")
    found = _open(path, f"model file '{path}'", TRAILER_MAGIC, "dhlo model")
    elsewhere = bool(found.of_kind(SECTION["weights_file"]))
    needed = {"code", "metadata", "features", "weights_file" if elsewhere else "constants"}
    return _checked(found, needed, {"source"})


def open_weights(path: str | Path, model: str | Path = "") -> Container:
    """The same of a weights file, that of `model`, for errors."""
    label = f"weights file '{path}'" + (f" of model file '{model}'" if model else "")
    return _checked(_open(path, label, WEIGHTS_MAGIC, "dhlo weights file"), {"constants"}, {"code_digests"})


def is_weights_file(path: str | Path) -> bool:
    """Whether a file ends as weights files do."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return False
    try:
        end = os.fstat(fd).st_size - TRAILER_BYTES
        return end >= 0 and os.pread(fd, 8, end) == WEIGHTS_MAGIC.to_bytes(8, "little")
    except OSError:  # a pipe, say
        return False
    finally:
        os.close(fd)


def _open(path: str | Path, label: str, magic: int, what: str) -> Container:
    try:
        return Container.open(path, label, magic, ABI_VERSION, _NAMES, what)
    except OSError as e:
        raise ModelFileError(f"{label}: cannot be opened: {e.strerror}") from None


def _checked(found: Container, needed: set[str], others: set[str]) -> Container:
    """Raises ModelFileError, and closes the file, where a section is missing, there twice, or doesn't belong there."""
    try:
        for name, kind in SECTION.items():
            if name in needed or (name in others and found.of_kind(kind)):
                found.only(kind)
            elif found.of_kind(kind):
                raise ModelFileError(f"{found.label}: damaged table of sections: a section of {_NAMES[kind]} doesn't belong here")
    except BaseException:
        found.close()
        raise
    return found


@dataclass(frozen=True)
class WeightsReference:
    """Which constants a model file has: `name` is that of the file beside it that holds them, "" for the model file itself."""

    name: str
    nbytes: int
    digest: bytes


def weights_of(sections: Container) -> WeightsReference:
    """Of a model file. Raises ModelFileError."""
    if own := sections.of_kind(SECTION["constants"]):
        return WeightsReference("", own[0].nbytes, own[0].digest)
    data = sections.read(sections.only(SECTION["weights_file"]))
    name = os.fsdecode(data[_REFERENCE.size :])
    try:
        nbytes, digest = _REFERENCE.unpack_from(data)
        check_weights_name(name, Path())
    except (struct.error, DhloError) as e:
        raise ModelFileError(f"{sections.label}: damaged weights file: {e}") from None
    return WeightsReference(name, nbytes, digest)


def verify_files(path: Path, sections: Container) -> None:
    """Verifies every section of a model file, and of its weights file if its constants are in one. Raises ModelFileError."""
    sections.verify()
    verify_weights(path, weights_of(sections))


def verify_weights(path: Path, reference: WeightsReference) -> None:
    """Verifies the weights file beside the model file at `path`, if it has one. Raises ModelFileError, which names both."""
    if not reference.name:
        return
    with open_weights(path.parent / reference.name, path) as weights:
        row = weights.only(SECTION["constants"])
        if row.digest != reference.digest or row.nbytes != reference.nbytes:
            raise ModelFileError(
                f"{weights.label}: holds other constants than the model was written with: expected SHA-256 "
                f"{reference.digest.hex()}, got {row.digest.hex()}"
            )
        weights.verify()


@dataclass(frozen=True)
class ModelInfo:
    """What a model says of itself; has the attributes of a loaded model (`dhlo._runtime.Model`) that describe it.

    `levels` are its code for each kind of machine, as the metadata has them; `taken` is the number of the one that this machine
    would take, None if it can run none.
    """

    metadata: str
    name: str
    producer: str
    inputs: list[Value]
    outputs: list[Value]
    states: list[State]
    constants_bytes: int
    state_bytes: int
    levels: list[dict[str, Any]]
    taken: int | None

    @classmethod
    def of(cls, metadata: dict[str, Any]) -> Self:
        """From the metadata's JSON."""
        values = {
            k: [{**v, "sizes": tuple(v["sizes"]), "dims": tuple(v["dims"])} for v in metadata[k]] for k in ("inputs", "outputs")
        }
        same = ("name", "producer", "constants_bytes", "state_bytes", "levels")
        states = [{"name": n, "bytes": s["bytes"]} for n, s in metadata["states"].items()]
        try:
            taken = _runtime.choose_level(features_text(metadata["levels"]))
        except (RuntimeError, ValueError):
            taken = None
        return cls(metadata=json.dumps(metadata), states=states, taken=taken, **values, **{k: metadata[k] for k in same})  # type: ignore[arg-type]

    @property
    def level(self) -> dict[str, Any]:
        """The level that this machine takes, or the last one."""
        return self.levels[-1 if self.taken is None else self.taken]


def read_infos(sections: Container) -> dict[str, ModelInfo]:
    """What a model file says of each of its entries, from its sections alone. Raises ModelFileError."""
    found = {}
    for line in sections.read(sections.only(SECTION["metadata"])).split(b"\n"):
        try:
            metadata = read_json(line, _METADATA)
            for name, bounds in metadata["symbols"].items():
                if len(bounds) != 2:
                    raise ValueError(f".symbols.{name} has {len(bounds)} bounds")
            if not metadata["levels"]:
                raise ValueError(".levels is empty")
        except ValueError as e:
            raise ModelFileError(f"{sections.label}: malformed metadata: {e}") from None
        if features_text(metadata["levels"]).encode() != sections.read(sections.only(SECTION["features"])):
            raise ModelFileError(f"{sections.label}: damaged: its metadata and its features disagree")
        found[_printable(metadata["entry"])] = ModelInfo.of(_printable(metadata))
    return found


def _printable(value: Any) -> Any:
    """Texts without control characters, which would command the terminal that they are printed on."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in value)
    if isinstance(value, list):
        return [_printable(x) for x in value]
    return {_printable(k): _printable(x) for k, x in value.items()} if isinstance(value, dict) else value
