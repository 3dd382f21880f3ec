"""The restricted unpickler: what a worker outside the trusted domains may answer.

A machine that isn't trusted must not own the manager through its results. A pickle is a program, so the names it may call are
listed here: plain data of the standard library, the array constructors of `exoskel.arrays`, builtin exceptions, the exceptions of
Exoskel, and the classes that the program registers.

Three things make the list hold:

- names are looked up in a table and never traversed: ``"list.__class__"`` is just an unknown name;
- a class that can be changed is never handed to the pickle itself. A stand-in makes its instances, and nothing can be set on it;
- constructors which would turn a few bytes into gigabytes (``list(range(10**12))``) take only the arguments of real pickles.
"""

import builtins
import copyreg
import enum
import io
import pickle
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, BinaryIO, NoReturn, TypeVar

from . import arrays, errors
from .errors import ResultRejectedError

__all__ = ["loads", "register_result_type"]

_Class = TypeVar("_Class", bound=type)
_Key = tuple[str, str]


def register_result_type(kind: _Class) -> _Class:
    """Allow instances of a class in results from workers outside the trusted domains.

    Register only a class whose constructor, ``__setstate__`` and property setters do no harm whatever their arguments: a stranger
    chooses them. It holds for this class alone, not for its module nor for its subclasses. Can be used as a decorator.

    Parameters
    ----------
    kind : type
        The class. It must live in a module, not in ``__main__``, which is another one at the worker.

    Returns
    -------
    type
        The same class.

    Raises
    ------
    TypeError
        If it is not a class.
    """
    if not isinstance(kind, type):
        raise TypeError(f"got {kind!r}, expected a class whose instances results may hold")
    _registered[kind.__module__, kind.__qualname__] = _harmless(kind)
    if issubclass(kind, enum.Enum):
        _members[kind.__module__, kind.__qualname__] = [
            (member, dict(vars(member))) for member in kind
        ]
    return kind


_registered: dict[_Key, object] = {}
# Members of an enumeration are shared objects, so what they hold is compared after each load (see `_Unpickler.check_members`).
_members: dict[_Key, list[tuple[enum.Enum, dict[str, Any]]]] = {}


def loads(
    stream: bytes | bytearray | memoryview | BinaryIO,
    buffers: Iterable[Any] = (),
    *,
    worker: str | None = None,
) -> Any:
    """Return the plain data that a pickle holds.

    Parameters
    ----------
    stream : bytes-like or binary file
        The pickle.
    buffers : iterable of bytes-like
        Its out-of-band buffers.
    worker : str, optional
        Who sent it, for the error.

    Returns
    -------
    object
        The result.

    Raises
    ------
    ResultRejectedError
        If it holds anything but plain data and registered types, or is malformed.
    """
    if copyreg._extension_cache:  # type: ignore[attr-defined]
        # What stands there would be taken without asking `find_class`.
        copyreg.clear_extension_cache()
    file = io.BytesIO(stream) if isinstance(stream, (bytes, bytearray, memoryview)) else stream
    unpickler = _Unpickler(file, buffers=buffers)
    unpickler.worker = worker
    try:
        return unpickler.load()
    except ResultRejectedError:
        raise
    except Exception as error:
        raise ResultRejectedError(
            f"got a malformed result from {_sender(worker)}: {type(error).__name__} while it was decoded"
        ) from error
    finally:
        if unpickler.enumerations:
            unpickler.check_members()


class _Unpickler(pickle.Unpickler):
    """An unpickler that knows only the names in the tables of this module."""

    worker: str | None = None
    enumerations: tuple[_Key, ...] = ()

    def find_class(self, module: str, name: str) -> Any:
        """Return what a name stands for, or refuse it."""
        key = (module, name)
        found = _known.get(key)
        if found is None:
            found = _registered.get(key)
            if key in _members:
                self.enumerations = (*self.enumerations, key)
        if found is None:
            found = _plain(module, name)
            if found is None:
                raise ResultRejectedError(_refusal(module, name, self.worker))
            _known[key] = found
        return found

    def persistent_load(self, _identity: object) -> NoReturn:
        """Refuse references to objects outside the pickle."""
        raise ResultRejectedError(
            f"got a reference to an outside object in a result from {_sender(self.worker)}, expected plain data"
        )

    def check_members(self) -> None:
        """Restore members of enumerations that the pickle tried to change."""
        for key in self.enumerations:
            for member, held in _members[key]:
                if vars(member) != held:
                    vars(member).clear()
                    vars(member).update(held)
                    raise ResultRejectedError(
                        f"got a result from {_sender(self.worker)} that would change {'.'.join(key)} itself"
                    )


class _StandIn(type):
    """The class of stand-ins: called, they make the real thing; nothing can be set on them."""

    make: Callable[..., Any]

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        return cls.make(*arguments, **keywords)

    def __setattr__(cls, name: str, value: object) -> NoReturn:
        raise TypeError("got a result that sets an attribute of a class")

    def __delattr__(cls, name: str) -> NoReturn:
        raise TypeError("got a result that deletes an attribute of a class")

    def __setstate__(cls, state: object) -> NoReturn:
        raise TypeError("got a result that sets the state of a class")


def _stand_in(
    name: str, make: Callable[..., Any], new: Callable[..., Any] | None = None
) -> _StandIn:
    """Return a stand-in; `new` is for pickles that make an object without its constructor."""
    members = {
        "__slots__": (),
        "__new__": lambda _cls, *arguments, **keywords: (new or make)(*arguments, **keywords),
        "make": staticmethod(make),
    }
    return _StandIn(name, (), members)


