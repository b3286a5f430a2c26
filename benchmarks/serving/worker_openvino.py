"""Runs a trace through OpenVINO GenAI's continuous batching; with its interpreter: `python worker_openvino.py < trace.json`."""

import json
import sys
import time
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

__all__: list[str] = []


def main() -> None:
    given = json.load(sys.stdin)
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = given["cache_gigabytes"]
    scheduler.max_num_batched_tokens = given["max_step_tokens"]
    scheduler.enable_prefix_caching = given["prefix_cache"]
    scheduler.dynamic_split_fuse = True
    properties = {
        "INFERENCE_PRECISION_HINT": given["precision"],
        "KV_CACHE_PRECISION": given["precision"],
        "INFERENCE_NUM_THREADS": given["threads"],
    }
    if not given["rounded_activations"]:
        properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0  # by default numbers are of 8 bits where weights are
    began = time.perf_counter()
    pipeline = genai.ContinuousBatchingPipeline(given["openvino_folder"], scheduler, "CPU", properties)
    start_up = time.perf_counter() - began
    results: list[Any] = []
    for trace in given["traces"]:
        results.append(_run(pipeline, trace))
    json.dump({"start_up": start_up, "answers": results}, sys.stdout)


def _run(pipeline: Any, given: dict[str, Any]) -> list[dict[str, Any]]:
    trace = given["requests"]
    answers: list[dict[str, Any]] = [{"times": [], "tokens": []} for _ in trace]
    waiting, running = list(range(len(trace))), dict[int, Any]()
    began = time.perf_counter()
    while waiting or running:
        now = time.perf_counter() - began
        while waiting and trace[waiting[0]]["at"] <= now and len(running) < given["at_once"]:
            k = waiting.pop(0)
            answers[k]["asked"] = trace[k]["at"] or now
            config = genai.GenerationConfig()
            config.max_new_tokens = config.min_new_tokens = trace[k]["max_tokens"]
            config.ignore_eos, config.do_sample = True, False
            running[k] = pipeline.add_request(k, ov.Tensor(np.array([trace[k]["prompt"]], dtype=np.int64)), config)
        if not running:
            time.sleep(max(0.0, trace[waiting[0]]["at"] - now))
            continue
        pipeline.step()
        now = time.perf_counter() - began
        for k, handle in list(running.items()):
            while handle.can_read():
                for out in handle.read().values():
                    answers[k]["tokens"] += list(out.generated_ids)
                    answers[k]["times"] += [now] * len(out.generated_ids)
            if handle.get_status() != genai.GenerationStatus.RUNNING:
                del running[k]
    return answers


if __name__ == "__main__":
    main()
