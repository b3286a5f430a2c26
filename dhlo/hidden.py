"""What the entries of a model have in common in one process: how the model is made again elsewhere, and the sessions of calls that
name none."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dhlo import _runtime
from dhlo.callspec import CallSpec
from dhlo.errors import ContractError, SessionError, translate

if TYPE_CHECKING:
    from dhlo.codegen.backends.artifact import Artifact
    from dhlo.distributed import Communicator, Groups
    from dhlo.loading import FileOrigin

__all__ = ["Shared"]


class _Held:
    """A thread's hidden session, for as long as the thread lives."""

    def __init__(self, session: _runtime.Session) -> None:
        self.session = session


class Shared:
    """One for all entries of a model. Hidden sessions of one thread share state, whichever entry they are of.

    A copy (or pickle) has the same code and weights, and goes on from the state of calls without a session. Copying raises
    SessionError where a call is using that, or the thread that it belongs to is gone.
    """

    def __init__(
        self,
        model: _runtime.Model,
        calls: Mapping[str, CallSpec],
        artifact: Artifact | None = None,
        origin: FileOrigin | None = None,
        snapshot: bytes | None = None,
    ) -> None:
        """`snapshot` is what the state of calls without a session begins with; by default what the program was exported with."""
        self.model, self.calls, self.artifact, self.origin = model, calls, artifact, origin
        self._snapshot = snapshot
        self._world: Communicator | None = None
        self._local = threading.local()  # .first: the thread's first session, held
        self._state_of: weakref.ref[_Held] | None = None  # the session of a model with state
        self._owner: list[list[str]] = []  # name of the thread that the sessions of a model with state belong to

    @property
    def communicator(self) -> _runtime.Communicator | None:
        """What sessions do collective operations by."""
        return None if self._world is None else self._world.native

    def bind(self, groups: Groups) -> None:
        """Does collective operations over these process groups. Raises as `CompiledModel.bind_process_group`."""
        from dhlo.distributed import Communicator

        world = Communicator(groups)
        for entry in self.model.entries:
            for name, size in json.loads(self.model.entry(entry).metadata).get("process_groups", {}).items():
                if size not in (0, have := world.size(name)):
                    raise ContractError(f"process group '{name}' must have {size} processes, as when it was exported, not {have}")
        if self._world is None:
            self._world = world
        else:
            self._world.bind(groups)

    def session(self, model: _runtime.Model) -> _runtime.Session:
        """This thread's session of an entry. Raises SessionError if the model has state, which belongs to another thread."""
        first: _Held | None = getattr(self._local, "first", None)
        if first is not None:
            return first.session.sharing(model)
        states = [s["name"] for s in model.states]
        if states and self._owner:
            raise self._not_the_owner(states)
        held = _Held(session := _runtime.Session(model, communicator=self.communicator))
        if states:
            # The owner's mark stays when the thread goes and its session with it, so that no later thread, which may have
            # got the same number, takes its place. Appending is atomic: of two threads one is first.
            mark = [threading.current_thread().name]
            self._owner.append(mark)
            if self._owner[0] is not mark:
                self._owner.pop()
                raise self._not_the_owner(states)
            if self._snapshot is not None:
                session.restore(self._snapshot)
            self._state_of = weakref.ref(held)
        self._local.first = held
        return session

    def _not_the_owner(self, states: Sequence[str]) -> SessionError:
        return SessionError(
            f"the model keeps state ({_some(states)}), and that of calls without a session belongs to thread "
            f"'{self._owner[0][0]}', which called first: in thread '{threading.current_thread().name}' call a session that is made "
            f"for it or handed to it, session = model.session()"
        )

    # ------------------------------------------------------------------ copies
    def state(self) -> bytes | None:
        """What the state of a copy begins with."""
        if self._state_of is None:
            return self._snapshot
        held = self._state_of()
        if held is None:
            raise self._not_the_owner([s["name"] for s in self.model.states])
        try:
            return held.session.snapshot()
        except RuntimeError as e:
            raise translate(e) from None

    def __copy__(self) -> Shared:
        copy = Shared(self.model, self.calls, self.artifact, self.origin, self.state())
        copy._world = self._world
        return copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Shared:
        return self.__copy__()


def _some(names: Sequence[str]) -> str:
    """The first few of the names."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
