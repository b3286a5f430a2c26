"""Worker processes that survive crashes and hangs of what they check."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

__all__ = ["Job", "run_all"]

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 240.0  # seconds for one operator in one dtype
LIFETIME = 60  # requests after which a worker is replaced, as compiled code is never unloaded
Job = tuple[str, str]  # operator, dtype


class _Worker:
    def __init__(self, structures: int | None) -> None:
        self._structures = structures
        self._process: subprocess.Popen[str] | None = None
        self._served = 0

    def ask(self, job: Job) -> dict[str, Any]:
        if self._process is None or self._served >= LIFETIME:
            self.stop()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.opinfo.worker", *([str(self._structures)] if self._structures else [])],
                cwd=ROOT,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        self._served += 1
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], TIMEOUT)
            line = process.stdout.readline() if ready else ""
        except BrokenPipeError:
            ready, line = [process.stdout], ""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        if ready:
            process.wait()
            reason = f"the process ended with status {process.returncode}"
        else:
            reason = f"no answer in {TIMEOUT:.0f} s"
        self.stop()
        return {"samples": [{"sample": "all", "outcome": "failed", "reason": reason, "sizes": 0, "dynamic": False}], "seconds": 0}

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process, self._served = None, 0


def run_all(
    jobs: Iterable[Job],
    workers: int,
    done: Callable[[Job, dict[str, Any]], None],
    until: float | None = None,
    structures: int | None = None,
) -> None:
    """Checks all jobs, of at most `structures` structures each; `done` is called with each answer, from one thread at a time. None
    begins later than `until`, a time of time.monotonic."""
    queue: SimpleQueue[Job] = SimpleQueue()
    for job in jobs:
        queue.put(job)
    lock = threading.Lock()

    def serve() -> None:
        worker = _Worker(structures)
        try:
            while until is None or time.monotonic() < until:
                job = queue.get_nowait()
                answer = worker.ask(job)
                with lock:
                    done(job, answer)
        except Empty:
            pass
        finally:
            worker.stop()

    threads = [threading.Thread(target=serve) for _ in range(workers)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
