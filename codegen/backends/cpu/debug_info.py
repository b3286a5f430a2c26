"""Line tables for debuggers and profilers: LLVM IR whose code says from which line of the user's files it comes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from dhlo.ir.places import Place

__all__ = ["with_line_tables"]

_DEFINE = re.compile(r"^define [^@]*@(?P<name>[\w.$]+|\"[^\"]+\")\(.*\{$")
_LAUNCH = re.compile(r"^  (?:%\S+ = )?(?:tail )?call i32 %\S+\(ptr %0, ptr [^,]+, ptr [^,]+, (?:i64 [^,]+, ){3}i64 (?P<site>\d+)\)")
_NUMBER = re.compile(r"^!(\d+) = ", re.MULTILINE)
_FLAGS = re.compile(r"^!llvm\.module\.flags = !\{(.*)\}$", re.MULTILINE)
_VERSION = '!"Debug Info Version", i32 3'


def with_line_tables(ir_text: str, kernels: Mapping[str, Place], programs: Mapping[str, Sequence[Place]], producer: str) -> str:
    """LLVM IR text as MLIR prints it, with a line of the user's source for each instruction.

    Args:
        ir_text: a module without debug information.
        kernels: where the group comes from that a kernel was first made for, by kernel.
        programs: the same of each launch site of a host program, by symbol. What comes before a launch is taken to prepare it.
        producer: who made the code.

    A function that is in neither has no lines of its own: what is inlined from it counts for the line that it is called from.
    """
    tables = _Tables(ir_text, producer)
    out, body, name = [], list[str](), ""
    for line in ir_text.split("\n"):
        found = _DEFINE.match(line) if not name else None
        if found is not None:
            name, body = found["name"].strip('"'), [line]
        elif not name:
            out.append(line)
        else:
            body.append(line)
            if line == "}":
                out += tables.function(name, body, _places(name, kernels, programs))
                name = ""
    return tables.finish("\n".join(out))


def _places(name: str, kernels: Mapping[str, Place], programs: Mapping[str, Sequence[Place]]) -> Sequence[Place]:
    """The places of a function's launches; of a kernel, the only one. Symbols end with the target's tag."""
    program = max((p for p in programs if name == p or name.startswith(f"{p}.")), key=len, default=None)
    if program is not None:
        return programs[program]
    place = kernels.get(name) or kernels.get(name.rpartition(".")[0])
    return [place] if place is not None and place.file else []


class _Tables:
    """The metadata of one module."""

    def __init__(self, ir_text: str, producer: str) -> None:
        self._next = max(map(int, _NUMBER.findall(ir_text)), default=-1) + 1
        self._lines: list[str] = []
        self._known: dict[str, str] = {}
        self._type = self._add("!DISubroutineType(types: !{null})")
        self._unit = self._add(
            f'distinct !DICompileUnit(language: DW_LANG_Python, file: {self._file("model.py")}, producer: "{producer}", '
            "isOptimized: true, runtimeVersion: 0, emissionKind: FullDebug)"
        )

    def _add(self, text: str) -> str:
        """The number of a node; equal ones are one, but for distinct ones."""
        if text not in self._known or text.startswith("distinct"):
            self._known[text] = f"!{self._next}"
            self._lines.append(f"!{self._next} = {text}")
            self._next += 1
        return self._known[text]

    def _file(self, path: str) -> str:
        escaped = "".join(c if 32 <= ord(c) < 127 and c not in '"\\' else "".join(f"\\{b:02X}" for b in c.encode()) for c in path)
        return self._add(f'!DIFile(filename: "{escaped}", directory: "")')

    def function(self, name: str, body: Sequence[str], places: Sequence[Place]) -> list[str]:
        """The function's lines, each instruction with its place."""
        first = next((p for p in places if p.file), None)
        if first is None:
            return list(body)
        file = self._file(first.file)
        scope = self._add(
            f'distinct !DISubprogram(name: "{name}", linkageName: "{name}", scope: {file}, file: {file}, line: {first.line}, '
            f"type: {self._type}, scopeLine: {first.line}, flags: DIFlagArtificial, "
            f"spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: {self._unit})"
        )

        scopes = {first.file: scope}  # by file, as distinct nodes aren't one by being equal

        def at(place: Place | None) -> str:
            if place is None or not place.file:
                return self._add(f"!DILocation(line: 0, scope: {scope})")
            if place.file not in scopes:
                text = f"distinct !DILexicalBlockFile(scope: {scope}, file: {self._file(place.file)}, discriminator: 0)"
                scopes[place.file] = self._add(text)
            return self._add(f"!DILocation(line: {place.line}, scope: {scopes[place.file]})")

        out = [body[0][:-1] + f"!dbg {scope} {{"]
        for text, place in _placed(body[1:-1], places):
            is_instruction = text.startswith("  ") and text.strip() and not text.endswith("[") and not text.startswith("    ")
            out.append(f"{text}, !dbg {at(place)}" if is_instruction else text)
        return [*out, body[-1]]

    def finish(self, ir_text: str) -> str:
        """The text with the metadata."""
        flags = _FLAGS.search(ir_text)
        if _VERSION not in ir_text:
            flag = self._add(f"!{{i32 2, {_VERSION}}}")
            row = f"!llvm.module.flags = !{{{flags[1] + ', ' if flags and flags[1] else ''}{flag}}}"
            ir_text = _FLAGS.sub(lambda _: row, ir_text) if flags else f"{ir_text}\n{row}"
        return "\n".join([ir_text.rstrip("\n"), f"!llvm.dbg.cu = !{{{self._unit}}}", *self._lines, ""])


def _placed(lines: Sequence[str], places: Sequence[Place]) -> Iterator[tuple[str, Place | None]]:
    """Lines with the place of the next launch among them; of a function without launches, with its only place."""
    sites = [int(m["site"]) if (m := _LAUNCH.match(line)) and len(places) > int(m["site"]) else None for line in lines]
    if all(site is None for site in sites):
        yield from ((line, places[0]) for line in lines)
        return
    following: list[Place | None] = [None] * len(lines)
    place: Place | None = None
    for k in range(len(lines) - 1, -1, -1):
        site = sites[k]
        place = places[site] if site is not None else place
        following[k] = place
    yield from zip(lines, following, strict=True)
