"""Serving engines beside each other on the same traces, each in a process of its own, in turns.

`python -m benchmarks.serving FOLDER [--openvino PYTHON MODEL] [--llamacpp PYTHON MODEL] ...`: FOLDER is a decoder of transformers
(config.json, safetensors), PYTHON an interpreter that has the peer, and MODEL what was made of FOLDER for it, as precise:

openvino     a folder that `optimum-cli export openvino --task text-generation-with-past --weight-format fp32` wrote
llamacpp     a file that `python -m benchmarks.serving.gguf_file` wrote
onnxruntime  a folder that `python -m onnxruntime_genai.models.builder -e cpu -p fp32` wrote
vllm         FOLDER itself
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.serving.traces import Answer, Trace, figures, poisson, several, shared_beginning, single

__all__: list[str] = []

_PEERS = ("openvino", "llamacpp", "onnxruntime", "vllm")
_ROOT = Path(__file__).parents[2]
_PAGES = {"keys*": 16, "values*": 16}


def traces(vocabulary: int, seconds: float) -> dict[str, Trace]:
    """One stream behind prompts of several lengths; several at once, and at random times; with a beginning that all share."""
    found = {f"one stream behind {n}": single(n, 33, vocabulary, seed=n) for n in (16, 512, 2048, 8192)}
    found |= {f"{n} at once": several(n, 8 + 3 * n, vocabulary, seed=n) for n in (1, 4, 16, 32)}
    found |= {f"{rate} requests a second": poisson(rate, seconds, vocabulary, seed=rate) for rate in (1, 2, 4, 6, 9, 12, 18, 27)}
    found["1,000 tokens shared"] = shared_beginning(8, 1.0, 1000, 24, 8, vocabulary)
    return found


def compiled(folder: Path, precision: str, file: Path) -> None:
    """Compiles the folder's model to a step over pools of blocks."""
    import transformers

    import dhlo
    from dhlo.integrations.decoder import step_program

    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    kind, weights, activations = (*precision.split("-"), "", "")[:3]
    model = (model.bfloat16() if kind == "bf16" else model.float()).eval()
    options = {"weights": "int4:64" if weights == "int4" else weights or None, "activations": activations or "f32"}
    dhlo.compile(step_program(model), pages=_PAGES, **options).save(file)


def run(command: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, cwd=_ROOT)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compare(group: Mapping[str, Trace], commands: Mapping[str, Sequence[str]], given: Mapping[str, Any], rounds: int) -> None:
    """Prints a row for each trace and engine: the round with the most tokens a second. A process runs one trace after the other."""
    best, tokens = dict[tuple[str, str], dict[str, float]](), dict[tuple[str, str], list[list[int]]]()
    unused: float | None = None
    for _ in range(rounds):
        for engine, command in commands.items():
            said = run(command, given)
            unused = said.get("unused", unused)
            for name, answered in zip(group, said["answers"][-len(group) :], strict=True):
                answers = [Answer.of(a) for a in answered]
                key, found = (name, engine), figures(answers)
                tokens[key] = [a.tokens for a in answers]
                if key not in best or found["tokens_per_second"] > best[key]["tokens_per_second"]:
                    best[key] = found
    for name in group:
        for engine in commands:
            print(f"| {name} | {engine} | " + " | ".join(f"{v:.2f}" for v in best[name, engine].values()) + " |", flush=True)
        for engine in list(commands)[1:]:
            same = sum(ours == theirs for ours, theirs in zip(tokens[name, "dhlo"], tokens[name, engine], strict=True))
            print(f"<!-- {same} of {len(tokens[name, engine])} requests got the same tokens from {engine} -->", flush=True)
    if unused is not None:
        print(f"<!-- {unused:.1%} of the slots that sequences had reserved held no token, on average of steps -->", flush=True)


def main() -> None:
    """Prints a table of figures for each trace."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("folder", type=Path)
    for peer in _PEERS:
        parser.add_argument(f"--{peer}", nargs=2, metavar=("PYTHON", "MODEL"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20, help="of each trace of requests at random")
    parser.add_argument("--only", nargs="+", default=[""], help="traces whose name has one of these in it")
    weights = ["", *(f"-{w}{a}" for w in ("int4", "int4:32", "int8") for a in ("", "-int8"))]
    kinds = [f"{n}{w}" for n in ("f32", "bf16") for w in weights]
    parser.add_argument(
        "--precision",
        choices=kinds,
        default="f32",
        help="of numbers and caches, of weights (int4 is in groups of 64), and of what these are multiplied with",
    )
    parser.add_argument("--file", type=Path, help="a compiled step, made before")
    parser.add_argument("--max-step-tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--warm", type=int, default=0, help="requests before each trace, 32 at once; 0: so many that caches are full"
    )
    parser.add_argument("--one-process", action="store_true", help="of each engine for all traces, as some take long to begin")
    given = parser.parse_args()
    vocabulary = json.loads((given.folder / "config.json").read_text())["vocab_size"]
    # So many tokens that all memory of the caches has been touched, and that they are full of others'.
    asked = given.warm or (320 if given.precision.startswith("bf16") else 160)
    warm = several(32, asked, vocabulary, seed=1000)
    chosen = {name: t for name, t in traces(vocabulary, given.seconds).items() if any(part in name for part in given.only)}
    with tempfile.TemporaryDirectory() as temporary:
        file = given.file or Path(temporary) / "step.so"
        if not file.exists():
            compiled(given.folder, given.precision, file)
        common = {
            "threads": given.threads,
            "cache_gigabytes": 1,
            "max_step_tokens": given.max_step_tokens,
            "prefix_cache": True,
            "precision": given.precision.partition("-")[0],
            "rounded_activations": given.precision.count("-") == 2,
            "dhlo_file": str(file.resolve()),
        }
        commands = {"dhlo": [sys.executable, "-m", "benchmarks.serving.worker_dhlo"]}
        for peer in _PEERS:
            if found := getattr(given, peer):
                commands[peer] = [found[0], "-m", f"benchmarks.serving.worker_{peer}"]
                common[peer] = str(Path(found[1]).resolve())
        print("| trace | engine | tokens/s | TTFT p50, ms | p95 | TPOT p50, ms | p95 | step, median |\n" + "| --- " * 8 + "|")
        groups = [chosen] if given.one_process else [{name: trace} for name, trace in chosen.items()]
        for group in groups:
            alone = all(len(trace.requests) == 1 for trace in group.values())
            before = replace(warm, requests=warm.requests[:32]) if alone else warm
            given_traces = [trace.to_json() for trace in (before, *group.values())]
            compare(group, commands, {**common, "traces": given_traces}, given.rounds)


if __name__ == "__main__":
    main()
