"""The adapters that a server's clients ask for as models."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import time
from typing import Any

from dhlo.errors import ModelFileError
from dhlo.serve.answers import EngineLike
from dhlo.serve.openai import ApiError, LoadAdapterBody
from dhlo.serve.types import QueueFullError

__all__ = ["LoadedAdapters"]


class LoadedAdapters:
    """Adapters of an engine by their names, beside the model itself. Of one event loop."""

    def __init__(self, engine: EngineLike, base: str, folders: Mapping[str, str]) -> None:
        """`folders`: those that the engine has already. Raises ApiError where one is called as the model is."""
        self._engine, self._base = engine, base
        self._created: dict[str, int] = {}
        for name in folders:
            self._check_new(name)
            self._created[name] = int(time())

    def __contains__(self, name: str) -> bool:
        return name in self._created

    def cards(self, longest: int) -> list[dict[str, Any]]:
        """What /v1/models says of each."""
        return [self.card(name, longest) for name in self._created]

    def card(self, name: str, longest: int) -> dict[str, Any]:
        created = self._created[name]
        return {
            "id": name, "object": "model", "created": created, "owned_by": "dhlo", "parent": self._base, "max_model_len": longest
        }  # fmt: skip

    async def load(self, body: LoadAdapterBody) -> None:
        """Raises ApiError, and ContractError."""
        self._check_new(body.lora_name)
        try:
            await asyncio.to_thread(self._engine.load_adapter, body.lora_name, body.lora_path)
        except QueueFullError as e:
            raise ApiError(400, str(e), param="lora_name") from None
        except ModelFileError as e:
            raise ApiError(400, str(e), param="lora_path") from None
        self._created[body.lora_name] = int(time())

    async def unload(self, name: str) -> None:
        """Raises ApiError."""
        if self._created.pop(name, None) is None:
            raise ApiError(404, f"The adapter '{name[:200]}' does not exist", param="lora_name", code="model_not_found")
        await asyncio.to_thread(self._engine.unload_adapter, name)

    def _check_new(self, name: str) -> None:
        if name == self._base or name in self._created:
            raise ApiError(400, f"there is a model '{name}' already", param="lora_name")
