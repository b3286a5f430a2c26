"""What a model file keeps of the programs that it was compiled of, from which its constants are made again of other weights.

A section of JSON (compressed, its size before it) and dense tensors behind it:

    programs    by entry: the module as imported; `names`: by its weights' names, the keys of `tensors`
    tensors     by key: dtype, shape, and where the content lies if no weights bring it: [first, end) of the tensors' bytes, of one
                element where all are equal
    parameters  by name in a state dict: the key, "" if the program doesn't read it
    targets     name and tuning of each; winograd: the option
    code        digest of the code that was made; compiler: of what made it
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from dhlo.codegen.families.constants import raw
from dhlo.errors import CompileError, ModelFileError
from dhlo.frontend.program import Program
from dhlo.schema import read_json

__all__ = ["Source", "Stored", "check_weights", "code_digest", "read_source", "source_of", "write_source"]

_LARGEST_KEPT: Final = 1 << 20  # bytes of a tensor that state dicts lack: larger ones must be given by name
_LARGEST_TEXT: Final = 1 << 29
_NONE = type(None)
_SCHEMA = {
    "programs": {str: {"module": str, "names": {str: str}}},
    "tensors": {str: {"dtype": str, "shape": [int], "kept": ([int], _NONE)}},
    "parameters": {str: str},
    "targets": [{"name": str, "tune": str}],
    "winograd": bool,
    "code": str,
    "compiler": str,
}  # fmt: skip


@dataclass
class Stored:
    """A tensor of the programs. `content` is what it is where no weights bring it; None if they have to."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    content: torch.Tensor | None


@dataclass
class Source:
    """See the module's text."""

    programs: dict[str, tuple[str, dict[str, str]]]
    tensors: dict[str, Stored]
    parameters: dict[str, str]
    targets: list[tuple[str, str]]
    winograd: bool
    code: str = ""
    compiler: str = ""


def source_of(programs: Mapping[str, Program], targets: Sequence[Any], *, winograd: bool) -> Source:
    """Of programs as they are now: before any pass that computes with weights. `code` and `compiler` are for later."""
    tensors, values = dict[str, Stored](), dict[str, torch.Tensor]()
    texts, parameters = dict[str, tuple[str, dict[str, str]]](), dict[str, str]()
    for entry, program in programs.items():
        with program.context:
            # With locations, as messages of the program's checks name them.
            text = str(program.module.operation.get_asm(enable_debug_info=True))
        keys = {name: _key(name, entry, value, values) for name, value in program.weights.items()}
        texts[entry] = text, keys
        trained = set(program.parameters.values())
        for name, key in keys.items():
            known = tensors.get(key)
            value = values[key] = program.weights[name]
            kept = None if name in trained or known is not None and known.content is None else _kept(value)
            tensors[key] = Stored(value.dtype, tuple(value.shape), kept)
        for name, weight in program.parameters.items():
            key = keys.get(weight, "")
            # A name that means another tensor in another entry is told apart by the entry's.
            parameters[name if parameters.get(name, key) in (key, "") else f"{entry}:{name}"] = key or parameters.get(name, "")
    return Source(texts, tensors, parameters, [(t.name, t.tune) for t in targets], winograd)


def _key(name: str, entry: str, value: torch.Tensor, values: Mapping[str, torch.Tensor]) -> str:
    """One for entries in which the same name is the same content."""
    other = values.get(name)
    return name if other is None or _same(other, value) else f"{entry}:{name}"


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return (a.data_ptr() == b.data_ptr() and a.stride() == b.stride()) or np.array_equal(raw(a), raw(b))


def _kept(value: torch.Tensor) -> torch.Tensor | None:
    """The content, if it is little, or one element over and over."""
    if value.numel() > 1:
        elements = raw(value).reshape(value.numel(), -1)
        if bool((elements == elements[0]).all()):
            return value.detach().reshape(-1)[0].clone().expand(value.shape)
    return value.detach() if value.numel() * value.element_size() <= _LARGEST_KEPT else None


def write_source(source: Source) -> bytes:
    """The section."""
    chunks, at = list[bytes](), 0
    tensors = {}
    for key, t in source.tensors.items():
        kept = None
        if t.content is not None:
            whole = t.content
            if whole.numel() > 1 and not any(whole.stride()):
                whole = whole.reshape(-1)[0]
            chunks.append(raw(whole).tobytes())
            kept = [at, at := at + len(chunks[-1])]
        tensors[key] = {"dtype": str(t.dtype)[6:], "shape": list(t.shape), "kept": kept}
    text = {
        "programs": {entry: {"module": module, "names": names} for entry, (module, names) in source.programs.items()},
        "tensors": tensors,
        "parameters": source.parameters,
        "targets": [{"name": name, "tune": tune} for name, tune in source.targets],
        "winograd": source.winograd,
        "code": source.code,
        "compiler": source.compiler,
    }
    packed = zlib.compress(json.dumps(text).encode(), 6)
    return b"".join([struct.pack("<Q", len(packed)), packed, *chunks])


