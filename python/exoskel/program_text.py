"""What a program is, as a text that changes when it does: names of functions, and digests of their source and of the values that they use.

Pickles won't do: two pickles of the same function may differ, and those of a changed function in a module don't.
"""

import copyreg
import functools
import hashlib
import inspect
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from .modules import collect
from .script import NAMES

__all__ = ["program_text"]

# So many objects of a script are looked through.
OBJECTS_MAX = 100_000
# So many global variables have a digest of their own, so that an error can name them.
NAMED_MAX = 1_000
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
# So deep. What is deeper can hardly be pickled either.
DEPTH_MAX = 100
# Generators of random numbers: whoever uses one wants another number each time.
_RANDOM_MODULES = ("random.", "_random.", "numpy.random.")
# The last one refers to what it holds weakly.
_SETS = (set, frozenset, weakref.WeakSet)
# As in `<function f at 0x7f4d2c1b9d00>`: it is another one in each process.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def program_text(shown: str, functions: Iterable[Callable[..., Any]], pickles: list[bytes]) -> str:
    """Say what a program is.

    Of a function of the script, its source text counts and that of all functions and classes of the script that it uses, with the
    values of its global variables. Of a function of a module beside the script, the module's source text counts, and that of
    the modules that it imports from there. Of installed packages, only names count. Of values that can't be pickled, and of generators of
    random numbers, only the type counts.

    Parameters
    ----------
    shown : str
        The program as it is shown.
    functions : iterable of callable
        Its functions.
    pickles : list of bytes
        Their pickles.

    Returns
    -------
    str
        One line.
    """
    parts = [_ADDRESS.sub("", shown)]
    variables: dict[str, str] = {}
    for function in functions:
        digest = hashlib.sha256()
        _Definitions(digest, variables).add(function)
        parts.append(f"{_name(function)} {digest.hexdigest()[:16]}")
    parts += [f"{name} {digest}" for name, digest in sorted(variables.items())]
    parts += [f"{source.name} {source.digest[:16]}" for source in collect(pickles).values()]
    return ", ".join(dict.fromkeys(parts))


def _name(value: Any) -> str:
    # Whatever an object says of itself, with a `__getattr__` of its own, is no name.
    named = value if isinstance(value, _NAMED) else type(value)
    return f"{named.__module__}.{named.__qualname__}"


