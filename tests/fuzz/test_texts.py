"""Mutated modules, arrays, programs and arguments through the command line: each works, or ends with one message; never a crash, a
hang, a traceback or memory without bound.

Some hundreds by default, always the same; `-m slow` tries 10,000 of each, `--fuzz-seconds` as many new ones as time allows. What
it finds is fixed and kept in tests/test_texts.py.
"""

from __future__ import annotations

import functools
import io
import random
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import typer
from torch.export import Dim, export
from typer.testing import CliRunner

from dhlo.cli import app
from dhlo.ir import mlir
from dhlo.ir.context import context
from dhlo.pipeline import PASSES
from tests.fuzz.texts import Mutator, attempt, mutated_bytes, smaller

HERE = Path(__file__).parent
COMMAND = typer.main.get_command(app)
FEW, MANY, BATCH = 150, 10_000, 250
Case = tuple[Sequence[str], str | None]  # arguments of dhlo, and its standard input


def problem(case: object) -> str | None:
    """What is wrong with how `dhlo ARGUMENTS` ended, or None."""
    arguments, stdin = case  # type: ignore[misc]
    out, err, code = io.StringIO(), io.StringIO(), 0
    try:
        with redirect_stdout(out), redirect_stderr(err), mock.patch("sys.stdin", io.StringIO(stdin)), ExitStack() as inside:
            if stdin is not None:
                _one_context()
                inside.enter_context(mock.patch("dhlo.commands.opt.context", nullcontext))
            COMMAND.main(list(arguments), "dhlo")
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
    except BaseException as e:
        where = traceback.extract_tb(e.__traceback__)[-1]
        return f"{type(e).__name__} at {Path(where.filename).name}:{where.lineno}: {e}"
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if "Traceback" in err.getvalue() or "internal error" in err.getvalue():
        return err.getvalue()
    return None if code == 0 or err.getvalue() else "no message"


@functools.cache
def _one_context() -> Any:
    """All texts that a worker process tries are read in one MLIR context: to make one takes longer than most texts do."""
    made = context()
    made.__enter__()
    return made


def search(make: Callable[[random.Random], Case], count: int, seconds: float) -> None:
    """Tries cases, and shows the first that fails."""
    ends, tried = time.monotonic() + seconds, 0
    rng = random.Random(int(time.time()) if seconds else 0)
    while tried < count or time.monotonic() < ends:
        cases = [make(rng) for _ in range(min(BATCH, count - tried) if tried < count else BATCH)]
        tried += len(cases)
        for n, what in attempt(cases, problem):
            arguments, stdin = cases[n]

            def fails(text: str, arguments: Sequence[str] = arguments) -> bool:
                return bool(attempt([(arguments, text)], problem))

            pytest.fail(f"dhlo {' '.join(arguments)}: {what}\n{stdin and smaller(stdin, fails)}")


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 4)

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(x), -1) + torch.cat([x, x], 1)[:, 2:6] * n.sum()


class Many(torch.nn.Module):
    """Ops of most kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.AdaptiveAvgPool2d(2)
        self.lstm, self.gru = torch.nn.LSTM(8, 4), torch.nn.GRU(8, 4)
        self.register_buffer("cache", torch.zeros(4, 8))

    def forward(self, x: torch.Tensor, image: torch.Tensor, at: torch.Tensor) -> Any:
        F, q = torch.nn.functional, x.reshape(1, -1, 2, 4).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).reshape(x.shape)
        values, index = torch.sort(y, 1)
        top = torch.topk(y, 3, 1)[0].cumsum(1).argmax(1)
        self.cache[1] = y.sum(0)
        picked = torch.where(at > 0, at, 0)
        z = values.scatter_add(1, index, y)[:, picked % 8].index_put((picked,), y[:, :1].expand(-1, 2).sum(0), accumulate=True)
        pooled = self.pool(F.max_pool2d(F.pad(self.conv(image), (1, 1)), 2)).flatten(1)
        line, _ = self.lstm(x.unsqueeze(1))
        gated, _ = self.gru(x.flip(0).unsqueeze(1))
        many = torch.unique(at)
        spectrum = torch.fft.fft(x, dim=1)
        chosen = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        bins = torch.histc(x, 4, -1.0, 1.0) + torch.searchsorted(torch.arange(4.0), x[:, 0].contiguous()).sum()
        found = (x > 0).nonzero()
        return z, top, pooled, line, gated, many, spectrum.real, chosen, bins, found, x * at.max().item()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program, its model, its texts, and inputs."""
    out = tmp_path_factory.mktemp("texts")
    rows = {0: Dim("rows", max=100)}
    exported = export(Small().eval(), (torch.randn(3, 6), torch.arange(3)), dynamic_shapes=(rows, rows))
    torch.export.save(exported, out / "small.pt2")
    arguments = torch.randn(5, 8), torch.randn(3, 2, 8, 8), torch.tensor([1, 2])
    shapes = {0: Dim.AUTO}, {0: Dim.AUTO}, None
    with torch.no_grad():
        torch.export.save(export(Many().eval(), arguments, dynamic_shapes=shapes), out / "many.pt2")
    for name, emit in (("small", "so"), ("small", "mlir"), ("small", "planned"), ("many", "mlir"), ("many", "planned")):
        result = CliRunner().invoke(app, ["compile", str(out / f"{name}.pt2"), "--emit", emit, "-o", str(out / f"{name}.{emit}")])
        assert result.exit_code == 0, result.output
    return out


