"""Stores of objects for keys and values that memory has no room for: `EngineOptions.cache_store`."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from dhlo.errors import ContractError, DhloError

if TYPE_CHECKING:
    from obstore.store import ObjectStore as _Bucket

__all__ = ["ObjectStore", "Store", "open_store"]

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


@runtime_checkable
class Store(Protocol):
    """Objects by name. Methods are called by threads of the engine's, several at once, until the engine is closed: they must come
    back, and may raise what they want, which costs the object and no more. Names are of letters, digits, points and dashes."""

    def put(self, name: str, data: bytes) -> object:
        """Keeps the data under the name, in place of what had it."""

    def get(self, name: str) -> bytes | None:
        """The object, or what has its bytes (a buffer); None if there is none of this name."""

    def remove(self, name: str) -> object:
        """Removes an object that was found to be damaged."""


class ObjectStore:
    """A bucket, or a part of one, by the library obstore. Can't be used in the child of a fork of a process that has used one."""

    def __init__(self, bucket: _Bucket) -> None:
        self._bucket = bucket

    def put(self, name: str, data: bytes) -> None:
        """Raises what obstore raises."""
        self._bucket.put(name, data, use_multipart=False)

    def get(self, name: str) -> bytes | None:
        """Raises what obstore raises, unless there is no such object."""
        try:
            return bytes(self._bucket.get(name).bytes())
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        """Raises what obstore raises."""
        self._bucket.delete(name)


def open_store(url: str, timeout: float = 5.0) -> ObjectStore:
    """The store at `s3://bucket/prefix`, `gs://bucket/prefix`, `az://account/container/prefix` or `file:///folder`, whose
    credentials, region and endpoint are those of the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`: see obstore). A call has
    `timeout` seconds, a second attempt included.

    Raises ContractError for a URL that is none of these, or whose settings are missing; DhloError where obstore isn't installed.
    Whether the store can be reached is seen when it is used.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import LocalStore, from_url
    except ImportError:
        raise DhloError("stores of objects need the library obstore: pip install 'dhlo[store]'") from None
    if not 0 < timeout < 1e6:
        raise ContractError(f"timeout is a number of seconds above 0, got {timeout}")
    scheme, _, path = url.partition("://")
    if scheme not in ("s3", "s3a", "gs", "az", "abfs", "abfss", "file") or not path:
        raise ContractError(f"a store is s3://BUCKET/PREFIX, gs://..., az://... or file:///FOLDER, got {url!r}")
    limit = timedelta(seconds=timeout)
    try:
        if scheme == "file":
            return ObjectStore(LocalStore.from_url(url, mkdir=True))
        bucket = from_url(
            url,
            client_options={
                "timeout": limit,
                "connect_timeout": min(limit, timedelta(seconds=2)),
                "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true"),
            },
            retry_config={"max_retries": 1, "retry_timeout": limit},
        )
    except (BaseError, ValueError, OSError) as e:
        raise ContractError(f"store {url}: {e}") from None
    return ObjectStore(bucket)


class WatchedStore:
    """A store whose failures are logged, once until a call succeeds again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._fails = False

    def put(self, name: str, data: bytes) -> None:
        self._watch(lambda: self._store.put(name, data))

    def get(self, name: str) -> bytes | None:
        return self._watch(lambda: self._store.get(name))

    def remove(self, name: str) -> None:
        self._watch(lambda: self._store.remove(name))

    def _watch(self, call: Callable[[], _T]) -> _T:
        error: BaseException | None = None
        try:
            return call()
        except BaseException as e:
            error = e
            raise
        finally:
            with self._lock:
                changed, self._fails = self._fails != (error is not None), error is not None
            if changed and error is not None:
                _logger.warning("the store of blocks fails, what it has is computed: %s: %s", type(error).__name__, error)
            elif changed:
                _logger.warning("the store of blocks works again")
