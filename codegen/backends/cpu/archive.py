"""Static libraries of a model: its code as one member and its constants as another, written without a linker or assembler."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dhlo.codegen.target import Target
from dhlo.container import SECTION_ALIGN
from dhlo.errors import CompileError

__all__ = ["Member", "archive_head", "constants_object"]

_MAGIC: Final = b"!<arch>\n"
_LARGEST: Final = 10**10 - 1  # bytes of a member, in ten digits

# ELF, see elf.h.
_EHDR: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SHDR: Final = struct.Struct("<IIQQQQIIQQ")
_SYM: Final = struct.Struct("<IBBHQQ")
_RELA: Final = struct.Struct("<QQq")
_PROGBITS, _SYMTAB, _STRTAB, _RELA_TYPE = 1, 2, 3, 4
_WRITE, _ALLOC, _INFO_LINK, _X86_64_LARGE = 1, 2, 0x40, 0x10000000


@dataclass(frozen=True)
class Member:
    """A part of a static library: its file name, the symbols that it defines, and how many bytes it has."""

    name: str
    symbols: Sequence[str]
    nbytes: int


def archive_head(members: Sequence[Member]) -> list[bytes]:
    """What a static library has before each member's content: for the first of them the table of symbols, too. Content of an odd
    number of bytes is to be followed by a newline. Raises CompileError for a member that is too large.

    Only the last member may be large: the table has 32 bits for where a member begins.
    """
    names = [(number, symbol) for number, member in enumerate(members) for symbol in member.symbols]
    table_bytes = 4 + 4 * len(names) + sum(len(symbol) + 1 for _, symbol in names)
    table_bytes += table_bytes % 2
    at, starts = len(_MAGIC) + 60 + table_bytes, []
    for member in members:
        starts.append(at)
        at += 60 + member.nbytes + member.nbytes % 2
    if starts[-1] >= 1 << 32 or any(member.nbytes > _LARGEST for member in members):
        raise CompileError(
            "the model's constants are too large for a static library",
            hint="use --emit obj, whose constants are a file of their own",
        )
    table = struct.pack(f">I{len(names)}I", len(names), *(starts[number] for number, _ in names))
    table = (table + b"".join(symbol.encode() + b"\0" for _, symbol in names)).ljust(table_bytes, b"\0")
    heads = [_header(member.name + "/", member.nbytes) for member in members]
    return [_MAGIC + _header("/", table_bytes) + table + heads[0], *heads[1:]]


def _header(name: str, nbytes: int) -> bytes:
    return f"{name:<16}{0:<12}{0:<6}{0:<6}{'644':<8}{nbytes:<10}`\n".encode()


def constants_object(symbol: str, nbytes: int, target: Target) -> tuple[bytes, bytes]:
    """What comes before and behind `nbytes` of constants in a relocatable object of which `symbol` is a pointer to them.

    The pointer can be reached by any code, however far away the constants lie: on x86-64 they are a large section, which linkers
    put behind all others.
    """
    x86 = target.is_x86
    strings = b"\0" + symbol.encode() + b"\0"
    # The constants' section, which the pointer refers to, and the pointer.
    symbols = _SYM.pack(0, 0, 0, 0, 0, 0) + _SYM.pack(0, 3, 0, 1, 0, 0) + _SYM.pack(1, 0x11, 0, 2, 0, 8)
    relocation = _RELA.pack(0, (1 << 32) | (1 if x86 else 257), 0)  # R_X86_64_64, R_AARCH64_ABS64
    # Name, type, flags, content, sh_link, sh_info, alignment, bytes of an entry.
    sections = [
        (".lrodata" if x86 else ".rodata", _PROGBITS, _ALLOC | (_X86_64_LARGE if x86 else 0), None, 0, 0, SECTION_ALIGN, 0),
        (".data.rel.ro", _PROGBITS, _ALLOC | _WRITE, bytes(8), 0, 0, 8, 0),
        (".rela.data.rel.ro", _RELA_TYPE, _INFO_LINK, relocation, 5, 2, 8, _RELA.size),
        (".note.GNU-stack", _PROGBITS, 0, b"", 0, 0, 1, 0),
        (".symtab", _SYMTAB, 0, symbols, 6, 2, 8, _SYM.size),
        (".strtab", _STRTAB, 0, strings, 0, 0, 1, 0),
    ]
    names = b"\0" + b"".join(name.encode() + b"\0" for name, *_ in sections) + b".shstrtab\0"
    sections.append((".shstrtab", _STRTAB, 0, names, 0, 0, 1, 0))
    rows, tail, behind = [_SHDR.pack(*[0] * 10)], bytearray(), SECTION_ALIGN + nbytes
    for name, kind, flags, data, link, info, align, each in sections:
        if data is not None:
            tail += bytes(-(behind + len(tail)) % 8)
        at, size = (SECTION_ALIGN, nbytes) if data is None else (behind + len(tail), len(data))
        rows.append(_SHDR.pack(names.index(b"\0" + name.encode() + b"\0") + 1, kind, flags, 0, at, size, link, info, align, each))
        tail += data or b""
    tail += bytes(-(behind + len(tail)) % 8)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    machine, count = (62 if x86 else 183), len(rows)  # EM_X86_64, EM_AARCH64
    head = _EHDR.pack(ident, 1, machine, 1, 0, 0, behind + len(tail), 0, _EHDR.size, 0, 0, _SHDR.size, count, count - 1)
    return head.ljust(SECTION_ALIGN, b"\0"), bytes(tail + b"".join(rows))
