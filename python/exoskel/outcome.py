"""How a task's exception travels: as a pickle where the worker is trusted, else as text."""

from __future__ import annotations

import builtins
import operator
import pickle
import re
import traceback
from collections.abc import Callable
from typing import Any

from . import errors
from .errors import SANDBOX_MAY_BE_WHY, TaskError, WorkerLostError, with_remote_traceback
from .peer_text import one_line

__all__ = [
    "add_call_note",
    "add_item_note",
    "decode_pickled_exception",
    "describe_exception",
    "encode_exception",
    "exception_from_data",
    "hide_number",
    "make_exception",
    "rename_item",
    "result_not_sent",
    "state_not_sent",
    "workers_lost",
]

# What is sent of a text at most, in characters; the reader's limits, in bytes, are four times as much and more.
_TEXT_CHARACTERS_MAX = 4000
_LINE_CHARACTERS_MAX = 400
_LINES_MAX = 150

# Builtin exceptions that can be made with a text and hold nothing else. Those that end a program or a loop are not among them.
_HARMLESS = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type)
    and issubclass(kind, Exception)
    and kind.__name__ == name
    and not issubclass(
        kind,
        # They take other arguments, or mean something to the interpreter.
        UnicodeDecodeError
        | UnicodeEncodeError
        | UnicodeTranslateError
        | ExceptionGroup
        | StopIteration
        | StopAsyncIteration,
    )
}
# Exceptions whose own class can't be made of a text become the nearest one that can.
_STAND_INS: dict[str, type[Exception]] = {
    "UnicodeDecodeError": UnicodeError,
    "UnicodeEncodeError": UnicodeError,
    "UnicodeTranslateError": UnicodeError,
    # Raised at the caller they would end the stream without a word (PEP 479).
    "StopIteration": RuntimeError,
    "StopAsyncIteration": RuntimeError,
}
# Those of ours that a task can have, also as it uses links to its siblings. The others say how a run goes, which is for the manager alone to say.
_OURS: dict[str, type[Exception]] = {
    f"{errors.__name__}:{kind.__name__}": kind
    for kind in (
        errors.ItemTimeoutError,
        errors.LinkError,
        errors.ProcessEndedError,
        errors.ProgramError,
        errors.ResultRejectedError,
        errors.SizeLimitError,
        errors.TaskError,
    )
}

_REJECTED = f"{errors.__name__}:{errors.ResultRejectedError.__name__}"


def encode_exception(error: BaseException, as_data: bool, about: str = "") -> bytes | list[Any]:
    """Return what travels of an exception.

    Parameters
    ----------
    error : BaseException
        What a task raised.
    as_data : bool
        Whether the answer must be plain data.
    about : str
        What a note about it says, as `short_text.describe_subject` returns it.

    Returns
    -------
    bytes or list
        The pickle of four values: the exception's own pickle or None, its one-line text, its traceback as text, and `about`. As data:
        the name of its class, its text, the lines of its traceback, and None or what the program's own function made of it.
    """
    if as_data:
        kind, text, data = describe_exception(error)
        lines = _lines(error) + ([_plain(about, _LINE_CHARACTERS_MAX)] if about else [])
        return [kind, text, lines, data]
    text = _written(error, traceback.format_exception_only).strip()
    trace = _written(error, traceback.format_exception)
    return pickle.dumps((_pickled(error), text, trace, about), 5)


def traceback_text(error: BaseException) -> bytes:
    """Return the traceback of an exception, for messages.

    Parameters
    ----------
    error : BaseException
        The exception.

    Returns
    -------
    bytes
        UTF-8: the first and the last lines, if there are many; the last one is the exception itself.
    """
    return "\n".join(line.rstrip("\n") for line in _lines(error)).encode(errors="backslashreplace")


def describe_exception(error: BaseException) -> list[Any]:
    """Take an exception apart.

    Parameters
    ----------
    error : BaseException
        The exception.

    Returns
    -------
    list
        The name of its class, its text, and None or what the program's own function made of it.
    """
    from . import results

    kind = type(error)
    name = (
        kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}:{kind.__qualname__}"
    )
    try:
        data = results.exception_to_data(error)
    except BaseException:
        # The text is still worth something.
        data = None
    if data is None:
        data = _arguments(error)
    return [name[:200], _text(error), data]


