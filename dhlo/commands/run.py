"""`dhlo run`: runs a model file on given or generated inputs, and shows results, times and kernels."""

from __future__ import annotations

import io
import math
import os
import statistics
import time
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from dhlo import _runtime
from dhlo.api import weights_file
from dhlo.commands.console import console, megabytes, print_table
from dhlo.commands.shapes import assignments, complete_shapes
from dhlo.container import check_apart, write_bytes
from dhlo.errors import ContractError, DhloError
from dhlo.loading import open_model
from dhlo.profile import HEAD, cells, profile_rows
from dhlo.trace import traced

if TYPE_CHECKING:
    from dhlo._runtime import Value

__all__ = ["check_memory", "generate", "read_tensor", "run_file"]


def run_file(
    path: Path,
    inputs: Sequence[str],
    shapes: Sequence[str],
    *,
    repeat: int,
    profile: bool,
    trace: Path | None = None,
    output: Path | None,
    seed: int,
    threads: int,
    require_key: Path | None = None,
    entry: str | None = None,
    weights: Sequence[Path] = (),
) -> None:
    """Loads, with other `weights` if there are any (see `load`), runs `repeat` times, writes a trace of these to `trace`, prints.
    Raises the errors of `load`, and ContractError."""
    check_apart([output, trace], [path, *weights])
    with weights_file(path, weights[0] if len(weights) == 1 else weights or None) as (others, fresh):
        model = open_model(path, threads, verify=not fresh, require_key=require_key, weights=others, entry=entry)
    tensors = _arguments(model.inputs, inputs, shapes, seed)
    times = []
    try:
        session = _runtime.Session(model)
        results = session(tensors)
        session.set_profile(profile, reset=True)
        with traced(trace, [session]) if trace is not None else nullcontext():
            for _ in range(repeat):
                start = time.perf_counter_ns()
                results = session(tensors)
                times.append((time.perf_counter_ns() - start) / 1e3)
    except ValueError as e:
        raise ContractError(str(e)) from None
    print_table(
        "outputs",
        ("name", "dtype", "shape", "min", "max", "mean", "std", "not finite"),
        (_statistics(v["name"], t) for v, t in zip(model.outputs, results, strict=True)),
        right=("min", "max", "mean", "std", "not finite"),
    )
    counters = session.counters
    console().print(f"arena {megabytes(counters['arena_bytes'])}, {model.num_threads} threads, {len(model.launches)} launch sites")
    if times:
        console().print(f"{repeat} runs after a first one: min {min(times):.1f} us, median {statistics.median(times):.1f} us")
    if profile:
        print_table("kernels", HEAD, cells(profile_rows(session)), right=HEAD[2:])
    if output is not None:
        _save(output, model.outputs, results)


def _arguments(values: Sequence[Value], inputs: Sequence[str], shapes: Sequence[str], seed: int) -> list[torch.Tensor]:
    names = {v["name"] for v in values}
    files = assignments(inputs, values)
    unknown = sorted(set(files) - names)
    if unknown:
        raise ContractError(f"the model has no input '{unknown[0]}'; inputs: {', '.join(v['name'] for v in values)}")
    dtypes = {v["name"]: getattr(torch, v["dtype"]) for v in values}
    data = {name: read_tensor(text, dtypes[name]) for name, text in files.items()}
    full = complete_shapes(values, assignments(shapes, values), {n: tuple(t.shape) for n, t in data.items()})
    generator = torch.Generator().manual_seed(seed)
    check_memory([(shape, dtypes[v["name"]]) for v, shape in zip(values, full, strict=True) if v["name"] not in data])
    return [
        data[v["name"]] if v["name"] in data else generate(shape, dtypes[v["name"]], generator)
        for v, shape in zip(values, full, strict=True)
    ]


def read_tensor(text: str, dtype: torch.dtype) -> torch.Tensor:
    """The tensor of a .npy or .pt file, or of a number. Raises ContractError if there is none."""
    path = Path(text)
    if path.suffix in (".npy", ".pt"):
        try:
            if not path.is_file():
                raise OSError("there is no such file")
            x = _read_array(path) if path.suffix == ".npy" else torch.load(path, weights_only=True, map_location="cpu")
        except Exception as e:  # the readers raise whatever their parts raise
            reason = str(e) or type(e).__name__
            raise ContractError(f"'{path}' can't be read: {reason.splitlines()[0][:300]}") from None
        if not isinstance(x, torch.Tensor):
            raise ContractError(f"'{path}' holds {type(x).__name__}, not a tensor")
        if x.layout != torch.strided or x.is_nested:
            raise ContractError(f"'{path}' holds a tensor that isn't dense ({x.layout}{', nested' * x.is_nested})")
        return x
    try:
        return torch.tensor(float(text) if dtype.is_floating_point else int(text), dtype=dtype)
    except (OverflowError, RuntimeError):
        raise ContractError(f"'{text[:80]}' is not in the range of {str(dtype).removeprefix('torch.')}") from None
    except ValueError:
        raise ContractError(f"'{text[:80]}' is neither a .npy or .pt file nor a number") from None


def _read_array(path: Path) -> torch.Tensor:
    """A .npy file. It is mapped first, so that nothing is allocated for elements that it doesn't have."""
    mapped: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(mapped, np.ndarray):
        raise ValueError("it isn't one array")
    return torch.from_numpy(np.array(mapped, dtype=mapped.dtype.newbyteorder("="), order="C"))


def check_memory(tensors: Sequence[tuple[Sequence[int], torch.dtype]]) -> None:
    """Raises ContractError for tensors, by shape and dtype, that are larger together than the machine's memory."""
    nbytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in tensors)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if nbytes > memory:
        raise ContractError(f"inputs of {megabytes(nbytes)} don't fit this machine's memory of {megabytes(memory)}")


def generate(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Normal numbers; 0 or 1 for integers, as they may be indices; true for bool."""
    if dtype == torch.bool:
        return torch.ones(tuple(shape), dtype=dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(tuple(shape), generator=generator).to(dtype)
    return torch.randint(0, 2, tuple(shape), generator=generator, dtype=dtype)


def _statistics(name: str, t: torch.Tensor) -> tuple[str, ...]:
    head = (name, str(t.dtype).removeprefix("torch."), "x".join(map(str, t.shape)) or "scalar")
    if t.numel() == 0 or t.is_complex():
        return (*head, "", "", "", "", "")
    x = t.double()
    spread = x.std(correction=0).item()
    return (
        *head,
        *(f"{v:.6g}" for v in (x.min().item(), x.max().item(), x.mean().item(), spread)),
        str(int((~x.isfinite()).sum())),
    )


def _save(path: Path, values: Sequence[Value], results: Sequence[torch.Tensor]) -> None:
    named: Mapping[str, torch.Tensor] = {v["name"]: t for v, t in zip(values, results, strict=True)}
    data = io.BytesIO()
    if path.suffix == ".pt":
        torch.save(dict(named), data)
    elif path.suffix == ".npz":
        with zipfile.ZipFile(data, "w") as archive:
            for name, t in named.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, _array(t), allow_pickle=False)
    elif path.suffix == ".npy" and len(results) == 1:
        np.save(data, _array(results[0]), allow_pickle=False)
    else:
        raise DhloError(f"'{path}': outputs are saved as .pt or .npz" + (", or .npy" if len(results) == 1 else ""))
    write_bytes(path, data.getvalue())


def _array(t: torch.Tensor) -> npt.NDArray[Any]:
    """The same numbers; numpy has no bfloat16, of which each is a float32, too."""
    return t.float().numpy() if t.dtype == torch.bfloat16 else t.numpy()
