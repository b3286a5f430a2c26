"""Other weights for a model file, whose code stays as it is."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from dhlo.cache import compiler_version
from dhlo.codegen.kernel_ir.abi import SECTION
from dhlo.codegen.target import Target, parse_targets
from dhlo.compiler import LoweredPrograms, lower_programs
from dhlo.container import Container, check_apart, check_target
from dhlo.errors import CompileError, DhloError, ModelFileError
from dhlo.frontend.program import Program
from dhlo.ir.context import context
from dhlo.model_file import open_sections, read_infos, weights_of, write_model_file, write_weights, write_weights_file
from dhlo.options import Options
from dhlo.source import Source, check_weights, read_source, write_source
from dhlo.texts import read_module

__all__ = ["Weights", "kept_source", "prepared", "read_safetensors", "update_weights", "weights_in_memory", "write_safetensors"]

_PathLike = str | Path
Weights = Mapping[str, torch.Tensor] | _PathLike | Sequence[_PathLike]


def update_weights(
    model: _PathLike,
    weights: Weights,
    output: _PathLike | None = None,
    *,
    strict: bool = True,
    weights_only: bool = False,
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
            A signature of the old one isn't the new one's. If the model's weights are in a file beside it, so are the new ones: of
            the same name where the model is replaced, else called like the output, with the suffix `.weights`.
        strict: refuses names that the model doesn't know.
        weights_only: writes a weights file alone, which `output` names, for loading with the model: `dhlo.load(model,
            weights=output)`, `dhlo_model_options.weights_path` in C.

    Returns the path of the output. Raises CompileError for weights that don't fit, ModelFileError for a file that is damaged, of
    another version, or compiled with `updatable=False` or passes of users, and OSError if the output can't be written.
    """
    if weights_only and output is None:
        raise DhloError("weights_only: the weights file needs a name: output")
    replaced = output is None
    output = Path(model if output is None else output)
    if weights_only:
        check_apart([output], [model])
    given = _read_weights(weights, output)
    with open_sections(model) as sections:
        read_infos(sections)
        source, label = kept_source(sections), sections.label
        code, metadata, features = (sections.read(sections.only(SECTION[k])) for k in ("code", "metadata", "features"))
        row, beside = sections.only(SECTION["code"]), weights_of(sections).name
    tensors = check_weights(source, given, strict=strict)
    with prepared(source, tensors, label) as lowered:
        chunks = (chunk.data for chunk in lowered.constants.chunks())
        if weights_only:
            write_weights_file(output, chunks, [row.digest])
            return output
        for key, t in source.tensors.items():
            if t.content is not None:
                t.content = tensors[key]
        weights_file = (beside if replaced else f"{output.stem}.weights") if beside else None
        write_model_file(output, code, chunks, metadata.decode(), features.decode(), write_source(source), weights_file)
    return output


@contextmanager
def weights_in_memory(model: _PathLike, weights: Weights) -> Iterator[Path]:
    """A weights file for a model that this process alone has, as long as the context lasts. Raises the errors of
    `update_weights`."""
    given = _read_weights(weights)
    with open_sections(model) as sections:
        source, label, row = kept_source(sections), sections.label, sections.only(SECTION["code"])
    fd = os.memfd_create("weights", os.MFD_CLOEXEC)
    try:
        with prepared(source, check_weights(source, given, strict=True), label) as lowered:
            write_weights(fd, (chunk.data for chunk in lowered.constants.chunks()), [row.digest])
        yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def _read_weights(weights: Weights, output: Path | None = None) -> Mapping[str, torch.Tensor]:
    """Raises DhloError for what are no weights, and for files of which one is the output."""
    if isinstance(weights, Mapping):
        return weights
    files = [weights] if isinstance(weights, str | Path) else weights
    if not isinstance(files, Sequence) or not all(isinstance(file, str | Path) for file in files):
        raise DhloError(f"weights: expected tensors by name, or paths of .safetensors files, got {type(weights).__name__}")
    check_apart([output], files)
    return read_safetensors(files)


def kept_source(sections: Container) -> Source:
    """What a model file keeps of its programs. Raises ModelFileError where it keeps nothing."""
    kept = sections.of_kind(SECTION["source"])
    if not kept:
        raise ModelFileError(
            f"{sections.label}: its weights can't be replaced: it was compiled with updatable=False, or passes of users"
        )
    return read_source(sections.read(kept[0]), sections.label)


@contextmanager
def prepared(source: Source, tensors: Mapping[str, torch.Tensor], label: str) -> Iterator[LoweredPrograms]:
    """A model's programs, lowered with other weights. Raises CompileError where that leads to other code."""
    with ExitStack() as contexts:
        programs = {entry: _program(entry, source, tensors, contexts) for entry in source.programs}
        try:
            lowered = lower_programs(programs, Options(winograd=source.winograd), _targets(source))
        except CompileError as e:
            raise CompileError(f"{label} can't take these weights: {e.what}", where=e.where, hint=e.hint) from None
        if lowered.code_digest() != source.code:
            raise CompileError(f"{label} can't take these weights: {_reason(source)}", hint="compile the program with them")
        yield lowered


def _reason(source: Source) -> str:
    if compiler_version() != source.compiler:
        return "another version of dhlo compiled it, and made other code than this one would"
    return (
        "the code was made for values of another kind (which weights are equal, how scales and zero points of quantised ones are "
        "spread, how large scales are, numbers that became part of the code)"
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


def write_safetensors(path: _PathLike, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes a .safetensors file, which appears when it is whole. Names of one tensor get a copy each. Raises OSError, DhloError
    where the package is missing."""
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise DhloError("writing .safetensors files takes the package safetensors: pip install safetensors") from None
    target, copies = check_target(Path(path)), dict[int, str]()
    own = {n: t if copies.setdefault(t.data_ptr(), n) == n else t.clone() for n, t in tensors.items()}
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".dhlo-") as folder:
            save_file(own, Path(folder) / "weights")
            os.replace(Path(folder) / "weights", target)
    except FileNotFoundError:
        raise OSError(errno.ENOENT, "can't be written: its folder doesn't exist", str(path)) from None
