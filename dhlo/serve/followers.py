"""Processes of this machine that follow an engine of this one, each with its shard of the model in a folder (`dhlo serve
--tensor-parallel`). Imports PyTorch, whose gloo connects them over the loopback interface."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dhlo.errors import CompileError, DhloError
from dhlo.serve.folder import Served, open_folder
from dhlo.serve.shards import follow

__all__ = ["Followers"]

_END_SECONDS = 10.0
_TIMEOUT = 60.0


class Followers:
    """The other processes of an engine. They end when the engine is closed, or this is."""

    def __init__(self, folder: str | Path, size: int, *, threads: int = 0, **how: Any) -> None:
        """Starts `size` - 1 processes, which begin to read the folder, or to compile their shards of it. `threads` run each
        process's steps (0: an equal part of the processors each); `how` is what `open_folder` takes beside. Raises DhloError."""
        processors = len(os.sched_getaffinity(0))
        if not 2 <= size <= max(processors, 64):
            raise DhloError(f"a model is shared by 2 to {max(processors, 64)} processes, got {size}")
        self.size, self.threads = size, threads or max(1, processors // size)
        self._folder, self._how = Path(folder), how
        self._meeting = tempfile.TemporaryDirectory(prefix="dhlo-")
        self._processes = list[tuple[BaseProcess, Connection]]()
        context = multiprocessing.get_context("spawn")
        try:
            for rank in range(1, size):
                here, there = context.Pipe()
                args = (rank, size, self._folder, self.threads, how, str(Path(self._meeting.name) / "store"), there)
                process = context.Process(target=_follow, args=args, name=f"dhlo-follower-{rank}")
                process.start()
                there.close()
                self._processes.append((process, here))
        except BaseException:
            self.close()
            raise

    def open(self, progress: Callable[[str], None] = lambda _: None) -> tuple[Served, Any]:
        """This process's own shard, and what connects it to the others, which are ready then: `EngineOptions.communicator`. Raises
        what `open_folder` does, in whichever process."""
        served = open_folder(self._folder, threads=self.threads, shard=(0, self.size), progress=progress, **self._how)
        progress("wait for the other processes")
        waiting = list(self._processes)
        while waiting:
            ready = wait([here for _, here in waiting])
            for process, here in [each for each in waiting if each[1] in ready]:
                waiting.remove((process, here))
                try:
                    said = here.recv()
                except EOFError:
                    process.join()
                    raise CompileError(f"process '{process.name}' has ended: exit code {process.exitcode}") from None
                if isinstance(said, BaseException):
                    raise said
        for _, here in self._processes:  # to wait for each other they have less time than compiling may take
            here.send(None)
        return served, _connect(str(Path(self._meeting.name) / "store"), 0, self.size)

    def close(self) -> None:
        """Waits for their ends, and makes an end of those that go on. To be called when the engine is closed."""
        for process, here in self._processes:
            process.join(_END_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()
            here.close()
        self._processes.clear()
        self._meeting.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:  # there may be no engine that they follow
            for process, _ in self._processes:
                process.kill()
        self.close()


def _connect(meeting: str, rank: int, size: int) -> Any:
    """A communicator of the processes that meet at a file. Raises DhloError where they don't."""
    import torch._C._distributed_c10d as c10d

    from dhlo.distributed import Communicator

    gloo: Any = c10d.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=_TIMEOUT)
    try:
        return Communicator(gloo(c10d.FileStore(meeting, size), rank, size, options))
    except RuntimeError as e:
        raise DhloError(f"the {size} processes of the model can't connect: {e}") from None


def _follow(rank: int, size: int, folder: Path, threads: int, how: dict[str, Any], meeting: str, parent: Connection) -> None:
    """Of a process that follows."""
    for number in (signal.SIGINT, signal.SIGTERM):  # which process 0 gets, too, and ends this one once requests have ended
        signal.signal(number, signal.SIG_IGN)
    try:
        served = open_folder(folder, threads=threads, shard=(rank, size), **how)
    except DhloError as e:
        parent.send(e)
        return
    parent.send(None)
    try:
        parent.recv()  # until all others are ready
    except EOFError:
        return  # process 0 has ended
    parent.close()
    try:
        follow(served.step, _connect(meeting, rank, size), timeout=_TIMEOUT)
    except (DhloError, RuntimeError) as e:
        sys.exit(f"dhlo: process {rank} follows no more: {e}")
