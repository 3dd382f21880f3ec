"""Sources of a run: what its items are, in which order, and whether they are still the same ones when it goes on.

Any iterable is a source, asynchronous ones too. The classes here read files. Each can begin at any item, so a run that goes on from a
journal doesn't read again what is done.
"""

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import queue
import sys
import threading
from collections.abc import AsyncIterable, ItemsView, Iterable, Iterator, KeysView
from collections.abc import Set as AbstractSet
from typing import Any, Protocol, runtime_checkable

__all__ = [
    "AsyncItems",
    "Items",
    "Source",
    "file_text",
    "folder_text",
    "iterable_of",
    "path_of",
    "source_of",
]

# A file up to this size is read whole for its digest. Of a larger one, its size, the time of its last change, and blocks of it count.
DIGEST_BYTES_MAX = 64 << 20
DIGEST_BLOCKS = 64
DIGEST_BLOCK_BYTES = 64 * 1024
# Items of an asynchronous iterable that wait to be taken.
WAITING_MAX = 64
# Between two looks at whether an asynchronous iterable is still wanted.
_LOOK_SECONDS = 0.1
# Between two tries to hand an item over.
_FULL_SECONDS = 0.005


@runtime_checkable
class Source(Protocol):
    """What a run takes its items from."""

    def source_text(self) -> str:
        """Say what the source is, in one line that changes whenever its items do.

        A journal keeps it, and refuses to go on with a source that says something else.

        Returns
        -------
        str
            The line.
        """
        ...

    def items(self, start: int) -> Iterator[Any]:
        """Iterate over the items from the one with index ``start``.

        Parameters
        ----------
        start : int
            How many items to leave out.

        Returns
        -------
        iterator
            The items. The run closes it, if it has a ``close``.
        """
        ...

    def count(self) -> int | None:
        """Say how many items there are altogether.

        Returns
        -------
        int or None
            The number; None if it isn't known.
        """
        ...


def source_of(items: Any) -> Source:
    """Return a source as it is, and an iterable as a source.

    Parameters
    ----------
    items : Source, iterable or asynchronous iterable
        Where the items come from.

    Returns
    -------
    Source
        The source.

    Raises
    ------
    TypeError
        If it is none of these; or a text, which is the name of a file rather than its letters.
    """
    if isinstance(items, Source):
        return items
    if isinstance(items, (str, bytes)):
        raise TypeError(
            f"got the text {items!r:.60} as the source, expected an iterable or a source such as exoskel.JsonLines({items!r:.60}); list(text) gives its letters"
        )
    if isinstance(items, AsyncIterable):
        return AsyncItems(items)
    if isinstance(items, Iterable):
        return Items(items)
    raise TypeError(
        f'got {items!r:.60} as the source, expected an iterable or a source such as exoskel.JsonLines("in.jsonl")'
    )


def iterable_of(items: Any) -> Any:
    """Return an iterable over the items of a source, and anything else as it is: a range is still one.

    Parameters
    ----------
    items : Source, iterable or asynchronous iterable
        Where the items come from.

    Returns
    -------
    iterable
        The items.
    """
    if isinstance(items, (Source, AsyncIterable)):
        return source_of(items).items(0)
    return items


class Items:
    """A source of the items of an iterable.

    Parameters
    ----------
    iterable : iterable
        The items. A run that goes on asks for all of them again and leaves out those that are done.
    """

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable = iterable

    def source_text(self) -> str:
        """Say what the iterable is; with a digest, if it holds plain data.

        Raises
        ------
        JournalError
            If it is a set, which has another order in each process.
        """
        if isinstance(self._iterable, AbstractSet) and not isinstance(
            self._iterable, KeysView | ItemsView
        ):
            from .errors import JournalError

            raise JournalError(
                f"got a {type(self._iterable).__qualname__} as the source, expected items that have the same order in each process, as sorted(...) has them"
            )
        return _iterable_text(self._iterable)

    def items(self, start: int) -> Iterator[Any]:
        """Iterate over the items from the one with index ``start``."""
        if isinstance(self._iterable, (range, list, tuple)):
            return iter(itertools.islice(self._iterable, start, None))
        iterator = iter(self._iterable)
        skip(iterator, start)
        return iterator

    def count(self) -> int | None:
        """Say how many items there are, if the iterable says so."""
        try:
            return len(self._iterable)  # type: ignore[arg-type]  # what has no length has none
        except TypeError:
            return None


class AsyncItems:
    """A source of the items of an asynchronous iterable. They are taken in a thread, with an event loop of its own.

    Parameters
    ----------
    iterable : asynchronous iterable
        The items.
    """

    def __init__(self, iterable: AsyncIterable[Any]) -> None:
        self._iterable = iterable

    def source_text(self) -> str:
        """Say what kind of iterable it is: nobody can know its items before."""
        return type(self._iterable).__qualname__

    def items(self, start: int) -> Iterator[Any]:
        """Iterate over the items from the one with index ``start``."""
        iterator = _from_thread(self._iterable)
        skip(iterator, start)
        return iterator

    def count(self) -> int | None:
        """Say that nobody knows how many there are."""
        return None


