"""What answers may hold that come from, or were touched by, a worker outside the trusted domains.

Such answers travel as plain data, never as pickles: `exoskel._core` reads them whole, within limits, before anything is made of
them. Here is what Python knows of types beyond the built-in containers: how a worker takes a value apart (`describe`), and how it is
put together again (`make`). Nothing that a worker sends is looked up anywhere but in the tables of this module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from . import _core, result_arrays
from .errors import ProgramError, ResultRejectedError
from .peer_text import one_line

if TYPE_CHECKING:
    import datetime

__all__ = [
    "describe",
    "exception_from_data",
    "exception_to_data",
    "install",
    "make",
    "register_result_type",
    "registrations",
]

_Class = TypeVar("_Class", bound=type)
_Key = tuple[str, str]
# What a type's name and a tag's number lead to.
_Content = tuple[int, Any]

_TAG: dict[str, int] = _core.data_tags()


def register_result_type(
    kind: _Class,
    *,
    to_data: Callable[[Any], Any] | None = None,
    from_data: Callable[[Any], Any] | None = None,
) -> _Class:
    """Allow instances of a class in answers of workers outside the trusted domains.

    Enumerations travel as the names of their members, dataclasses and named tuples as their fields, exceptions as their arguments
    (in which texts that aren't printable are escaped, line ends included).
    Other classes need two functions. It holds for this class alone, not for its subclasses, and for managers that start later. Can
    be used as a decorator.

    A stranger chooses what `from_data` gets (for a dataclass: the values of its fields): any plain data at all. It must check what it
    gets, and must not run, open, load or look up anything by it.

    Parameters
    ----------
    kind : type
        The class.
    to_data : callable, optional
        At the worker: takes an instance, returns plain data.
    from_data : callable, optional
        At the manager: takes plain data, returns an instance.

    Returns
    -------
    type
        The same class.

    Raises
    ------
    TypeError
        If it is not a class, or needs functions and has none or one.
    """
    if not isinstance(kind, type):
        raise TypeError(f"got {kind!r}, expected a class whose instances answers may hold")
    if (to_data is None) != (from_data is None):
        raise TypeError(f"got one function for {kind.__qualname__}, expected to_data and from_data")
    if to_data is None or from_data is None:
        known = _forms_of(kind)
        if known is None:
            raise TypeError(
                f"got {kind.__qualname__}, expected an enumeration, a dataclass whose fields are all arguments, a named tuple or an "
                "exception; give to_data= and from_data= for other classes"
            )
        _registered[_key(kind)] = Registered(kind, None, *known)
    else:
        functions = (to_data, from_data)
        _registered[_key(kind)] = Registered(kind, functions, to_data, from_data)
    return kind


class Registered(NamedTuple):
    """How instances of a registered class travel."""

    kind: type
    given: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None
    to_data: Callable[[Any], Any]
    from_data: Callable[[Any], Any]


_registered: dict[_Key, Registered] = {}
# At a worker: what the manager has registered and nobody has needed yet, as pickles of the manager's own.
_installed: dict[_Key, bytes] = {}


def registrations() -> dict[_Key, bytes]:
    """Return what a worker has to know of the registered classes.

    Returns
    -------
    dict
        For each class, by module and qualified name, the pickle of the class and of its functions, or None where its fields are enough.

    Raises
    ------
    ProgramError
        If a class or a function can't be pickled.
    """
    from . import by_value

    found = {}
    for key, known in _registered.items():
        try:
            found[key] = by_value.dumps((known.kind, known.given))
        except Exception as error:
            raise ProgramError(
                f"can't send the registered class {':'.join(key)} to workers: {error}"
            ) from error
    return found


def install(known: dict[_Key, bytes]) -> None:
    """Take in what a manager has registered (at a worker).

    Parameters
    ----------
    known : dict
        What `registrations` returned there.
    """
    _installed.update(known)


def describe(value: Any, of_link: bool = False) -> _Content:
    """Take a value apart that is none of the built-in containers, numbers and texts.

    Parameters
    ----------
    value : object
        A part of a result.
    of_link : bool
        Whether it is a part of arguments or answers between programs, where no policy can trust the other end more.

    Returns
    -------
    tuple
        A tag of the format and its content, which is plain data.

    Raises
    ------
    ResultRejectedError
        If it can't be plain data; the text says what to return instead.
    """
    kind = type(value)
    key = _key(kind)
    known = _DESCRIBED.get(key)
    if known is not None:
        return known(value)
    registered = _known(key)
    if registered is not None:
        return _TAG["REGISTERED"], [":".join(key), registered.to_data(value)]
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "generic"):
        if kind is numpy.ndarray:
            return _describe_array(value)
        if isinstance(value, numpy.generic):
            return _TAG["SCALAR"], result_arrays.describe_scalar(value)
    from . import result_types

    found = result_types.find(kind)
    if found is not None:
        name, to_data = found
        try:
            return _TAG["LIBRARY"], [name, to_data(value)]
        except (TypeError, ValueError) as error:
            shown = name.partition(":")[0]
            raise ResultRejectedError(f"got a {shown} that can't be sent: {error}") from error
    if isinstance(value, Exception):
        from . import outcome

        return _TAG["EXCEPTION"], outcome.describe_exception(value)
    feedback = sys.modules.get(f"{__package__}.feedback")
    if feedback is not None and not of_link:
        feedback.refuse(value)
    raise ResultRejectedError(_refusal(kind, of_link))


def make(tag: int, content: Any) -> Any:
    """Put a value together whose tag is known and whose content was found to be of the right form.

    Parameters
    ----------
    tag : int
        The tag.
    content : object
        Plain data.

    Returns
    -------
    object
        The value.

    Raises
    ------
    Exception
        Of any kind, when the content makes no such value.
    """
    return _MADE[tag](content)


def exception_to_data(error: BaseException) -> Any:
    """Return what the program's own function makes of an exception of a registered class, else None.

    Parameters
    ----------
    error : BaseException
        The exception.

    Returns
    -------
    object
        Plain data.
    """
    registered = _known(_key(type(error)))
    return None if registered is None else registered.to_data(error)


def exception_from_data(kind: str, data: Any) -> Exception:
    """Return an exception of a registered class.

    Parameters
    ----------
    kind : str
        Module and qualified name, with a colon between.
    data : object
        Plain data.

    Returns
    -------
    Exception
        The exception.

    Raises
    ------
    Exception
        Of any kind, when the class isn't registered or the data makes no exception.
    """
    error = _make_registered([kind, data])
    if not isinstance(error, Exception):
        raise TypeError(f"got a {type(error).__name__}, expected an exception")
    if not str(error).isprintable():
        raise ValueError("got an exception whose text would not be shown as it is")
    return error


def _key(kind: type) -> _Key:
    return kind.__module__, kind.__qualname__


def _known(key: _Key) -> Registered | None:
    """Return how instances of a class travel; at a worker it is loaded when it is first needed."""
    known = _registered.get(key)
    if known is None and key in _installed:
        import pickle

        kind, functions = pickle.loads(_installed.pop(key))
        if functions is None:
            register_result_type(kind)
        else:
            register_result_type(kind, to_data=functions[0], from_data=functions[1])
        known = _registered.get(key)
    return known


# --- classes that need no functions -----------------------------------------------------------------

_Forms = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def _forms_of(kind: Any) -> _Forms | None:
    """Return how instances of a class go to data and back, if its fields say it."""
    import dataclasses
    import enum

    if issubclass(kind, enum.Flag):
        known: set[int] = set()
        return _flag_to_data, lambda data: _flag_from_data(kind, data, known)
    if issubclass(kind, enum.Enum):
        return lambda member: member.name, lambda data: _member(kind, data)
    if issubclass(kind, tuple) and hasattr(kind, "_fields") and hasattr(kind, "_make"):
        return list, lambda data: _named_tuple(kind, data)
    if dataclasses.is_dataclass(kind):
        import inspect

        constructor: Any = kind
        names = [field.name for field in dataclasses.fields(kind)]
        if set(names) != set(inspect.signature(constructor).parameters):
            return None
        return (
            lambda value: {name: getattr(value, name) for name in names},
            lambda data: constructor(**_fields(kind, names, data)),
        )
    if issubclass(kind, Exception):
        return lambda error: list(error.args), lambda data: kind(*_arguments(kind, data))
    return None


def _flag_to_data(value: Any) -> list[str]:
    members = list(value)
    if sum(member.value for member in members) != value.value:
        raise ResultRejectedError(
            f"got a {type(value).__qualname__} with bits that no member has, expected members"
        )
    return [member.name for member in members]


# Python keeps each combination of members for ever, and a stranger must not be able to fill memory with them.
_COMBINATIONS_MAX = 1 << 14


def _flag_from_data(kind: Any, data: object, known: set[int]) -> Any:
    value = 0
    for name in _list(kind, data):
        value |= _member(kind, name).value
    if value not in known:
        if len(known) >= _COMBINATIONS_MAX:
            raise ValueError(
                f"got more than {_COMBINATIONS_MAX} combinations of members of {kind.__qualname__}"
            )
        known.add(value)
    return kind(value)


def _member(kind: Any, name: object) -> Any:
    members = kind.__members__
    if type(name) is not str or name not in members:
        raise ValueError(f"got no member of {kind.__qualname__}")
    return members[name]


def _named_tuple(kind: Any, data: object) -> Any:
    values = _list(kind, data)
    if len(values) != len(kind._fields):
        raise ValueError(
            f"got {len(values)} fields of {kind.__qualname__}, expected {len(kind._fields)}"
        )
    return kind._make(values)


def _fields(kind: Any, names: list[str], data: object) -> dict[str, Any]:
    if type(data) is not dict or data.keys() != set(names):
        raise ValueError(f"got other fields than those of {kind.__qualname__}")
    return data


def _arguments(kind: Any, data: object) -> list[Any]:
    """Return the arguments of an exception; its texts can be shown, because a traceback shows them as they are."""
    return [one_line(value) if type(value) is str else value for value in _list(kind, data)]


def _list(kind: Any, data: object) -> list[Any]:
    if type(data) is not list:
        raise ValueError(f"got a {type(data).__name__} for {kind.__qualname__}, expected a list")
    return data


def _bounds(value: Any) -> list[int | None]:
    bounds = [value.start, value.stop, value.step]
    if all(bound is None or (type(bound) is int and -(2**63) <= bound < 2**63) for bound in bounds):
        return bounds
    raise ResultRejectedError(
        f"got a {type(value).__name__} of others than integers of 64 bits, expected such integers: return its bounds in a tuple"
    )


# --- the standard library -----------------------------------------------------------------------------


def _describe_zone(zone: Any) -> Any:
    """Return a fixed offset, or None for a time without zone."""
    import datetime

    if zone is None or type(zone) is datetime.timezone:
        return zone
    raise ResultRejectedError(
        f"got a time in the zone {zone!s}, expected a fixed offset: the rules of named zones are files; return a datetime in UTC, value.astimezone(datetime.UTC)"
    )


def _describe_timezone(zone: datetime.timezone) -> _Content:
    offset = zone.utcoffset(None)
    name = zone.tzname(None)
    shown = None if name == type(zone)(offset).tzname(None) else name
    return _TAG["TIME_ZONE"], [offset.days * 86400 + offset.seconds, offset.microseconds, shown]


def _make_timezone(content: list[Any]) -> datetime.timezone:
    import datetime

    seconds, microseconds, name = content
    if name is None and seconds == microseconds == 0:
        return datetime.UTC
    offset = datetime.timedelta(seconds=seconds, microseconds=microseconds)
    return datetime.timezone(offset) if name is None else datetime.timezone(offset, name)


def _describe_time(value: datetime.time) -> _Content:
    return _TAG["TIME"], [
        value.hour,
        value.minute,
        value.second,
        value.microsecond,
        value.fold,
        _describe_zone(value.tzinfo),
    ]


def _make_time(content: list[Any]) -> datetime.time:
    import datetime

    hour, minute, second, microsecond, fold, zone = content
    return datetime.time(hour, minute, second, microsecond, zone, fold=fold)


def _describe_datetime(value: datetime.datetime) -> _Content:
    _tag, content = _describe_time(value.timetz())
    return _TAG["DATE_TIME"], [value.year, value.month, value.day, *content]


def _make_datetime(content: list[Any]) -> datetime.datetime:
    import datetime

    year, month, day, *clock = content
    time = _make_time(clock)
    return datetime.datetime.combine(datetime.date(year, month, day), time)


def _make_date(content: list[int]) -> datetime.date:
    import datetime

    return datetime.date(*content)


def _make_duration(content: list[int]) -> datetime.timedelta:
    import datetime

    return datetime.timedelta(*content)


def _make_decimal(content: str) -> Any:
    import decimal

    return decimal.Decimal(content)


def _make_fraction(content: list[int]) -> Any:
    import fractions

    return fractions.Fraction(*content)


def _make_uuid(content: bytes) -> Any:
    import uuid

    return uuid.UUID(bytes=content)


_FLAVOURS = ("PurePosixPath", "PureWindowsPath", "Path")


def _describe_path(value: Any) -> _Content:
    import pathlib

    if isinstance(value, pathlib.Path):
        flavour = 2 if isinstance(value, pathlib.PosixPath) else 1
    else:
        flavour = 0 if isinstance(value, pathlib.PurePosixPath) else 1
    return _TAG["PATH"], [flavour, str(value)]


def _make_path(content: list[Any]) -> Any:
    import pathlib

    flavour, text = content
    return getattr(pathlib, _FLAVOURS[flavour])(text)


def _describe_default_map(value: Any) -> _Content:
    factory = value.default_factory
    number = None
    if factory is not None:
        if factory not in _FACTORIES:
            raise ResultRejectedError(
                f"got a defaultdict with the factory {factory!r}, expected a built-in type: return dict(value)"
            )
        number = _FACTORIES.index(factory)
    return _TAG["DEFAULT_MAP"], [number, dict(value)]


def _make_default_map(content: list[Any]) -> Any:
    from collections import defaultdict

    number, items = content
    return defaultdict(None if number is None else _FACTORIES[number], items)


def _describe_counter(value: Any) -> _Content:
    import numbers

    for count in value.values():
        if not isinstance(count, numbers.Number):
            raise ResultRejectedError(
                f"got a Counter with a {type(count).__qualname__} as a count, expected numbers: return dict(value)"
            )
    return _TAG["COUNTER"], dict(value)


def _make_counter(content: dict[Any, Any]) -> Any:
    from collections import Counter

    return Counter(content)


def _make_ordered_map(content: dict[Any, Any]) -> Any:
    from collections import OrderedDict

    return OrderedDict(content)


def _make_deque(content: list[Any]) -> Any:
    from collections import deque

    longest, items = content
    return deque(items, longest)


# In the order of `exoskel_data::tags::FACTORIES`.
_FACTORIES: tuple[Any, ...] = (
    int,
    float,
    complex,
    bool,
    str,
    bytes,
    list,
    tuple,
    dict,
    set,
    frozenset,
)


def _describe_array(value: Any) -> _Content:
    if value.dtype.kind == "O":
        return _TAG["OBJECT_ARRAY"], result_arrays.describe_objects(value)
    return _TAG["ARRAY"], result_arrays.describe(value)


def _make_registered(content: list[Any]) -> Any:
    name, data = content
    module, _, qualified = name.partition(":")
    known = _known((module, qualified))
    if known is None:
        raise ResultRejectedError(
            f"got an instance of {ascii(name)[1:-1]}, which this program hasn't registered"
        )
    try:
        return known.from_data(data)
    except Exception as error:
        raise ValueError(
            f"{name} can't be made of what came: {type(error).__name__}: {error}"
        ) from error


def _make_library(content: list[Any]) -> Any:
    from . import result_types

    name, data = content
    from_data = result_types.reader(name)
    if from_data is None:
        raise ResultRejectedError(
            f"got an instance of {ascii(name)[1:-1]}, which this version doesn't know"
        )
    return from_data(data)


def _make_exception(content: list[Any]) -> Any:
    from . import outcome

    return outcome.make_exception(*content)


_PATHS = ("PurePosixPath", "PureWindowsPath", "PosixPath", "WindowsPath")

_DESCRIBED: dict[_Key, Callable[[Any], _Content]] = {
    ("builtins", "range"): lambda value: (_TAG["RANGE"], _bounds(value)),
    ("builtins", "slice"): lambda value: (_TAG["SLICE"], _bounds(value)),
    ("builtins", "ellipsis"): lambda _value: (_TAG["CONSTANT"], 0),
    ("builtins", "NotImplementedType"): lambda _value: (_TAG["CONSTANT"], 1),
    ("datetime", "date"): lambda value: (_TAG["DATE"], [value.year, value.month, value.day]),
    ("datetime", "time"): _describe_time,
    ("datetime", "datetime"): _describe_datetime,
    ("datetime", "timedelta"): lambda value: (
        _TAG["DURATION"],
        [value.days, value.seconds, value.microseconds],
    ),
    ("datetime", "timezone"): _describe_timezone,
    ("decimal", "Decimal"): lambda value: (_TAG["DECIMAL"], str(value)),
    ("fractions", "Fraction"): lambda value: (
        _TAG["FRACTION"],
        [value.numerator, value.denominator],
    ),
    ("uuid", "UUID"): lambda value: (_TAG["UUID"], value.bytes),
    ("collections", "Counter"): _describe_counter,
    ("collections", "OrderedDict"): lambda value: (_TAG["ORDERED_MAP"], dict(value)),
    ("collections", "defaultdict"): _describe_default_map,
    ("collections", "deque"): lambda value: (_TAG["DEQUE"], [value.maxlen, list(value)]),
    # In Python 3.13 they have another home.
    **{
        (module, name): _describe_path
        for module in ("pathlib", "pathlib._local")
        for name in _PATHS
    },
}

_MADE: dict[int, Callable[[Any], Any]] = {
    _TAG["RANGE"]: lambda content: range(*content),
    _TAG["SLICE"]: lambda content: slice(*content),
    _TAG["CONSTANT"]: lambda content: (Ellipsis, NotImplemented)[content],
    _TAG["DATE"]: _make_date,
    _TAG["TIME"]: _make_time,
    _TAG["DATE_TIME"]: _make_datetime,
    _TAG["DURATION"]: _make_duration,
    _TAG["TIME_ZONE"]: _make_timezone,
    _TAG["DECIMAL"]: _make_decimal,
    _TAG["FRACTION"]: _make_fraction,
    _TAG["UUID"]: _make_uuid,
    _TAG["PATH"]: _make_path,
    _TAG["COUNTER"]: _make_counter,
    _TAG["ORDERED_MAP"]: _make_ordered_map,
    _TAG["DEFAULT_MAP"]: _make_default_map,
    _TAG["DEQUE"]: _make_deque,
    _TAG["OBJECT_ARRAY"]: result_arrays.object_array,
    _TAG["REGISTERED"]: _make_registered,
    _TAG["LIBRARY"]: _make_library,
    _TAG["EXCEPTION"]: _make_exception,
}


_CURES = {
    "memoryview": "return bytes(value)",
    "SimpleNamespace": "return vars(value)",
    "mappingproxy": "return dict(value)",
    "type": "return its name",
    "module": "return what you need from it",
    "function": "return what it gives, or its name",
    "builtin_function_or_method": "return what it gives, or its name",
    "method": "return what it gives, or its name",
    "generator": "return a list of its values",
    "array": "return value.tolist() or numpy.asarray(value)",
}


def _refusal(kind: type, of_link: bool) -> str:
    """Say what can't be sent, and what to return instead."""
    functions = "" if _forms_of(kind) else ", to_data=, from_data="
    register = f"register its class (exoskel.register_result_type{functions})"
    if kind.__name__ in _CURES and kind.__module__ in ("builtins", "types", "array"):
        cure = _CURES[kind.__name__]
    elif issubclass(kind, (dict, list, tuple, set, frozenset, str, bytes, int, float)):
        base = next(base for base in kind.__mro__ if base.__module__ == "builtins")
        cure = f"return {base.__name__}(value), or {register}"
    elif kind.__name__ == "MaskedArray" and kind.__module__.startswith("numpy.ma"):
        cure = "return its data and its mask, as in (array.data, numpy.ma.getmaskarray(array))"
    elif kind.__module__.partition(".")[0] == "numpy":
        cure = "return numpy.asarray of it, or str of a dtype"
    elif kind.__module__ in ("builtins", "types", "itertools", "_io"):
        cure = "return the data that you need from it, in lists, dicts and arrays"
    else:
        cure = f"return its contents as dicts, lists and arrays, or {register}"
    got = f"got an instance of {kind.__module__}.{kind.__qualname__}, expected plain data"
    if of_link:
        return f"{got}: {cure.replace('return ', 'send ')}"
    return f'{got}: {cure}, or trust the worker (results = "pickle" in the policy)'
