"""Compiles BERT-base once, runs it at ten shapes beside eager PyTorch, saves it, and runs the file from C++."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import BertConfig, BertModel

import dhlo

ROOT = Path(__file__).resolve().parents[1]
HOST = ROOT / "runtime" / "examples" / "host.cpp"
SHAPES = [(1, 1), (1, 16), (1, 77), (1, 255), (1, 512), (2, 50), (3, 128), (4, 31), (8, 64), (16, 9)]
HOST_SHAPES = [(1, 9), (2, 33), (5, 64)]
TINY: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}


class Encoder(torch.nn.Module):
    """Token ids and attention mask [batch, seq] int64 -> last hidden state [batch, seq, hidden] float32."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config, add_pooling_layer=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        state: torch.Tensor = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        return state


def make_inputs(config: BertConfig, batch: int, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids; every sequence after the first is padded at its end."""
    mask = torch.ones(batch, seq, dtype=torch.int64)
    for row in range(1, batch):
        mask[row, seq - min(seq - 1, 3 * row) :] = 0
    return torch.randint(0, config.vocab_size, (batch, seq)), mask


def export(model: Encoder, config: BertConfig) -> torch.export.ExportedProgram:
    """Batch 1 to 64 and sequence length 1 to the model's most are dynamic."""
    batch = torch.export.Dim("batch", min=1, max=64)
    seq = torch.export.Dim("seq", min=1, max=config.max_position_embeddings)
    sizes = {0: batch, 1: seq}
    with torch.no_grad():
        return torch.export.export(model, make_inputs(config, 2, 8), dynamic_shapes=(sizes, sizes))


def milliseconds(calls: Sequence[Callable[[], Any]], seconds: float = 1.0) -> list[float]:
    """The shortest time of each call; the calls take turns, so that a slow moment hits all."""
    best = [float("inf")] * len(calls)
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 3 or time.perf_counter() < end:
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[i] = min(best[i], 1e3 * (time.perf_counter() - start))
        rounds += 1
    return best


def compare(model: Encoder, compiled: dhlo.CompiledModel, config: BertConfig, console: Console) -> None:
    """Prints error and time at every shape; fails where the results differ."""
    table = Table("batch x seq", "max rel. error", "dhlo ms", "eager ms", "faster", title="one binary, every shape")
    for batch, seq in SHAPES:
        ids, mask = make_inputs(config, batch, min(seq, config.max_position_embeddings))
        expected, got = model(ids, mask), compiled(ids, mask)
        error = float((got - expected).abs().max() / expected.abs().max())
        assert error <= 1e-4, f"{batch}x{seq}: relative error {error}"
        ours, eager = milliseconds([partial(compiled, ids, mask), partial(model, ids, mask)])
        table.add_row(f"{batch}x{ids.shape[1]}", f"{error:.1e}", f"{ours:.2f}", f"{eager:.2f}", f"{eager / ours:.2f}x")
    console.print(table)
    console.print(f"compilations: {compiled.counters['compilations']}")


def run_host(path: Path, compiled: dhlo.CompiledModel, config: BertConfig, console: Console) -> None:
    """Builds the C++ host, runs the model file at three shapes, and compares with this process bit by bit."""
    folder = path.parent
    dhlo_command = shutil.which("dhlo", path=str(Path(sys.executable).parent)) or "dhlo"
    flags = subprocess.run([dhlo_command, "flags"], check=True, capture_output=True, text=True).stdout.split()
    binary = folder / "host"
    subprocess.run(["c++", "-std=c++17", "-O2", str(HOST), *flags, "-o", str(binary)], check=True)
    libraries = subprocess.run(["ldd", str(binary)], check=True, capture_output=True, text=True).stdout
    console.print("the C++ host needs:", *(line.split()[0] for line in libraries.splitlines()))
    words, expected = [], []
    for n, shape in enumerate(HOST_SHAPES):
        inputs = make_inputs(config, *shape)
        for name, x in zip(("ids", "mask"), inputs, strict=True):
            (folder / f"{name}{n}.bin").write_bytes(x.numpy().tobytes())
        size = "x".join(map(str, shape))
        words.append(",".join(f"{size}={folder / name}{n}.bin" for name in ("ids", "mask")))
        expected.append(compiled(*inputs).numpy().tobytes())
    subprocess.run([str(binary), str(path), "--out", str(folder), *words], check=True)
    for n, data in enumerate(expected):
        assert (folder / f"{n}_0.bin").read_bytes() == data, f"the C++ host's result at {HOST_SHAPES[n]} differs"
    console.print(f"the C++ host's results at {len(expected)} shapes equal Python's, bit by bit")


def main() -> None:
    """Runs the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "demo", help="where files go")
    parser.add_argument("--tiny", action="store_true", help="a model of two small layers")
    options = parser.parse_args()
    folder: Path = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False, emoji=False, soft_wrap=True)
    torch.manual_seed(0)
    config = BertConfig(**(TINY if options.tiny else {}))
    model = Encoder(config).eval().requires_grad_(False)
    start = time.perf_counter()
    exported = export(model, config)
    console.print(f"torch.export: {time.perf_counter() - start:.1f} s")
    compiled = dhlo.compile(exported, name="bert", progress=True)
    console.print(compiled.signature, markup=False)
    compare(model, compiled, config, console)
    path = folder / "bert.so"
    compiled.save(path)
    weights = compiled.native.constants_bytes
    console.print(f"{path}: {weights / 2**20:.1f} MB weights and {(path.stat().st_size - weights) / 2**20:.2f} MB everything else")
    run_host(path, compiled, config, console)


if __name__ == "__main__":
    main()