def modules(folder: Path) -> list[str]:
    printed = [folder / f"{n}.{emit}" for n in ("small", "many") for emit in ("mlir", "planned")]
    files = [*sorted((HERE.parent / "passes").glob("*.mlir")), *printed]
    with context():
        return [str(mlir.ir.Module.parse(f.read_text())) for f in files]


def opt(folder: Path) -> Callable[[random.Random], Case]:
    texts = modules(folder)
    flags = [["--verify-only"], ["--pipeline"], ["--pipeline"], *([f"--{p.name}"] for p in PASSES)]

    def make(rng: random.Random) -> Case:
        return ["opt", "-", *rng.choice(flags)], Mutator(texts, rng).make()

    return make


NUMBERS = ["0", "-1", "3", "1e400", "nan", "9" * 50, "9" * 5000, "1_0", "٣", "", "2.5", "0x10", "inf", "true", "\0"]
SHAPES = [
    "3x6",
    "0x6",
    "99999999999x9999",
    "-1x6",
    "x",
    "3x",
    "scalar",
    "281474976710655x6",
    "281474976710656x6",
    "9" * 5000,
    "3x6x" * 300,
    "٣x6",
    "3X6",
    "",
    "1x6",
    "101x6",
    "18446744073709551619x6",
]
NAMES = ["x", "n", "rows", "s0", "x.0", "x.1", "x.9", "y", "", "=", "\0", "x" * 5000, "[bold]", "x,n"]
RANGES = [
    "1:3",
    "1:9:2",
    "1:512:x2",
    "0:5:x2",
    "5:1",
    "1:99999999999999999999",
    "0:" + "9" * 5000,
    "1:2:0",
    "1:2:x1",
    ":",
    "a:b",
    "1:2:3:4",
    "1:281474976710655",
]


def arrays() -> list[Any]:
    x = np.arange(18, dtype=np.float32).reshape(3, 6)
    others = [x.astype(t) for t in (">f4", "f8", "c8", "u2", "S3", "f2")]
    return [
        x,
        np.asfortranarray(x),
        *others,
        x[::-1],
        x > 3,
        np.zeros((3, 6), dtype=[("a", "i4"), ("b", "f4")]),
        np.zeros((0, 6), "f4"),
        np.float32(3),
    ]


def saved(x: object) -> bytes:
    data = io.BytesIO()
    torch.save(x, data) if not isinstance(x, np.ndarray | np.generic) else np.save(data, x)
    return data.getvalue()


def command_lines(folder: Path) -> Callable[[random.Random], Case]:
    t = torch.arange(18.0).reshape(3, 6)
    objects = np.empty(1, object)
    objects[0] = np.load
    good = [("npy", saved(x)) for x in (*arrays(), objects)]
    huge = saved(np.zeros(8, "f4"))
    good += [("npy", huge.replace(b"(8,), }" + b" " * 18, b"(1152921504606846976,), }"))]
    others = (t.T, t.to_sparse(), t.to("meta"), t.expand(3, 3, 6), [t], {"x": t}, t.bfloat16(), 3, t.int())
    good += [("pt", saved(x)) for x in (t, *others)]
    programs = (folder / "small.pt2").read_bytes()
    count = iter(range(1 << 62))

    def value(rng: random.Random) -> str:
        if rng.random() < 0.3:
            return rng.choice(NUMBERS)
        suffix, data = rng.choice(good)
        path = folder / f"input{next(count) % (2 * BATCH)}.{suffix if rng.random() < 0.95 else 'npy'}"
        path.write_bytes(data if rng.random() < 0.3 else mutated_bytes(data, rng))
        return str(path)

    def make(rng: random.Random) -> Case:
        model, how = str(folder / "small.so"), rng.random()
        if how < 0.5:
            given = [f"--input={n}={value(rng)}" for n in rng.sample(["x", "n", rng.choice(NAMES)], rng.randint(1, 2))]
            given += [f"--shape={rng.choice(NAMES)}={rng.choice(SHAPES)}"] if rng.random() < 0.3 else []
            return ["run", model, *given], None
        if how < 0.7:
            given = [f"--shape={rng.choice(NAMES)}={rng.choice(SHAPES + NUMBERS)}" for _ in range(rng.randint(0, 3))]
            more = [
                [],
                [f"--seed={rng.choice(NUMBERS)}"],
                [f"--repeat={rng.choice(NUMBERS[:2])}"],
                ["-o", rng.choice(["", "/", "no/x.pt"])],
            ]
            return ["run", model, *given, *rng.choice(more)], None
        if how < 0.85:
            return ["inspect", model, f"--plan={rng.choice(NAMES)}={rng.choice(SHAPES + NUMBERS)},n={rng.choice(SHAPES)}"], None
        if how < 0.95:
            given = [f"--range={rng.choice(NAMES)}={rng.choice(RANGES)}" for _ in range(rng.randint(1, 4))]
            return ["bench", model, *given, "--peer=nosuch", f"--shape={rng.choice(NAMES)}={rng.choice(SHAPES)}"], None
        path = folder / f"program{next(count) % (2 * BATCH)}.pt2"
        path.write_bytes(mutated_bytes(programs, rng))
        return ["compile", str(path), "--emit", "mlir", "-o", str(folder / "out.mlir")], None

    return make


SEARCHES = {"modules": opt, "command-lines": command_lines}


@pytest.mark.parametrize("kind", SEARCHES)
def test_some(kind: str, folder: Path, request: pytest.FixtureRequest) -> None:
    search(SEARCHES[kind](folder), FEW, request.config.getoption("--fuzz-seconds"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", SEARCHES)
def test_many(kind: str, folder: Path) -> None:
    search(SEARCHES[kind](folder), MANY, 0)
