"""OpenVINO GenAI's continuous batching; with its interpreter: `python -m benchmarks.serving.worker_openvino < trace.json`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from benchmarks.serving.stepping import serve

__all__: list[str] = []


class _Pipeline:
    def __init__(self, given: dict[str, Any]) -> None:
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
        self._pipeline = genai.ContinuousBatchingPipeline(given["openvino"], scheduler, "CPU", properties)
        self._running = dict[int, Any]()

    def begin(self, at_once: int, longest: int) -> None:
        pass

    def submit(self, key: int, prompt: list[int], tokens: int) -> None:
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = tokens
        config.ignore_eos, config.do_sample = True, False
        self._running[key] = self._pipeline.add_request(key, ov.Tensor(np.array([prompt], dtype=np.int64)), config)

    def step(self) -> Iterator[tuple[int, list[int], bool]]:
        self._pipeline.step()
        return self._read()

    def _read(self) -> Iterator[tuple[int, list[int], bool]]:
        for key, handle in list(self._running.items()):
            tokens = list[int]()
            while handle.can_read():
                for out in handle.read().values():
                    tokens += out.generated_ids
            over = handle.get_status() != genai.GenerationStatus.RUNNING
            if over:
                del self._running[key]
            yield key, tokens, over


if __name__ == "__main__":
    serve(_Pipeline)
