"""`dhlo compile`: an exported program to a model file, or to the text or object of one of the stages."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dhlo.api import build_entries, import_programs
from dhlo.codegen.target import parse_targets
from dhlo.commands.console import cache_summary, console, megabytes, quantised_summary, rounded_summary
from dhlo.commands.dump import Dump
from dhlo.commands.options import Build, weight_formats
from dhlo.commands.shapes import parse_bounds
from dhlo.container import check_apart, check_target, write_bytes
from dhlo.custom import read_pass
from dhlo.errors import CompileError
from dhlo.exported import read_program
from dhlo.header import Form, check_identifier, language_of
from dhlo.model_file import check_weights_name
from dhlo.options import LoraOptions, Options, default_target
from dhlo.progress import reporter
from dhlo.sharing import check_names

if TYPE_CHECKING:
    from dhlo.codegen.backends.artifact import Artifact

__all__ = ["Emit", "compile_file"]


class Emit(StrEnum):
    """What `dhlo compile` writes."""

    SO = "so"
    OBJ = "obj"
    ARCHIVE = "archive"
    MLIR = "mlir"
    PLANNED = "planned"
    LLVM = "llvm"
    ASM = "asm"


_SUFFIX = {
    Emit.SO: ".so",
    Emit.OBJ: ".o",
    Emit.ARCHIVE: ".a",
    Emit.MLIR: ".mlir",
    Emit.PLANNED: ".planned.mlir",
    Emit.LLVM: ".ll",
    Emit.ASM: ".s",
}

_HF = "hf:"  # before a folder of transformers

_BINARY: dict[Emit, Form] = {Emit.SO: "so", Emit.OBJ: "obj", Emit.ARCHIVE: "archive"}


def compile_file(sources: Sequence[str], output: Path | None, emit: Emit, how: Build) -> Path:
    """Compiles `sources` and writes `output`: by default, a file in the current folder called as the only source, with the suffix
    of what is written, which must not be there but for `how.force`. A source is a path; if there are several, each is a name, `=`
    and a path. The only one may be `hf:` and a folder of transformers. Returns the path of the output.

    Raises CompileError, and OSError where the output can't be written.
    """
    if emit not in _BINARY and (how.symbol is not None or how.header is not None):
        raise CompileError("--symbol and --header go with --emit so, obj and archive")
    if how.symbol is not None:
        check_identifier(how.symbol)
    if how.weights_file is not None and emit is not Emit.SO:
        raise CompileError("--weights-file goes with --emit so", hint="--emit obj writes weights to a file of their own anyway")
    if how.header is not None:
        language_of(how.header)
    folder = _folder(sources)
    files = _named(sources) if folder is None else {"": folder}
    output = _output(output, files, folder, emit, how.force)
    beside = None
    if how.weights_file is not None:
        check_weights_name(how.weights_file, output)
        beside = check_target(output.parent / how.weights_file)
    check_apart([output, how.header, beside], files.values())
    start = time.perf_counter()
    dump = None if how.dump_dir is None else Dump(how.dump_dir)
    options = Options(
        name=how.name or (output if folder is not None or "" not in files else files[""]).stem,
        progress=bool(how.progress),
        target=how.target or default_target(),
        weights=weight_formats(how.weights),
        winograd=how.winograd,
        activations=how.activations,
        kv_cache=how.kv_cache,
        shapes=parse_bounds(how.shape_ranges or ()),
        dump=dump,
        passes=[read_pass(text) for text in how.passes or ()],
        debug_info=how.debug_info,
        updatable=how.updatable,
        grow=_parse_numbers(how.grow or (), "NAME=DIM, an argument and the number of the dim along which it grows"),
        pages=_parse_numbers(how.pages or (), "NAME=SLOTS, a cache and the number of slots of a block"),
        lora=None if how.lora is None else _parse_lora(how.lora),
    )
    parse_targets(options.target)  # before the work that a wrong name would waste
    if folder is None:
        exported = {entry: read_program(path, how.modules or ()) for entry, path in files.items()}
    else:
        exported, growing = _folder_programs(folder)
        options = replace(options, grow={**growing, **options.grow})
    try:
        artifact = _write(exported, output, emit, options, how)
    except Exception as e:
        if dump is not None:
            console().print(f"how to run what failed: {dump.failed(e)}")
        raise
    if artifact is not None and emit in _BINARY:
        _report(artifact, output, emit is Emit.OBJ or how.weights_file is not None, time.perf_counter() - start)
    return output


def _parse_numbers(texts: Sequence[str], what: str) -> dict[str, int]:
    """`past_*=2` as {"past_*": 2}. Raises CompileError on anything else: that it isn't `what`."""
    out = dict[str, int]()
    for text in texts:
        name, _, number = text.rpartition("=")
        if not name or not (number.removeprefix("-").isdecimal() and number.isascii() and len(number) < 8):
            raise CompileError(f"'{text[:80]}' is not {what}")
        out[name] = int(number)
    return out


