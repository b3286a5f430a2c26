"""Types of the runtime's CPython extension (source: runtime/python)."""

from collections.abc import Callable
from os import PathLike
from typing import Any, Self, TypeAlias, TypedDict, final, type_check_only

from torch import Tensor
from typing_extensions import Buffer as ReadableBuffer

ABI_VERSION: int
__version__: str

@type_check_only
class Value(TypedDict):
    """What the compiler knows of an argument or result; a size is -1 where the dim is symbolic."""

    name: str
    dtype: str
    sizes: tuple[int, ...]
    dims: tuple[str, ...]

@type_check_only
class State(TypedDict):
    name: str
    bytes: int

@type_check_only
class Plan(TypedDict):
    """Bytes and output shapes for given inputs, as dhlo_plan in dhlo/runtime.h; an output's sizes are None where they depend on
    data."""

    outputs: list[tuple[str, tuple[int, ...] | None]]
    arena_bytes: int
    scratch_bytes: int
    output_bytes: int
    state_bytes: int
    constants_bytes: int
    total_bytes: int
    peak_live_bytes: int
    data_dependent: bool
    num_launches: int

@type_check_only
class Counters(TypedDict):
    runs: int
    failed_runs: int
    launches: int
    arena_bytes: int
    arena_used: int
    scratch_bytes: int
    output_bytes: int
    growths: int
    state_bytes: int
    scratch_used: int
    output_used: int

@final
class Model:
    """A loaded program: immutable, shared by sessions and threads.

    Errors carry an attribute `status`: "contract", "invalid argument" (ValueError), "out of memory" (MemoryError),
    "input/output", "format", "version", "cpu", "busy", "internal", "host", "untrusted", "cancelled", "deadline" (RuntimeError).
    """

    @classmethod
    def from_file(
        cls,
        path: str | PathLike[str],
        *,
        verify: int = 1,
        memory: int = 0,
        num_threads: int = 0,
        authorize: Callable[[bytes], object] | None = None,
        weights: str | PathLike[str] | ReadableBuffer | None = None,
    ) -> Model:
        """Loads a model file. `verify` is a dhlo_verify, `memory` a dhlo_constants_memory of runtime.h. `weights` is a weights file
        that is taken instead of the model's own, or the content of one.

        `authorize` is asked, with the file's digest, before any code is loaded: false or an exception refuses the file.
        """
    @classmethod
    def from_memory(
        cls,
        data: ReadableBuffer,
        *,
        verify: bool = True,
        num_threads: int = 0,
        authorize: Callable[[bytes], object] | None = None,
        weights: str | PathLike[str] | ReadableBuffer | None = None,
    ) -> Model:
        """The same of a whole model file in memory."""
    @classmethod
    def from_address(
        cls, descriptor_addr: int, constants_addr: int, constants_bytes: int, owner: object, *, num_threads: int = 0
    ) -> Model: ...
    @property
    def name(self) -> str: ...
    @property
    def producer(self) -> str: ...
    @property
    def metadata(self) -> str: ...
    @property
    def level(self) -> str: ...
    @property
    def cpu_features(self) -> str: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def constants_bytes(self) -> int: ...
    @property
    def state_bytes(self) -> int: ...
    @property
    def inputs(self) -> list[Value]: ...
    @property
    def outputs(self) -> list[Value]: ...
    @property
    def states(self) -> list[State]: ...
    @property
    def launches(self) -> list[str]: ...
    @property
    def entries(self) -> list[str]:
        """Names of the entries; a model that is loaded is its first one."""
    def entry(self, name: str, /) -> Model:
        """Another entry of the same model: inputs, outputs and metadata are the entry's, all else is shared. Raises ValueError."""
    def plan(self, *inputs: object) -> Plan:
        """Sizes for these inputs, without running.

        Inputs are tensors, numbers, or sequences of sizes (with the dtype the model expects); or one list or tuple of
        these.
        """

Span: TypeAlias = tuple[int, str, int, int, int, int, int, int, int, int]
"""A `dhlo_trace_event` of runtime.h: kind, name, begin and end in ns, run, launch site, items, worker, thread, status."""

@final
class Session:
    """Runs a model; for one call at a time, others are refused. `max_bytes` caps arena, scratch, state, constants and the
    outputs of a run together (0: no cap)."""

    def __new__(
        cls,
        model: Model,
        *,
        max_bytes: int = 0,
        profile: bool = False,
        release_gil: bool = True,
        capsules: bool = False,
        communicator: Communicator | None = None,
    ) -> Self: ...
    def __call__(self, *inputs: object) -> list[Tensor]:
        """Inputs are CPU tensors (torch, or anything with DLPack) or numbers; or one list or tuple of these. With `capsules`,
        results are DLPack capsules ("dltensor_versioned"), and torch isn't imported."""
    def run(self, inputs: object, timeout_ns: int = 0, cancel: ReadableBuffer | None = None) -> list[Tensor]:
        """The same of a list or tuple of inputs. Fails after so many nanoseconds (0: never) with status "deadline", or once the
        32-bit number in the buffer isn't 0 with status "cancelled" (RuntimeError)."""
    def cancel(self) -> None:
        """Stops the run in progress, if there is one, from any thread: it fails with status "cancelled"."""
    @property
    def model(self) -> Model: ...
    @property
    def counters(self) -> Counters: ...
    @property
    def profile(self) -> list[tuple[str, int, int]]:
        """(kernel, count, nanoseconds) of each launch site since profiling was switched on or reset."""
    def set_profile(self, on: bool, *, reset: bool = False) -> None: ...
    def start_trace(self, capacity: int, /) -> None:
        """Records what later runs spend their time on, up to `capacity` spans."""
    def stop_trace(self) -> tuple[list[Span], list[list[tuple[int, ...]]], int]:
        """Ends that: the spans in the order of their ends, the shapes of each run's inputs, and how many spans had no room."""
    def read_state(self, name: str) -> bytes: ...
    def write_state(self, name: str, data: ReadableBuffer) -> None: ...
    def reset_state(self) -> None: ...
    def sharing(self, entry: Model, /) -> Session:
        """A session of another entry of the model with the same options, which shares state, random generator and arena: one of
        them runs at a time. Raises ValueError for an entry of another model."""
    def copy(self) -> Session:
        """A new session with the same options, state and random generator."""
    def snapshot(self) -> bytes:
        """State and random generator, for `restore` of a session whose model has states of the same names and sizes."""
    def restore(self, snapshot: ReadableBuffer, /) -> None: ...
    def seed(self, value: int, /) -> None:
        """Random numbers of later runs follow from `value` (its lowest 64 bits)."""
    def trim(self) -> None:
        """Frees arena, scratch and memory kept for outputs; the next run allocates again."""

