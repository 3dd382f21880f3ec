"""Files that are sources and sinks of runs: JSON lines, lines of text, records of fixed size, the files of a folder."""

import contextlib
import errno
import fnmatch
import json
import os
import re
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from .errors import JournalError
from .outcome import add_item_note
from .sinks import AppendedFile, SinkLock, sync_folder
from .sources import file_text, folder_text, path_of, skip
from .standard_streams import is_input_file, standard_input, standard_input_text

__all__ = ["File", "Files", "JsonLines", "Lines", "Records", "check_apart"]

# What is written under another name first: of a run with a journal, ".MARK.INDEX" and this; of one that nobody goes on with, more in front.
_PART = ".exoskel-part"
_PLAIN = ".plain"
# Which files get their names next, where a file can't have two: ".MARK" and this.
_NAMES = f".names{_PART}"
_MARK_BYTES = 8
# What file systems say that know no second name of a file.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


class _LineFile(ABC):
    """What files of lines have in common."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path_of(path, type(self).__name__)
        self._file = AppendedFile(self._path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._path!r})"

    def source_text(self) -> str:
        """Say which file it is, with a digest."""
        if self._path == "-":
            return f"{type(self).__name__} of standard input{standard_input_text()}"
        return f"{type(self).__name__} of {file_text(self._path)}"

    @property
    def is_pipe(self) -> bool:
        """Whether it is standard input and nothing is known of that."""
        return self._path == "-" and not is_input_file()

    def items(self, start: int) -> Iterator[Any]:
        """Iterate over the items from the one with index ``start``."""
        if self._path != "-":
            # What isn't there says so now, and not when the first item is wanted.
            os.stat(self._path)
        lines = self._lines()
        skip(lines, start)
        return (self._read(number, line) for number, line in lines)

    def count(self) -> int | None:
        """Say that nobody has counted the lines."""
        return None

    def sink_text(self) -> str:
        """Say which file it is."""
        return f"{type(self).__name__} in {self._file.text}"

    def is_in(self, path: str) -> bool:
        """Say whether a path leads to this file."""
        return self._file.is_in(path)

    def is_empty(self) -> bool:
        """Say whether nothing is in the file, or no file is there."""
        return self._file.is_empty()

    def check(self, position: bytes) -> None:
        """Check that the file is there and not cut; see `Sink`."""
        self._file.check(position)

    def rewind(self, position: bytes | None) -> bytes:
        """Open the file, and cut it back; see `Sink.rewind`."""
        where = self._file.rewind(position)
        self._is_after_open_line = self._has_open_line()
        return where

    _is_after_open_line = False

    def _has_open_line(self) -> bool:
        """Say whether the last line there, which somebody else has written, has no end."""
        if self._path == "-" or self._file.is_empty():
            return False
        with open(self._path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() != b"\n"

    def write(self, index: int, result: Any) -> None:
        """Append a line; see `Sink.write`."""
        try:
            line = self._line(result)
        except Exception as error:
            add_item_note(error, index, f"item: its result can't be written to {self._path}")
            raise
        if self._is_after_open_line:
            self._is_after_open_line = False
            line = b"\n" + line
        self._file.write(line)

    def commit(self) -> bytes:
        """Make all lines durable; see `Sink.commit`."""
        return self._file.commit()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        if self._path == "-":
            yield from self._numbered(standard_input())
            return
        with open(self._path, "rb") as file:
            yield from self._numbered(file)

    def _numbered(self, file: Any) -> Iterator[tuple[int, bytes]]:
        for number, line in enumerate(file, 1):
            if line.strip() or not self._leaves_out_empty:
                yield number, line

    _leaves_out_empty = False

    @abstractmethod
    def _read(self, number: int, line: bytes) -> Any:
        """Return the item of a line."""

    @abstractmethod
    def _line(self, result: Any) -> bytes:
        """Return the line of a result."""


# What JSON has instead of values of other types.
_INSTEAD = {
    "ndarray": "array.tolist()",
    "DataFrame": 'frame.to_dict("records")',
    "set": "sorted(values)",
    "datetime": "moment.isoformat()",
    "date": "day.isoformat()",
    "PosixPath": "str(path)",
    "bytes": "data.hex()",
}


def _of_scalar(value: Any) -> int | float | bool:
    """Return the number that a NumPy scalar is."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        for scalar, number in ((numpy.integer, int), (numpy.floating, float), (numpy.bool_, bool)):
            if isinstance(value, scalar):
                return number(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


class JsonLines(_LineFile):
    """A file with a JSON value in each line, as a source or as a sink.

    Parameters
    ----------
    path : path
        The file; ``"-"`` for standard input or output. As a sink it is appended to.
    """

    _leaves_out_empty = True
    _encode = staticmethod(json.JSONEncoder(ensure_ascii=False, default=_of_scalar).encode)

    def _read(self, number: int, line: bytes) -> Any:
        try:
            return json.loads(line)
        except ValueError as error:
            place = "standard input" if self._path == "-" else self._path
            # The line is all that the decoder knows of.
            what = str(error)
            if isinstance(error, json.JSONDecodeError):
                what = f"{error.msg} at column {error.colno}"
            raise ValueError(
                f"line {number} of {place}: {what}, expected a JSON value in each line"
            ) from error

    def _line(self, result: Any) -> bytes:
        if type(result) is int:
            return b"%d\n" % result
        try:
            return self._encode(result).encode() + b"\n"
        except TypeError as error:
            # Its text is "Object of type set is not JSON serializable", or about keys.
            _, _, rest = str(error).partition("Object of type ")
            name = rest.partition(" ")[0]
            got = f"an instance of {name}" if name else f"a dict that JSON has not ({error})"
            instead = _INSTEAD.get(name, "the data that you need from it")
            raise TypeError(
                f"got {got}, expected numbers, texts, lists, or dicts whose keys are texts: return {instead}"
            ) from None


class Lines(_LineFile):
    """A text file in UTF-8, an item a line, as a source or as a sink.

    Parameters
    ----------
    path : path
        The file; ``"-"`` for standard input or output. As a sink it is appended to.
    """

    def _read(self, number: int, line: bytes) -> str:
        try:
            return line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"line {number} of {self._path}: {error}, expected UTF-8") from error

    def _line(self, result: Any) -> bytes:
        if not isinstance(result, str):
            raise TypeError(f"got {type(result).__qualname__} as a line, expected text")
        if "\n" in result:
            raise ValueError("got text of several lines, expected one")
        return result.encode() + b"\n"


