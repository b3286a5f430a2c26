"""What a pickle holds of a model: which file it was loaded from, or else all of its code and weights."""

from __future__ import annotations

import copyreg
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils import _pytree as pytree

from dhlo import _runtime
from dhlo.callspec import CallSpec, read_call
from dhlo.errors import ModelFileError
from dhlo.frontend.program import InputSpec, OutputSpec
from dhlo.hidden import Shared
from dhlo.loading import FileOrigin, digest_of, load_artifact, open_model

if TYPE_CHECKING:
    from dhlo.codegen.backends.artifact import Artifact

__all__ = ["calls_of", "pack", "unpack"]

_TEXTS = ("objects", "planned", "entries", "llvm_ir", "targets", "source")  # of an Artifact, besides its constants


def calls_of(model: _runtime.Model) -> dict[str, CallSpec]:
    """How the entries of a loaded model are called. Raises ModelFileError where its metadata is malformed."""
    entries = {name: model.entry(name) for name in model.entries}
    return {n: read_call(json.loads(e.metadata).get("call"), e.inputs, e.outputs) for n, e in entries.items()}


def pack(shared: Shared) -> dict[str, Any]:
    """A model as values that can be pickled: of one that was loaded, its file's path and digest."""
    if shared.origin is not None:
        origin = shared.origin
        return {"path": str(origin.path), "digest": origin.digest(), "options": dict(origin.options)}
    artifact = shared.artifact
    if artifact is None:
        raise TypeError("only models that compile() returned, or load() without other weights, can be pickled")
    constants = np.empty(artifact.constants.bytes, np.uint8)
    at = 0
    for chunk in artifact.constants.chunks():
        constants[at : at + chunk.nbytes] = chunk.reshape(-1).view(np.uint8)
        at += chunk.nbytes
    rest = {name: getattr(artifact, name) for name in _TEXTS}
    calls = {name: _flat_call(call) for name, call in shared.calls.items()}
    return {"abi": _runtime.ABI_VERSION, "calls": calls, "constants": constants, **rest}


def unpack(packed: Mapping[str, Any], snapshot: bytes | None) -> Shared:
    """The model again, with code and weights of its own; what its state begins with is a session's snapshot.

    Raises ModelFileError where its file is another one now, or can't be loaded here; CompileError where this machine can't run its
    code.
    """
    if "path" in packed:
        model, origin = _load_again(Path(packed["path"]), packed["digest"], packed["options"])
        return Shared(model, calls_of(model), None, origin, snapshot)
    if packed["abi"] != _runtime.ABI_VERSION:
        raise ModelFileError(
            f"the model was pickled by another version of dhlo (ABI {packed['abi']}, this is {_runtime.ABI_VERSION})"
        )
    artifact = _artifact(packed)
    calls = {name: _call(*flat) for name, flat in packed["calls"].items()}
    return Shared(load_artifact(artifact), calls, artifact, None, snapshot)


def _flat_call(call: CallSpec) -> tuple[Any, ...]:
    return call.inputs, call.outputs, _flat_spec(call.in_spec), _flat_spec(call.out_spec), call.updates


def _call(inputs: list[InputSpec], outputs: list[OutputSpec], in_spec: Any, out_spec: Any, updates: list[int]) -> CallSpec:
    return CallSpec(inputs, outputs, _spec(in_spec), _spec(out_spec), updates)


def _flat_spec(spec: Any) -> Any:
    """A pytree's structure in types that pickles know: torch's own warn, or differ by version."""
    if spec is None or spec.is_leaf():
        return None if spec is None else ()
    return spec.type, spec.context, [_flat_spec(child) for child in spec.children()]


def _spec(flat: Any) -> Any:
    if flat is None:
        return None
    return pytree.TreeSpec(flat[0], flat[1], list(map(_spec, flat[2]))) if flat else pytree.tree_structure(0)


def _load_again(path: Path, digest: bytes, options: Mapping[str, Any]) -> tuple[_runtime.Model, FileOrigin | None]:
    origin = FileOrigin.of(path, options)
    if digest_of(path) != digest:
        raise ModelFileError(f"model file '{path}' isn't the one whose model was pickled")
    return open_model(path, **options), origin


def _artifact(packed: Mapping[str, Any]) -> Artifact:
    from dhlo.codegen.backends.artifact import Artifact, StoredConstants

    constants = packed["constants"]
    memory = _runtime.Buffer(max(constants.nbytes, 64))
    np.frombuffer(memory, np.uint8)[: constants.nbytes] = constants  # type: ignore[call-overload]
    return Artifact(constants=StoredConstants(memory, constants.nbytes), **{name: packed[name] for name in _TEXTS})


def _reduced(shared: Shared) -> tuple[Any, ...]:
    return unpack, (pack(shared), shared.state())


copyreg.pickle(Shared, _reduced)
