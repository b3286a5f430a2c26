"""A process that measures one peer on one subject: compiles, checks, then times passes over the shapes on request.

The first argument is JSON: subject ("module:function"), with (its keyword arguments), peer, threads, reference (a file
with the expected results of every shape, or null), tolerance, repeats (how often a pass calls each shape; none: once). Answers
are lines of JSON; a request is {"passes": n}.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from dhlo.bench.ceilings import processors, raise_priority
from dhlo.bench.peers import PEERS, Peer
from dhlo.bench.subject import Subject

__all__ = ["main", "scaled_error"]

_SETTLE_SECONDS = 0.3


def scaled_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest difference, over the largest finite magnitude of `want`; infinite where shapes or the places of
    non-finite values differ."""
    if got.shape != want.shape:
        return float("inf")
    got, want = got.double(), want.double()
    finite = want.isfinite()
    if not torch.equal(got.isfinite(), finite):
        return float("inf")
    if not finite.any():
        return 0.0
    return float((got - want)[finite].abs().max() / want[finite].abs().max().clamp(min=1e-12))


def pin_busiest(run: Callable[[], object], cpus: Sequence[int]) -> None:
    """Pins the threads that do the work, one a processor: where others compute too, a kernel may stack them on one, and
    every barrier then costs a time slice."""

    def used() -> dict[int, int]:
        out = {}
        for task in Path("/proc/self/task").iterdir():
            try:
                out[int(task.name)] = int((task / "schedstat").read_text().split()[0])
            except OSError:
                pass  # it has ended
        return out

    before, start = used(), time.monotonic()
    while time.monotonic() - start < _SETTLE_SECONDS:
        run()
    work = {t: ns - before.get(t, 0) for t, ns in used().items()}
    for cpu, thread in zip(cpus, sorted(work, key=lambda t: -work[t]), strict=False):
        if work[thread] > 0:
            os.sched_setaffinity(thread, {cpu})


def _first_calls(
    peer: Peer, subject: Subject, reference: str | None, tolerance: float
) -> tuple[list[Any], list[float], list[float]]:
    """Native arguments, milliseconds of the first call, and error, by shape. Raises ValueError on wrong results."""
    wanted = torch.load(reference) if reference else None
    native, first, errors = [], [], []
    for i, label in enumerate(subject.labels):
        native.append(peer.prepare(subject.arguments(i)))
        start = time.perf_counter_ns()
        result = peer.call(native[-1])
        first.append((time.perf_counter_ns() - start) / 1e6)
        if wanted is None or not peer.compared:
            errors += [] if wanted is None else [math.nan]
            continue
        got = peer.tensors(result)
        if len(got) != len(wanted[i]):
            raise ValueError(f"{len(got)} results instead of {len(wanted[i])}")
        errors.append(max(map(scaled_error, got, wanted[i]), default=0.0))
        if errors[-1] > tolerance:
            raise ValueError(f"wrong result at {label}: error {errors[-1]:.1e} of the largest value")
    return native, first, errors


def main() -> None:
    """Serves until standard input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # peers print

    def say(**message: Any) -> None:
        print(json.dumps(message), file=out, flush=True)

    spec = json.loads(sys.argv[1])
    cpus = processors()[: spec["threads"]]
    raise_priority()
    if spec["threads"] == 1:
        os.sched_setaffinity(0, cpus)
    torch.set_num_threads(spec["threads"])
    module, function = spec["subject"].split(":")
    subject: Subject = getattr(importlib.import_module(module), function)(**spec["with"])
    with torch.inference_mode(False), torch.no_grad():
        start = time.perf_counter()
        peer = PEERS[spec["peer"]](subject, spec["threads"])
        compile_s = time.perf_counter() - start
        native, first, errors = _first_calls(peer, subject, spec["reference"], spec["tolerance"])

        def one_pass() -> None:
            for x in native:
                peer.call(x)

        one_pass()
        if spec["threads"] > 1:
            pin_busiest(one_pass, cpus)
        say(compile_s=compile_s, code_bytes=peer.code_bytes(), first_ms=first, errors=errors)
        now, repeats = time.perf_counter_ns, spec.get("repeats") or [1] * len(native)
        cycles = [[i for i, count in enumerate(repeats) if count > cycle] for cycle in range(max(repeats))]
        for line in sys.stdin:
            times: list[list[float]] = [[] for _ in native]
            peer.call(native[-1])
            for _ in range(json.loads(line)["passes"]):
                for i in chain.from_iterable(cycles):
                    start_ns = now()
                    peer.call(native[i])
                    times[i].append((now() - start_ns) / 1e6)
            say(times=times)


if __name__ == "__main__":
    main()
