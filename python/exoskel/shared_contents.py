"""Constants that many tasks use: sent once for each host, and mapped there by all slots.

The contents of a `Shared` are one pickle with its buffers behind it, in sealed memory that has the SHA-256 of the contents as its
name. What travels in functions and items is that name. A slot looks for memory of this name among the descriptors of the processes
that belong together (its manager, if it is a child of one; the other slots of its worker), and asks its manager for what nobody has.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Generic, NoReturn, TypeVar

from . import _core, shared_source
from .errors import ForkError, ProgramError, SharedLostError

__all__ = ["Shared", "let_go"]

_Value = TypeVar("_Value")

# How contents begin: this, their digest (of all that comes after it), the number of buffers, the length of the pickle, place and length
# of each buffer, the pickle.
_MAGIC = b"exoskel1"
_DIGEST_END = len(_MAGIC) + 32
# Buffers begin at multiples of this: no array needs more, nor does a vector instruction.
_ALIGNMENT = 64
# What is smaller stays in the pickle.
_BUFFER_BYTES_MIN = 1024
# What is written or hashed at once: it stays in the processor's cache between the two.
_STEP_BYTES = 1 << 18
# A piece that comes from the manager, and how many are under way.
_PIECE_BYTES = 1 << 22
_PIECES_ASKED = 4
# Contents that a slot keeps though no task holds them: the next item refers to them again, most likely.
_RECENT_MAX = 4
# The name of the memory, by which others find it.
_NAME = "exoskel-shared"
# How a slot waits for the others of its worker: by a lock on a byte whose number is the beginning of the digest.
_LOCK_BYTES = 7


class Shared(Generic[_Value]):
    """A large constant that many items use.

    It is sent once to each host, and is there in memory once, for all slots. Its large buffers, such as those of NumPy arrays, are not
    copied.

    Use it in a function (as a global, in a closure, in `functools.partial`) or as part of items. ``value`` is the constant. What has been
    sent stays until `close`, or until the last manager or executor of this process is closed.

    Parameters
    ----------
    value : object
        The constant. It is pickled at once, so later changes have no effect. The object itself isn't kept: if nothing else refers to an
        array, it is in memory once.

    Raises
    ------
    ProgramError
        If it can't be pickled.
    OSError
        If there is not enough memory.
    """

    __slots__ = ("__weakref__", "_contents", "_digest", "_size")

    def __init__(self, value: _Value) -> None:
        self._contents: _Contents | None = _made(value)
        self._digest = self._contents.digest
        self._size = self._contents.size

    @property
    def value(self) -> _Value:
        """The constant. It is the same object each time, and its arrays are read-only.

        Raises
        ------
        SharedLostError
            If it isn't there any more.
        """
        if self._contents is None:
            self._contents = _found(self._digest, self._size)
        value: _Value = self._contents.value()
        return value

    def __getitem__(self, index: object) -> NoReturn:
        raise TypeError("a Shared has no elements, but its value may: write .value[...]")

    @property
    def nbytes(self) -> int:
        """The number of bytes that are sent to a host."""
        return self._size

    def close(self) -> None:
        """Release the constant. A slot that has not used it yet can't get it any more, unless another `Shared` holds the same value."""
        _sent.pop(self._digest, None)
        self._contents = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the name only."""
        if self._contents is not None and _is_sending():
            _sent[self._digest] = self._contents
        return _named, (self._digest, self._size)

    def __repr__(self) -> str:
        return f"<exoskel.Shared {self._digest.hex()[:12]}: {self._size:,} bytes>"


def _named(digest: bytes, size: int) -> Shared[Any]:
    """Return what a pickle names. The contents are looked for when they are used."""
    shared: Shared[Any] = Shared.__new__(Shared)
    shared._contents = _known.get(digest)
    shared._digest = digest
    shared._size = size
    return shared


class _Contents:
    """Contents in sealed memory, which this process maps, so that others find it."""

    def __init__(self, digest: bytes, mapped: memoryview) -> None:
        self.digest = digest
        self.size = mapped.nbytes
        self._mapped = mapped
        self._loaded: tuple[Any] | None = None
        self._lock = threading.Lock()
        # A view of its own: who takes it keeps it.
        ticket = _core.share(digest, memoryview(mapped))
        # Managers may still serve slots while the interpreter ends.
        weakref.finalize(self, _let_go, digest, ticket, os.getpid()).atexit = False

    def value(self) -> Any:
        with self._lock:
            if self._loaded is None:
                self._loaded = (_load(self._mapped),)
            return self._loaded[0]


# What this process has, by digest.
_known: weakref.WeakValueDictionary[bytes, _Contents] = weakref.WeakValueDictionary()
# What has been pickled, and so may be asked for, until the last manager is closed.
_sent: dict[bytes, _Contents] = {}
# What a slot has used last.
_recent: OrderedDict[bytes, _Contents] = OrderedDict()
_finding = threading.RLock()


def let_go() -> None:
    """Forget what has been sent: the last manager of this process is closed."""
    _sent.clear()


def _is_sending() -> bool:
    """Whether what is pickled goes to slots, most likely."""
    manager = sys.modules.get(f"{__package__}.manager")
    return manager is not None and bool(manager.running)


def _let_go(digest: bytes, ticket: int, process: int) -> None:
    # In a forked child the table may be locked for ever, by a thread of the parent.
    if os.getpid() == process:
        _core.unshare(digest, ticket)


def _lost(digest: bytes) -> SharedLostError:
    return SharedLostError(
        f"the Shared {digest.hex()[:12]} isn't there any more: keep the object, or a manager open, as long as tasks use it"
    )


def _made(value: object) -> _Contents:
    import hashlib

    parts = _layout(value)
    digest = hashlib.sha256()
    size = _DIGEST_END
    with _new_memory() as descriptor:
        os.lseek(descriptor, size, os.SEEK_SET)
        for part in parts:
            _write(descriptor, digest, part)
            size += len(part)
        os.pwrite(descriptor, _MAGIC + digest.digest(), 0)
        return _sealed(descriptor, digest.digest(), size)


@contextlib.contextmanager
def _new_memory() -> Iterator[int]:
    """Make memory. Who maps it keeps it."""
    try:
        descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except PermissionError:
        # A sandbox gives its process files alone. Nobody else looks for contents there, so none has to be sealed.
        descriptor = os.open(os.environ["TMPDIR"], os.O_TMPFILE | os.O_RDWR, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _layout(value: object) -> list[bytes | memoryview]:
    """Pickle a value: the numbers, the pickle, and the buffers, each behind what aligns it."""
    from . import by_value

    buffers: list[memoryview] = []

    def begin() -> Callable[[pickle.PickleBuffer], bool]:
        buffers.clear()
        return keep_in_band

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:
            return True  # not contiguous: the pickler makes it so
        if raw.nbytes < _BUFFER_BYTES_MIN:
            return True
        buffers.append(raw)
        return False

    try:
        pickled = by_value.dumps(value, begin)
    except Exception as error:
        raise ProgramError(
            f"can't share {type(value).__name__}: {error}; open files, locks and connections can't travel, make them inside the function"
        ) from error
    place = _DIGEST_END + 16 + 16 * len(buffers) + len(pickled)
    numbers = [len(buffers), len(pickled)]
    parts: list[bytes | memoryview] = []
    for buffer in buffers:
        padding = bytes(-place % _ALIGNMENT)
        place += len(padding)
        numbers += [place, buffer.nbytes]
        place += buffer.nbytes
        parts += [padding, buffer]
    return [b"".join(number.to_bytes(8, "little") for number in numbers), pickled, *parts]


def _write(descriptor: int, digest: Any, contents: bytes | memoryview) -> None:
    view = memoryview(contents)
    for start in range(0, view.nbytes, _STEP_BYTES):
        step = view[start : start + _STEP_BYTES]
        digest.update(step)
        while step.nbytes:
            # All of it, or an error such as that there is no room.
            step = step[os.write(descriptor, step) :]


def _sealed(descriptor: int, digest: bytes, size: int) -> _Contents:
    """Make contents of memory that is full."""
    import fcntl

    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    try:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except OSError as error:
        # A file can't be sealed.
        if error.errno != errno.EINVAL:
            raise
    return _kept(descriptor, digest, size)


def _kept(descriptor: int, digest: bytes, size: int) -> _Contents:
    """Return the contents of a digest that this process has, or make them of this memory."""
    with _finding:
        known = _known.get(digest)
        if known is None:
            known = _Contents(digest, _mapped(descriptor, size))
            _known[digest] = known
        return known


def _mapped(descriptor: int, size: int) -> memoryview:
    import mmap

    # It has a descriptor of its own, which is what relatives find.
    return memoryview(mmap.mmap(descriptor, size, prot=mmap.PROT_READ))


def _load(view: memoryview) -> Any:
    def number(index: int) -> int:
        place = _DIGEST_END + 8 * index
        return int.from_bytes(view[place : place + 8], "little")

    count, pickled_bytes = number(0), number(1)
    begin = _DIGEST_END + 16 + 16 * count
    buffers = []
    for index in range(count):
        place, length = number(2 + 2 * index), number(3 + 2 * index)
        buffers.append(view[place : place + length])
    return pickle.loads(view[begin : begin + pickled_bytes], buffers=buffers)


def _found(digest: bytes, size: int) -> _Contents:
    """Find contents that this process doesn't have, or has lost sight of."""
    with _finding:
        contents = _known.get(digest) or _of_relatives(digest, size)
        if contents is None:
            contents = _of_manager(digest, size)
        if shared_source.source is not None:
            _recent[digest] = contents
            _recent.move_to_end(digest)
            while len(_recent) > _RECENT_MAX:
                _recent.popitem(last=False)
        return contents


