"""python -m benchmarks: measures workloads on peers, prints a table each, and rewrites the documents on request."""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import measure, report
from benchmarks.workloads import Workload, registry, select
from dhlo.bench.peers import PEERS

_README, _PERFORMANCE, _WORKLOADS = (measure.ROOT / name for name in ("README.md", "docs/performance.md", "docs/workloads.md"))
_README_THREADS = 2  # README.md has the table of this many, docs/workloads.md those of each number that it has markers for
_DEFAULT_PEERS = ("eager", "inductor", "ort", "openvino", "dhlo")


def _arguments() -> argparse.Namespace:
    parser = measure.options("benchmarks", __doc__, "workload", 45, _DEFAULT_PEERS, limited=True)
    parser.add_argument("--workload", help="names or first parts of names: w1,w4_rope; by default all")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each peer, as far as the budget goes")
    parser.add_argument("--timeout", type=float, default=600, help="seconds that a peer may take to compile")
    parser.set_defaults(results=None)  # a folder for each target
    parser.add_argument(
        "--update-readme",
        action="store_true",
        help="rewrite the tables in README.md and docs/workloads.md from the kept results",
    )
    parser.add_argument("--report-only", action="store_true", help="measure nothing, report the kept results")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FOLDER",
        help="compare with another checkout of this project, installed in its own .venv, instead of with other peers; this "
        "checkout itself (`.`) shows what differences mean nothing",
    )
    parser.add_argument("--pairs", type=int, default=3, help="with --against: processes of each checkout, one pair after the other")
    parser.add_argument("--list", action="store_true", help="list the workloads and their shapes")
    a = parser.parse_args()
    a.results = a.results or measure.RESULTS / (a.target or "")
    return a


def main() -> int:
    """Exit code 2 for unknown names, 1 if dhlo failed on a workload."""
    a = _arguments()
    known = registry(a.tiny)
    try:
        chosen = select(a.workload, known) if a.workload else list(known.values())
    except ValueError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    if a.against is not None:
        return _against(chosen, a)
    peers = measure.chosen_peers(a)
    if unknown := [p for p in peers if p not in PEERS]:
        print(f"error: no peer '{unknown[0]}'; peers: {', '.join(PEERS)}", file=sys.stderr)
        return 2
    if a.list:
        for w in chosen:
            print(f"{w.name:22} {w.group:32} {' '.join(w.labels)}")
        return 0
    results = a.results / "tiny" if a.tiny else a.results
    failed = False
    for w in [] if a.report_only else chosen:
        print(f"== {w.name} {time.strftime('%H:%M:%S')}", file=sys.stderr, flush=True)
        result = measure.measure_workload(
            w,
            peers,
            a.threads,
            budget=a.budget,
            rounds=a.rounds,
            timeout=a.timeout,
            tiny=a.tiny,
            results=results,
            tell=lambda text: print(f"   {text}", file=sys.stderr, flush=True),
        )
        measure.save(result, results)
        print(report.detail(result), flush=True)
        failed |= "error" in result["peers"].get(report.OURS, {})
    kept = measure.load(a.threads, results)
    if kept and (a.report_only or len(chosen) > 1):
        print(report.summary(kept, a.target))
    if a.update_readme and kept and a.target is not None:
        report.insert(_PERFORMANCE, report.summary(kept, a.target), a.target)
    elif a.update_readme and kept:
        if a.threads == _README_THREADS:
            report.insert(_README, report.summary(kept))
        report.insert(_WORKLOADS, "\n".join([report.summary(kept) + "\n", *map(report.detail, kept)]), f"threads-{a.threads}")
    return int(failed)


def _against(chosen: Sequence[Workload], a: argparse.Namespace) -> int:
    """Measures this checkout beside another, in turns, and prints how many times faster this one is.

    A process is now and then slower than the next by a quarter for as long as it lives, so `--pairs` of processes are measured, and
    of each shape each checkout's best median counts. Exit code 1 if either fails on a workload.
    """
    names = [report.OURS, f"{report.OURS}@{a.against.resolve()}"]
    ratios: dict[str, list[float]] = {}
    for w in chosen:
        ratios[w.name] = []
        best = {n: [math.inf] * len(w.labels) for n in names}
        errors: list[str] = []
        for pair in range(a.pairs):
            found = measure.measure_workload(
                w, names[:: 1 - 2 * (pair % 2)], a.threads, budget=a.budget, rounds=a.rounds, timeout=a.timeout, tiny=a.tiny,
                results=a.results,
            )  # fmt: skip
            errors += [f"{n}: {p['error']}" for n, p in found["peers"].items() if "error" in p]
            if errors:
                break
            for n in names:
                best[n] = [min(x, y) for x, y in zip(best[n], found["peers"][n]["median_ms"], strict=True)]
        if errors:
            print(f"{w.name:24} fails: {'; '.join(errors)}", flush=True)
            continue
        ratios[w.name] = [old / new for new, old in zip(*best.values(), strict=True)]
        worst = min(range(len(w.labels)), key=ratios[w.name].__getitem__)
        mean = statistics.geometric_mean(ratios[w.name])
        print(f"{w.name:24} {mean:.3f}  worst {ratios[w.name][worst]:.3f} at {w.labels[worst]}", flush=True)
    print(f"{'all':24} {statistics.geometric_mean([statistics.geometric_mean(r) for r in ratios.values() if r]):.3f}")
    return int(not all(ratios.values()))


if __name__ == "__main__":
    sys.exit(main())
