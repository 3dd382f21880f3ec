"""What a program is, as a text that changes when it does: names of functions, and digests of their source and of the values that they use.

Pickles won't do: two pickles of the same function may differ, and those of a changed function in a module don't.
"""

import copyreg
import dis
import functools
import hashlib
import inspect
import marshal
import os
import sys
import types
import weakref
from collections.abc import Callable, ItemsView, Iterable, KeysView, ValuesView
from typing import Any

from .modules import collect
from .script import NAMES
from .skeletons import Structure

__all__ = ["global_names", "program_text"]

# So many objects of a value are looked through, of an element of a set so many, and so many global variables.
OBJECTS_MAX = 1_000_000
ELEMENT_OBJECTS_MAX = 1_000
VARIABLES_MAX = 10_000

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_DEFINITIONS = (type, types.FunctionType, types.ModuleType)
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
# The last one refers to what it holds weakly.
_SETS = (set, frozenset, weakref.WeakSet)
_VIEWS = (KeysView, ValuesView, ItemsView)
# Generators of random numbers: whoever uses one wants another number each time.
_RANDOM_MODULES = ("random.", "_random.", "numpy.random.")
# What every class has, or Python keeps for itself.
_OF_CLASSES = {
    "__annotations__",
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__module__",
    "__slotnames__",
    "__static_attributes__",
    "__weakref__",
    "_abc_impl",
}


def program_text(
    structure: Structure, functions: Iterable[Callable[..., Any]], pickles: list[bytes]
) -> str:
    """Say what a program is.

    Of a function of the script, its source text counts and that of all functions and classes of the script that it uses, with the
    values of its global variables. Of a function of a module beside the script, the module's source text counts, and that of
    the modules that it imports from there. Of installed packages, only names count. Of values that can't be pickled, and of generators of
    random numbers, only the type counts.

    Parameters
    ----------
    structure : tuple
        The program, as `flatten` has it.
    functions : iterable of callable
        Its functions.
    pickles : list of bytes
        Their pickles.

    Returns
    -------
    str
        One line.
    """
    variables = _Variables()
    parts = [_structure_text(structure)]
    parts += [f"{_name(function)} {variables.digest(function)}" for function in functions]
    parts += [f"{name} {digest}" for name, digest in sorted(variables.digests().items())]
    parts += [f"{source.name} {source.digest[:16]}" for source in collect(pickles).values()]
    return ", ".join(dict.fromkeys(parts))


def _structure_text(structure: Any) -> str:
    if isinstance(structure, tuple):
        return f"({' '.join(map(_structure_text, structure))})"
    return str(structure)


def _name(value: Any) -> str:
    # Whatever an object says of itself, with a `__getattr__` of its own, is no name.
    named = value if isinstance(value, _NAMED) else type(value)
    return f"{named.__module__}.{named.__qualname__}"


class _Variables:
    """The global variables that functions of a script use: each has a digest of its own, so that an error can name it."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}
        # By identity, with what they are of: to look one up takes as long as the file is.
        self._sources: dict[int, tuple[str, Any]] = {}

    def add(self, name: str, value: Any) -> None:
        """Add a variable, if it isn't known. Another namespace may have one of the same name."""
        while name in self._found and self._found[name] is not value:
            name += "'"
        if len(self._found) < VARIABLES_MAX:
            self._found[name] = value

    def source(self, value: Any) -> str:
        """Return the source text of a class, or of the code of a function."""
        if id(value) not in self._sources:
            self._sources[id(value)] = (_source(value), value)
        return self._sources[id(value)][0]

    def digest(self, value: Any) -> str:
        """Return the digest of a value, and add the variables that it uses."""
        walk = _Walk(self, OBJECTS_MAX)
        walk.add(value)
        return walk.hexdigest()

    def digests(self) -> dict[str, str]:
        """Return the digest of each variable, those included that they use."""
        found: dict[str, str] = {}
        while len(found) < len(self._found):
            for name, value in list(self._found.items()):
                if name not in found:
                    found[name] = self.digest(value)
        return found


