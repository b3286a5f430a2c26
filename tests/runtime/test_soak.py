"""Many calls of a stateless and of a stateful model from four threads, a session each: every result, and the memory that is held.

A few thousand calls by default and a hundred thousand in the slow tests, which also run the host and the runtime under sanitizers.
Generated code isn't instrumented there (llvmlite has no sanitizer passes): its reads and writes are watched by tests/fuzz instead,
and races between kernels of one launch aren't seen.
"""

from __future__ import annotations

import json
import random
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim, export

import dhlo
from dhlo.codegen.kernel_ir.abi import DTYPES

ROOT = Path(__file__).resolve().parents[2]
THREADS, SHORT, LONG = 4, 2000, 100_000
BATCH, SEQ, CAPACITY = 6, 48, 40


class Encoder(torch.nn.Module):
    """Ids and a mask [batch, seq] -> pooled features and the length of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = torch.nn.Embedding(50, 32), torch.nn.LayerNorm(32)
        self.qkv, self.up, self.down = torch.nn.Linear(32, 96), torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> Any:
        x = self.embed(ids)
        q, k, v = (y.unflatten(-1, (2, 16)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + F.scaled_dot_product_attention(q, k, v, mask[:, None, None, :] > 0).transpose(1, 2).flatten(2)
        return self.down(F.gelu(self.up(x))).softmax(-1), mask.sum(-1)


class Decoder(torch.nn.Module):
    """Attention over a cache in buffers, and a count of what was seen."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(16, 48)
        self.register_buffer("keys", torch.zeros(2, CAPACITY, 8))
        self.register_buffer("values", torch.zeros(2, CAPACITY, 8))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> Any:
        q, k, v = (y.unflatten(-1, (2, 8)).transpose(0, 1) for y in self.qkv(x).chunk(3, -1))
        self.keys.index_copy_(1, at, k)
        self.values.index_copy_(1, at, v)
        self.seen += x.shape[0]
        mask = torch.arange(CAPACITY) <= at[:, None]
        return F.scaled_dot_product_attention(q, self.keys, self.values, mask).transpose(0, 1).flatten(1), self.seen + 0


Calls = list[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]]


def encoder(rng: random.Random) -> tuple[Any, list[Calls]]:
    """The exported program, and calls at shapes over the whole contract with PyTorch's results."""
    module = Encoder().eval().requires_grad_(False)
    sizes = {0: Dim("batch", min=1, max=BATCH), 1: Dim("seq", min=1, max=SEQ)}
    ids = torch.ones(2, 3, dtype=torch.int64)
    exported = export(module, (ids, ids.clone()), dynamic_shapes=(sizes, sizes))
    shapes = [(1, 1), (BATCH, SEQ), (1, SEQ), (BATCH, 1), *((rng.randint(1, BATCH), rng.randint(1, SEQ)) for _ in range(60))]
    calls = []
    for shape in shapes:
        mask = torch.arange(shape[1]) <= torch.randint(0, shape[1], (shape[0], 1))
        x = torch.randint(0, 50, shape), mask.long()
        calls.append([(x, module(*x))])
    return exported, calls


def decoder(rng: random.Random) -> tuple[Any, list[Calls]]:
    """Sequences of steps, each from an empty cache until it is full or earlier."""
    make = lambda: Decoder().eval().requires_grad_(False)
    first = make()
    n = Dim("n", min=1, max=CAPACITY)
    exported = export(first, (torch.randn(2, 16), torch.arange(2)), dynamic_shapes=({0: n}, {0: n}))
    sequences: list[Calls] = []
    for _ in range(30):
        module, filled = make(), 0
        calls: Calls = []
        module.load_state_dict(first.state_dict())
        for _ in range(rng.randint(1, 20)):
            new = rng.choice([1, 1, 1, rng.randint(1, CAPACITY)])
            if filled + new > CAPACITY:
                break
            x = torch.randn(new, 16), torch.arange(filled, filled + new)
            calls.append((x, module(*x)))
            filled += new
        sequences.append(calls)
    return exported, [s for s in sequences if s]


def write_calls(sequences: list[Calls], path: Path) -> None:
    """The file that soak.cpp reads: counts, and of each tensor its dtype, rank, sizes and data."""

    def tensors(xs: Sequence[torch.Tensor]) -> bytes:
        parts = [struct.pack("<q", len(xs))]
        for x in xs:
            parts.append(struct.pack(f"<{2 + x.dim()}q", DTYPES[str(x.dtype)[6:]], x.dim(), *x.shape))
            parts.append(x.detach().contiguous().numpy().tobytes())
        return b"".join(parts)

    with path.open("wb") as file:
        file.write(struct.pack("<q", len(sequences)))
        for calls in sequences:
            file.write(struct.pack("<q", len(calls)))
            for inputs, results in calls:
                file.write(tensors(inputs) + tensors(results))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Model file and file of calls of each model."""
    torch.manual_seed(0)
    made = {}
    for make in (encoder, decoder):
        with torch.no_grad():
            exported, sequences = make(random.Random(0))
        folder = tmp_path_factory.mktemp(make.__name__)
        dhlo.compile(exported).save(folder / "model.so")
        write_calls(sequences, folder / "calls")
        made[make.__name__] = folder / "model.so", folder / "calls"
    return made


@pytest.fixture(scope="module")
def build_soak(build_native: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def build(sanitize: str = "") -> Path:
        archive = build_native("dhlo_runtime", sanitize) / "libdhlo_runtime.a"
        binary = tmp_path_factory.mktemp("soak") / "soak"
        flags = [f"-fsanitize={sanitize}", "-fno-sanitize-recover=all", "-g"] if sanitize else []
        command = [
            "c++",
            "-std=c++17",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            *flags,
            str(Path(__file__).with_name("soak.cpp")),
            f"-I{ROOT / 'runtime/include'}",
            str(archive),
            "-pthread",
            "-ldl",
            "-o",
            str(binary),
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return binary

    return build


def soak(binary: Path, files: tuple[Path, Path], calls: int) -> dict[str, Any]:
    command = [str(binary), *map(str, files), str(THREADS), str(calls)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert result.returncode == 0, result.stdout + result.stderr[-4000:]
    measured: dict[str, Any] = json.loads(result.stdout)
    print(measured)
    assert measured["calls"] >= calls
    return measured


@pytest.mark.parametrize("name", ["encoder", "decoder"])
@pytest.mark.parametrize("calls", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)])
def test_every_result_is_right_and_memory_is_flat(
    name: str, calls: int, models: dict[str, tuple[Path, Path]], build_soak: Callable[..., Path]
) -> None:
    measured = soak(build_soak(), models[name], calls)
    resident = measured["resident"]  # when all threads first need most at once is chance: by half of the calls they have
    before, after = max(resident[: len(resident) // 2]), max(resident[len(resident) // 2 :])
    assert after - before < (1 << 20) + 0.01 * before, resident
    assert measured["peak"] <= 1.1 * THREADS * measured["planned"], measured


@pytest.mark.slow
@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_under_sanitizers(name: str, sanitize: str, models: dict[str, tuple[Path, Path]], build_soak: Callable[..., Path]) -> None:
    soak(build_soak(sanitize), models[name], SHORT)
