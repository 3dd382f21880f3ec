"""What a program is, as a text that changes when it does: names of functions, and digests of their source.

Pickles won't do: two pickles of the same function may differ, and those of a changed function in a module don't.
"""

import hashlib
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any

from .modules import collect
from .script import NAMES

__all__ = ["program_text"]

# So many functions and classes of a script are looked through.
DEFINITIONS_MAX = 10_000
_PLAIN = (int, float, complex, str, bytes, bool, type(None))


def program_text(shown: str, functions: Iterable[Callable[..., Any]], pickles: list[bytes]) -> str:
    """Say what a program is.

    Of a function of the script, its source text counts and that of all functions and classes of the script that it uses, with the
    numbers and texts among its globals. Of a function of a module beside the script, the module's source text counts, and that of
    the modules that it imports from there. Of installed packages, only names count.

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
    parts = [shown]
    for function in functions:
        digest = hashlib.sha256()
        _Definitions(digest).add(function)
        parts.append(f"{_name(function)} {digest.hexdigest()[:16]}")
    parts += [f"{source.name} {source.digest[:16]}" for source in collect(pickles).values()]
    return ", ".join(dict.fromkeys(parts))


def _name(value: Any) -> str:
    name = getattr(value, "__qualname__", type(value).__qualname__)
    return f"{getattr(value, '__module__', '')}.{name}"


class _Definitions:
    """The definitions that something of a script refers to, each once."""

    def __init__(self, digest: Any) -> None:
        self._digest = digest
        self._seen: dict[int, Any] = {}

    def add(self, value: Any) -> None:
        """Add a value and what it refers to."""
        if isinstance(value, _PLAIN):
            self._write(repr(value))
        elif isinstance(value, types.ModuleType):
            self._write(value.__name__)
        elif isinstance(value, (tuple, list)):
            self._write(f"{type(value).__name__} of {len(value)}")
            self._add_all(value)
        elif isinstance(value, dict):
            self._write(f"dict of {len(value)}")
            self._add_all(value.keys())
            self._add_all(value.values())
        elif self._is_new(value):
            self._add_definition(value)

    def _add_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.add(value)

    def _is_new(self, value: Any) -> bool:
        # Kept, so that no other object gets the same number.
        if id(value) in self._seen or len(self._seen) >= DEFINITIONS_MAX:
            return False
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
            return
        elif hasattr(value, "func") and hasattr(value, "keywords"):  # functools.partial
            self._add_all((value.func, value.args, value.keywords))
        else:
            # An object: what it is counts, and what it holds if that is plain.
            self.add(type(value))
            self.add(getattr(value, "__dict__", None))

    def _add_function(self, function: types.FunctionType) -> None:
        self._write(_source(function, function.__code__))
        self._add_all((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:
                self._write("an empty cell")
        for name in sorted(set(_names(function.__code__))):
            if name in function.__globals__:
                self._write(name)
                self.add(function.__globals__[name])

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
    inner = [
        _compiled(part) if isinstance(part, types.CodeType) else repr(part)
        for part in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {inner}"


def _names(code: types.CodeType) -> Iterable[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
