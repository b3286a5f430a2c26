"""What a plan says beside what a run takes."""

from __future__ import annotations

import copy
from typing import Any

import torch

from dhlo import _runtime
from dhlo.model import CompiledModel

__all__ = ["assert_plan_is_run", "with_gaps"]


def with_gaps(x: Any) -> Any:
    """The same tensor, with room between its elements."""
    if not isinstance(x, torch.Tensor) or not x.dim():
        return x
    return torch.empty(*x.shape, 2, dtype=x.dtype)[..., 0].copy_(x)


def assert_plan_is_run(model: CompiledModel, *args: Any, **kwargs: Any) -> None:
    """Plans the call, makes it in a fresh session, and compares to the byte; once more with arguments that aren't dense. Of what
    depends on data only the outputs are compared that the plan tells."""
    leaves = model._flatten(args, kwargs)
    for given in (leaves, [with_gaps(x) for x in leaves] if not model._grown else leaves):
        plan = model.native.plan(list(given))
        session = _runtime.Session(model.native)
        results = session(copy.deepcopy(list(given)) if given is leaves else list(given))
        for (dtype, shape), result in zip(plan["outputs"], results, strict=True):
            assert shape is None or (shape, f"torch.{dtype}") == (tuple(result.shape), str(result.dtype))
        if plan["data_dependent"]:
            continue
        used = session.counters
        for planned, counter in (("arena_bytes", "arena_used"), ("scratch_bytes", "scratch_used"),
                                 ("output_bytes", "output_used"), ("num_launches", "launches")):  # fmt: skip
            assert plan[planned] == used[counter], (planned, plan, used)  # type: ignore[literal-required]
        own = plan["arena_bytes"] + plan["scratch_bytes"] + plan["output_bytes"] + plan["state_bytes"]
        assert plan["total_bytes"] == own and plan["state_bytes"] == model.native.state_bytes
        assert plan["constants_bytes"] == model.native.constants_bytes
        assert plan["peak_live_bytes"] <= plan["arena_bytes"]
