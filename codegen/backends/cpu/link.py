"""Writes compiled programs: a model file through the system's C compiler, or one object for whoever links it."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import llvmlite.binding as llvm

from dhlo.codegen.backends.artifact import Artifact
from dhlo.codegen.backends.cpu.archive import Member, archive_head, constants_object
from dhlo.codegen.backends.cpu.llvm import machine, optimise
from dhlo.codegen.host.program import HOST_PROGRAM
from dhlo.codegen.kernel_ir import abi
from dhlo.codegen.target import Target, native
from dhlo.container import atomic_write, check_target, write_bytes
from dhlo.errors import CompileError
from dhlo.header import Form, check_identifier, identifier, language_of, model_header
from dhlo.model_file import check_weights_name, features_text, write_model_file
from dhlo.options import c_compiler

__all__ = [
    "constants_path",
    "cross_compiler",
    "extern_addresses",
    "link_shared",
    "merged_assembly",
    "merged_ir",
    "prefix_of",
    "write_archive",
    "write_header",
    "write_model",
    "write_object",
]

# No undefined symbols, so that a missing function shows here and not where the file is loaded; no memory that is both
# writable and executable. Functions keep their names, for profilers.
_FLAGS = (
    "-shared",
    "-nostartfiles",
    "-fPIC",
    "-Wl,--discard-locals",
    "-Wl,--hash-style=gnu",
    "-Wl,--no-undefined",
    "-Wl,--gc-sections",
    "-Wl,--build-id=none",
    "-Wl,-z,noexecstack",
    "-Wl,-z,relro",
    "-Wl,-z,now",
    "-Wl,--as-needed",
    "-lm",
    "-lc",
)
_HINT = "install a C compiler or name one in the environment variable CC; --emit=obj and --emit=archive need none"


def write_model(artifact: Artifact, path: Path, weights_file: str | None = None) -> None:
    """Writes a model file: shared object, constants, metadata; the constants one by one, never joined in memory, and to a file of
    that name in the same folder if there is one.

    Raises CompileError if there is no C compiler or it fails, OSError if a file can't be written, DhloError for what is no plain
    name.
    """
    if weights_file is not None:
        check_weights_name(weights_file, path)
    with tempfile.TemporaryDirectory(prefix="dhlo-") as folder:
        image = Path(folder) / "code.so"
        link_shared(artifact.objects, image, artifact.externs, artifact.targets[0], debug_info=artifact.metadata["debug_info"])
        constants = (chunk.data for chunk in artifact.constants.chunks())
        metadata = "\n".join(json.dumps(entry) for entry in artifact.entries)
        features = features_text(artifact.metadata["levels"])
        write_model_file(path, image.read_bytes(), constants, metadata, features, artifact.source, weights_file)


def extern_addresses(externs: Mapping[str, str]) -> dict[str, int]:
    """Addresses in this process of C functions, given with the libraries that hold them ("": the process itself).

    Raises CompileError where there is no such library or function.
    """
    found = {}
    for symbol, library in externs.items():
        try:
            opened = ctypes.CDLL(_loadable(library) if library else None)
            found[symbol] = ctypes.cast(getattr(opened, symbol), ctypes.c_void_p).value or 0
        except (OSError, AttributeError) as e:
            raise CompileError(f"no function '{symbol}' in {library or 'this process'}: {e}") from None
    return found


def _loadable(library: str) -> str:
    """A shared library; objects and static libraries are linked to one."""
    if not library.endswith((".o", ".a")):
        return library
    path = Path(tempfile.mkdtemp(prefix="dhlo-")) / "extern.so"
    _link(["-shared", "-o", str(path), "-Wl,--whole-archive", library, "-Wl,--no-whole-archive"], native())
    return str(path)


def link_shared(objects: list[bytes], path: Path, externs: Mapping[str, str], target: Target, *, debug_info: bool = False) -> None:
    """Links objects of a target, and the libraries of the C functions that they call, to a shared object that exports
    `dhlo_model_v1` only. Functions of no library are left to the process that loads it. Line tables are kept with
    `debug_info`. Raises CompileError like write_model."""
    with tempfile.TemporaryDirectory(prefix="dhlo-") as folder:
        names = []
        for i, data in enumerate(objects):
            names.append(str(Path(folder) / f"part{i}.o"))
            Path(names[-1]).write_bytes(data)
        exports = Path(folder) / "exports.map"
        exports.write_text(f"{{ global: {abi.ABI_SYMBOL}; local: *; }};\n")
        libraries = sorted(set(externs.values()) - {""})
        names += [*libraries, *(f"-Wl,-rpath,{Path(x).parent}" for x in libraries if not x.endswith((".o", ".a")))]
        late = ["-Wl,-z,undefs"] if "" in externs.values() else []
        strip = [] if debug_info else ["-Wl,--strip-debug"]
        _link(["-o", str(path), *names, f"-Wl,--version-script={exports}", *_FLAGS, *strip, *late], target)


def cross_compiler(target: Target) -> str:
    """The C compiler that links for the target where CC names none: `cc`, or for another architecture than this machine's the one
    that Debian, Fedora and others name after the target."""
    arch = target.triple.partition("-")[0]
    return "cc" if arch == platform.machine() else f"{arch}-linux-gnu-gcc"


def _link(arguments: list[str], target: Target) -> None:
    usual = cross_compiler(target)
    foreign = usual != "cc"
    package = f"gcc-{target.triple.partition('-')[0].replace('_', '-')}-linux-gnu"
    hint = (
        f"install {usual} (Debian's package {package}) or name a C compiler for {target.name} in the environment variable CC; "
        "--emit=obj and --emit=archive need none"
        if foreign
        else _HINT
    )
    try:
        compiler = shlex.split(c_compiler(usual))
    except ValueError as e:
        raise CompileError(f"CC is no command: {e}", hint=hint) from None
    if not compiler:
        raise CompileError("CC is blank", hint=hint)
    try:
        result = subprocess.run([*compiler, *arguments], capture_output=True, text=True, check=False)
    except OSError as e:
        raise CompileError(f"the C compiler '{compiler[0]}' can't be run: {e.strerror}", hint=hint) from None
    if result.returncode != 0:
        raise CompileError(f"linking with '{compiler[0]}' failed:\n{(result.stderr or result.stdout).strip()}", hint=hint)


def constants_path(path: Path) -> Path:
    """Where `write_object` puts the constants that belong to an object."""
    return path.with_suffix(".constants")


def write_object(artifact: Artifact, path: Path, symbol: str | None = None) -> None:
    """Writes one relocatable object that defines the model's descriptor, its constants beside it, and their SHA-256 beside them, as
    `sha256sum --check` reads it; needs no linker.

    The descriptor is `SYMBOL_descriptor`, all else is local; `symbol` is by default made of the model's name. A host links the
    object and passes it and the constants to `dhlo_model_from_descriptor`. Raises CompileError for what is no name in C, OSError.
    """
    data = _object(artifact, prefix_of(artifact, symbol))
    constants, whole = constants_path(path), hashlib.sha256()

    # All is on the disk before any of it has its name, so that a disk that is full leaves no code with others' constants.
    def fill_constants(fd: int) -> None:
        with os.fdopen(os.dup(fd), "wb") as file:
            for chunk in artifact.constants.chunks():
                file.write(chunk.data)
                whole.update(chunk.data)
        write_bytes(constants.with_suffix(".constants.sha256"), f"{whole.hexdigest()}  {constants.name}\n".encode())

    def fill_object(fd: int) -> None:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(data)
        atomic_write(constants, fill_constants)

    atomic_write(path, fill_object)


def write_archive(artifact: Artifact, path: Path, symbol: str | None = None) -> None:
    """Writes a static library with the model's code and constants: `SYMBOL_descriptor` as `write_object` defines it, and
    `SYMBOL_constants`, a pointer to the constants. Needs no linker. Raises CompileError for what is no name in C, or constants of
    more than 9.9 GB; OSError."""
    prefix, nbytes = prefix_of(artifact, symbol), artifact.constants.bytes
    code = _object(artifact, prefix)
    before, behind = constants_object(f"{prefix}_constants", nbytes, artifact.targets[0])
    members = [
        Member("model.o", [f"{prefix}_descriptor"], len(code)),
        Member("constants.o", [f"{prefix}_constants"], len(before) + nbytes + len(behind)),
    ]
    first, second = archive_head(members)

    def fill(fd: int) -> None:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(first + code + b"\n" * (len(code) % 2) + second + before)
            for chunk in artifact.constants.chunks():
                file.write(chunk.data)
            file.write(behind + b"\n" * (members[1].nbytes % 2))

    atomic_write(check_target(path), fill)


def prefix_of(artifact: Artifact, symbol: str | None) -> str:
    """What the model's symbols begin with. Raises CompileError for what is no name in C."""
    return check_identifier(symbol) if symbol is not None else identifier(artifact.metadata["name"])