class _Definitions:
    """The definitions that something of a script refers to, and the values that these use, each once.

    Parameters
    ----------
    digest : hash
        What they are written to.
    variables : dict
        Gets the digests of global variables.
    around : _Definitions or None
        Those that this is a part of, if it has a digest of its own.
    """

    def __init__(
        self, digest: Any, variables: dict[str, str], around: "_Definitions | None" = None
    ) -> None:
        self._digest = digest
        self._variables = variables
        self._around = around
        self._depth: int = 0 if around is None else around._depth
        self._seen: dict[int, Any] = {}

    def add(self, value: Any) -> None:
        """Add a value and what it refers to."""
        if isinstance(value, int) and not isinstance(value, bool):
            # As many digits as it has: as a decimal it may have too many.
            self._write(f"{type(value).__qualname__} {hex(int(value))}")
        elif isinstance(value, _PLAIN):
            self._write(repr(value))
        elif isinstance(value, types.ModuleType):
            self._write(value.__name__)
        elif self._depth < DEPTH_MAX and self._is_new(value):
            self._depth += 1
            self._add_new(value)
            self._depth -= 1
        else:
            self._write("known, or too much of it")

    def _add_new(self, value: Any) -> None:
        if type(value) in (tuple, list):
            self._write(f"{type(value).__name__} of {len(value)}")
            self._add_all(value)
        elif type(value) is dict:
            self._write(f"dict of {len(value)}")
            self._add_all(value.keys())
            self._add_all(value.values())
        elif isinstance(value, _SETS):
            # Texts have another order in each process.
            self.add(type(value))
            for digest in sorted(map(self._digest_of, value)):
                self._write(digest)
            self.add(
                getattr(value, "__dict__", None) if isinstance(value, (set, frozenset)) else None
            )
        else:
            self._add_definition(value)

    def _digest_of(self, value: Any) -> str:
        digest = hashlib.sha256()
        _Definitions(digest, self._variables, self).add(value)
        return digest.hexdigest()[:16]

    def _add_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.add(value)

    def _is_new(self, value: Any) -> bool:
        if len(self._seen) >= OBJECTS_MAX:
            return False
        place: _Definitions | None = self
        while place is not None:
            if id(value) in place._seen:
                return False
            place = place._around
        # Kept, so that no other object gets the same number.
        self._seen[id(value)] = value
        return True

    def _add_definition(self, value: Any) -> None:
        self._write(_name(value))
        if isinstance(value, types.MethodType):
            self._add_all((value.__func__, value.__self__))
        elif isinstance(value, types.FunctionType):
            if _is_of_script(value):
                self._add_function(value)
        elif isinstance(value, type):
            if _is_of_script(value):
                self._add_class(value)
        elif isinstance(value, types.BuiltinFunctionType):
            # Of which module it is, or the method of which object.
            self.add(value.__self__)
        elif isinstance(value, functools.partial):
            self._add_all((value.func, value.args, value.keywords))
        elif isinstance(value, functools._lru_cache_wrapper):
            self.add(value.__wrapped__)
        else:
            self.add(type(value))
            self._add_contents(value)

    def _add_contents(self, value: Any) -> None:
        """Add what an object holds: what its pickle would."""
        modules = (kind.__module__ for kind in type(value).__mro__)
        if any(f"{module}.".startswith(_RANDOM_MODULES) for module in modules):
            return
        numpy = sys.modules.get("numpy")
        arrays = () if numpy is None else (numpy.ndarray, numpy.memmap)
        if numpy is not None and type(value) in arrays and not value.dtype.hasobject:
            self._add_array(value)
            return
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
            if isinstance(reduced, str):
                reduced = (reduced,)
            parts: list[Any] = list(reduced[:3])
            # What it holds, if it is a list or a dict of another class: iterators.
            parts += [None if items is None else list(items) for items in reduced[3:5]]
        except Exception:
            # Locks and open files, say, and what holds them.
            parts = [getattr(value, "__dict__", None)]
        self._add_all(parts)

    def _add_array(self, array: Any) -> None:
        """Add the elements of an array, without what stands between them."""
        self._write(f"{array.dtype.str} {array.shape}")
        if array.dtype.names is not None:
            for name in array.dtype.names:
                self._write(name)
                self._add_array(array[name])
        elif array.dtype.char in "gG":  # with more bytes than bits
            self._write(" ".join(map(repr, array.ravel())))
        else:
            self._digest.update(array.tobytes())

    def _add_function(self, function: types.FunctionType) -> None:
        self._write(_source(function, function.__code__))
        if function.__name__ == "<lambda>":
            # There may be two in a line.
            self._write(_compiled(function.__code__))
        self._add_all((function.__defaults__, function.__kwdefaults__, function.__dict__))
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:
                self._write("an empty cell")
        for name in sorted(set(_names(function.__code__))):
            if name in function.__globals__:
                self._write(name)
                self._add_variable(f"{function.__module__}.{name}", function.__globals__[name])

    def _add_variable(self, name: str, value: Any) -> None:
        """Add what a global variable holds, under its name if it is no definition."""
        is_definition = isinstance(value, (type, types.FunctionType, types.ModuleType))
        if name in self._variables:
            return
        if is_definition or len(self._variables) >= NAMED_MAX:
            self.add(value)
            return
        # There already when the value leads back to it.
        self._variables[name] = ""
        self._variables[name] = self._digest_of(value)

    def _add_class(self, kind: type) -> None:
        self._write(_source(kind, None))
        self._add_all(kind.__bases__)
        for member in vars(kind).values():
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(function, types.FunctionType):
                self.add(function)

    def _write(self, text: str) -> None:
        data = text.encode(errors="surrogatepass")
        self._digest.update(len(data).to_bytes(8, "little") + data)


def _is_of_script(value: Any) -> bool:
    return (
        value.__module__ in NAMES
        or "<locals>" in value.__qualname__
        or "<lambda>" in value.__qualname__
    )


def _source(value: Any, code: types.CodeType | None) -> str:
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        # Typed at a prompt, say: what it was compiled to.
        return "" if code is None else _compiled(code)


def _compiled(code: types.CodeType) -> str:
    return f"{code.co_code.hex()} {code.co_names} {list(map(_constant, code.co_consts))}"


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _compiled(value)
    if isinstance(value, frozenset):
        return f"frozenset {sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"tuple {list(map(_constant, value))}"
    return repr(value)


def _names(code: types.CodeType) -> Iterable[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
