"""The parameters of a model file, had back from its constants.

Nothing records how constants are made of parameters. So they are made again of probes, parameters whose elements are numbered:
where a number is found among the constants, there the element is in the file. It takes several rounds, each with some bits of the
numbers, as few fit in an element of a narrow dtype, and then bits that check them. What arithmetic has changed (folded, converted,
quantised) has no number any more and isn't found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from dhlo import _runtime
from dhlo.codegen.families.constants import Constants
from dhlo.codegen.kernel_ir.abi import SECTION
from dhlo.container import Container
from dhlo.errors import CompileError
from dhlo.model_file import open_sections, open_weights, read_infos, verify_weights, weights_of
from dhlo.source import Source
from dhlo.update import kept_source, prepared

__all__ = ["read_weights"]

_Bits = npt.NDArray[np.uint64]

# By dtype: bits of a number that an element holds, and the bit pattern of 0. Floats are positive, normal, and about 1.
_FORMS: Final = {
    torch.float64: (48, 0x3FF << 52), torch.float32: (28, 0x3800_0000), torch.float16: (12, 0x3400), torch.bfloat16: (12, 0x3800),
    torch.int64: (31, 0), torch.int32: (30, 0), torch.int16: (14, 0), torch.int8: (7, 0), torch.uint8: (7, 0),
    torch.float8_e4m3fn: (5, 0x20), torch.float8_e5m2: (5, 0x20)}  # fmt: skip
_WORD: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_MIXER: Final = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: multiples differ in their high bits


def read_weights(model: str | Path, *, partial: bool = False) -> dict[str, torch.Tensor]:
    """The weights of a model file by their names in the state dict of the exported module, as `update_weights` takes them: each
    bit as it was, whatever was transposed, joined or packed.

    What the state dict lacks and `update_weights` needs is among them, by its own name; what the program doesn't read isn't.
    `partial` leaves out what can't be had back exactly: weights that are quantised, converted, or folded into others. Where all
    can, it is checked that they make the file's constants, bit for bit. Takes the time of some updates, and memory for some copies
    of the weights.

    Raises CompileError, naming them, where weights can't be had back and `partial` is false, or where it depends on the values of
    weights how they are prepared; ModelFileError for a file that is damaged, of another version, or compiled with
    `updatable=False` or passes of users.
    """
    path = Path(model)
    with open_sections(path) as sections, ExitStack() as opened:
        read_infos(sections)
        source, label = kept_source(sections), sections.label
        reference = weights_of(sections)
        holder = sections
        if reference.name:
            verify_weights(path, reference)
            holder = opened.enter_context(open_weights(path.parent / reference.name, path))
        blob = _read_constants(holder)
    groups = _groups(source)
    _find(source, groups, blob, label)
    tensors, lost = dict[str, torch.Tensor](), list[str]()
    needed = [key for key, t in source.tensors.items() if t.content is None]
    for key in needed:
        group = groups.get(source.tensors[key].dtype)
        found = None if group is None else group.tensor(key, source.tensors[key].shape)
        if found is None:
            lost.append(key)
        else:
            tensors[key] = found
    if lost and not partial:
        raise CompileError(
            f"{label}: these weights can't be had back exactly: {', '.join(map(repr, lost))}; they are quantised, converted, or "
            "folded into others",
            hint="partial=True (--partial) leaves them out",
        )
    kept = {key: t.content for key, t in source.tensors.items() if t.content is not None}
    if not lost:
        with prepared(source, {**kept, **tensors}, label) as lowered:
            if _digest(lowered.constants) != reference.digest:
                raise CompileError(f"{label}: its weights can't be had back: they don't make its constants")
    named = {name: tensors[key] for name, key in source.parameters.items() if key in tensors}
    return {**named, **{key: t for key, t in tensors.items() if key not in source.parameters.values()}}


def _read_constants(holder: Container) -> npt.NDArray[np.uint8]:
    row = holder.only(SECTION["constants"])
    memory = _runtime.Buffer(max(row.nbytes, 1))
    blob = np.frombuffer(memory, np.uint8)[: row.nbytes]  # type: ignore[call-overload]
    if row.nbytes:
        holder.read_into(row, blob)
    return blob  # type: ignore[no-any-return]


def _digest(constants: Constants) -> bytes:
    memory = _runtime.Buffer(max(constants.bytes, 1))
    constants.fill(np.frombuffer(memory, np.uint8))  # type: ignore[call-overload]
    return _runtime.section_digest(memoryview(memory)[: constants.bytes])


@dataclass
class _Group:
    """The weights of one dtype: their elements are numbered one after the other."""

    dtype: torch.dtype
    first: dict[str, int]  # by key: the first element's number
    count: int

    def __post_init__(self) -> None:
        self.bits, zero = _FORMS[self.dtype]
        self.word = _WORD[self.dtype.itemsize]
        self.zero = self.word(zero)
        self.mask = (1 << self.bits) - 1
        self.digits = max(1, -(-max(self.count - 1, 1).bit_length() // self.bits))
        self.rounds = self.digits + (1 if self.dtype.itemsize >= 4 else 3)
        self.values = np.zeros(self.count, self.word)
        self.found = np.zeros(self.count, np.bool_)
        self.doubtful = np.zeros(self.count, np.bool_)

    def digit(self, numbers: _Bits, round_: int) -> _Bits:
        """What of numbers an element holds in a round: a digit, or bits that check all of them."""
        if round_ < self.digits:
            return numbers >> np.uint64(self.bits * round_) & np.uint64(self.mask)
        shift = np.uint64(64 - self.bits - (round_ - self.digits) % 16)
        return (numbers + np.uint64(round_)) * np.uint64(_MIXER) >> shift & np.uint64(self.mask)

    def probe(self, key: str, shape: Sequence[int], round_: int) -> torch.Tensor:
        """A weight of numbers."""
        count = int(np.prod(shape, dtype=np.int64))
        numbers = np.arange(self.first[key], self.first[key] + count, dtype=np.uint64)
        bits = self.digit(numbers, round_ % self.rounds).astype(self.word) + self.zero
        return torch.from_numpy(bits.view(f"i{self.dtype.itemsize}")).view(self.dtype).reshape(tuple(shape))

    def look(self, made: Sequence[npt.NDArray[np.uint8]], real: npt.NDArray[np.uint8], free: npt.NDArray[np.bool_]) -> None:
        """Finds elements in a constant, of which there is what the rounds made and what the file has; `free` are the bytes that
        belong to no element yet."""
        size = self.dtype.itemsize
        end = real.nbytes // size * size
        words = [m[:end].view(self.word) for m in made[: self.rounds]]
        hits = free[:end].reshape(-1, size).all(1)
        for word in words:
            hits &= word - self.zero <= self.mask
        at = np.flatnonzero(hits)
        numbers = np.zeros(at.size, np.uint64)
        for n in range(self.digits):
            numbers |= (words[n][at] - self.zero).astype(np.uint64) << np.uint64(self.bits * n)
        right = numbers < self.count
        for n in range(self.digits, self.rounds):
            right &= (words[n][at] - self.zero) == self.digit(numbers, n)
        at, numbers = at[right], numbers[right]
        free[:end].reshape(-1, size)[at] = False
        values = real[:end].view(self.word)[at]
        known = self.found[numbers]
        self.values[numbers[~known]] = values[~known]
        self.found[numbers] = True
        self.doubtful[numbers[self.values[numbers] != values]] = True

    def tensor(self, key: str, shape: Sequence[int]) -> torch.Tensor | None:
        """A weight, if all of it was found, and wherever it is, it is the same."""
        span = slice(self.first[key], self.first[key] + int(np.prod(shape, dtype=np.int64)))
        if not self.found[span].all() or self.doubtful[span].any():
            return None
        return torch.from_numpy(self.values[span].view(f"i{self.dtype.itemsize}").copy()).view(self.dtype).reshape(tuple(shape))


def _groups(source: Source) -> dict[torch.dtype, _Group]:
    """By dtype, those of large elements first: bytes that are a part of one are less likely to be taken for a small one then."""
    first = dict[torch.dtype, dict[str, int]]()
    counts = dict[torch.dtype, int]()
    for key, t in source.tensors.items():
        if t.content is None and t.dtype in _FORMS:
            first.setdefault(t.dtype, {})[key] = counts.get(t.dtype, 0)
            counts[t.dtype] = counts.get(t.dtype, 0) + int(np.prod(t.shape, dtype=np.int64))
    order = sorted(first, key=lambda dtype: -dtype.itemsize)
    return {dtype: _Group(dtype, first[dtype], counts[dtype]) for dtype in order}


def _find(source: Source, groups: Mapping[torch.dtype, _Group], blob: npt.NDArray[np.uint8], label: str) -> None:
    """Makes the constants of probes and looks for their numbers. Raises CompileError where probes lead to other code."""
    with ExitStack() as rounds:
        parts = []
        for n in range(max((g.rounds for g in groups.values()), default=0)):
            tensors = {key: _probe(source, groups, key, n) for key in source.tensors}
            try:
                parts.append(rounds.enter_context(prepared(source, tensors, label)).constants.parts())
            except CompileError:
                raise CompileError(
                    f"{label}: its weights can't be had back: how they are prepared depends on their values (numbers that became "
                    "part of the code, weights that are equal), or another version of dhlo compiled it"
                ) from None
        for made in zip(*parts, strict=True):
            offset, nbytes = made[0][:2]
            free = np.ones(nbytes, np.bool_)
            arrays = [_bytes(data()) for _, _, data in made]
            for group in groups.values():
                group.look(arrays, blob[offset : offset + nbytes], free)


def _probe(source: Source, groups: Mapping[torch.dtype, _Group], key: str, round_: int) -> torch.Tensor:
    t = source.tensors[key]
    if t.content is not None:
        return t.content
    if t.dtype in groups:
        return groups[t.dtype].probe(key, t.shape, round_)
    return torch.ones(t.shape, dtype=t.dtype)


def _bytes(data: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