def _arguments(error: BaseException) -> list[Any] | None:
    """Return the arguments of a builtin exception that programs look at: the number of an OSError, a key that is a number."""
    if type(error).__module__ != "builtins":
        return None
    if isinstance(error, OSError) and type(error.errno) is int:
        file = error.filename if type(error.filename) is str else None
        return [
            error.errno,
            _plain(str(error.strerror), _TEXT_CHARACTERS_MAX),
            None if file is None else _plain(file, _TEXT_CHARACTERS_MAX),
        ]
    if isinstance(error, LookupError) and len(error.args) == 1 and type(error.args[0]) in _NUMBERS:
        return [error.args[0]]
    return None


_NUMBERS = (int, float, bool)


def _text(error: BaseException) -> str:
    """Return the text of an exception: its only argument, if that is text, else what it says of itself."""
    try:
        arguments = error.args
        text = arguments[0] if len(arguments) == 1 and type(arguments[0]) is str else str(error)
    except BaseException:
        text = f"<{type(error).__name__} without a text>"
    return _plain(text, _TEXT_CHARACTERS_MAX)


def _written(error: BaseException, write: Callable[[BaseException], list[str]]) -> str:
    """Return what a function of `traceback` writes of an exception; its class and its text if the exception doesn't let itself be read."""
    try:
        return "".join(write(error))
    except Exception:
        return f"{type(error).__name__}: {_text(error)}\n"


def _lines(error: BaseException) -> list[str]:
    """Return the lines of a traceback: the first and the last ones, if there are many."""
    lines = _written(error, traceback.format_exception).splitlines()
    if len(lines) > _LINES_MAX:
        half = _LINES_MAX // 2
        lines = [*lines[:half], f"  ... {len(lines) - 2 * half} lines left out ...", *lines[-half:]]
    return [_plain(line, _LINE_CHARACTERS_MAX) for line in lines]


def _plain(text: str, characters_max: int) -> str:
    cut = text if len(text) <= characters_max else text[:characters_max] + "..."
    return cut.encode("utf-8", "replace").decode()


def _pickled(error: BaseException) -> bytes | None:
    """Pickle an exception: by name, else by value, else without its ``__init__``; None if nothing of it can travel."""
    usable: bytes | None = None
    for dumps in (_by_name, _by_value, _without_init):
        try:
            pickled = dumps(error)
            copy = pickle.loads(pickled)
            # An `__init__` that makes a text of its argument makes another one of that text.
            if type(copy) is type(error) and str(copy) == str(error):
                return pickled
        except BaseException:
            continue
        usable = usable or pickled
    return usable


def _by_name(error: BaseException) -> bytes:
    return pickle.dumps(error, 5)


def _by_value(error: BaseException) -> bytes:
    from . import by_value

    return by_value.dumps_home(error)


def _without_init(error: BaseException) -> bytes:
    from . import by_value

    return by_value.dumps_exception(error)


def add_item_note(error: BaseException, item: int | None, about: str = "") -> None:
    """Add a note to an exception that says which item or call it is the outcome of.

    Parameters
    ----------
    error : BaseException
        The exception.
    item : int or None
        The index of the item. A call of an `Executor` has none.
    about : str
        What `short_text.describe_subject` returned. A call without it gets no note.
    """
    if item is None and not about:
        return
    name = "call" if item is None else f"item {item}"
    note = f"{name}{about.removeprefix('item').removeprefix('call')}"
    notes = _notes_of(error)
    # Once: whoever hands an exception out may be interrupted, and do so again.
    if notes[-1:] != [note]:
        _set_notes(error, [*notes, note])


def rename_item(error: BaseException, number: int, name: str, *, is_slice: bool = False) -> None:
    """Have the exception of what a stream calls an item name what it is to the user.

    Parameters
    ----------
    error : BaseException
        The exception.
    number : int
        What the stream counts it as. The last note names it.
    name : str
        What it is: ``"item 7"``, ``"item 7, part 2"`` or ``"one of items 5 to 9"``.
    is_slice : bool
        Whether it is several items. A slot that knows which one it was has added a note.
    """
    called = f"item {number}"
    notes = _notes_of(error)
    if notes and type(notes[-1]) is str and notes[-1].startswith(called):
        note = notes.pop()
        if not is_slice:
            notes.append(f"{name}{note.removeprefix(called)}")
        elif not (notes and type(notes[-1]) is str and notes[-1].startswith("item ")):
            notes.append(name)
        _set_notes(error, notes)
    if isinstance(error, errors.ExoskelError) and error.args:
        text = error.args[0]
        if type(text) is str:
            error.args = (text.replace(f"{called} ", f"{name} ", 1), *error.args[1:])
    if isinstance(error, WorkerLostError) and error.item == number:
        word, _, index = name.partition(" ")
        error.item = int(index) if word == "item" and index.isdecimal() else None


