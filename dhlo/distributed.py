"""Programs that several processes run together: their collective operations over process groups of torch.distributed."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist

from dhlo import _runtime
from dhlo.errors import CancelledError, ContractError, DeadlineError

__all__ = ["Communicator", "Groups"]

Group = c10d.ProcessGroup | c10d.Backend
Groups = Group | Mapping[str, Group] | None
"""A process group for all that a model has operations in; or one for each, by the names that the model has for them; or those of
these names in this process."""

_LOG = logging.getLogger("dhlo")

_REDUCE = {
    "sum": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
_LOOK = timedelta(milliseconds=20)  # how often a run that waits for others looks whether it is to end


class Communicator:
    """Collective operations of sessions, and of `dhlo.interp`, over process groups.

    Operations work on memory of their own, so that a run that is stopped leaves none to be written later. After one that failed or
    was stopped the processes may be out of step: all later ones fail, until `bind` gives new groups.
    """

    def __init__(self, groups: Groups) -> None:
        self._lock = threading.Lock()
        self.bind(groups)
        # The last operation, and so its tensors: a group's thread that is late to forget them would need Python's lock, and end the
        # process where the interpreter is gone. It comes behind the groups, whose threads end first.
        self._last: Any = None

    @property
    def native(self) -> _runtime.Communicator:
        """What sessions and engines call. They keep this; kept here it would keep itself, and the groups with their threads."""
        return _runtime.Communicator(self._find, self._run)

    def bind(self, groups: Groups) -> None:
        """Takes other groups. Raises TypeError for what are none."""
        named = groups if isinstance(groups, Mapping) else {"": groups}
        for name, group in named.items():
            if not isinstance(name, str) or not (isinstance(group, Group) or group is None is groups):
                raise TypeError(f"process group '{name}': expected a torch.distributed.ProcessGroup, got {type(group).__name__}")
        self._groups: dict[str, Group] = dict(groups) if isinstance(groups, Mapping) else {}
        self._every = groups if isinstance(groups, Group) else None
        self._registered = groups is None
        self._broken = ""

    def group(self, name: str) -> Group:
        """The group of that name. Raises ContractError if there is none."""
        found = self._every or self._groups.get(name)
        if found is None and self._registered and dist.is_initialized():
            resolve: Any = c10d._resolve_process_group  # texts have types of their own
            try:
                found = resolve(name)
            except (LookupError, RuntimeError, ValueError):
                found = None
        if found is None:
            known = f"there are {', '.join(self._groups)}" if self._groups else "none of that name is initialised in this process"
            raise ContractError(f"no process group '{name}': {known}")
        return found

    def size(self, group: str) -> int:
        return int(self.group(group).size())

    def _find(self, name: str) -> tuple[int, int]:
        group = self.group(name)
        return group.size(), group.rank()

    def exchange(
        self,
        kind: str,
        group: str,
        x: torch.Tensor,
        y: torch.Tensor,
        *,
        how: str,
        root: int,
        splits: Sequence[Sequence[int]],
        timeout_ns: int = 0,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Does one operation: see `dhlo.ir.ops.collective`. `splits` are rows of `x` and `y`. Raises what the process group raises,
        DeadlineError and CancelledError where the run is to end before it is done, RuntimeError after an earlier failure."""
        if self._broken:
            raise RuntimeError(
                f"an earlier operation failed ({self._broken}), and processes may be out of step: bind new process groups"
            )
        if not self._lock.acquire(blocking=False):
            raise RuntimeError("another session is in an operation of the same process groups: run one at a time")
        work = None
        try:
            found = self.group(group)
            work, out = _start(kind, found, x, y, how, root, splits)
            self._last = work
            _wait(work, timeout_ns, stopped)
            y.copy_(out)
        except BaseException as e:
            self._broken = f"{kind} of '{group}': {str(e) or type(e).__name__}"
            if work is not None and not work.is_completed():
                with contextlib.suppress(RuntimeError):  # there may be no thread any more
                    threading.Thread(target=_hold, args=(work, found), daemon=True).start()
            raise
        finally:
            self._lock.release()

    def _run(
        self,
        kind: str,
        group: str,
        given: memoryview,
        wanted: memoryview,
        dtype: str,
        reduction: str,
        root: int,
        sends: tuple[int, ...] | None,
        receives: tuple[int, ...] | None,
        timeout_ns: int,
        stopped: Callable[[], bool],
    ) -> None:
        x, y = _tensor(given, dtype), _tensor(wanted, dtype)
        splits = [] if sends is None or receives is None else [sends, receives]
        try:
            self.exchange(kind, group, x, y, how=reduction, root=root, splits=splits, timeout_ns=timeout_ns, stopped=stopped)
        except Exception as e:  # on threads of an engine's nobody else tells what it was
            _LOG.info("%s of process group '%s' failed: %s", kind, group, e)
            raise


def _tensor(memory: memoryview, dtype: str) -> torch.Tensor:
    element: torch.dtype = getattr(torch, dtype)
    return torch.frombuffer(memory, dtype=element) if len(memory) else torch.empty(0, dtype=element)


def _start(
    kind: str, group: Any, x: torch.Tensor, y: torch.Tensor, how: str, root: int, splits: Sequence[Sequence[int]]
) -> tuple[Any, torch.Tensor]:
    """Begins an operation on copies: what to wait for, and what has the result then."""
    options: Any
    x = x.clone()
    match kind:
        case "all_reduce":
            options = c10d.AllreduceOptions()
            options.reduceOp = _REDUCE[how]
            return group.allreduce([x], options), x
        case "broadcast":
            options = c10d.BroadcastOptions()
            options.rootRank, options.rootTensor = root, 0
            return group.broadcast([x], options), x
    out = torch.empty_like(y)
    match kind:
        case "all_gather":
            return group._allgather_base(out, x, c10d.AllgatherOptions()), out
        case "reduce_scatter":
            options = c10d.ReduceScatterOptions()
            options.reduceOp = _REDUCE[how]
            return group._reduce_scatter_base(out, x, options), out
        case "all_to_all":
            sends, receives = (list(s) for s in splits)
            return group.alltoall_base(out, x, receives, sends, c10d.AllToAllOptions()), out
    raise ValueError(f"no operation is called {kind!r}")


def _hold(work: Any, group: Group) -> None:
    """Keeps a group until an operation that was given up is over: else who drops it last waits for that, up to the group's timeout.

    Sleeps, rather than waits in C++: a thread that comes out of there when the interpreter is gone ends the process.
    """
    while not work.is_completed():
        time.sleep(0.1)


def _wait(work: Any, timeout_ns: int, stopped: Callable[[], bool]) -> None:
    """Waits for the end of an operation. Raises what it failed with, DeadlineError, CancelledError."""
    end = time.monotonic_ns() + timeout_ns
    while True:
        left = timedelta(microseconds=max((end - time.monotonic_ns()) // 1000, 1000)) if timeout_ns else _LOOK
        try:
            work.wait(min(left, _LOOK))
            return
        except RuntimeError:
            if work.is_completed():  # just now, or it failed
                work.wait()
                return
        if timeout_ns and time.monotonic_ns() >= end:
            raise DeadlineError("the run's timeout passed while it waited for other processes")
        if stopped():
            raise CancelledError("the run was stopped while it waited for other processes")
