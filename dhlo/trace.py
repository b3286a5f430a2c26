"""Traces of calls: what each thread did when, in the format of Chrome's tracing, which Perfetto and browsers show."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dhlo import _runtime
from dhlo.container import write_bytes
from dhlo.errors import translate
from dhlo.ir.symbols import evaluate, parse
from dhlo.signature import type_for_people

__all__ = ["SPANS", "traced"]

SPANS = 1 << 18
"""How many spans a trace holds by default, of 88 bytes each."""
_RUN, _LAUNCH, _WORK, _WAIT, _COLLECTIVE = range(5)  # dhlo_trace_kind
_KINDS = {_RUN: "run", _LAUNCH: "launch", _WORK: "work", _WAIT: "wait", _COLLECTIVE: "collective"}


@contextmanager
def traced(path: Path, sessions: Sequence[_runtime.Session], spans: int = SPANS) -> Iterator[None]:
    """Traces all calls of the sessions inside the `with`, and then writes `path`, also if a call fails; waits for the end of a call
    that another thread is in.

    Of more than `spans` spans of a session the later ones are left out, which the file says. Raises SessionError where a session is
    being traced or in use, ValueError for a number of spans that is none, OSError if the file can't be written.
    """
    threads: dict[int, str] = {}
    events: list[dict[str, Any]] = []
    lost = [0]

    def finish(session: _runtime.Session) -> None:
        while True:
            try:
                found, shapes, left_out = session.stop_trace()
                break
            except RuntimeError as e:
                if getattr(e, "status", None) != "busy":
                    raise
                time.sleep(1e-3)  # another thread's call is not over
        lost[0] += left_out
        events.extend(_Events(session.model).of(found, shapes, threads))

    with ExitStack() as started:
        for session in sessions:
            try:
                session.start_trace(spans)
            except RuntimeError as e:
                raise translate(e) from None
            started.callback(partial(finish, session))
        try:
            yield
        finally:
            started.close()
            write_bytes(path, _file(events, threads, lost[0]).encode())


def _file(events: Sequence[Mapping[str, Any]], threads: Mapping[int, str], lost: int) -> str:
    """The JSON. Times are microseconds since the first span began."""
    process = os.getpid()
    start = min((e["ts"] for e in events), default=0)
    rows: list[dict[str, Any]] = [{"ph": "M", "pid": process, "name": "process_name", "args": {"name": "dhlo"}}]
    for order, (thread, name) in enumerate(threads.items()):
        rows.append({"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": name}})
        rows.append({"ph": "M", "pid": process, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": order}})
    rows += [{**e, "ph": "X", "pid": process, "ts": (e["ts"] - start) / 1e3, "dur": e["dur"] / 1e3} for e in events]
    about = {"spans left out": lost} if lost else {}
    return json.dumps({"traceEvents": rows, "displayTimeUnit": "ns", "otherData": about}, separators=(",", ":"))


class _Events:
    """A model's spans as events: what its metadata says of each launch, at the sizes of the run."""

    def __init__(self, model: _runtime.Model) -> None:
        meta = json.loads(model.metadata)
        level = next(x for x in meta["levels"] if x["name"] == model.level)
        self.inputs, self.sources, self.groups = model.inputs, meta["sources"], meta["groups"]
        self.group_of = {site: n for n, (first, end) in enumerate(level["groups"]) for site in range(first, end)}
        self._said: dict[tuple[int, tuple[tuple[int, ...], ...]], dict[str, Any]] = {}

    def of(
        self, spans: Sequence[_runtime.Span], shapes: Sequence[Sequence[tuple[int, ...]]], threads: dict[int, str]
    ) -> Iterator[dict[str, Any]]:
        """The events, times in ns; adds to `threads` those that took part. Spans of a run come before its own, which the shapes of
        its inputs belong to."""
        numbers = [s[4] for s in spans if s[0] == _RUN]
        inputs = {run: tuple(given) for run, given in zip(numbers, shapes, strict=False)}
        for kind, name, begin, end, run, launch, items, worker, thread, status in spans:
            if kind not in _KINDS:
                continue
            threads.setdefault(thread, f"worker {worker}" if kind == _WORK and worker else "calls")
            args: dict[str, Any] = {"run": run}
            if kind == _RUN:
                names = (f"input {v['name']}" if v["name"] in ("run", "status") else v["name"] for v in self.inputs)
                args |= {name: list(s) for name, s in zip(names, inputs.get(run, ()), strict=False)}
            else:
                args |= {"launch": launch, **({"items": items} if kind != _WAIT else {}), **self.about(launch, inputs.get(run))}
            if status:
                args["status"] = status
            title = f"wait for {name}" if kind == _WAIT else name
            yield {"name": title, "cat": _KINDS[kind], "tid": thread, "ts": begin, "dur": end - begin, "args": args}

    def about(self, launch: int, inputs: tuple[tuple[int, ...], ...] | None) -> dict[str, Any]:
        """The group of a launch: its source line, module and ops, and its results, arithmetic and bytes at the run's sizes."""
        number = self.group_of.get(launch)
        if number is None:
            return {}
        key = (number, inputs or ())
        if key not in self._said:
            g, sizes = self.groups[number], self._sizes(inputs or ())
            said = {"group": number, "anchor": g["anchor"], "ops": ", ".join(o.removeprefix("dhlo.") for o in g["ops"])}
            said |= {"source": self.sources[g["source"]]} if g["source"] >= 0 else {}
            said |= {"module": g["module"]} if g["module"] else {}
            said["results"] = [_at(type_for_people(t), sizes) for t in g["results"]]
            said |= {k: _value(g[k], sizes) for k in ("flops", "bytes")}
            self._said[key] = said
        return self._said[key]

    def _sizes(self, inputs: tuple[tuple[int, ...], ...]) -> dict[str, int]:
        """Symbols' values at the shapes of a run's inputs."""
        pairs = ((d, n) for v, shape in zip(self.inputs, inputs, strict=False) for d, n in zip(v["dims"], shape, strict=False))
        return {d: n for d, n in pairs if parse(d).is_Symbol}


def _value(text: str, sizes: Mapping[str, int]) -> int | str:
    """An expression's value; as it is where it hangs on data."""
    try:
        return evaluate(parse(text), sizes)
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return text


def _at(text: str, sizes: Mapping[str, int]) -> str:
    """`f32[2, 64]` of `f32[batch, 64]`."""
    kind, bracket, dims = text.partition("[")
    if not bracket:
        return text
    return f"{kind}[{', '.join(str(_value(d, sizes)) for d in dims.removesuffix(']').split(', '))}]" if dims != "]" else text
