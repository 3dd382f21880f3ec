"""What is shown of a value in a note: short, soon written, and without running anything of the value's own."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType
from typing import Any

__all__ = ["describe_subject", "name_of", "short_text"]

CHARACTERS_MAX = 120
# Of a text, so many characters at each end are looked at; of a container, so many elements; so deep.
TEXT_CHARACTERS_MAX = 60
ELEMENTS_MAX = 4
DEPTH_MAX = 3
# An integer of more bits takes long to write.
BITS_MAX = 200

# Types of the standard library whose own text is short.
_PLAIN = {
    ("builtins", "bool"),
    ("builtins", "NoneType"),
    ("builtins", "ellipsis"),
    ("builtins", "float"),
    ("builtins", "complex"),
    ("datetime", "date"),
    ("datetime", "datetime"),
    ("datetime", "time"),
    ("datetime", "timedelta"),
    ("uuid", "UUID"),
}
_BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
}
_NAMED = {type, FunctionType, BuiltinFunctionType}
# Packages whose values have a shape, which costs nothing to ask for.
_SHAPED = {"jax", "jaxlib", "numpy", "pandas", "polars", "scipy", "torch", "xarray"}


def describe_subject(kind: str, value: Any, function: Callable[..., Any] | None) -> str:
    """Return what a note says of an item or a call.

    Parameters
    ----------
    kind : str
        ``"item"``, ``"argument"`` of a later function, ``"call"``, or ``"result"``.
    value : object
        That item, argument or result; of a call the positional arguments and those by name.
    function : callable or None
        The later function, or the one that is called.

    Returns
    -------
    str
        One line. That of an item has no index yet.
    """
    match kind:
        case "argument":
            return f"item, in {name_of(function)}: {short_text(value)}"
        case "call":
            return f"call: {_of_call(function, *value)}"
        case "result":
            return f"item, its result: {short_text(value)}"
        case _:
            return f"item: {short_text(value)}"


def _of_call(function: Any, positional: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    if function is operator.call:
        # A function that travels with its arguments.
        function, *positional = positional  # type: ignore[assignment]
    shown = [short_text(argument) for argument in _first(positional)]
    named = _first(keywords.items())
    shown += [f"{name}={short_text(argument)}" for name, argument in named]
    count = max(len(positional), len(keywords))
    return _cut(f"{name_of(function)}({_joined(shown, count)})")


def short_text(value: Any) -> str:
    """Show a value on one line of at most 120 characters.

    Only types of the standard library are asked for their text. Of others the class is shown, and the fields of data classes and
    named tuples.

    Parameters
    ----------
    value : object
        Any value.

    Returns
    -------
    str
        The text.
    """
    try:
        text = _text(value, 0)
    except Exception:
        text = _of_class(value)
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= CHARACTERS_MAX else f"{text[: CHARACTERS_MAX - 3]}..."


def _text(value: Any, depth: int) -> str:
    kind = type(value)
    if kind is int:
        bits = value.bit_length()
        return repr(value) if bits <= BITS_MAX else f"<int of {bits} bits>"
    if kind in (str, bytes):
        cut: str | bytes = value[:TEXT_CHARACTERS_MAX]
        return repr(cut) if len(cut) == len(value) else f"{cut!r}..."
    if (kind.__module__, kind.__qualname__) in _PLAIN:
        return repr(value)
    if kind is dict:
        pairs = (
            f"{_nested(key, depth)}: {_nested(entry, depth)}"
            for key, entry in _first(value.items())
        )
        return f"{{{_joined(pairs, len(value))}}}"
    if kind in _BRACKETS:
        opening, closing = _BRACKETS[kind]
        inner = _joined((_nested(element, depth) for element in _first(value)), len(value))
        return f"{opening}{inner}{',' if kind is tuple and len(value) == 1 else ''}{closing}"
    return _text_of_instance(value, kind, depth)


def _text_of_instance(value: Any, kind: type, depth: int) -> str:
    import enum
    import pathlib

    if isinstance(value, enum.Enum):
        return f"{kind.__qualname__}.{value._name_}"
    if issubclass(kind, pathlib.PurePath) and kind.__module__.startswith("pathlib"):
        return f"{kind.__name__}({_text(str(value), depth)})"
    package = kind.__module__.partition(".")[0]
    if package in _SHAPED:
        shape, content = getattr(value, "shape", None), getattr(value, "dtype", None)
        if package == "numpy" and shape == ():
            return f"{kind.__name__}({_text(value.item(), depth)})"
        described = " ".join(str(part) for part in (content, shape) if part is not None)
        return f"<{kind.__name__}{' ' if described else ''}{described}>"
    if issubclass(kind, tuple) and type(getattr(kind, "_fields", None)) is tuple:
        names, fields = kind._fields, tuple.__iter__(value)  # type: ignore[attr-defined]  # a named tuple
        return _of_fields(kind, zip(names, fields, strict=False), len(names), depth)
    declared = kind.__dict__.get("__dataclass_fields__")
    if declared is not None:
        return _of_fields(kind, _held(value, kind, declared), len(declared), depth)
    return name_of(value) if kind in _NAMED else _of_class(value)


def _held(value: Any, kind: type, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a data class that lie in its instance or in its slots, so that no property runs."""
    instance = getattr(kind, "__dictoffset__", 0) and object.__getattribute__(value, "__dict__")
    for name in names:
        slot = kind.__dict__.get(name)
        if instance and name in instance:
            yield name, instance[name]
        elif isinstance(slot, MemberDescriptorType):
            yield name, slot.__get__(value)


def _of_fields(kind: type, fields: Iterable[tuple[str, Any]], count: int, depth: int) -> str:
    shown = (f"{name}={_nested(field, depth)}" for name, field in _first(fields))
    return f"{kind.__qualname__}({_joined(shown, count)})"


def _nested(value: Any, depth: int) -> str:
    return "..." if depth >= DEPTH_MAX else _text(value, depth + 1)


def _first(values: Iterable[Any]) -> list[Any]:
    from itertools import islice

    return list(islice(values, ELEMENTS_MAX))


def _joined(texts: Iterable[str], count: int) -> str:
    return ", ".join([*texts, *(["..."] if count > ELEMENTS_MAX else [])])


def _of_class(value: Any) -> str:
    return f"<{type(value).__qualname__} object>"


def name_of(function: Any) -> str:
    """Return the name of a function, or of what is behind a partial one.

    Parameters
    ----------
    function : callable
        The function.

    Returns
    -------
    str
        Its name, or that of its class if it has none.
    """
    try:
        name = getattr(function, "__name__", None)
        if type(name) is not str:
            name = getattr(getattr(function, "func", None), "__name__", None)
    except Exception:
        # A `__getattr__` of its class may raise anything.
        name = None
    return name if type(name) is str else type(function).__name__
