"""python -m benchmarks.quantised: products with small weights beside this compiler's f32 and the best of other peers.

decode   a decoding step of W2, weights as int8 and int4
rows     linears whose weights lie in each cache level and in memory: one row, and more
dynamic  linears whose activations are quantised, too
int_mm   products of int8 matrices
experts  mixtures of experts as grouped products; experts_bf16: of bf16; experts_loop: as a loop over the experts; experts_dense:
         every row times every expert. `--update` writes what has been measured of all three of f32 to docs/measurements.md
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, randn
from torch.export import Dim

from benchmarks import measure, models, report
from benchmarks.experts import table
from benchmarks.quantised_peers import GROUP, Several
from benchmarks.workloads import Workload, registry
from dhlo.bench.ceilings import Ceilings
from dhlo.bench.ceilings import measure as ceilings_of
from dhlo.bench.subject import Subject
from dhlo.bench.turns import Request, take_turns

__all__ = ["PARTS", "Part", "main", "subject"]

DOCUMENT = measure.ROOT / "docs" / "measurements.md"
_ROWS = Dim("rows", min=1, max=8192)
_MANY = ("dhlo", "dhlo_int8", "dhlo_int4", "dhlo_a8_int8", "dhlo_a8_int4", "openvino_int8", "openvino_int4", "ort_int8", "ort_int4")
_GROUPS_OF_32 = ("dhlo_g32_int4", "dhlo_a8_g32_int4", "llamacpp_int4")
_FORMATS = ("int8", "int4")
# Calls in a row: enough for what they read to have come to the cache in which it stays.
_REPEAT_BYTES, _MOST_REPEATS = 200 << 20, 100


@dataclass(frozen=True)
class Part:
    """Programs that are measured together, and the peers; by the names of programs, how many numbers of constants one row
    takes."""

    programs: Sequence[Workload]
    peers: Sequence[str]
    reads: Mapping[str, int] = field(default_factory=dict)


class _IntMm(nn.Module):
    """A product of int8 matrices, the right one constant or given; `swapped`: it is given as its transpose."""

    def __init__(self, k: int, n: int, form: str) -> None:
        super().__init__()
        self.form = form
        if form == "constant":
            self.register_buffer("w", _bytes(k, n))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        if self.form == "constant":
            return torch._int_mm(x, self.w)
        assert y is not None
        return torch._int_mm(x, y.t() if self.form == "transposed" else y)


def _bytes(*size: int) -> Tensor:
    return torch.randint(-128, 128, size, dtype=torch.int8)


def _linear(k: int, n: int, rows: Iterable[int]) -> Workload:
    return Workload(
        f"linear_{k}x{n}",
        "linear",
        partial(nn.Linear, k, n, bias=False),
        lambda m: (randn(m, k),),
        ({0: _ROWS},),
        [(m,) for m in rows],
        (33,),
    )


def _int_mm(k: int, n: int, form: str, rows: Iterable[int]) -> Workload:
    def inputs(m: int) -> tuple[Tensor, ...]:
        given = [] if form == "constant" else [_bytes(n, k) if form == "transposed" else _bytes(k, n)]
        return _bytes(m, k), *given

    dims = [{0: _ROWS}, *([] if form == "constant" else [{0: Dim("d0", min=2), 1: Dim("d1", min=2)}])]
    if form != "constant":
        dims[0] = {0: _ROWS, 1: dims[1][1 if form == "transposed" else 0]}
    return Workload(
        f"int_mm_{form}_{k}x{n}", form, partial(_IntMm, k, n, form), inputs, tuple(dims), [(m,) for m in rows], (33,), torch.int32
    )


class _GroupedExperts(models.MixtureOfExperts):
    """Rows sorted by expert, and a product for all of them, as transformers writes it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        import_module("transformers.integrations.moe")  # defines the operator
        self.grouped = torch.ops.transformers.grouped_mm_fallback

    def forward(self, x: Tensor) -> Tensor:
        p, chosen = self.router(x).float().softmax(-1).topk(self.topk, -1)
        p = (p / p.sum(-1, keepdim=True)).to(x.dtype)
        flat = chosen.reshape(-1)
        order = flat.argsort()
        token = order // self.topk
        ends = torch.histc(flat.float(), bins=self.experts, min=0, max=self.experts - 1).cumsum(0).int()
        g, u = self.grouped(x[token], self.w13, ends).chunk(2, -1)
        y = self.grouped(F.silu(g) * u, self.w2, ends) * p.reshape(-1)[order][:, None]
        return torch.zeros_like(x).index_add(0, token, y)


