"""`python -m tests.opinfo`: checks PyTorch's operator database and writes docs/coverage.md."""

from __future__ import annotations

import argparse
import math
import random
import time
from typing import Any

from tests.opinfo import report
from tests.opinfo.pool import ROOT, Job, run_all
from tests.opinfo.samples import DTYPES, operators


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo", description=__doc__)
    parser.add_argument("--op", help="names, as op or op.variant, separated by commas; a trailing * matches any ending")
    parser.add_argument("--dtype", default=",".join(DTYPES), help=f"of {', '.join(DTYPES)}")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--resume", action="store_true", help="keep the results that the last run left, of no fewer structures")
    parser.add_argument("--again", action="store_true", help="run what didn't pass in the last run")
    parser.add_argument(
        "--structures", type=int, help="of each operator and dtype, check so many structures of samples, drawn by chance"
    )
    parser.add_argument("--share", type=float, default=1.0, help="so large a share of the operators of each dtype, drawn by chance")
    parser.add_argument("--limit", type=float, help="begin no operator after so many seconds; --resume goes on from there")
    parser.add_argument("--write-docs", action="store_true", help="write docs/coverage.md; dtypes without results stay in it")
    parser.add_argument("--show", action="store_true", help="show the last results, run nothing")
    parser.add_argument("--verbose", action="store_true", help="show every failure")
    a = parser.parse_args()
    results = report.load()
    jobs = [] if a.show else [j for j in _jobs(a.op, a.dtype.split(",")) if random.Random(" ".join(j)).random() < a.share]
    if a.op is None and not (a.resume or a.again or a.show):
        results = {}
        report.CACHE.unlink(missing_ok=True)
    bad = {k for k, x in results.items() if report.counts([x]).keys() & {"refused", "wrong", "failed"}}
    have = {k for k, x in results.items() if a.resume and _structures(x.get("structures")) >= _structures(a.structures)}
    todo = [j for j in jobs if ("|".join(j) in bad if a.again else "|".join(j) not in have)]
    until = time.monotonic() + a.limit if a.limit else None

    def done(job: Job, answer: dict[str, Any]) -> None:
        answer["structures"] = a.structures
        results["|".join(job)] = answer
        c = report.counts([answer])
        print(f"{job[0]:44} {job[1]:5} {answer['seconds']:6.1f} s  {', '.join(f'{n} {k}' for k, n in c.items())}", flush=True)
        if a.verbose:
            for s in answer["samples"]:
                if s["outcome"] != "pass":
                    print(f"    {s['sample'][:150]}\n      {s['outcome']}: {s['reason']}")
        report.keep("|".join(job), answer)

    run_all(todo, a.jobs, done, until, a.structures)
    shown = results if a.op is None else {k: v for k, v in results.items() if tuple(k.split("|")) in set(jobs)}
    print(report.summary(shown))
    if a.op is None:
        print(report.causes(shown))
    if a.write_docs:
        every = _jobs(None, list(DTYPES))
        path = ROOT / "docs" / "coverage.md"
        kept = report.columns(path.read_text(), {k.split("|")[1] for k in results}) if path.exists() else {}
        path.write_text(report.document(results, _note(kept), every, kept))


def _structures(n: int | None) -> float:
    """To compare by; the usual number, None, is the largest."""
    return math.inf if n is None else n


def _jobs(names: str | None, dtypes: list[str]) -> list[Job]:
    ops = operators()
    wanted = None if names is None else names.split(",")

    def chosen(name: str) -> bool:
        return wanted is None or any(name.startswith(w[:-1]) if w.endswith("*") else name == w for w in wanted)

    return [(n, d) for n, o in ops.items() if chosen(n) for d in dtypes if DTYPES[d] in o.dtypes]


def _note(kept: dict[str, report.Column]) -> str:
    import torch

    from tests.opinfo.samples import EACH, LOOK_AT, STRUCTURES, STRUCTURES_OTHER

    usual = f"{STRUCTURES['f32']} of f32, {STRUCTURES_OTHER} of others"
    return (
        f"PyTorch {torch.__version__}. At most {EACH} samples of a structure; structures drawn by chance, or evenly where\n"
        f"the usual number of them is run ({usual}), from the first {LOOK_AT} samples of an operator."
        + (f" What is said of {', '.join(kept)} is from an earlier run." if kept else "")
    )


if __name__ == "__main__":
    main()