def read_source(data: bytes, label: str) -> Source:
    """From the section of the model file `label`. Raises ModelFileError."""
    try:
        (size,) = struct.unpack_from("<Q", data)
        inflate = zlib.decompressobj()
        text = inflate.decompress(data[8 : 8 + size], _LARGEST_TEXT)
        if not inflate.eof or inflate.unused_data:
            raise ValueError("its text isn't whole")
        found = read_json(text, _SCHEMA)
        tensors = {key: _read_tensor(t, data[8 + size :]) for key, t in found["tensors"].items()}
        for key in (*found["parameters"].values(), *(k for p in found["programs"].values() for k in p["names"].values())):
            if key not in tensors and key != "":
                raise ValueError(f"it has no tensor '{key}'")
    except (ValueError, struct.error, zlib.error) as e:
        raise ModelFileError(f"{label}: malformed source: {e}") from None
    programs = {entry: (p["module"], p["names"]) for entry, p in found["programs"].items()}
    targets = [(t["name"], t["tune"]) for t in found["targets"]]
    return Source(programs, tensors, found["parameters"], targets, found["winograd"], found["code"], found["compiler"])


def _read_tensor(t: Mapping[str, Any], data: bytes) -> Stored:
    dtype, shape = getattr(torch, t["dtype"], None), tuple(t["shape"])
    if not isinstance(dtype, torch.dtype) or any(n < 0 for n in shape) or math.prod(shape) >= 1 << 48:
        raise ValueError(f"a tensor of {t['dtype']}{list(shape)}")
    if t["kept"] is None:
        return Stored(dtype, shape, None)
    first, end = t["kept"] if len(t["kept"]) == 2 else (0, -1)
    count, rest = divmod(end - first, dtype.itemsize)
    if not 0 <= first <= end <= len(data) or rest or count not in (1, math.prod(shape)):
        raise ValueError(f"a tensor at {t['kept']}")
    flat = torch.frombuffer(bytearray(data[first:end]), dtype=torch.uint8).view(dtype) if count else torch.empty(0, dtype=dtype)
    return Stored(dtype, shape, flat.reshape(()).expand(shape) if count == 1 else flat.reshape(shape))


def code_digest(texts: Sequence[str]) -> str:
    """Of texts, in order."""
    whole = hashlib.sha256()
    for text in texts:
        whole.update(hashlib.sha256(text.encode()).digest())
    return whole.hexdigest()


def check_weights(source: Source, weights: Mapping[str, torch.Tensor], *, strict: bool) -> dict[str, torch.Tensor]:
    """What each tensor of a source is now, by key. Raises CompileError where weights are missing, unknown (if `strict`), or of
    another shape or dtype, and where two names of one tensor are given different content."""
    names = {**{key: key for key in source.tensors}, **source.parameters}
    unknown = [n for n in weights if n not in names]
    if unknown and strict:
        raise CompileError(f"the model has no weights called {_listed(unknown)}", hint=f"it has {_listed(list(source.parameters))}")
    found = dict[str, tuple[str, torch.Tensor]]()
    for name, value in weights.items():
        key = names.get(name, "")
        if not key:
            continue
        expected = source.tensors[key]
        if not isinstance(value, torch.Tensor):
            raise CompileError(f"weight '{name}': expected a tensor, got {type(value).__name__}")
        if not _is_plain(value):
            raise CompileError(f"weight '{name}': expected a plain tensor on the CPU")
        if value.dtype != expected.dtype or tuple(value.shape) != expected.shape:
            raise CompileError(
                f"weight '{name}': expected {_spelt(expected.dtype, expected.shape)}, got {_spelt(value.dtype, value.shape)}"
            )
        value = value.detach().resolve_conj().resolve_neg().contiguous()
        if key in found and not _same(found[key][1], value):
            raise CompileError(f"weights '{found[key][0]}' and '{name}' are one tensor in the model, and differ")
        found.setdefault(key, (name, value))
    missing = [key for key, t in source.tensors.items() if t.content is None and key not in found]
    if missing:
        raise CompileError(
            f"weights are missing: {_listed(missing)}", hint="give all parameters and buffers of the module's state dict"
        )
    kept = {key: t.content for key, t in source.tensors.items() if t.content is not None}
    return {**kept, **{key: value for key, (_, value) in found.items()}}


def _is_plain(value: torch.Tensor) -> bool:
    """Are its elements where they seem to be? Not those of nested and fake tensors, and of others that stand for some."""
    computed = type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ or torch._is_functional_tensor(value)
    return not computed and not value.is_nested and value.layout == torch.strided and value.device.type == "cpu"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{n}'" for n in names[:5]) + (f" and {len(names) - 5} others" if len(names) > 5 else "")


def _spelt(dtype: torch.dtype, shape: Sequence[int]) -> str:
    return f"{str(dtype)[6:]}{list(shape)}"
