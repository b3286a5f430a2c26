"""Reads and writes files of digested sections (model files, cache entries), as runtime/include/dhlo/abi.h describes them."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import re
import secrets
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, Self

from dhlo._runtime import Buffer as Memory
from dhlo._runtime import read_section, section_digest
from dhlo.errors import DhloError, ModelFileError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "FILE_FORMAT",
    "MAX_SECTIONS",
    "PIECE",
    "SECTION_ALIGN",
    "SECTION_BYTES",
    "TRAILER_BYTES",
    "Container",
    "Section",
    "add_section",
    "atomic_write",
    "check_apart",
    "check_target",
    "clean_leftovers",
    "pack_table",
    "pack_trailer",
    "write_all",
    "write_bytes",
    "write_sections",
]

FILE_FORMAT: Final = 3
SECTION_ALIGN: Final = 64
PIECE: Final = 1 << 20
MAX_SECTIONS: Final = 256
_SECTION: Final = struct.Struct("<IIQQ32s")
_TRAILER: Final = struct.Struct("<QIIQQ32s")
SECTION_BYTES: Final = _SECTION.size
TRAILER_BYTES: Final = _TRAILER.size
_COPY: Final = 1 << 24  # bytes a write
_PART: Final = ".part"
_WINDOW: Final = 1 << 24  # bytes of a file that verifying holds at a time
LARGEST_TEXT: Final = 1 << 28  # bytes of a section that is read as a whole


@dataclass(frozen=True)
class Section:
    """A row of the table: what it is, where it lies, and its digest."""

    kind: int
    offset: int
    nbytes: int
    digest: bytes


def _bytes_of(data: Buffer) -> memoryview:
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


# ------------------------------------------------------------------ writing
def pack_table(sections: Iterable[Section]) -> bytes:
    """The table's bytes."""
    return b"".join(_SECTION.pack(s.kind, 0, s.offset, s.nbytes, s.digest) for s in sections)


def pack_trailer(magic: int, abi: int, table_offset: int, table: bytes) -> bytes:
    """The trailer of a file whose table begins at `table_offset`."""
    end = table_offset + len(table) + TRAILER_BYTES
    return _TRAILER.pack(magic, FILE_FORMAT, abi, end, table_offset, hashlib.sha256(table).digest())


def write_sections(fd: int, magic: int, abi: int, sections: Iterable[tuple[int, Iterable[Buffer]]]) -> list[Section]:
    """Writes a container to an empty file that is open for reading and writing, and returns its table.

    Each section is a kind and its content in contiguous chunks, which are never joined in memory. Raises OSError.
    """
    rows: list[Section] = []
    for kind, chunks in sections:
        rows.append(_write_section(fd, rows, kind, chunks))
    _write_end(fd, magic, abi, rows)
    return rows


def add_section(fd: int, magic: int, abi: int, rows: list[Section], kind: int, content: bytes) -> None:
    """Adds a section to a container that was just written, with that table. Raises OSError."""
    os.ftruncate(fd, rows[-1].offset + rows[-1].nbytes)
    os.lseek(fd, 0, os.SEEK_END)
    _write_end(fd, magic, abi, [*rows, _write_section(fd, rows, kind, [content])])


def _write_section(fd: int, before: list[Section], kind: int, chunks: Iterable[Buffer]) -> Section:
    end = before[-1].offset + before[-1].nbytes if before else 0
    start = at = end + write_all(fd, bytes(-end % SECTION_ALIGN))
    # Together: file systems with huge pages keep in them what comes in large writes.
    with open(os.dup(fd), "wb", buffering=_COPY) as file:
        for chunk in chunks:
            at += file.write(_bytes_of(chunk))
    return Section(kind, start, at - start, _digest_written(fd, start, at - start))


def _write_end(fd: int, magic: int, abi: int, rows: list[Section]) -> None:
    end = rows[-1].offset + rows[-1].nbytes if rows else 0
    end += write_all(fd, bytes(-end % SECTION_ALIGN))
    table = pack_table(rows)
    write_all(fd, table + pack_trailer(magic, abi, end, table))


def _digest_written(fd: int, offset: int, nbytes: int) -> bytes:
    """Of a range of a file that nobody else writes."""
    if nbytes == 0:
        return section_digest(b"")
    skipped = offset % mmap.ALLOCATIONGRANULARITY
    with mmap.mmap(fd, skipped + nbytes, access=mmap.ACCESS_READ, offset=offset - skipped) as mapped:
        with memoryview(mapped) as view, view[skipped:] as data:
            return section_digest(data)


def write_all(fd: int, data: Buffer) -> int:
    """Writes all bytes of contiguous data to a file; how many these are. Raises OSError."""
    view = _bytes_of(data)
    done = 0
    while done < view.nbytes:
        done += os.write(fd, view[done : done + _COPY])
    return done


