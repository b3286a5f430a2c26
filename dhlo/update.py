"""Other weights for a model file, whose code stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from dhlo.cache import compiler_version
from dhlo.codegen.kernel_ir.abi import SECTION
from dhlo.codegen.target import Target, parse_targets
from dhlo.compiler import lower_programs
from dhlo.container import check_apart
from dhlo.errors import CompileError, DhloError, ModelFileError
from dhlo.frontend.program import Program
from dhlo.ir.context import context
from dhlo.model_file import open_sections, read_infos, write_model_file
from dhlo.options import Options
from dhlo.source import Source, check_weights, read_source, write_source
from dhlo.texts import read_module

__all__ = ["read_safetensors", "update_weights"]

_PathLike = str | Path


def update_weights(
    model: _PathLike,
    weights: Mapping[str, torch.Tensor] | _PathLike | Sequence[_PathLike],
    output: _PathLike | None = None,
    *,
    strict: bool = True,
) -> Path:
    """Writes a model file with other weights, without compiling: its code is copied as it is.

    What follows from weights (folded, joined, quantised, packed) is made again by the passes that made it when the model was
    compiled, from the programs that the file keeps. Where they would lead to other code, as some choices rest on values, the
    weights are refused; values never meet code that wasn't made for them.

    Args:
        model: a model file.
        weights: tensors by their names in the state dict of the exported module, or a .safetensors file of them, or several. Each
            has the shape and dtype that it had. All that the state dict has must be given; of what it lacks (constants of the
            program, buffers that aren't persistent) what isn't given stays as it was. Weights that no program reads aren't
            looked at.
        output: the file to write, by default `model`. It appears when it is whole; processes that have loaded the old one keep it.
            A signature of the old one isn't the new one's.
        strict: refuses names that the model doesn't know.

    Returns the path of the output. Raises CompileError for weights that don't fit, ModelFileError for a file that is damaged, of
    another version, or compiled with `updatable=False` or passes of users, and OSError if the output can't be written.
    """
    paths = isinstance(weights, str | Path) or isinstance(weights, Sequence) and all(isinstance(w, str | Path) for w in weights)
    if not isinstance(weights, Mapping) and not paths:
        raise DhloError(f"weights: expected tensors by name, or paths of .safetensors files, got {type(weights).__name__}")
    output = Path(model if output is None else output)
    if not isinstance(weights, Mapping):
        files = [weights] if isinstance(weights, str | Path) else list(weights)
        check_apart([output], files)
        weights = read_safetensors(files)
    with open_sections(model) as sections:
        read_infos(sections)
        kept = sections.of_kind(SECTION["source"])
        if not kept:
            raise ModelFileError(
                f"{sections.label}: its weights can't be replaced: it was compiled with updatable=False, or passes of users"
            )
        source = read_source(sections.read(kept[0]), sections.label)
        code, metadata, features = (sections.read(sections.only(SECTION[k])) for k in ("code", "metadata", "features"))
        label = sections.label
    tensors = check_weights(source, weights, strict=strict)
    targets = _targets(source)
    with ExitStack() as contexts:
        programs = {entry: _program(entry, source, tensors, contexts) for entry in source.programs}
        try:
            lowered = lower_programs(programs, Options(winograd=source.winograd), targets)
        except CompileError as e:
            raise CompileError(f"{label} can't take these weights: {e.what}", where=e.where, hint=e.hint) from None
        if lowered.code_digest() != source.code:
            raise CompileError(f"{label} can't take these weights: {_reason(source)}", hint="compile the program with them")
        for key, t in source.tensors.items():
            if t.content is not None:
                t.content = tensors[key]
        chunks = (chunk.data for chunk in lowered.constants.chunks())
        write_model_file(output, code, chunks, metadata.decode(), features.decode(), write_source(source))
    return output


def _reason(source: Source) -> str:
    if compiler_version() != source.compiler:
        return "another version of dhlo compiled it, and made other code than this one would"
    return (
        "the code was made for values of another kind (which weights are equal, how scales and zero points of quantised ones are "
        "spread, numbers that became part of the code)"
    )


def _targets(source: Source) -> list[Target]:
    found = parse_targets(",".join(name for name, _ in source.targets))
    return [replace(t, tune=tune) for t, (_, tune) in zip(found, source.targets, strict=True)]


def _program(entry: str, source: Source, tensors: Mapping[str, torch.Tensor], contexts: ExitStack) -> Program:
    """An entry as it was imported, but with other weights. How it is called isn't needed, as its host program isn't made."""
    text, names = source.programs[entry]
    with context() as ctx:
        module = read_module(text, f"source of entry '{entry}'" if entry else "source")
    weights = {name: tensors[key] for name, key in names.items()}
    return Program(ctx, module, weights, [], [], None, None, {})


def read_safetensors(files: _PathLike | Sequence[_PathLike]) -> dict[str, torch.Tensor]:
    """All tensors of .safetensors files, as pages of these where the library can. Raises DhloError for files that can't be read,
    and where two have a tensor of one name."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise DhloError("reading .safetensors files takes the package safetensors: pip install safetensors") from None
    found = dict[str, torch.Tensor]()
    for path in [files] if isinstance(files, str | Path) else files:
        try:
            if not Path(path).is_file():  # which a pipe isn't: nobody may ever write to it
                raise OSError("there is no such file" if not Path(path).exists() else "it is not a regular file")
            with safe_open(path, framework="pt") as file:
                for name in file.keys():
                    if name in found:
                        raise DhloError(f"'{path}': a tensor '{name}' is in another file, too")
                    found[name] = file.get_tensor(name)
        except (OSError, SafetensorError, ValueError) as e:
            raise DhloError(f"'{path}' can't be read as safetensors: {e}") from None
    return found