@final
class Communicator:
    """Does collective operations for sessions (dhlo_communicator of runtime.h), as functions:

    `find(group)` gives the number of processes in a group and this one's number, or raises. `exchange(kind, group, input, output,
    dtype, reduction, root, sends, receives, timeout_ns, stopped)` does an operation, or raises: `input` and `output` are memory
    that is gone afterwards, `sends` and `receives` are None or numbers of elements, and `stopped()` is true once the run is to end.
    """

    def __new__(
        cls,
        find: Callable[[str], tuple[int, int]],
        exchange: Callable[
            [
                str,
                str,
                memoryview,
                memoryview,
                str,
                str,
                int,
                tuple[int, ...] | None,
                tuple[int, ...] | None,
                int,
                Callable[[], bool],
            ],
            object,
        ],
    ) -> Self: ...

@final
class Buffer:
    """Uninitialised writable memory of `nbytes` bytes, 64-byte aligned, on huge pages if large."""

    def __new__(cls, nbytes: int) -> Self: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

# A request's id, choice, dhlo_finish, whether it is the request's last, tokens, their log-probabilities each with those of the most
# likely ones, index of the stop string or -1, error, tokens of the prompt and those that were cached, score of beam search.
EngineEvent: TypeAlias = tuple[
    int, int, int, bool, tuple[int, ...], tuple[tuple[float, tuple[tuple[int, float], ...]], ...], int, str, int, int, float
]

@final
class Engine:
    """Serves a step whose caches are pools of blocks. Failures carry the runtime's status."""

    def __new__(
        cls,
        model: Model,
        cache_bytes: int,
        max_step_tokens: int,
        max_sequences: int,
        max_waiting: int,
        max_positions: int,
        eos_tokens: ReadableBuffer,
        vocabulary: ReadableBuffer,
        vocabulary_offsets: ReadableBuffer,
        prefix_cache: bool,
        prompt_lookup: int,
        cache_folder: str | None,
        cache_folder_bytes: int,
        model_digest: ReadableBuffer,
        draft_model: Model | None,
        draft_tokens: int,
        draft_branches: int,
        draft_cache_bytes: int,
        draft_max_positions: int,
        cache_store: object,
        cache_store_threads: int,
        preemption: int,
        swap_bytes: int,
        communicator: Communicator | None,
        peer_timeout: float,
        evict_to: int,
        evict_sinks: int,
        evict_recent: int,
        evict_by: int,
        encoder: Model | None,
        max_source_positions: int,
    ) -> Self: ...
    def submit(self, prompt: ReadableBuffer, /, *params: object) -> int:
        """Takes a request, whose id it returns; see `dhlo.serve.native_arguments` for what follows the prompt's int32."""
    def cancel(self, request: int, /) -> None: ...
    def load_adapter(
        self, name: str, pairs: tuple[tuple[str, int, int, int, int, ReadableBuffer, ReadableBuffer, float], ...], /
    ) -> None:
        """Gives the step an adapter, of each pair: module, dtype, rank, inputs, outputs, both matrices, scale."""
    def unload_adapter(self, name: str, /) -> None: ...
    def poll(self, timeout: float = -1, /) -> tuple[EngineEvent, ...] | None:
        """Waits for events; None once the engine is closed."""
    def drain(self, timeout: float, /) -> bool: ...
    def close(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...

def follow(model: Model, communicator: Communicator, timeout: float, /) -> None:
    """Runs the steps of an engine of process 0 until that is closed; see `dhlo.serve.shards`."""

def sha256(data: ReadableBuffer, portable: bool = False, /) -> bytes:
    """SHA-256 as the runtime computes it; on request without the processor's instructions for it."""

def cpu_supports(feature: str, /) -> bool: ...
def machine_facts() -> dict[str, int]:
    """What the machine is like beyond its instructions (enum dhlo_machine of abi.h), by name: measured now if it hasn't been."""

def choose_level(features: str, /) -> int:
    """The number of the level, of a model file's text of features, that a run here would take. Raises RuntimeError if this machine
    can run none of them, or DHLO_TARGET names another."""

def section_digest(data: ReadableBuffer, /) -> bytes:
    """The digest of a file section with this content: SHA-256 of the SHA-256 digests of its pieces of 1 MiB."""

def read_section(fd: int, offset: int, memory: ReadableBuffer, /) -> bytes:
    """Fills writable memory from an open file and returns the digest of what it read. Raises OSError."""
