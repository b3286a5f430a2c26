"""Real models (see tests/zoo.py) through `torch.compile(model, backend="dhlo")`, beside eager, as a table:
`DHLO_ZOO=FOLDER python -m tests.torch_compile_zoo [--marked] [--backend BACKEND] [NAME...]`."""

from __future__ import annotations

import argparse
import copy
import logging
import multiprocessing
import re
import time
import traceback
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_leaves

from tests.zoo import NAMES, ZOO, assert_close

__all__ = ["Outcome", "measure"]

HEAD = """\
| model | input sets | graphs | more at other sizes | more at sizes 0, 1 | CPU seconds | graph breaks | guards that failed |
| --- | --- | --- | --- | --- | --- | --- | --- |"""


@dataclass
class Outcome:
    """What a model took at all its sizes. `graphs` were made at the first call, `again` at other sizes, `at_one` where a size is
    0 or 1 that wasn't, which TorchDynamo keeps apart. `guards` are those that failed then."""

    name: str
    sets: int = 0
    graphs: int = 0
    again: int = 0
    at_one: int = 0
    seconds: float = 0.0
    breaks: str = ""
    guards: str = ""

    def row(self) -> str:
        """A line of the table."""
        numbers = (self.sets, self.graphs, self.again, self.at_one, f"{self.seconds:.0f}")
        return f"| {self.name} | {' | '.join(map(str, numbers))} | {self.breaks} | {self.guards} |"


class _Failed(logging.Handler):
    """Collects the guards that made TorchDynamo trace again at another size."""

    def __init__(self) -> None:
        super().__init__()
        self.guards: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        for line in record.getMessage().splitlines():
            reason = re.search(r"- \d+/\d+: (.*)", line)
            if reason:
                self.guards.append(reason[1].split("  # ")[0].strip())


def measure(name: str, marked: bool = False, backend: str = "dhlo") -> Outcome:
    """Runs a model with all its input sets, in eager and compiled by a backend of torch.compile; `marked`: with the dims marked as
    dynamic that the zoo exports so, rather than with dynamic=True. Raises AssertionError where results, or arguments that are
    changed, differ."""
    assert ZOO is not None
    case, out = ZOO.build(name), Outcome(name)
    sets = [(case.args, case.kwargs), *case.others]
    reference, given = copy.deepcopy(case.module), [copy.deepcopy(s) for s in sets]
    with torch.no_grad():  # before graphs are counted: eager traces, too, where torch.cond is called
        wants = [copy.deepcopy(reference(*args, **kwargs)) for args, kwargs in given]
    torch._dynamo.reset()
    counters.clear()
    failed = _Failed()
    torch._logging.set_logs(recompiles=True)
    log = logging.getLogger("torch._dynamo.guards.__recompiles")
    log.handlers, log.propagate = [failed], False
    compiled = torch.compile(case.module, backend=backend, dynamic=None if marked else True)
    first = [t.shape for t in _tensors(sets[0])]
    began = time.process_time()
    for (args, kwargs), want, changed in zip(sets, wants, given, strict=True):
        taken = copy.deepcopy((args, kwargs))
        if marked:
            _mark(case.dynamic_shapes, taken[0] or taken[1])
        before = counters["stats"]["unique_graphs"]
        with torch.no_grad():
            got = compiled(*taken[0], **taken[1])
        made = counters["stats"]["unique_graphs"] - before
        shapes = zip([t.shape for t in _tensors((args, kwargs))], first, strict=True)
        if out.sets == 0:
            out.graphs = made
        elif any(n < 2 and n != m for shape, other in shapes for n, m in zip(shape, other, strict=True)):
            out.at_one += made
        else:
            out.again += made
        out.sets += 1
        for g, w in zip(_tensors((got, taken)), _tensors((want, changed)), strict=True):
            assert_close(g, w)
    out.seconds = time.process_time() - began
    out.guards = "; ".join(dict.fromkeys(failed.guards)).replace("|", "\\|")
    out.breaks = "; ".join(sorted({reason.splitlines()[0] for reason in counters["graph_break"]}))
    return out


def _tensors(x: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(x) if isinstance(t, torch.Tensor)]


def _mark(spec: Any, value: Any) -> None:
    """Marks what `dynamic_shapes` of torch.export says is dynamic."""
    if isinstance(value, torch.Tensor):
        for dim, kind in spec.items() if isinstance(spec, dict) else enumerate(spec or ()):
            if kind is not None and not isinstance(kind, int):
                torch._dynamo.maybe_mark_dynamic(value, dim)
    elif isinstance(value, dict) and isinstance(spec, dict):
        for key in value.keys() & spec.keys():
            _mark(spec[key], value[key])
    elif isinstance(value, list | tuple) and isinstance(spec, dict):  # arguments by their names
        for s, x in zip(spec.values(), value, strict=False):
            _mark(s, x)
    elif isinstance(value, list | tuple) and isinstance(spec, list | tuple):
        for s, x in zip(spec, value, strict=False):
            _mark(s, x)
    elif isinstance(spec, list | tuple):  # a cache of transformers: keys and values of its layers
        sizes = [s for s in tree_leaves(spec, is_leaf=lambda s: isinstance(s, dict)) if s is not None]
        for s, x in zip(sizes, (t for layer in value.layers for t in (layer.keys, layer.values)), strict=False):
            _mark(s, x)


def _row(name: str, marked: bool, backend: str) -> str:
    torch.manual_seed(0)
    try:
        return measure(name, marked, backend).row()
    except ImportError as e:
        return f"| {name} | {e} |"
    except Exception as e:
        traceback.print_exc()
        return f"| {name} | **{type(e).__name__}** {(str(e).splitlines() or [''])[0]} |"


def main() -> None:
    """Prints the table, a line at a time, each model in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--marked", action="store_true", help="mark dims as dynamic, instead of dynamic=True")
    parser.add_argument("--backend", default="dhlo", help="another backend of torch.compile, such as aot_eager, to compare with")
    args = parser.parse_args()
    print(HEAD, flush=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo.utils", "tests.zoo", "dhlo"])
    with context.Pool(1, maxtasksperchild=1) as pool:
        for name in args.names or NAMES:
            print(pool.apply(_row, (name, args.marked, args.backend)), flush=True)


if __name__ == "__main__":
    main()