# `Py_TPFLAGS_IMMUTABLETYPE`: attributes of such a class can't be set, from C nor from Python.
_IMMUTABLE = 1 << 8


def _harmless(kind: type) -> object:
    """Return a class itself if nothing can be set on it, else its stand-in."""
    if kind.__flags__ & _IMMUTABLE:
        return kind
    return _stand_in(
        kind.__qualname__,
        kind,
        lambda *arguments, **keywords: kind.__new__(kind, *arguments, **keywords),
    )


# Classes and constants of the standard library whose constructors do nothing but check and keep their arguments.
_PLAIN = {
    "builtins": {
        "Ellipsis",
        "NotImplemented",
        "bool",
        "complex",
        "dict",
        "float",
        "int",
        "range",
        "slice",
    },
    "datetime": {"date", "datetime", "time", "timedelta", "timezone"},
    "decimal": {"Decimal"},
    "pathlib": {"PosixPath", "PurePath", "PurePosixPath", "PureWindowsPath", "Path"},
    "types": {"SimpleNamespace"},
    "uuid": {"UUID"},
}
# Their home in Python 3.13.
_PLAIN["pathlib._local"] = _PLAIN["pathlib"]
# They may stand as the factory of a defaultdict but not be called by the pickle.
_FACTORIES = {
    "bytearray": bytearray,
    "bytes": bytes,
    "frozenset": frozenset,
    "list": list,
    "set": set,
    "str": str,
    "tuple": tuple,
}


def _plain(module: str, name: str) -> object | None:
    """Return the plain data type of a name, made harmless; None if it isn't one."""
    if module == "builtins" and name in _FACTORIES:
        return _stand_in(name, _not_callable)
    if name in _PLAIN.get(module, ()):
        value: object = getattr(import_module(module), name, None)
        return _harmless(value) if isinstance(value, type) else value
    if module == "builtins":
        # Not those that would end the caller's program, such as SystemExit.
        kind = vars(builtins).get(name)
        return _harmless(kind) if isinstance(kind, type) and issubclass(kind, Exception) else None
    if module == errors.__name__:
        kind = vars(errors).get(name) if name in errors.__all__ else None
        return _harmless(kind) if isinstance(kind, type) else None
    make = _CONSTRUCTORS.get((module, name))
    return _stand_in(name, make) if make is not None else None


def _not_callable(*_arguments: object, **_keywords: object) -> NoReturn:
    raise TypeError("got a result that calls a builtin container type")


def _counter(counts: dict[Any, int] | None = None) -> Any:
    from collections import Counter

    if counts is not None and type(counts) is not dict:
        raise TypeError("got a malformed Counter, expected its counts")
    return Counter(counts)


def _ordered_dict() -> Any:
    from collections import OrderedDict

    return OrderedDict()


def _deque(items: tuple[()] = (), length_max: int | None = None) -> Any:
    from collections import deque

    if items != ():
        raise TypeError("got a malformed deque, expected its items one by one")
    return deque(maxlen=length_max)


def _defaultdict(factory: Any = None) -> Any:
    from collections import defaultdict

    if isinstance(factory, _StandIn):
        factory = next(
            (
                real
                for name, real in _FACTORIES.items()
                if _known.get(("builtins", name)) is factory
            ),
            factory,
        )
    return defaultdict(factory)


def _fraction(numerator: int, denominator: int = 1) -> Any:
    from fractions import Fraction

    # Not from text: "1e999999999" is a number with a thousand million digits.
    if type(numerator) is not int or type(denominator) is not int:
        raise TypeError("got a malformed Fraction, expected two whole numbers")
    return Fraction(numerator, denominator)


_CONSTRUCTORS: dict[_Key, Callable[..., Any]] = {
    ("collections", "Counter"): _counter,
    ("collections", "OrderedDict"): _ordered_dict,
    ("collections", "defaultdict"): _defaultdict,
    ("collections", "deque"): _deque,
    ("fractions", "Fraction"): _fraction,
    (arrays.__name__, "array"): arrays.array,
    (arrays.__name__, "object_array"): arrays.object_array,
    (arrays.__name__, "scalar"): arrays.scalar,
}

# What was looked up before. It grows no further than the tables above: only names in them are kept.
_known: dict[_Key, object] = {}


def _sender(worker: str | None) -> str:
    return f"worker {worker}" if worker else "a worker outside the trusted domains"


def _refusal(module: str, name: str, worker: str | None) -> str:
    """Say what was refused and who can allow it. The name was chosen by a stranger, so it is shown escaped and cut."""
    shown = ascii(f"{module}.{name}"[:120])[1:-1]
    if module.partition(".")[0] == "numpy":
        todo = (
            "return plain arrays and scalars (numpy.asarray), no subclasses, dtypes or generators"
        )
    elif module.partition(".")[0] == "cloudpickle":
        todo = "move the class or function that the result holds from the script into a module beside it, and register it with exoskel.register_result_type"
    elif module == "__main__":
        todo = "move this class into a module beside the script, and register it with exoskel.register_result_type"
    else:
        todo = "register it with exoskel.register_result_type if its instances may be made by a stranger"
    return (
        f"got {shown} in a result from {_sender(worker)}, expected plain data: "
        f'{todo}; or, to trust that machine with this one, set results = "pickle" for its domain in the policy'
    )