def write_header(artifact: Artifact, path: Path, form: Form, symbol: str | None = None) -> None:
    """Writes the header for a model file (`so`), object or static library of these symbols: see `model_header`. Raises CompileError
    where the path ends with neither .h nor .hpp, OSError."""
    text = model_header(artifact.entries, prefix_of(artifact, symbol), form, language_of(path))
    write_bytes(path, text.encode())


def _object(artifact: Artifact, prefix: str) -> bytes:
    module, machine = _merge(artifact)
    module.get_global_variable(abi.ABI_SYMBOL).name = f"{prefix}_descriptor"
    return bytes(machine.emit_object(module))


def merged_ir(artifact: Artifact) -> str:
    """The program's optimised LLVM IR as one module."""
    return str(_merge(artifact)[0])


def merged_assembly(artifact: Artifact) -> str:
    """The program's assembly as one file."""
    module, machine = _merge(artifact)
    return str(machine.emit_assembly(module))


def _merge(artifact: Artifact) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    """One optimised module, and the machine to make code of it with; everything but the model's descriptor becomes local to it.
    Each part is optimised by itself, as for a shared library; its functions say what features they may use."""
    levels = [[optimise(text, target)[0] for text in texts] for target, texts in artifact.levels]
    joined = [_joined([str(part) for part in parts], HOST_PROGRAM) for parts in levels]
    first, _ = artifact.levels[0]
    return _joined([str(module) for module in joined]), machine(first, first.features)


def _joined(texts: list[str], visible: str = abi.ABI_SYMBOL) -> llvm.ModuleRef:
    """One module of several, in which all but the descriptor and what is named `visible` before a dot is local."""
    context = llvm.create_context()
    module = llvm.parse_assembly(texts[0], context)
    for text in texts[1:]:
        module.link_in(llvm.parse_assembly(text, context))
    _make_local(module, visible)
    return module


def _make_local(module: llvm.ModuleRef, visible: str) -> None:
    for value in [*module.functions, *module.global_variables]:
        if not value.is_declaration and value.name != abi.ABI_SYMBOL and value.name.partition(".")[0] != visible:
            value.linkage = "internal"