def _parse_lora(text: str) -> LoraOptions:
    """`16:8:q_proj,v_proj` as options. Raises CompileError on anything else."""
    rank, _, rest = text.partition(":")
    adapters, _, targets = rest.partition(":")
    numbers = [n for n in (rank, adapters) if n]
    names = targets.split(",") if targets else []
    if not rank or text.endswith(":") or not all(n.isdecimal() and n.isascii() and len(n) < 8 for n in numbers) or not all(names):
        raise CompileError(f"--lora: '{text[:80]}' is not RANK[:ADAPTERS[:TARGETS]], as 16:8:q_proj,v_proj")
    return LoraOptions(int(rank), int(adapters) if adapters else LoraOptions.max_adapters, names)


def _output(given: Path | None, files: Mapping[str, Path], folder: Path | None, emit: Emit, force: bool) -> Path:
    """The file to write, if that may be: by default in the current folder, called as the only source. Raises CompileError, and
    OSError for what is no place for a model file."""
    if given is None and list(files) != [""]:
        raise CompileError("a model of several entries needs a name for its file: -o FILE")
    # Folders have dots in their names, and no suffix.
    output = given or Path((files[""].stem if folder is None else folder.resolve().name) + _SUFFIX[emit])
    if given is None and output.exists() and not force:
        raise CompileError(f"'{output}' is there already", hint="replace it by --force, or name the file: -o FILE")
    if not output.parent.is_dir() or output.is_dir():
        raise CompileError(
            f"'{output}' can't be written: " + ("it is a folder" if output.is_dir() else f"'{output.parent}' is not a folder")
        )
    if emit in _BINARY:
        check_target(output)
    return output


def _report(artifact: Artifact, output: Path, apart: bool, seconds: float) -> None:
    """`apart`: the weights are in another file than the output."""
    code = output.stat().st_size - (0 if apart else artifact.constants.bytes)
    console().print(f"{output}: {megabytes(code)} without weights, {megabytes(artifact.constants.bytes)} weights, {seconds:.1f} s")
    for entry in artifact.entries:
        if entry["quantised"]:
            console().print(quantised_summary(entry["quantised"]))
        if entry["rounded_products"]:
            console().print(rounded_summary(entry["rounded_products"]))
        if entry["caches"]:
            console().print(cache_summary(entry["caches"]))


def _write(
    exported: Mapping[str, torch.export.ExportedProgram], output: Path, emit: Emit, options: Options, how: Build
) -> Artifact | None:
    """Compiles as far as is asked for, and writes that; returns what the code generator made, if it came to that."""
    if emit in (Emit.MLIR, Emit.PLANNED):
        write_bytes(output, _module_text(exported, emit is Emit.PLANNED, how.locations, options).encode())
        return None
    from dhlo.codegen.backends.cpu import link

    with reporter(options.progress) as tell:
        _, artifact = build_entries(exported, options, tell)
        tell(f"write {output}")
        match emit:
            case Emit.SO:
                link.write_model(artifact, output, how.weights_file)
            case Emit.OBJ:
                link.write_object(artifact, output, how.symbol)
            case Emit.ARCHIVE:
                link.write_archive(artifact, output, how.symbol)
            case Emit.LLVM:
                write_bytes(output, link.merged_ir(artifact).encode())
            case _:
                write_bytes(output, link.merged_assembly(artifact).encode())
        if how.header is not None:
            link.write_header(artifact, how.header, _BINARY[emit], how.symbol)
    return artifact


def _folder(sources: Sequence[str]) -> Path | None:
    """The folder of the only source, if that is `hf:FOLDER`. Raises CompileError where it is one of several."""
    folders = [s for s in sources if s.startswith(_HF) or s.partition("=")[2].startswith(_HF)]
    if folders and (len(sources) > 1 or not folders[0].startswith(_HF)):
        raise CompileError(f"'{folders[0]}': {_HF}FOLDER is a whole model and goes alone, without a name")
    return Path(folders[0].removeprefix(_HF)) if folders else None


def _folder_programs(folder: Path) -> tuple[dict[str, torch.export.ExportedProgram], dict[str, int]]:
    try:
        from dhlo.integrations.pretrained import folder_programs
    except ImportError as e:
        raise CompileError(f"{_HF}FOLDER needs the library transformers: {e}", hint="pip install 'transformers>=5.23'") from None
    return folder_programs(folder)


def _named(sources: Sequence[str]) -> dict[str, Path]:
    """Files by entry; the only one may be without a name. Raises CompileError."""
    if len(sources) == 1 and ("=" not in sources[0] or Path(sources[0]).is_file()):
        return {"": Path(sources[0])}
    files = dict[str, Path]()
    for source in sources:
        entry, equals, path = source.partition("=")
        if not equals:
            raise CompileError(f"'{source}': of several programs each needs a name: ENTRY={source}")
        if entry in files:
            raise CompileError(f"two programs are called '{entry}'")
        files[entry] = Path(path)
    check_names(files)
    return files


def _module_text(exported: Mapping[str, torch.export.ExportedProgram], planned: bool, locations: bool, options: Options) -> str:
    """The modules as imported, or as the host programs are made of them."""
    from dhlo.commands.opt import module_text
    from dhlo.compiler import plan_programs

    programs = import_programs(exported, options)
    if planned:
        plan_programs(programs, options, lambda _: None, parse_targets(options.target)[:1])
    texts = []
    for program in programs.values():
        with program.context:
            texts.append(module_text(program.module, locations))
    return "\n".join(texts)