def hide_number(error: BaseException) -> None:
    """Have an exception not say which item it is of: the stream counts results, of which an item may have any number.

    Parameters
    ----------
    error : BaseException
        The exception.
    """
    notes = _notes_of(error)
    if notes and type(notes[-1]) is str:
        _set_notes(error, [*notes[:-1], _ITEM.sub("an item", notes[-1], count=1)])
    if isinstance(error, errors.ExoskelError) and error.args and type(error.args[0]) is str:
        error.args = (_ITEM.sub("an item", error.args[0], count=1), *error.args[1:])
    if isinstance(error, WorkerLostError):
        error.item = None


_ITEM = re.compile(r"^item \d+\b")


def add_call_note(error: BaseException, function_name: str) -> None:
    """Have an exception name the function of its call, where the slot that made it had nothing to say of the call.

    Parameters
    ----------
    error : BaseException
        The exception.
    function_name : str
        The function.
    """
    notes = _notes_of(error)
    beginnings = [note[: len(_OF_RESULT)] if type(note) is str else "" for note in notes]
    if any(beginning.startswith("call: ") for beginning in beginnings):
        return
    call = f"call: {function_name}(...)"
    if _OF_RESULT in beginnings:
        place = beginnings.index(_OF_RESULT)
        notes[place] = f"{call}{notes[place].removeprefix('call')}"
        _set_notes(error, notes)
    else:
        _set_notes(error, [*notes, call])


# How the note of a call begins whose result can't be sent.
_OF_RESULT = "call, its result: "


def _notes_of(error: BaseException) -> list[Any]:
    try:
        # Not as an attribute, for which its class may have a `__getattr__` that raises anything.
        return [*BaseException.__getattribute__(error, "__notes__")]
    except (AttributeError, TypeError):
        return []


def _set_notes(error: BaseException, notes: list[Any]) -> None:
    # Not by `add_note`, which a class may have of its own, or forbid: it may be a frozen dataclass.
    BaseException.__setattr__(error, "__notes__", notes)


def decode_pickled_exception(record: bytes, worker: str, item: int | None) -> BaseException:
    """Return the exception that a task raised at a trusted worker, with its remote traceback as cause.

    Parameters
    ----------
    record : bytes
        What `encode_exception` made. It is unpickled, so it must come from a trusted worker, and nobody else may have touched it.
    worker : str
        Where it comes from.
    item : int or None
        The index of its item.

    Returns
    -------
    BaseException
        The exception, or a `TaskError` with its text where it can't be made here.
    """
    try:
        inner, text, lines, about = pickle.loads(record)
    except Exception:
        return TaskError(f"worker {worker} sent an exception that can't be read")
    error: object = None
    if inner is not None:
        try:
            error = pickle.loads(inner)
        except Exception:
            error = None
    if isinstance(error, StopIteration | StopAsyncIteration):
        # Raised at the caller it would end the stream without a word (PEP 479).
        error = RuntimeError(f"the task raised {text}")
    elif not isinstance(error, Exception):
        error = TaskError(text, kind=text.partition(":")[0])
    add_item_note(error, item, about)
    return with_remote_traceback(error, lines, worker)


def exception_from_data(
    kind: str, text: str, lines: list[str], data: Any, worker: str, item: int | None, sender: str
) -> BaseException:
    """Return the exception that a task raised at a worker that isn't trusted, with its remote traceback as cause.

    Parameters
    ----------
    kind : str
        The name of its class.
    text : str
        Its text.
    lines : list of str
        Its traceback.
    data : object
        None, or what the program's own function made of it.
    worker : str
        Where it comes from.
    item : int or None
        The index of its item.
    sender : str
        The same with the item, for people.

    Returns
    -------
    BaseException
        A builtin exception from a list of harmless ones, one of Exoskel's, or one that the program registered; else a `TaskError`.
        All text is shown on one line each, escaped.
    """
    if kind == _REJECTED:
        # The worker has said it early; it reads as what the manager says.
        text = f"the answer of {sender} can't be sent: {text}"
    error = make_exception(kind, text, data)
    # Each line is marked, so that none can look like what stands around it.
    shown = "\n".join(f"  | {one_line(line)}" for line in lines)
    if told := [one_line(line) for line in lines if line.startswith(SANDBOX_MAY_BE_WHY)][-1:]:
        _set_notes(error, [*_notes_of(error), *told])
    add_item_note(error, item)
    return with_remote_traceback(error, shown, worker)


