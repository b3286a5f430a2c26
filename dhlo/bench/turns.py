"""Measures peers beside each other: a process each, all compiled first, then passes over the shapes in turn."""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Request", "take_turns"]

_TURN_SECONDS = 0.3  # a stranger's time slice then spoils few samples, not the median
_MOST_PASSES = 400
_LEAST_ROUNDS = 3
_REST_SECONDS = 0.01  # pools that spin go to sleep before the next peer's turn


@dataclass(frozen=True)
class Request:
    """What to measure: the subject as dhlo.bench.worker takes it, expected results, and how long it may take.

    tolerance  largest error that counts as right, over the largest magnitude
    budget     seconds of timing for all peers together, after compilation
    timeout    seconds that a peer may take to compile and run every shape once
    repeats    how often a pass calls each shape, never twice in a row where others are left; empty: once
    """

    subject: str
    arguments: Mapping[str, Any]
    shapes: int
    threads: int
    reference: Path | None = None
    tolerance: float = 1e-3
    budget: float = 45.0
    rounds: int = 12
    timeout: float = 600.0
    repeats: Sequence[int] = ()
    path: Path | None = None  # a folder to import the subject's module from


class _Worker:
    """A peer's process, after it has compiled. Raises RuntimeError, saying why, if it doesn't get there.

    A peer's name may end in `@FOLDER`: it then runs as another checkout has it, with that checkout's own `.venv`.
    """

    def __init__(self, name: str, request: Request) -> None:
        peer, _, checkout = name.partition("@")
        spec = {
            "subject": request.subject,
            "with": dict(request.arguments),
            "peer": peer,
            "threads": request.threads,
            "reference": None if request.reference is None else str(request.reference),
            "tolerance": request.tolerance,
            "repeats": list(request.repeats),
        }
        threads = str(request.threads)
        python, paths = sys.executable, [str(p) for p in (request.path, *map(Path, sys.path)) if p is not None and p.name]
        if checkout:
            python, paths = str(Path(checkout) / ".venv" / "bin" / "python"), [checkout]
        env = dict(
            os.environ,
            OMP_NUM_THREADS=threads,
            MKL_NUM_THREADS=threads,
            TOKENIZERS_PARALLELISM="false",
            PYTHONPATH=os.pathsep.join(paths),
        )
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [python, "-m", "dhlo.bench.worker", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=env,
            cwd=checkout or None,
        )
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], request.timeout)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self.stop()
            raise RuntimeError(self._last_words() if ready else f"took more than {request.timeout:.0f} s to compile")
        self.facts: dict[str, Any] = json.loads(line)

    def ask(self, passes: int) -> list[list[float]]:
        """Milliseconds of every call, by shape. Raises RuntimeError if the process has died."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            print(json.dumps({"passes": passes}), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise RuntimeError(self._last_words()) from None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(self._last_words())
        times: list[list[float]] = json.loads(line)["times"]
        return times

    def stop(self) -> None:
        """Ends the process."""
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [text for line in self._log if (text := line.strip())]
        errors = [text for text in lines if "Error" in text.split(":", 1)[0] or "error:" in text]
        return (errors or lines or ["died without a word"])[-1][:300]


def take_turns(request: Request, peers: Sequence[str], tell: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """By peer: either {"error": why} or compile_s, code_bytes, first_ms, errors, n, and by shape median_ms, min_ms."""
    facts: dict[str, Any] = {}
    live: dict[str, _Worker] = {}
    try:
        for name in peers:
            try:
                live[name] = _Worker(name, request)
                facts[name] = live[name].facts
                tell(f"{name}: compiled in {facts[name]['compile_s']:.1f} s")
            except RuntimeError as e:
                facts[name] = {"error": str(e)}
                tell(f"{name} fails: {e}")
        times = {name: [list[float]() for _ in range(request.shapes)] for name in live}
        for name, why in _rounds(request, live, times).items():
            facts[name] = {"error": why}
    finally:
        for worker in live.values():
            worker.stop()
    for name in live:
        if "error" not in facts[name]:
            facts[name] |= {
                "median_ms": [round(statistics.median(t), 6) for t in times[name]],
                "min_ms": [round(min(t), 6) for t in times[name]],
                "n": len(times[name][0]),
            }
    return facts


def _rounds(request: Request, live: Mapping[str, _Worker], times: Mapping[str, list[list[float]]]) -> dict[str, str]:
    """Lets the peers take turns, adding to `times`; gives the errors of those that die."""
    failed: dict[str, str] = {}
    passes: dict[str, int] = {}

    def turn(name: str, count: int) -> list[list[float]] | None:
        try:
            return live[name].ask(count)
        except RuntimeError as e:
            failed[name] = str(e)
            return None

    for name in live:
        start = time.monotonic()
        turn(name, 1)
        passes[name] = max(1, min(_MOST_PASSES, int(_TURN_SECONDS / (time.monotonic() - start))))
    start = time.monotonic()
    for done in range(request.rounds):
        if done >= _LEAST_ROUNDS and time.monotonic() - start > request.budget:
            break
        for name in live:
            got = None if name in failed else turn(name, passes[name])
            for t, more in zip(times[name], got or (), strict=False):
                t += more
            time.sleep(_REST_SECONDS)
    return failed