def _of_relatives(digest: bytes, size: int) -> _Contents | None:
    """Look for contents in the processes that belong to this one: its parent, the slot's parent, and the children of these."""
    # What a manager has sealed is what it would send.
    manager = shared_source.parent if shared_source.in_common is None else None
    parents = dict.fromkeys([os.getppid(), shared_source.parent or os.getppid()])
    related = dict.fromkeys(
        process for parent in parents for process in [parent, *_children(parent)]
    )
    for process in related:
        if process == os.getpid():
            continue
        for descriptor in _memory_of(process):
            if _is_named(descriptor, digest, size) and (
                process == manager or _digest_of(descriptor, size) == digest
            ):
                return _kept(descriptor, digest, size)
    return None


def _children(parent: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{parent}/task"):
            path = f"/proc/{parent}/task/{thread}/children"
            with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
                found += map(int, file.read().split())
    return found


def _memory_of(process: int) -> Iterator[int]:
    """Open the memory that a process has under our name, each until the next. What is another user's, or just closed, is left out."""
    try:
        numbers = os.listdir(f"/proc/{process}/fd")
    except OSError:
        return
    for number in numbers:
        path = f"/proc/{process}/fd/{number}"
        try:
            if not os.readlink(path).startswith(f"/memfd:{_NAME} "):
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _is_named(descriptor: int, digest: bytes, size: int) -> bool:
    """Whether memory says that it has this digest, and can't change any more."""
    import fcntl

    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK
    try:
        return (
            os.fstat(descriptor).st_size == size
            and os.pread(descriptor, _DIGEST_END, 0) == _MAGIC + digest
            and fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & seals == seals
        )
    except OSError:
        return False  # no memory, whatever its name


def _digest_of(descriptor: int, size: int) -> bytes:
    import hashlib

    return hashlib.sha256(_mapped(descriptor, size)[_DIGEST_END:]).digest()


def _of_manager(digest: bytes, size: int) -> _Contents:
    """Get contents from this slot's manager, and let the other slots of the worker wait meanwhile."""
    if shared_source.source is None:
        raise _lost(digest)
    try:
        return _fetched_in_turn(shared_source.source, digest, size)
    except ForkError:
        raise SharedLostError(
            f"a forked child can't get the Shared {digest.hex()[:12]}, which its slot doesn't have: use its value before the fork"
        ) from None


def _fetched_in_turn(source: _core.SharedSource, digest: bytes, size: int) -> _Contents:
    if shared_source.in_common is None:
        return _fetched(source, digest, size)
    import fcntl

    place = int.from_bytes(digest[:_LOCK_BYTES], "little")
    fcntl.lockf(shared_source.in_common, fcntl.LOCK_EX, 1, place)
    try:
        # Another one may have got them before this one could ask.
        return _of_relatives(digest, size) or _fetched(source, digest, size)
    finally:
        fcntl.lockf(shared_source.in_common, fcntl.LOCK_UN, 1, place)


def _fetched(source: _core.SharedSource, digest: bytes, size: int) -> _Contents:
    import hashlib

    with _new_memory() as descriptor:
        source.ask(digest, 0, _PIECE_BYTES)
        piece = source.take(digest, 0)
        # A worker may take smaller messages than a piece has.
        step = len(piece)
        asked = place = 0
        found = hashlib.sha256()
        _write(descriptor, hashlib.sha256(), piece[:_DIGEST_END])
        rest = memoryview(piece)[_DIGEST_END:]
        while piece:
            _write(descriptor, found, rest)
            place += len(piece)
            if place >= size:
                break
            while asked + step < min(size, place + step * _PIECES_ASKED):
                asked += step
                source.ask(digest, asked, step)
            piece = source.take(digest, place)
            rest = memoryview(piece)
        if place != size:
            raise _lost(digest)
        if found.digest() != digest:
            raise SharedLostError(
                f"got other contents than those of the Shared {digest.hex()[:12]}"
            )
        return _sealed(descriptor, digest, size)