def make_exception(kind: str, text: str, data: Any) -> Exception:
    """Return an exception of a known class.

    Parameters
    ----------
    kind : str
        The name of its class.
    text : str
        Its text.
    data : object
        None, or what the program's own function made of it.

    Returns
    -------
    Exception
        The exception, or a `TaskError` if its class isn't known or can't be made of this.
    """
    shown = one_line(text)
    known = _HARMLESS.get(kind) or _OURS.get(kind)
    if known is not None:
        if type(data) is list and issubclass(known, OSError):
            match data:
                case [int(number), str(reason), None]:
                    return known(number, one_line(reason))
                case [int(number), str(reason), str(file)]:
                    return known(number, one_line(reason), one_line(file))
        elif type(data) is list and issubclass(known, LookupError):
            match data:
                case [int() | float() as key]:
                    return known(key)
        return known(shown)
    if data is not None:
        from . import results

        try:
            return results.exception_from_data(kind, data)
        except Exception as fault:
            # The text is still worth something, and so is the reason: a class may want other arguments than it keeps.
            shown = f"{shown} ({one_line(str(fault))})"
    name = one_line(kind).replace(":", ".")
    stand_in = _STAND_INS.get(kind)
    if stand_in is not None:
        return stand_in(f"the task raised {name}: {shown}")
    return TaskError(f"{name}: {shown}" if shown else name, kind=name)


def result_not_sent(error: BaseException, function: Callable[..., Any] | None) -> BaseException:
    """Return the outcome of an item or a call whose result can't be sent.

    Parameters
    ----------
    error : BaseException
        What pickling the result raised.
    function : callable or None
        What returned the result, if that is known.

    Returns
    -------
    BaseException
        A `ProgramError` that says so, with `error` as its cause. Exceptions that say so already, a lack of memory, and what is no
        `Exception` stay as they are.
    """
    if isinstance(error, errors.ExoskelError | MemoryError) or not isinstance(error, Exception):
        return error
    from .short_text import name_of

    # A function that travels with its arguments has gone with them.
    is_known = function is not None and function is not operator.call
    result = f"the result of {name_of(function)}" if is_known else "the result"
    outcome = errors.ProgramError(
        f"{result} can't be sent: {type(error).__name__}: {_text(error)}; return what pickle takes"
    )
    outcome.__cause__ = error
    return outcome


def state_not_sent(error: BaseException, function: Callable[..., Any] | None) -> BaseException:
    """Return the outcome of items behind which there is a state that can't be sent.

    Parameters
    ----------
    error : BaseException
        What pickling the state raised.
    function : callable or None
        What returned the state, if that is known.

    Returns
    -------
    BaseException
        As `result_not_sent` returns it.
    """
    if isinstance(error, errors.ExoskelError | MemoryError) or not isinstance(error, Exception):
        return error
    from .short_text import name_of

    state = "the state" if function is None else f"the state of {name_of(function)}"
    outcome = errors.ProgramError(
        f"{state} can't be sent: {type(error).__name__}: {_text(error)}; keep what pickle takes"
    )
    outcome.__cause__ = error
    return outcome


def workers_lost(item: int | None, workers: int, last_end: str | None) -> WorkerLostError:
    """Return the outcome of an item or a call that took down one worker after the other.

    Parameters
    ----------
    item : int or None
        The item's place in the stream, from 0; None for a call, which has none.
    workers : int
        How many workers were lost while they had nothing else.
    last_end : str or None
        How the process of the last one ended; None if that is not known.

    Returns
    -------
    WorkerLostError
        The exception.
    """
    why = "out of memory, a crash in native code, or the workers were ended from outside"
    if last_end is not None:
        why = f"the last one: {last_end}"
    return WorkerLostError(
        f"{'this call' if item is None else f'item {item}'} took down {workers} worker{'s' if workers != 1 else ''} while it ran alone; it is not tried again ({why})",
        item=item,
        workers=workers,
    )