def _mixture(form: type[models.MixtureOfExperts], dtype: torch.dtype, *sizes: Any) -> nn.Module:
    return form(*sizes).to(dtype)


def _experts(
    tiny: bool, form: type[models.MixtureOfExperts], peers: Sequence[str], dtype: torch.dtype = torch.float32, *, loop: bool = True
) -> Part:
    """A few large experts as Mixtral has them, and many small ones as DeepSeek's and Qwen's models."""
    programs, reads = [], {}
    width = 16 if tiny else 1024
    for name, (experts, topk, hidden) in (("few", (8, 2, 1792)), ("many", (64, 8, 384))):
        experts, topk, hidden = (4, 2, 24) if tiny else (experts, topk, hidden)
        label = f"experts_{name}"
        programs.append(
            Workload(
                label,
                "experts",
                partial(_mixture, form, dtype, experts, topk, hidden, loop, width),
                lambda rows: (randn(rows, width, dtype=dtype),),
                ({0: _ROWS},),
                [(rows,) for rows in ((1, 5) if tiny else (1, 5, 16, 64, 512))],
                (33,),
                dtype,
            )
        )
        reads[label] = topk * 3 * hidden * width
    return Part(programs, peers, reads)


def parts(tiny: bool = False) -> dict[str, Part]:
    """Everything that is measured, by name."""
    many = (3, 5) if tiny else (8, 64, 256)
    levels = [(40, 24)] if tiny else [(768, 768), (1024, 4096), (4096, 4096), (8192, 8192), (8192, 16384)]
    deep = [(64, 40)] if tiny else [(768, 3072), (4096, 4096)]
    small = [(64, 40)] if tiny else [(768, 3072), (4096, 1024)]
    step = registry(tiny)["w2_decode"]
    pasts = [(1,), (5,)] if tiny else [(1,), (128,), (512,), (1024,)]
    forms = [(k, n, form) for k, n in small for form in ("constant", "given", "transposed")]
    peers = (*_MANY, "openvino")
    return {
        "decode": Part([replace(step, shapes=pasts)], (*peers, *_GROUPS_OF_32, "llamacpp_int8")),
        "rows": Part([_linear(k, n, (1,)) for k, n in levels], _MANY, _weights(levels)),
        "many": Part([_linear(k, n, many) for k, n in deep], (*peers, "eager"), _weights(deep)),
        "dynamic": Part(
            [_linear(k, n, many[1:]) for k, n in deep],
            ("dhlo", "dhlo_dynamic", "openvino_dynamic", "openvino_int8", "ort_int8", "eager_dynamic"),
            _weights(deep),
        ),
        "int_mm": Part([_int_mm(k, n, form, (1, *many)) for k, n, form in forms], ("eager", "dhlo")),
        "experts": _experts(tiny, _GroupedExperts, ("dhlo", "dhlo_int8", "dhlo_int4", "eager", "inductor")),
        "experts_bf16": _experts(tiny, _GroupedExperts, ("dhlo", "eager"), torch.bfloat16),
        "experts_loop": _experts(tiny, models.MixtureOfExperts, (*_MANY, "openvino", "ort", "eager")),
        "experts_dense": _experts(tiny, models.MixtureOfExperts, (*_MANY, "openvino", "ort", "inductor"), loop=False),
    }


def _weights(sizes: Iterable[tuple[int, int]]) -> dict[str, int]:
    """Of linears."""
    return {f"linear_{k}x{n}": k * n for k, n in sizes}


PARTS = tuple(parts(tiny=True))


def subject(part: str, tiny: bool) -> Subject:
    """A part's programs as the measuring process takes them."""
    programs = parts(tiny)[part].programs
    return Several([p.subject() for p in programs], [r for p in programs for r in _repeats(p)])


