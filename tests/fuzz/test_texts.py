"""Mutated modules, arrays, programs and arguments through the command line: each works, or ends with one message; never a crash, a
hang, a traceback or memory without bound.

Some hundreds by default, always the same; `-m slow` tries 10,000 of each, `--fuzz-seconds` as many new ones as time allows. What
it finds is fixed and kept in tests/test_texts.py.
"""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.export import Dim, export
from typer.testing import CliRunner

from dhlo.cli import app
from dhlo.pipeline import PASSES
from tests.fuzz.texts import Mutator, attempt, mutated_bytes, smaller

HERE = Path(__file__).parent
FEW, MANY, BATCH = 150, 10_000, 250
Case = tuple[Sequence[str], str | None]  # arguments of dhlo, and its standard input


def problem(case: object) -> str | None:
    """What is wrong with how `dhlo ARGUMENTS` ended, or None."""
    arguments, stdin = case  # type: ignore[misc]
    result = CliRunner().invoke(app, arguments, input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        where = result.exc_info[2]  # type: ignore[index]
        while where.tb_next is not None:
            where = where.tb_next
        place = f"{Path(where.tb_frame.f_code.co_filename).name}:{where.tb_lineno}"
        return f"{type(result.exception).__name__} at {place}: {result.exception}"
    if result.exit_code not in (0, 1, 2):
        return f"exit code {result.exit_code}"
    if "Traceback" in result.output or "internal error" in result.output:
        return result.output
    return None if result.exit_code == 0 or result.stderr else "no message"


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program, its model, its texts, and inputs."""
    out = tmp_path_factory.mktemp("texts")
    rows = {0: Dim("rows", max=100)}
    exported = export(Small().eval(), (torch.randn(3, 6), torch.arange(3)), dynamic_shapes=(rows, rows))
    torch.export.save(exported, out / "small.pt2")
    for emit in ("so", "mlir", "planned"):
        result = CliRunner().invoke(app, ["compile", str(out / "small.pt2"), "--emit", emit, "-o", str(out / f"small.{emit}")])
        assert result.exit_code == 0, result.output
    return out


def modules(folder: Path) -> list[str]:
    files = [*sorted((HERE.parent / "passes").glob("*.mlir")), folder / "small.mlir", folder / "small.planned"]
    return [f.read_text() for f in files]


def opt(folder: Path) -> Callable[[random.Random], Case]:
    texts = modules(folder)
    flags = [["--verify-only"], ["--pipeline"], ["--pipeline"], *([f"--{p.name}"] for p in PASSES)]

    def make(rng: random.Random) -> Case:
        return ["opt", "-", *rng.choice(flags)], Mutator(texts, rng).make()

    return make


NUMBERS = ["0", "-1", "3", "1e400", "nan", "9" * 50, "9" * 5000, "1_0", "٣", "", "2.5", "0x10", "inf", "true", "\0"]
SHAPES = ["3x6", "0x6", "99999999999x9999", "-1x6", "x", "3x", "scalar", "281474976710655x6", "281474976710656x6", "9" * 5000,
          "3x6x" * 300, "٣x6", "3X6", "", "1x6", "101x6", "18446744073709551619x6"]
NAMES = ["x", "n", "rows", "s0", "x.0", "x.1", "x.9", "y", "", "=", "\0", "x" * 5000, "[bold]", "x,n"]
RANGES = ["1:3", "1:9:2", "1:512:x2", "0:5:x2", "5:1", "1:99999999999999999999", "0:" + "9" * 5000, "1:2:0", "1:2:x1", ":", "a:b", "1:2:3:4",
          "1:281474976710655"]


def arrays() -> list[np.ndarray]:
    x = np.arange(18, dtype=np.float32).reshape(3, 6)
    return [x, np.asfortranarray(x), x.astype(">f4"), x.astype("f8"), x[::-1], x > 3, x.astype("c8"), x.astype("u2"), x.astype("S3"),
            np.zeros((3, 6), dtype=[("a", "i4"), ("b", "f4")]), np.zeros((0, 6), "f4"), np.float32(3), x.astype("f2")]


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
    good += [("npy", huge.replace(b"(8,), }        ", b"(1152921504606846976,), }"[:15].ljust(15)))]
    good += [("pt", saved(x)) for x in (t, t.T, t.to_sparse(), t.to("meta"), t.expand(3, 3, 6), [t], {"x": t}, t.bfloat16(), 3, t.int())]
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
            return ["run", model, *given, *rng.choice([[], [f"--seed={rng.choice(NUMBERS)}"], [f"--repeat={rng.choice(NUMBERS[:2])}"],
                                                       ["-o", rng.choice(["", "/", "/nosuch/x.pt", "out"])]])], None
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
