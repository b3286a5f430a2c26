"""llama.cpp's decoder by its C interface (llama-cpp-python)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp as api
import numpy as np
import numpy.typing as npt

__all__ = ["LlamaCpp", "Token"]

Token = tuple[int, int, int, bool]
"""An id, its position, the sequence that it belongs to, and whether its logits are wanted."""

_CACHES = {"f32": api.GGML_TYPE_F32, "bf16": 30}  # the bindings have no GGML_TYPE_BF16
_ROUND = 256  # a sequence's room is a multiple of it


class LlamaCpp:
    """A model of `file`, which takes up to `most` tokens at a time on so many threads."""

    def __init__(self, file: str, threads: int, most: int) -> None:
        api.llama_backend_init()
        self.threads, self.most = threads, most
        self._model = api.llama_model_load_from_file(file.encode(), api.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp can't load {file}")
        self._vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._batch = api.llama_batch_init(most, 0, 1)
        self._context: Any = None

    def open(self, sequences: int, positions: int, cache: str = "f32") -> None:
        """Makes room for so many sequences of so many positions; what others had is gone."""
        if self._context is not None:
            api.llama_free(self._context)
        params = api.llama_context_default_params()
        params.n_ctx, params.n_seq_max = sequences * -(-positions // _ROUND) * _ROUND, sequences
        params.n_batch = params.n_ubatch = self.most
        params.n_threads = params.n_threads_batch = self.threads
        params.type_k = params.type_v = _CACHES[cache]
        self._context = api.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp has no room for {sequences} sequences of {positions} positions")

    def decode(self, tokens: Sequence[Token]) -> list[npt.NDArray[np.float32]]:
        """The logits that are wanted, in order, which last until the next call."""
        batch = self._batch
        for i, (token, position, sequence, wanted) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        batch.n_tokens = len(tokens)
        if failed := api.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returns {failed}")
        return [self._logits(i) for i, token in enumerate(tokens) if token[3]]

    def _logits(self, row: int) -> npt.NDArray[np.float32]:
        found = ctypes.cast(api.llama_get_logits_ith(self._context, row), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(found, (self._vocabulary,))

    def forget(self, sequence: int, begin: int = 0) -> None:
        """What a sequence has from a position on."""
        api.llama_memory_seq_rm(api.llama_get_memory(self._context), sequence, begin, -1)