def _repeats(w: Workload) -> list[int]:
    """Of each shape: as many for matrices that are given as for those that are weights."""
    weights = sum(p.numel() for p in [*w.module().parameters(), *w.module().buffers()])
    matrices = [weights + sum(x.numel() for x in w.arguments(s)[1:] if isinstance(x, Tensor)) for s in w.shapes]
    return [
        max(1, min(_MOST_REPEATS, _REPEAT_BYTES // (8 * max(numel, 1) * max(1, math.prod(s) // 4))))
        for s, numel in zip(w.shapes, matrices, strict=True)
    ]


def _measure(name: str, a: argparse.Namespace) -> dict[str, Any]:
    """Labels, and milliseconds by peer."""
    part = parts(a.tiny)[name]
    references = []
    for w in part.programs:
        _, results = measure.work_of(w, a.results / ("references-tiny" if a.tiny else "references"))
        references += torch.load(results)
    wanted = a.results / f"references-{name}.pt"
    torch.save(references, wanted)
    labels = [f"{w.name} {label}" for w in part.programs for label in w.labels]
    repeats = [r for w in part.programs for r in _repeats(w)]
    request = Request(
        "benchmarks.quantised:subject",
        {"part": name, "tiny": a.tiny},
        len(labels),
        a.threads,
        wanted,
        math.inf,
        a.budget,
        a.rounds,
        path=measure.ROOT,
    )
    asked = [p for p in part.peers if not a.peer or p in a.peer.split(",")]
    tell = lambda text: print(f"   {text.removeprefix('several_')}", file=sys.stderr, flush=True)
    found = take_turns(request, [f"several_{p}" for p in asked], tell)
    peers = {p.removeprefix("several_"): facts for p, facts in found.items()}
    for facts in peers.values():
        for key in ("median_ms", "min_ms"):
            if key in facts:
                facts[key] = [t / r for t, r in zip(facts[key], repeats, strict=True)]
    return {"part": name, "labels": labels, "peers": peers, "threads": a.threads, "machine": measure.machine()}


def _bits(peer: str) -> str:
    return next((f for f in (*_FORMATS, "dynamic") if peer.endswith(f)), "")


def _report(result: Mapping[str, Any], part: Part, ceilings: Ceilings) -> str:
    """Milliseconds by shape and peer; of each of ours the time over our f32, the best other's over it, and the share of the
    bandwidth of one row."""
    peers = {p: f for p, f in result["peers"].items() if "error" not in f}
    lines = [f"{result['part']}, {result['threads']} threads, ms", f"{'':28}" + "".join(f"{p:>15}" for p in peers)]
    for i, label in enumerate(result["labels"]):
        lines.append(f"{label:28}" + "".join(f"{f['median_ms'][i]:15.4f}" for f in peers.values()))
    for ours, facts in peers.items():
        if not ours.startswith("dhlo"):
            continue
        others = [p for p in peers if not p.startswith("dhlo") and (_bits(p) in ("", _bits(ours)) or _bits(ours) == "dynamic")]
        lines.append(f"{ours}: time over our f32; best other's over it{'; share of bandwidth' if part.reads else ''}; error")
        for i, label in enumerate(result["labels"]):
            t = facts["median_ms"][i]
            base = t / peers["dhlo"]["median_ms"][i] if "dhlo" in peers else math.nan
            best = min(((peers[p]["median_ms"][i] / t, p) for p in others), default=(math.nan, ""))
            share = ""
            program, _, rows = label.partition(" ")
            if program in part.reads and rows == "1":
                plain = 2 if result["part"].endswith("bf16") else 4
                nbytes = part.reads[program] * {"int8": 1, "int4": 0.5 + 2 / GROUP}.get(_bits(ours), plain)
                share = f"  {nbytes / (t * 1e6):6.1f} GB/s {nbytes / (t * 1e6) / ceilings.gbs(nbytes):6.1%}"
            lines.append(f"  {label:28} {base:6.3f} {best[0]:6.2f} {best[1]:16}{share}  {facts['errors'][i]:.1e}")
    lines += [f"{p} fails: {f['error']}" for p, f in result["peers"].items() if "error" in f]
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = measure.options("benchmarks.quantised", __doc__, "part", 30, folder="quantised")
    parser.add_argument("--part", default=",".join(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument("--peer", default="", help="only these peers of each part")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each peer, as far as the budget goes")
    parser.add_argument("--update", action="store_true", help="write the table of mixtures of experts to docs/measurements.md")
    return parser.parse_args()


def main() -> int:
    """Exit code 2 for unknown names, 1 if this compiler failed on a part."""
    a = _arguments()
    known = parts(a.tiny)
    if unknown := [p for p in a.part.split(",") if p not in known]:
        print(f"error: no part '{unknown[0]}'; parts: {', '.join(known)}", file=sys.stderr)
        return 2
    a.results.mkdir(parents=True, exist_ok=True)
    (a.results / ".gitignore").write_text("*\n")
    ceilings = ceilings_of(a.threads)
    failed = False
    for name in a.part.split(","):
        print(f"== {name}", file=sys.stderr, flush=True)
        result = _measure(name, a)
        (a.results / f"{name}_t{a.threads}.json").write_text(json.dumps(result, indent=1) + "\n")
        print(_report(result, known[name], ceilings), flush=True)
        failed |= any("error" in f for p, f in result["peers"].items() if p.startswith("dhlo"))
    if a.update:
        report.insert(DOCUMENT, "\n".join(table(a.results, a.threads)), "experts")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
