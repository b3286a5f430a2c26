"""What is compiled of a model's folder: found in a cache, or made, in a process of its own if that is wanted."""

from __future__ import annotations

import hashlib
import multiprocessing
import signal
import tempfile
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dhlo import _runtime
from dhlo.cache import Cache, compiler_version
from dhlo.errors import CompileError, DhloError, InternalError, ModelFileError
from dhlo.loading import digest_of, load_artifact, open_model
from dhlo.options import default_target

if TYPE_CHECKING:
    from dhlo.codegen.backends.artifact import Artifact

__all__ = ["FolderProgram", "naming"]

_END_SECONDS: Final = 10
_FORMAT: Final = 2  # of what a key stands for
_TOLD_LINES: Final = 6  # of a traceback: its end
_ASIDE: Final = "compiled.so"


@dataclass(frozen=True, kw_only=True)
class FolderProgram(ABC):
    """A program of the model in a folder, and how it is compiled. It is found in a cache as long as the model's files are where and
    what they were, and options, compiler, transformers and machine are the same."""

    folder: Path
    threads: int = 0
    """That run it; 0: one per processor."""
    progress: Callable[[str], None]
    apart: bool = False
    """What has to be compiled is compiled in a process of its own."""

    @abstractmethod
    def compile(self) -> Artifact:
        """Code and constants. Raises CompileError and UnsupportedError, and ImportError where a library lacks."""

    @abstractmethod
    def about(self) -> Mapping[str, Any]:
        """What was compiled, and how, for people and as part of its key; a mapping's order counts."""

    @abstractmethod
    def files(self) -> list[Path]:
        """Files of the folder that decide what is compiled."""

    def open(self, cache: str | None) -> tuple[_runtime.Model, bytes]:
        """From the cache, or compiled, and kept there if there is one; and its digest. Raises CompileError, ModelFileError."""
        kept, key = (Cache(cache), self.key()) if cache else (None, "")
        path = kept.find_model(key) if kept is not None and key else None
        if path is not None:
            try:
                return self._load(path)
            except ModelFileError:  # damaged: made anew
                pass
        if self.apart:
            with tempfile.TemporaryDirectory(prefix="dhlo-") as folder:  # for what the cache doesn't keep; what is open stays
                return self._load(self._compile_apart(cache if key else None, folder))
        artifact = self._compile()
        path = self._keep(artifact, Cache(cache), key) if cache and key else None
        if path is not None:
            return self._load(path)
        self.progress("pack weights")
        return load_artifact(artifact, self.threads), artifact.digest()

    def _load(self, path: Path) -> tuple[_runtime.Model, bytes]:
        self.progress("load what was compiled")
        return open_model(path, self.threads), digest_of(path)

    def _compile(self) -> Artifact:
        self.progress("import PyTorch and transformers")
        try:
            return self.compile()
        except ImportError as e:
            raise CompileError(f"compiling a folder needs the library {e.name or e}", hint="pip install 'dhlo[serve]'") from None

    def _keep(self, artifact: Artifact, cache: Cache, key: str) -> Path | None:
        """The model file in the cache; None where that can't hold it."""
        from dhlo.codegen.backends.cpu import link

        self.progress("keep what was compiled")
        about = {"folder": str(self.folder.resolve()), **self.about()}
        return cache.put_model(key, lambda p: link.write_model(artifact, p), about)

    def compile_to(self, cache: str | None, aside: str) -> Path:
        """A model file in the cache, or if there is none, or it can't hold one, in the folder `aside`. Raises what `open` raises,
        and OSError where neither has room."""
        from dhlo.codegen.backends.cpu import link

        key = self.key() if cache else ""  # of the files before they are read: others may take their place meanwhile
        artifact = self._compile()
        path = self._keep(artifact, Cache(cache), key) if cache and key else None
        if path is None:
            path = Path(aside, _ASIDE)
            link.write_model(artifact, path)
        return path

    def _compile_apart(self, cache: str | None, aside: str) -> Path:
        """Has another process do `compile_to`. Raises what that raises."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe(duplex=False)
        told = replace(self, progress=there.send, apart=False)
        process = context.Process(target=_compile_for, args=(told, cache, aside, there), daemon=True)
        try:
            process.start()
            there.close()
            while not isinstance(said := here.recv(), Path):
                if isinstance(said, BaseException):
                    raise said
                self.progress(said)
            process.join(_END_SECONDS)  # or its libraries leave semaphores behind
            return said
        except EOFError:
            process.join()
            raise CompileError(f"the process that compiles '{self.folder}' has ended: {_end_of(process.exitcode)}") from None
        finally:
            if process.pid is not None:
                process.terminate()
                process.join()
            here.close()

    def key(self) -> str:
        """SHA-256 of what is compiled depends on; the files of the model by what tells them from changed ones. "" where that can't
        be read."""
        compiler = compiler_version()
        parts: list[object] = [_FORMAT, type(self).__name__, compiler, _transformers(), default_target(), _machine()]
        parts.append(_in_order(self.about()))
        try:
            parts += [str(self.folder.resolve()), [(str(f.relative_to(self.folder)), *_mark(f)) for f in sorted(self.files())]]
        except OSError:
            return ""
        return hashlib.sha256(repr(parts).encode()).hexdigest() if compiler else ""


def _compile_for(program: FolderProgram, cache: str | None, aside: str, parent: Connection) -> None:
    """Of a process that compiles for another one: sends what is being done, and last the path of the model file, or the error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which the other one gets, too, and ends this one
    try:
        parent.send(program.compile_to(cache, aside))
    except BrokenPipeError:  # nobody waits for it
        return
    except DhloError as e:
        parent.send(e)
    except MemoryError:
        parent.send(CompileError(f"the process that compiles '{program.folder}' has not enough memory"))
    except OSError as e:
        parent.send(CompileError(f"the process that compiles '{program.folder}' has failed: {e}"))
    except Exception:
        end = "\n".join(traceback.format_exc().rstrip().splitlines()[-_TOLD_LINES:])
        parent.send(InternalError(f"the process that compiles '{program.folder}' has failed:\n{end}"))


def _end_of(code: int | None) -> str:
    """How a process ended that didn't say why."""
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{name}, perhaps for want of memory" if -code == signal.SIGKILL else name


def _in_order(value: object) -> object:
    return [(k, _in_order(v)) for k, v in value.items()] if isinstance(value, Mapping) else value


def _transformers() -> str:
    """The version of the library whose modules are compiled; "" without it. PyTorch's is the compiler's."""
    try:
        return version("transformers")
    except PackageNotFoundError:
        return ""


def _mark(path: Path) -> tuple[int, ...]:
    info = path.stat()
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _machine() -> str:
    """What the processor is and can do, as the system says: `native` code is made for it."""
    names = {"vendor_id", "cpu family", "model", "flags", "CPU implementer", "CPU part", "Features"}
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return ""
    return "\n".join(line for line in first.splitlines() if line.partition(":")[0].strip() in names)


@contextmanager
def naming(folder: Path, what: str) -> Iterator[None]:
    """What the model itself raises as it is exported as `what` becomes an error that says so."""
    try:
        yield
    except DhloError:
        raise
    except Exception as e:  # whatever torch.export raises
        raise CompileError(f"the model in '{folder}' can't be exported as {what}: {type(e).__name__}: {e}") from e