def _from_thread(iterable: AsyncIterable[Any]) -> Iterator[Any]:
    """Iterate over what a thread takes from an asynchronous iterable."""
    taken: queue.Queue[tuple[str, Any]] = queue.Queue(WAITING_MAX)
    is_unwanted = threading.Event()

    def hand_over(kind: str, what: Any) -> None:
        while not is_unwanted.is_set():
            with contextlib.suppress(queue.Full):
                taken.put((kind, what), timeout=_LOOK_SECONDS)
                return

    async def take() -> None:
        iterator = aiter(iterable)
        try:
            async for item in iterator:
                # The queue is full as long as slots have enough to do: waiting for it keeps the iterable back, too.
                while not is_unwanted.is_set():
                    try:
                        taken.put_nowait(("item", item))
                        break
                    except queue.Full:
                        # A thread that waited would be waited for at the interpreter's end.
                        await asyncio.sleep(_FULL_SECONDS)
                else:
                    return
        finally:
            close = getattr(iterator, "aclose", None)
            if close is not None:
                await close()

    def work() -> None:
        try:
            asyncio.run(_unless(take(), is_unwanted))
        except BaseException as error:
            hand_over("error", error)
        else:
            hand_over("end", None)

    thread = threading.Thread(target=work, name="exoskel source", daemon=True)
    thread.start()
    try:
        while True:
            kind, what = taken.get()
            if kind == "end":
                return
            if kind == "error":
                raise what
            yield what
    finally:
        is_unwanted.set()
        # At the interpreter's end no such thread runs any more.
        if not sys.is_finalizing():
            thread.join()


async def _unless(work: Any, is_unwanted: threading.Event) -> None:
    """Do something, unless it is no longer wanted: an iterable may wait for its next item for ever."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait([task], timeout=_LOOK_SECONDS)
        if is_unwanted.is_set():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            return
    task.result()


def skip(iterator: Iterator[Any], count: int) -> None:
    """Leave out the first items of an iterator.

    Parameters
    ----------
    iterator : iterator
        The iterator.
    count : int
        How many.

    Raises
    ------
    JournalError
        If there are fewer.
    """
    got = sum(1 for _ in itertools.islice(iterator, count))
    if got < count:
        from .errors import JournalError

        raise JournalError(
            f"the source gives {got} items, expected at least the {count} that are done: it has changed since the journal was begun"
        )


def _iterable_text(iterable: Iterable[Any]) -> str:
    kind = type(iterable).__qualname__
    if isinstance(iterable, range):
        return repr(iterable)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(iterable, numpy.ndarray) and not iterable.dtype.hasobject:
        digest = hashlib.sha256(numpy.ascontiguousarray(iterable).data)
        shape = "x".join(map(str, iterable.shape))
        return f"array of {shape} {iterable.dtype.str}, SHA-256 {digest.hexdigest()[:32]}"
    if isinstance(iterable, (list, tuple)):
        digest = hashlib.sha256()
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            # Pickles of equal items differ, JSON texts don't.
            for item in iterable:
                digest.update(json.dumps(item, sort_keys=True).encode() + b"\n")
            return f"{kind} of {len(iterable)}, SHA-256 {digest.hexdigest()[:32]}"
        return f"{kind} of {len(iterable)}"
    return kind


def path_of(path: Any, owner: str) -> str:
    """Return a path as a text.

    Parameters
    ----------
    path : object
        What the user gave as a path.
    owner : str
        Who got it, for the error.

    Returns
    -------
    str
        The path.

    Raises
    ------
    TypeError
        If it is none.
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str):
        from .short_text import short_text

        raise TypeError(
            f'got {short_text(path)} in {owner}, expected a path such as "data/in" or pathlib.Path'
        )
    return text


def file_text(path: str) -> str:
    """Say what a file is: its name, its size and a digest.

    Parameters
    ----------
    path : str
        The file. Where it lies doesn't count, so that it may be moved.

    Returns
    -------
    str
        One line.

    Raises
    ------
    OSError
        If it can't be read.
    """
    with open(path, "rb") as file:
        return f"{os.path.basename(path)}, {contents_text(file.fileno())}"


def contents_text(descriptor: int) -> str:
    """Say what is in an open file: its size and a digest. Where it stands doesn't change.

    Parameters
    ----------
    descriptor : int
        Its descriptor, which can be read.

    Returns
    -------
    str
        One line.

    Raises
    ------
    OSError
        If it can't be read.
    """
    digest = hashlib.sha256()
    status = os.fstat(descriptor)
    size = status.st_size
    if size <= DIGEST_BYTES_MAX:
        place = 0
        while block := os.pread(descriptor, 1 << 20, place):
            digest.update(block)
            place += len(block)
        return f"{size} bytes, SHA-256 {digest.hexdigest()[:32]}"
    for number in range(DIGEST_BLOCKS):
        place = (size - DIGEST_BLOCK_BYTES) * number // (DIGEST_BLOCKS - 1)
        digest.update(os.pread(descriptor, DIGEST_BLOCK_BYTES, place))
    return (
        f"{size} bytes, changed at {status.st_mtime_ns} ns, "
        f"SHA-256 of {DIGEST_BLOCKS} blocks {digest.hexdigest()[:32]}"
    )


def folder_text(folder: str, names: Iterable[str]) -> str:
    """Say what the files of a folder are: how many, and a digest of their names, sizes and times of change.

    Parameters
    ----------
    folder : str
        The folder.
    names : iterable of str
        The files, in order.

    Returns
    -------
    str
        One line.

    Raises
    ------
    OSError
        If one is gone.
    """
    digest = hashlib.sha256()
    count = 0
    for name in names:
        count += 1
        status = os.stat(os.path.join(folder, name))
        digest.update(
            f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="surrogateescape")
        )
    return f"{os.path.basename(os.path.abspath(folder))}, {count} files, SHA-256 of their names, sizes and times {digest.hexdigest()[:32]}"