def atomic_write(path: Path, fill: Callable[[int], object], *, mode: int = 0o666, durable: bool = True) -> None:
    """Makes a file that appears under its name only when `fill(descriptor)` has written all of it; what was there before stays
    until then. `mode` is subject to the umask; `durable` waits until file and name are on the disk.

    Until then the file has a name of its own in the same folder, which nobody can foretell, and is locked: what a killed
    process left behind is known by its lock being free, and removed by the next call. Raises OSError.
    """
    path = check_target(path)
    clean_leftovers(path.parent, re.escape(_stem(path.name)))
    try:
        part, fd = _create_part(path, mode)
    except OSError as e:  # of a file that the caller doesn't know
        text = "its folder doesn't exist" if isinstance(e, FileNotFoundError) else os.strerror(e.errno or 0)
        raise type(e)(e.errno, f"can't be written: {text}", str(path)) from None
    try:
        with _naming(path):
            try:
                fill(fd)
                if durable:
                    os.fsync(fd)
                os.replace(part, path)
            finally:
                os.close(fd)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def check_target(path: Path) -> Path:
    """The file that a path leads to, through symbolic links. Raises OSError for a folder, a device and the like."""
    found = Path(os.path.realpath(path))
    if found.exists() and not found.is_file():
        error = errno.EISDIR if found.is_dir() else errno.EINVAL
        raise OSError(error, os.strerror(error) if found.is_dir() else "Is not a regular file", str(path))
    return found


def check_apart(outputs: Iterable[str | os.PathLike[str] | None], inputs: Iterable[str | os.PathLike[str]]) -> None:
    """Raises DhloError if a file that is to be written is one that the same command reads, or writes, too. None: no file."""
    used = list(inputs)
    for output in outputs:
        if output is None or (os.path.exists(output) and not os.path.isfile(output)):
            continue
        for other in used:
            if os.path.realpath(output) == os.path.realpath(other) or (
                os.path.exists(output) and os.path.exists(other) and os.path.samefile(output, other)
            ):
                what = f"'{output}'" if os.fspath(output) == os.fspath(other) else f"'{output}' is '{other}', which"
                raise DhloError(f"{what} is used by the same command, too: name another file to write to")
        used.append(output)


