"""An engine over shards of a model, one in each of several processes (tensor parallelism).

Process 0 of the step's process group has the engine (`dhlo.serve.engine`), which takes requests, schedules and samples. The others
follow it: they are told of each step and run it with their own parts of the weights, heads and pools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dhlo import _runtime
from dhlo.errors import ContractError, translate

if TYPE_CHECKING:
    from dhlo.distributed import Communicator
    from dhlo.model import CompiledModel

__all__ = ["communicator_of", "follow", "peer_timeout"]


def follow(model: CompiledModel | _runtime.Model, communicator: Communicator | None = None, *, timeout: float = 60.0) -> None:
    """Runs the steps of process 0's engine with this process's shard, until that engine is closed.

    `communicator`: what connects the processes; by default what the model was bound to (`bind_process_group`). `timeout`: seconds
    that an operation with the others takes at most, as `EngineOptions.peer_timeout`.

    Raises ContractError for a model that is no such shard, or that process 0 has another kind of; RuntimeError when the
    communicator fails, as when process 0 is gone, or silent for longer than the timeout: then nothing of the group goes on, and
    new process groups are needed.
    """
    native = getattr(model, "native", model)
    if not isinstance(native, _runtime.Model):
        raise ContractError(f"a process follows with a compiled model, got {model!r}")
    hooks = communicator_of(model, communicator)
    if hooks is None:
        raise ContractError("a process that follows needs a communicator: call bind_process_group() of the model")
    try:
        _runtime.follow(native, hooks, peer_timeout(timeout))
    except (TypeError, ValueError, RuntimeError) as e:
        raise translate(e) from e.__cause__


def communicator_of(model: object, given: Communicator | None) -> _runtime.Communicator | None:
    """What connects the processes of a model: what was given, else what it was bound to."""
    if given is not None:
        native = getattr(given, "native", None)
        if not isinstance(native, _runtime.Communicator):
            raise ContractError(f"communicator is a dhlo.distributed.Communicator or None, got {given!r}")
        return native
    bound: _runtime.Communicator | None = getattr(model, "communicator", None)
    return bound


def peer_timeout(seconds: float) -> float:
    """Raises ContractError unless it is above 0."""
    if not isinstance(seconds, int | float) or not seconds > 0:
        raise ContractError(f"a timeout of operations with other processes is above 0 seconds, got {seconds!r}")
    return float(seconds)
