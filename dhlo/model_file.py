"""Model files as the compiler writes them and as tools look at them: nothing here executes any of their code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dhlo import _runtime
from dhlo.codegen.kernel_ir.abi import ABI_VERSION, SECTION, TRAILER_MAGIC
from dhlo.container import Container, atomic_write, write_sections
from dhlo.errors import ModelFileError
from dhlo.schema import read_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from dhlo._runtime import State, Value

__all__ = ["ModelInfo", "features_text", "open_sections", "read_infos", "write_model_file"]

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
    path: Path, code: bytes, constants: Iterable[Buffer], metadata: str, features: str, source: bytes = b""
) -> None:
    """Writes a model file; it appears under its name when it is complete and on the disk.

    Args:
        path: the file.
        code: the ELF image.
        constants: contiguous buffers whose concatenation is the blob; never joined in memory.
        metadata: JSON of each entry, a line each, the same texts as in the code's descriptor.
        features: what processor features each level of the code needs: see `features_text`.
        source: what other constants can be made with: see `dhlo.source`; there is no such section if it is empty.

    Raises:
        OSError: the file can't be written. Whatever had the name before is still there.
    """
    sections: list[tuple[int, Iterable[Buffer]]] = [
        (SECTION["code"], [code]), (SECTION["constants"], constants), (SECTION["metadata"], [metadata.encode()]),
        (SECTION["features"], [features.encode()])]  # fmt: skip
    if source:
        sections.append((SECTION["source"], [source]))
    atomic_write(path, partial(write_sections, magic=TRAILER_MAGIC, abi=ABI_VERSION, sections=sections))


def open_sections(path: str | Path) -> Container:
    """A model file's sections, each of which is verified when it is read. Raises ModelFileError."""
    try:
        found = Container.open(path, f"model file '{path}'", TRAILER_MAGIC, ABI_VERSION, {k: n for n, k in SECTION.items()})
    except OSError as e:
        raise ModelFileError(f"model file '{path}': cannot be opened: {e.strerror}") from None
    try:
        for name, kind in SECTION.items():
            if name != "source" or found.of_kind(kind):
                found.only(kind)
    except BaseException:
        found.close()
        raise
    return found


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