def write_bytes(path: Path, data: bytes) -> None:
    """A whole file at once: see `atomic_write`. To what is no regular file, such as a device, it is written as it is."""
    if path.exists() and not path.is_file() and not path.is_dir():
        with _naming(path):
            path.write_bytes(data)
        return

    def fill(fd: int) -> None:
        write_all(fd, data)

    atomic_write(path, fill)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of what is written by descriptor, such as that a disk is full, name the file."""
    try:
        yield
    except OSError as e:
        if e.filename is None:
            e.filename = str(path)
        raise


def _stem(name: str) -> str:
    """What partial files of a name are called, so that the whole of it is no longer than file systems take."""
    return name if len(os.fsencode(name)) <= 200 else hashlib.sha256(os.fsencode(name)).hexdigest()


def _create_part(path: Path, mode: int) -> tuple[Path, int]:
    while True:
        part = path.with_name(f".{_stem(path.name)}.{secrets.token_hex(8)}{_PART}")
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # a cleaner was there first, and removes it
            os.close(fd)
            continue
        except OSError:
            pass  # a file system without locks
        try:
            if os.fstat(fd).st_nlink:
                return part, fd
        except BaseException:
            os.close(fd)
            part.unlink(missing_ok=True)
            raise
        os.close(fd)  # a cleaner came between the two


def clean_leftovers(folder: Path, names: str) -> None:
    """Removes partial files that no process is writing any more, of files whose names match the pattern. Never raises OSError."""
    partial = re.compile(rf"\.(?:{names})\.[0-9a-f]{{16}}{re.escape(_PART)}")
    with suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            if partial.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_if_free(entry.path)


def _remove_if_free(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    finally:
        os.close(fd)


# ------------------------------------------------------------------ reading
class Container:
    """A file of sections, open for reading. The constructor verifies trailer and table; a section is verified when it is read.

    Takes the descriptor over. Raises ModelFileError, which names the part that isn't what it should be, and OSError.
    """

    def __init__(self, fd: int, label: str, magic: int, abi: int, names: Mapping[int, str], what: str = "dhlo model") -> None:
        """`what` the file is to be, for errors."""
        self._fd, self.label, self._names, self._what = fd, label, names, what
        try:
            self._read_trailer(magic, abi)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], label: str, magic: int, abi: int, names: Mapping[int, str], what: str = "dhlo model"
    ) -> Self:
        """Of a file on disk. `names` says how errors call the sections of each kind."""
        return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), label, magic, abi, names, what)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _read_trailer(self, magic: int, abi: int) -> None:
        info = os.fstat(self._fd)
        if not stat.S_ISREG(info.st_mode):
            raise ModelFileError(f"{self.label}: is not a regular file")
        end = info.st_size - TRAILER_BYTES
        raw = os.pread(self._fd, TRAILER_BYTES, end) if end >= 0 else b""
        if len(raw) < TRAILER_BYTES or _TRAILER.unpack(raw)[0] != magic:
            raise ModelFileError(
                f"{self.label}: truncated or not a {self._what}: no trailer at the end of its {info.st_size} bytes"
            )
        _, file_format, file_abi, file_bytes, table_offset, table_digest = _TRAILER.unpack(raw)
        for what, got, expected in (("file format", file_format, FILE_FORMAT), ("ABI", file_abi, abi)):
            if got != expected:
                raise ModelFileError(
                    f"{self.label}: made for {what} version {got}, expected version {expected}: compile the model again"
                )
        if file_bytes != info.st_size:
            raise ModelFileError(f"{self.label}: damaged or truncated: expected {file_bytes} bytes, got {info.st_size}")
        count, rest = divmod(end - table_offset, SECTION_BYTES)
        if table_offset > end or rest or count > MAX_SECTIONS:
            self._damaged(f"trailer: its table of sections at {table_offset} doesn't fit in {info.st_size} bytes")
        table = os.pread(self._fd, end - table_offset, table_offset)
        if hashlib.sha256(table).digest() != table_digest:
            self._damaged("table of sections: its SHA-256 isn't the trailer's")
        self.file_digest = hashlib.sha256(raw).digest()
        self.sections = self._check_table(table, table_offset)

    def _check_table(self, table: bytes, table_offset: int) -> list[Section]:
        sections = []
        at = 0
        for kind, reserved, offset, nbytes, expected in _SECTION.iter_unpack(table):
            if kind not in self._names or reserved:
                self._damaged(f"table of sections: a section of the unknown kind {kind}")
            if not (at <= offset < at + SECTION_ALIGN and offset + nbytes <= table_offset):
                self._damaged(
                    f"table of sections: {self._names[kind]} of {nbytes} bytes at {offset} overlaps its neighbours or leaves a gap"
                )
            self._check_padding(at, offset)
            sections.append(Section(kind, offset, nbytes, expected))
            at = offset + nbytes
        if table_offset - at >= SECTION_ALIGN:
            self._damaged("table of sections: a gap behind the last section")
        self._check_padding(at, table_offset)
        return sections

    def _check_padding(self, at: int, end: int) -> None:
        if any(os.pread(self._fd, end - at, at)):
            self._damaged(f"padding at {at}: it isn't zero")

    def of_kind(self, kind: int) -> list[Section]:
        """The sections of a kind, in order."""
        return [s for s in self.sections if s.kind == kind]

    def only(self, kind: int) -> Section:
        """The one section of a kind."""
        found = self.of_kind(kind)
        if len(found) != 1:
            self._damaged(f"table of sections: {len(found)} sections of {self._names[kind]}, expected one")
        return found[0]

    def read(self, section: Section) -> bytes:
        """A section's content, verified; of texts and numbers, which are small."""
        if section.nbytes > LARGEST_TEXT:
            self._damaged(f"{self._names[section.kind]}: {section.nbytes} bytes are more than the {LARGEST_TEXT} that it may have")
        data = bytearray(section.nbytes)
        self.read_into(section, data)
        return bytes(data)

    def read_into(self, section: Section, memory: Buffer) -> None:
        """Fills memory of the section's size with its content, by several threads, and verifies it."""
        got = read_section(self._fd, section.offset, memory)
        if got != section.digest:
            self._damaged(f"{self._names[section.kind]}: expected SHA-256 {section.digest.hex()}, got {got.hex()}")

    def verify(self) -> None:
        """Verifies every section, holding little of them in memory."""
        memory = memoryview(Memory(_WINDOW))
        for section in self.sections:
            pieces = hashlib.sha256()
            for at in range(0, section.nbytes, _WINDOW):
                window = memory[: min(_WINDOW, section.nbytes - at)]
                if os.preadv(self._fd, [window], section.offset + at) != window.nbytes:
                    self._damaged(f"{self._names[section.kind]}: the file became shorter")
                for start in range(0, window.nbytes, PIECE):
                    pieces.update(hashlib.sha256(window[start : start + PIECE]).digest())
            if pieces.digest() != section.digest:
                self._damaged(f"{self._names[section.kind]}: expected SHA-256 {section.digest.hex()}, got {pieces.hexdigest()}")

    def _damaged(self, text: str) -> NoReturn:
        raise ModelFileError(f"{self.label}: damaged {text}")