class _Walk:
    """A walk through all that a value refers to, each object once and in an order that is the same in all processes.

    Parameters
    ----------
    variables : _Variables or None
        Gets the global variables. None: of functions and classes, only names count, and sets aren't opened.
    objects_max : int
        So many objects are looked through.
    """

    def __init__(self, variables: _Variables | None, objects_max: int) -> None:
        self._digest = hashlib.sha256()
        self._variables = variables
        self._objects_max = objects_max
        # By identity: its number, and the object, so that no other one gets the same identity.
        self._seen: dict[int, tuple[int, Any]] = {}
        # Functions and classes of which only the names were written.
        self.definitions: dict[str, Any] = {}
        self._left: list[Any] = []

    def hexdigest(self) -> str:
        """Return the digest of what was added."""
        return self._digest.hexdigest()[:16]

    def add(self, value: Any) -> None:
        """Add a value, and all that it refers to."""
        self._left.append(value)
        while self._left:
            value = self._left.pop()
            if type(value) in _PLAIN:
                self._add_plain(value)
            elif isinstance(value, types.ModuleType):
                self._write(value.__name__)
            elif (known := self._seen.get(id(value))) is not None:
                self._write(f"object {known[0]}")
            elif len(self._seen) >= self._objects_max:
                self._write("one of too many")
            else:
                self._seen[id(value)] = (len(self._seen), value)
                self._add_new(value)

    def _follow(self, values: Iterable[Any]) -> None:
        """Have these values come next, in this order."""
        self._left.extend(reversed(list(values)))

    def _add_plain(self, value: Any) -> None:
        kind = type(value)
        if kind is bytes:
            self._write("bytes")
            self._write_data(value)
        elif kind is str:
            self._write("str")
            self._write(value)
        else:
            # As a decimal an integer may have too many digits.
            self._write(hex(value) if kind is int else repr(value))

    def _add_new(self, value: Any) -> None:
        kind = type(value)
        if kind in (list, tuple) or isinstance(value, _VIEWS):
            self._write(f"{kind.__name__} of {len(value)}")
            self._add_listed(list(value))
        elif kind is dict or kind is types.MappingProxyType:
            self._write(f"{kind.__name__} of {len(value)}")
            self._follow([list(value.keys()), list(value.values())])
        elif isinstance(value, _SETS):
            self._add_set(value)
        elif kind in (bytearray, memoryview):
            self._write(kind.__name__)
            self._write_data(bytes(value) if kind is memoryview else value)
        elif isinstance(value, types.CodeType):
            self._write(_compiled(value))
        elif isinstance(value, (type, types.FunctionType)):
            self._add_definition(value)
        elif isinstance(value, types.MethodType):
            self._follow([value.__func__, value.__self__])
        elif isinstance(value, types.BuiltinFunctionType):
            # Of which module it is, or the method of which object.
            self._write(_name(value))
            self._follow([value.__self__])
        elif isinstance(value, property):
            self._follow([value.fget, value.fset, value.fdel])
        elif isinstance(value, (classmethod, staticmethod, functools._lru_cache_wrapper)):
            self._write(_name(value))
            self._follow([value.__wrapped__])
        elif isinstance(value, functools.cached_property):
            self._follow([value.func])
        else:
            self._add_object(value)

    def _add_listed(self, values: list[Any]) -> None:
        if set(map(type, values)).issubset(_PLAIN):
            # The first version writes what is equal equally.
            self._write_data(marshal.dumps(values, 0))
        else:
            self._follow(values)

    def _add_set(self, value: Any) -> None:
        """Add a set, whose order is another one in each process."""
        values = list(value)
        self._write(f"a set of {len(values)}")
        follow: list[Any] = [type(value)]
        if isinstance(value, (set, frozenset)):
            follow.append(getattr(value, "__dict__", None))
        kinds = set(map(type, values))
        if len(kinds) == 1 and kinds.issubset((int, str, bytes)):
            self._write_data(marshal.dumps(sorted(values), 0))
        elif self._variables is not None:
            digests = []
            definitions: dict[str, Any] = {}
            for element in values:
                walk = _Walk(None, ELEMENT_OBJECTS_MAX)
                walk.add(element)
                digests.append(walk.hexdigest())
                definitions.update(walk.definitions)
            self._write(" ".join(sorted(digests)))
            follow += [definition for _, definition in sorted(definitions.items())]
        self._follow(follow)

    def _add_definition(self, value: Any) -> None:
        self._write(_name(value))
        if not _is_of_script(value):
            return
        if self._variables is None:
            self.definitions[_name(value)] = value
        elif isinstance(value, type):
            self._add_class(value)
        else:
            self._add_function(value)

    def _add_object(self, value: Any) -> None:
        """Add what an object holds: what its pickle would."""
        kind = type(value)
        self._write(_name(value))
        modules = (one.__module__ for one in kind.__mro__)
        if any(f"{module}.".startswith(_RANDOM_MODULES) for module in modules):
            return
        if value is os.environ:
            return
        numpy = sys.modules.get("numpy")
        arrays = () if numpy is None else (numpy.ndarray, numpy.memmap)
        if kind in arrays and not value.dtype.hasobject:
            self._add_array(value)
            return
        try:
            reduce = copyreg.dispatch_table.get(kind)
            reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
            if isinstance(reduced, str):
                reduced = (reduced,)
            parts = list(reduced[:3])
            # What it holds, if it is a list or a dict of another class: iterators.
            parts += [None if items is None else list(items) for items in reduced[3:5]]
        except Exception:
            # Locks and open files, say, and what holds them.
            parts = [getattr(value, "__dict__", None)]
        self._follow([kind, *parts])

    def _add_array(self, array: Any) -> None:
        """Add the elements of an array, without what stands between them."""
        self._write(f"{array.dtype.str} {array.shape}")
        if array.dtype.names is not None:
            for name in array.dtype.names:
                self._write(name)
                self._add_array(array[name])
        elif array.dtype.char in "gG":  # with more bytes than bits
            self._write(" ".join(map(repr, array.ravel())))
        elif array.dtype.kind in "biufc" and array.flags.c_contiguous:
            self._write_data(array.reshape(-1).data)
        else:
            self._write_data(array.tobytes())

    def _add_function(self, function: types.FunctionType) -> None:
        # Not that of the function, which may say that it is another one's: `functools.wraps` makes it do so.
        code = function.__code__
        variables = self._variables
        if variables is None:
            return
        self._write(variables.source(code))
        if function.__name__ == "<lambda>":
            # There may be two in a line.
            self._write(_compiled(code))
        follow: list[Any] = [function.__defaults__, function.__kwdefaults__, function.__dict__]
        for cell in function.__closure__ or ():
            try:
                follow.append(cell.cell_contents)
            except ValueError:
                follow.append("an empty cell")
        for name in sorted(set(global_names(code))):
            # The likes of `__file__` say nothing of what it does.
            if name not in function.__globals__ or (name.startswith("__") and name.endswith("__")):
                continue
            value = function.__globals__[name]
            self._write(name)
            # The command line has the place of the script, too.
            if isinstance(value, _DEFINITIONS):
                follow.append(value)
            elif value is not sys.argv:
                variables.add(f"{function.__module__}.{name}", value)
        self._follow(follow)

    def _add_class(self, kind: type) -> None:
        if self._variables is not None:
            self._write(self._variables.source(kind))
        own = [(name, value) for name, value in vars(kind).items() if name not in _OF_CLASSES]
        for name, _ in own:
            self._write(name)
        self._follow([type(kind), *kind.__bases__, *(value for _, value in own)])

    def _write(self, text: str) -> None:
        self._write_data(text.encode(errors="surrogatepass"))

    def _write_data(self, data: Any) -> None:
        view = memoryview(data)
        self._digest.update(view.nbytes.to_bytes(8, "little"))
        self._digest.update(view)


def _is_of_script(value: Any) -> bool:
    return (
        value.__module__ in NAMES
        or "<locals>" in value.__qualname__
        or "<lambda>" in value.__qualname__
    )


def _source(value: Any) -> str:
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        # Typed at a prompt, say: what it was compiled to.
        return _compiled(value) if isinstance(value, types.CodeType) else ""


def _compiled(code: types.CodeType) -> str:
    return f"{code.co_code.hex()} {code.co_names} {list(map(_constant, code.co_consts))}"


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _compiled(value)
    if isinstance(value, frozenset):
        return f"frozenset {sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"tuple {list(map(_constant, value))}"
    return hex(value) if type(value) is int else repr(value)


def global_names(code: types.CodeType) -> Iterable[str]:
    """Iterate over the names of global variables that code uses, with those of the functions in it.

    Parameters
    ----------
    code : code
        The code of a function.

    Yields
    ------
    str
        The names, some of them several times.
    """
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from global_names(constant)