class Records:
    """A file of records of a fixed size, as a source or as a sink; each is a NumPy array.

    A source maps the file into memory. A sink appends to it.

    Parameters
    ----------
    path : path
        The file.
    dtype : dtype
        What NumPy takes as the type of the elements.
    shape : int or tuple of int
        The shape of each record.

    Raises
    ------
    ImportError
        If there is no NumPy.
    TypeError, ValueError
        If the type or the shape makes no sense.
    """

    def __init__(
        self, path: str | os.PathLike[str], dtype: Any, shape: int | tuple[int, ...] = ()
    ) -> None:
        import numpy

        self._path = path_of(path, "Records")
        self._dtype = numpy.dtype(dtype)
        self._shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if self._dtype.hasobject:
            raise TypeError(f"got dtype {dtype!r}, expected one without Python objects")
        elements = 1
        for length in self._shape:
            if length < 1:
                raise ValueError(f"got shape {shape!r}, expected lengths of at least 1")
            elements *= length
        self._bytes = elements * self._dtype.itemsize
        if self._bytes == 0:
            raise ValueError(f"got dtype {dtype!r}, expected elements of at least 1 byte")
        self._file = AppendedFile(self._path)

    def __repr__(self) -> str:
        return f"Records({self._path!r}, {self._dtype.str!r}, {self._shape!r})"

    def source_text(self) -> str:
        """Say which file it is and what its records are, with a digest."""
        return f"records {self._dtype.str} {self._shape} of {file_text(self._path)}"

    def items(self, start: int) -> Iterator[Any]:
        """Iterate over the records from the one with index ``start``. They can't be written to."""
        import numpy

        count = self.count()
        if start > count:
            raise JournalError(
                f"the source gives {count} items, expected at least the {start} that are done: it has changed since the journal was begun"
            )
        if count == 0:
            return iter(())
        mapped = numpy.memmap(self._path, self._dtype, "r", 0, (count, *self._shape))
        array = mapped.view(numpy.ndarray)
        return (array[index] for index in range(start, count))

    def count(self) -> int:
        """Say how many records there are.

        Raises
        ------
        ValueError
            If the file ends within one.
        """
        size = os.stat(self._path).st_size
        if size % self._bytes:
            raise ValueError(
                f"got {self._path} with {size} bytes, expected whole records of {self._bytes} bytes ({self._dtype.str}, {self._shape})"
            )
        return int(size // self._bytes)

    def sink_text(self) -> str:
        """Say which file it is and what its records are."""
        return f"records {self._dtype.str} {self._shape} in {self._file.text}"

    def is_in(self, path: str) -> bool:
        """Say whether a path leads to this file."""
        return self._file.is_in(path)

    def is_empty(self) -> bool:
        """Say whether nothing is in the file, or no file is there."""
        return self._file.is_empty()

    def check(self, position: bytes) -> None:
        """Check that the file is there and not cut; see `Sink`."""
        self._file.check(position)

    def rewind(self, position: bytes | None) -> bytes:
        """Open the file, and cut it back; see `Sink.rewind`."""
        return self._file.rewind(position)

    def write(self, index: int, result: Any) -> None:
        """Append a record; see `Sink.write`.

        Raises
        ------
        TypeError, ValueError
            If it isn't an array of this type and shape.
        """
        import numpy

        array = numpy.asarray(result)
        if array.dtype != self._dtype or array.shape != self._shape:
            is_cast = array.shape == self._shape and array.dtype.kind in "biuf"
            hint = f": return numpy.asarray(result, {self._dtype.str!r})" if is_cast else ""
            error: Exception = ValueError(
                f"got a result of {array.dtype.str} {array.shape}, expected {self._dtype.str} {self._shape}{hint}"
            )
            add_item_note(error, index, f"item: its result can't be written to {self._path}")
            raise error
        self._file.write(array.tobytes())

    def commit(self) -> bytes:
        """Make all records durable; see `Sink.commit`."""
        return self._file.commit()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class File(NamedTuple):
    """A file as an item or as a result."""

    name: str
    """Its path in its folder."""
    contents: bytes
    """What is in it."""


def check_apart(source: object, sink: object) -> None:
    """Refuse results that are read, or would be by the next run: one that reads and appends to one file has no end, and none goes on whose source has changed.

    Raises
    ------
    ValueError
        If both are the same file, or results go to a file that the source takes for an item.
    """
    if isinstance(sink, Files):
        sink.keep_free(source)
    if isinstance(source, Files):
        path = sink._path if isinstance(sink, _LineFile | Records) else "-"
        if path != "-" and source.is_item(path):
            raise ValueError(
                f"got {path} as the sink, which {source!r} would take for an item: name another folder, or a pattern of the source that it isn't like"
            )
        return
    if not isinstance(source, _LineFile | Records) or not isinstance(sink, _LineFile | Records):
        return
    try:
        read = os.fstat(0) if source._path == "-" else os.stat(source._path)
        written = os.fstat(1) if sink._path == "-" else os.stat(sink._path)
    except OSError:
        # One isn't there yet.
        return
    # Both standard streams may be one terminal.
    has_stream = "-" in (source._path, sink._path)
    if os.path.samestat(read, written) and (stat.S_ISREG(read.st_mode) or not has_stream):
        name = sink._path if source._path == "-" else source._path
        raise ValueError(
            f"got {name} as the source and the sink, expected two files: a run would read what it has written"
        )


class Files:
    """The files of a folder, as a source or as a sink.

    As a source, each item is a `File`: a name and its contents, in the order of the names. As a sink, each result becomes a file of
    its own, which is there whole or not at all. A name that is there already, or that begins with a dot, is refused.

    Parameters
    ----------
    folder : path
        The folder. A sink makes it.
    pattern : str
        Which files a source takes, as `fnmatch` has it. Files in folders below don't count, nor those whose names begin with a dot. One that
        no name is like is a `FileNotFoundError`.
    name : callable
        Takes the index of an item and returns the name of its result's file.
    names : {"index", "result"}
        Who names the files of a sink. With ``"index"`` it is ``name``, and results are contents. With ``"result"`` each result is a
        `File` or another pair of name and contents: the workers choose the names then.

    Raises
    ------
    ValueError
        If ``names`` is another word.
    """

    # What keeps other runs away, with the folder that it is of.
    _held: tuple[int, SinkLock] | None = None

    def __init__(
        self,
        folder: str | os.PathLike[str],
        pattern: str = "*",
        name: Callable[[int], str] = "{:08}".format,
        names: Literal["index", "result"] = "index",
    ) -> None:
        if names not in ("index", "result"):
            raise ValueError(f'got names={names!r}, expected "index" or "result"')
        if not callable(name):
            raise TypeError(
                f'got name={name!r:.40}, expected a function that takes an index and returns a name, such as "{{:08}}.txt".format'
            )
        self._folder = path_of(folder, "Files")
        self._pattern = pattern
        self._name = name
        self._are_named_by_results = names == "result"
        # Where each file is that has its name yet to come, by that name.
        self._written: dict[str, str] = {}
        # The other names of files that have theirs, until it is known that the run knows so.
        self._linked: list[str] = []
        self._next = 0
        # In the other names of this run's files, so that it knows them again.
        self._mark = ""
        self._is_gone_on_with = False
        self._has_plain_parts = True
        # Whether a file here can have two names.
        self._has_links = True
        # What names of results would be read by the same run: those of files of its source.
        self._kept_free: str | None = None

    def __repr__(self) -> str:
        return f"Files({self._folder!r})"

    def source_text(self) -> str:
        """Say which files there are."""
        return folder_text(self._folder, self._names())

    def items(self, start: int) -> Iterator[File]:
        """Iterate over the files from the one with index ``start``."""
        return map(self._file, self._names()[start:])

    def _file(self, name: str) -> File:
        with open(os.path.join(self._folder, name), "rb") as file:
            return File(name, file.read())

    def count(self) -> int:
        """Say how many files there are."""
        return len(self._names())

    def sink_text(self) -> str:
        """Say which folder it is."""
        return f"files in {os.path.realpath(self._folder)}"

    def is_in(self, path: str | os.PathLike[str]) -> bool:
        """Say whether a path leads into the folder."""
        folder = f"{os.path.realpath(self._folder).rstrip('/')}/"
        # It may be a link that lies there, or one that leads there.
        parent, name = os.path.split(os.path.abspath(path))
        places = (os.path.realpath(path), os.path.join(os.path.realpath(parent), name))
        return any(f"{place}/".startswith(folder) for place in places)

    def is_empty(self) -> bool:
        """Say whether no file is in the folder that could be a result, or no folder is there."""
        return not self._possible_results()

    def holds_only(self, source: "Files") -> bool:
        """Say whether no file is in the folder that could be a result, but for those of a source."""
        names = self._possible_results()
        is_shared = bool(names) and os.path.samefile(self._folder, source._folder)
        return not names.difference(source._names() if is_shared else ())

    def _possible_results(self) -> set[str]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return set()
        # No result has such a name.
        return {name for name in names if not (name.startswith(".") or name.endswith(_PART))}

    def check(self, position: bytes) -> None:
        """Check that the folder is there, and the last file if this sink names the files; see `Sink`.

        Raises
        ------
        JournalError
            If it isn't.
        """
        end, _ = _parts_of(position)
        path = self._folder
        if end and not self._are_named_by_results:
            path = os.path.join(path, self._name(end - 1))
        if end and not os.path.lexists(path):
            raise JournalError(
                f"{path} is not there, but its journal says that the run is finished; restore it, or remove the journal and the folder to begin anew"
            )

    def rewind(self, position: bytes | None) -> bytes:
        """Make the folder, keep other runs away, and remove what this run has finished after the position; see `Sink.rewind`."""
        os.makedirs(self._folder, exist_ok=True)
        self._hold()
        self._written.clear()
        self._linked.clear()
        self._has_plain_parts = True
        self._is_gone_on_with = position is not None
        if position is None:
            # A run that goes on asks this, too, before it says where it was: so nothing is removed yet.
            self._next, self._mark = 0, os.urandom(_MARK_BYTES).hex()
            return self._position()
        self._next, self._mark = _parts_of(position)
        for path in self._unknown():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        # The list of names goes first: what it names is gone.
        for entry in sorted(self._parts(), key=lambda entry: not entry.name.endswith(_NAMES)):
            if entry.name.startswith(self._prefix):
                os.unlink(entry.path)
        if self._next and self.is_empty():
            raise JournalError(
                f"no result is in {self._folder}, but its journal knows of some; restore the folder, or remove the journal to begin anew"
            )
        return position

    def write(self, index: int, result: Any) -> None:
        """Write a file under another name; see `Sink.write`."""
        name, contents = self._named(index, result)
        path = os.path.join(self._folder, name)
        try:
            if path in self._written or _is_there(path):
                raise FileExistsError(errno.EEXIST, "there is such a file already", path)
        except (OSError, UnicodeEncodeError) as error:
            add_item_note(error, index)
            raise
        if self._has_plain_parts:
            # Of runs that were killed, and that nobody goes on with. Other runs may go on with the parts that they have left.
            for entry in self._parts():
                if entry.name.startswith(_PLAIN):
                    os.unlink(entry.path)
            self._has_plain_parts = False
        part = self._part(index)
        with open(part, "xb") as file:
            file.write(contents)
        self._written[path] = part
        self._next = index + 1

    def commit(self) -> bytes:
        """Give all files their names; see `Sink.commit`."""
        # Who commits again has kept the position before.
        self._forget_linked()
        is_any = bool(self._written)
        if is_any and not self._has_links:
            self._list_names()
        while self._written:
            path, part = next(iter(self._written.items()))
            _sync(part)
            self._give_name(part, path)
            # If the next one fails, this one keeps both names: `rewind` finds it by them.
            del self._written[path]
        if is_any:
            sync_folder(self._folder)
        return self._position()

    def close(self) -> None:
        """Remove what has no name, and let other runs in. What a run may not know of keeps its second name, for `rewind`."""
        # Where names are listed, parts say which of them were not given.
        if self._has_links or not self._is_gone_on_with:
            for part in self._written.values():
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part)
        self._written.clear()
        self._let_in()

    def __del__(self) -> None:
        # As with a file: whoever forgets to close it keeps others away no longer than it has it.
        self._let_in()

    def _let_in(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held[1].release()
            os.close(held[0])

    def keep_free(self, source: object) -> None:
        """Refuse results that a source would take for items, as long as it is the source.

        Parameters
        ----------
        source : object
            The source. Only `Files` in the same folder takes any.

        Raises
        ------
        ValueError
            If it would take all of them, or the first one.
        """
        self._kept_free = None
        if not isinstance(source, Files):
            return
        if os.path.realpath(self._folder) != os.path.realpath(source._folder):
            return
        is_one = not self._are_named_by_results and source.takes(self._name(0))
        if is_one or source._pattern == "*":
            raise ValueError(
                f"got {self._folder} as the folder of the source and of the sink, whose results {source._pattern!r} would take for items. "
                'Name another folder, or a pattern that takes no result, such as "*.png"'
            )
        self._kept_free = source._pattern

    def takes(self, name: str) -> bool:
        """Say whether a file of this name would be an item of this source, if it were in the folder.

        Parameters
        ----------
        name : str
            The name.
        """
        return not name.startswith(".") and fnmatch.fnmatch(name, self._pattern)

    def is_item(self, path: str | os.PathLike[str]) -> bool:
        """Say whether a file would be an item of this source, if it were there.

        Parameters
        ----------
        path : path
            The file.
        """
        # It may be a link that lies there, or one that leads there.
        folder = os.path.realpath(self._folder)
        places = map(os.path.split, (os.path.abspath(path), os.path.realpath(path)))
        return any(
            os.path.realpath(parent) == folder and self.takes(name) for parent, name in places
        )

    def _hold(self) -> None:
        if self._held is not None:
            return
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._held = descriptor, SinkLock(descriptor, self._folder)
        except BaseException:
            os.close(descriptor)
            raise

    def _part(self, index: int | str) -> str:
        return os.path.join(self._folder, f"{self._prefix}{index}{_PART}")

    @property
    def _prefix(self) -> str:
        return f".{self._mark}." if self._is_gone_on_with else f"{_PLAIN}.{self._mark}."

    def _position(self) -> bytes:
        return f"{self._next} {self._mark}".encode()

    def _parts(self) -> list[os.DirEntry[str]]:
        return [entry for entry in os.scandir(self._folder) if entry.name.endswith(_PART)]

    def _unknown(self) -> list[str]:
        """Return the files of this run that its journal may not know of: each has its second name yet, or is in the list of names."""
        own = {one.inode(): one.name for one in self._parts() if one.name.startswith(self._prefix)}
        found = []
        for entry in os.scandir(self._folder):
            part = own.get(entry.inode())
            if part is None or entry.name.endswith(_PART):
                continue
            if int(part.split(".")[2]) >= self._next:
                found.append(entry.path)
        return found + self._listed()

    def _list_names(self) -> None:
        """Say which files have their names soon, where they can't have two: `rewind` finds those by it that the journal doesn't know of."""
        if not self._is_gone_on_with:
            return
        lines = [
            os.fsencode(f"{os.path.basename(part).split('.')[-2]} {os.path.basename(path)}")
            for path, part in self._written.items()
        ]
        place = os.path.join(self._folder, self._prefix[:-1] + _NAMES)
        with open(place, "wb") as file:
            # Names have no zero. A line without one at its end was torn, and no file has its name yet.
            file.writelines(line + b"\0" for line in lines)
        _sync(place)
        sync_folder(self._folder)
        self._linked.append(place)

    def _listed(self) -> list[str]:
        try:
            with open(os.path.join(self._folder, self._prefix[:-1] + _NAMES), "rb") as file:
                *lines, _ = file.read().split(b"\0")
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            index, _, name = os.fsdecode(line).partition(" ")
            is_unknown = index.isdecimal() and int(index) >= self._next
            # Who has its part yet has no name: a file of that name is another's.
            if name and is_unknown and not os.path.lexists(self._part(index)):
                found.append(os.path.join(self._folder, name))
        return found

    def _give_name(self, part: str, path: str) -> None:
        if self._has_links:
            try:
                # A rename would replace what has come there since.
                os.link(part, path)
            except OSError as error:
                if error.errno not in _NO_LINKS or os.path.lexists(path):
                    raise
                self._has_links = False
                self._list_names()
            else:
                self._linked.append(part)
                return
        if _is_there(path):
            raise FileExistsError(errno.EEXIST, "there is such a file already", path)
        os.rename(part, path)

    def _forget_linked(self) -> None:
        for part in self._linked:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
        self._linked.clear()

    def _names(self) -> list[str]:
        found = sorted(
            entry.name
            for entry in os.scandir(self._folder)
            if self.takes(entry.name) and stat.S_ISREG(entry.stat().st_mode)
        )
        # An empty folder may be meant; a pattern is meant to find something.
        if not found and self._pattern != "*":
            text = f"no file here has a name like {self._pattern!r}"
            raise FileNotFoundError(errno.ENOENT, text, self._folder)
        return found

    def _named(self, index: int, result: Any) -> tuple[str, bytes]:
        is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], str)
        if is_pair != self._are_named_by_results:
            expected = (
                "a pair of name and contents"
                if self._are_named_by_results
                else 'contents alone, or names="result" in Files, by which workers choose the names'
            )
            got = "a pair of name and contents" if is_pair else type(result).__qualname__
            wrong = TypeError(f"got {got} as the result for a file, expected {expected}")
            add_item_note(wrong, index)
            raise wrong
        name, contents = result if is_pair else (self._name(index), result)
        if isinstance(contents, str):
            contents = contents.encode()
        if not isinstance(contents, (bytes, bytearray, memoryview)):
            error: Exception = TypeError(
                f"got {type(contents).__qualname__} as the contents of a file, expected bytes or text"
            )
            add_item_note(error, index)
            raise error
        if (
            not name
            or os.path.basename(name) != name
            or name.startswith(".")
            or "\0" in name
            or name.endswith(_PART)
        ):
            error = ValueError(
                f"got {name!r:.60} as the name of a file, expected one without folders, with no dot in front and not with {_PART} at its end"
            )
            add_item_note(error, index)
            raise error
        if self._kept_free is not None and fnmatch.fnmatch(name, self._kept_free):
            error = ValueError(
                f"got {name!r:.60} as the name of a file, expected one that isn't like {self._kept_free!r}: the source of this run, which has the same folder, would take it for an item"
            )
            add_item_note(error, index)
            raise error
        return name, bytes(contents)


def _sync(path: str) -> None:
    """Make what is in a file durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_there(path: str) -> bool:
    """Whether a file has this name; an error if none can have it, as it is too long for its file system."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def _parts_of(position: bytes) -> tuple[int, str]:
    found = re.fullmatch(rb"([0-9]+) ([0-9a-f]+)", position)
    if found is None:
        raise JournalError(
            f"got {position!r:.40} as a position in a folder, expected the index of an item and a run's mark"
        )
    return int(found[1]), found[2].decode()
