"""The options of managers, executors and workers.

Each is declared once, here: its type, its default, what is accepted and what it means. Signatures, docstrings, the options of
``exoskel worker`` and what slots are started with follow from that. `crates/py/src/options.rs` reads them.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, TypeVar, get_args

if TYPE_CHECKING:
    import argparse

__all__ = [
    "ManagerOptions",
    "NodeOptions",
    "add_arguments",
    "as_command_line",
    "checked",
    "documented",
    "given",
    "of_children",
    "sealed",
]

# Less than this leaves no room for what goes with the items.
MESSAGE_BYTES_MIN = 1 << 18
# No handshake can say more.
MESSAGE_BYTES_MAX = 1 << 48
SECONDS_MAX = 1e9
# The words after which the text of options is put into a docstring.
PLACE_IN_DOCSTRING = "{options}"
LINE_IN_DOCSTRING = 110

_Class = TypeVar("_Class")
_Check = Callable[[str, Any], Any]


class Option:
    """What is known of an option besides its type.

    Parameters
    ----------
    default : object
        Its value where it isn't given.
    check : callable
        Takes its name and what was given (never None where that is the default) and returns its value, or raises `TypeError` or `ValueError`.
    kind : str
        Its type, as docstrings say it.
    text : str
        What it means.
    metavar : str, optional
        What stands for its value in the help of a command; without one it is no option of a command.
    """

    __slots__ = ("check", "default", "kind", "metavar", "text")

    def __init__(
        self, default: Any, check: _Check, kind: str, text: str, metavar: str | None = None
    ) -> None:
        self.default = default
        self.check = check
        self.kind = kind
        self.text = text
        self.metavar = metavar


def _path(name: str, value: Any) -> str:
    try:
        return os.fsdecode(value)
    except TypeError:
        raise TypeError(f"got {name}={value!r}, expected a path") from None


def _readable(name: str, value: Any) -> str:
    path = _path(name, value)
    # Now, with the error that people know, and not as a credential's or a policy's.
    with open(path, "rb"):
        return path


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"got {name}={value!r}, expected text")
    return value


def _anything(_name: str, value: Any) -> Any:
    return value


def _whole(least: int, most: int = 1 << 62) -> _Check:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(
                f"got {name}={value!r}, expected a whole number of at least {least}"
                + (f" and at most {most}" if most < 1 << 62 else "")
            )
        return value

    return check


def _seconds(name: str, value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = 0.0
    if isinstance(value, bool | str | bytes) or not 0 < seconds < SECONDS_MAX:
        raise ValueError(f"got {name}={value!r}, expected seconds above 0")
    return seconds


def _waiting(name: str, value: Any) -> float:
    return 0.0 if value == 0 and not isinstance(value, bool) else _seconds(name, value)


def _one_of(*choices: str) -> _Check:
    def check(name: str, value: Any) -> str:
        if value not in choices:
            *others, last = (f'"{choice}"' for choice in choices)
            expected = f"{', '.join(others)} or {last}"
            raise ValueError(f"{name}: got {_shown(value)}, expected {expected}")
        return str(value)

    return check


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


_Path = str | os.PathLike[str]


class NodeOptions(TypedDict, total=False):
    """What managers, executors and workers are all told."""

    credential: Annotated[
        _Path | None,
        Option(
            None,
            _path,
            "path, optional",
            "Its credential, as `exoskel pki issue` writes one for its role. A manager in a grid may have a proxy, a worker a host "
            "certificate. Needed wherever processes of other machines take part.",
            "FILE",
        ),
    ]
    key: Annotated[
        _Path | None,
        Option(
            None,
            _path,
            "path, optional",
            "The key of a credential that doesn't hold it (``hostkey.pem``), 0600 or 0400.",
            "FILE",
        ),
    ]
    policy: Annotated[
        _Path | None,
        Option(
            None,
            _readable,
            "path, optional",
            "The policy file (TOML). Without one, children of this process talk in plain, everybody else is encrypted. This file, the "
            "credential and the revocation list are taken up when they change, and running sessions are judged by them again.",
            "FILE",
        ),
    ]
    revocation_list: Annotated[
        _Path | None,
        Option(
            None,
            _readable,
            "path, optional",
            "The authority's ``revoked.crl``, where it is newer than what the credential holds.",
            "FILE",
        ),
    ]
    trust_anchors: Annotated[
        _Path | None,
        Option(
            None,
            _path,
            "path, optional",
            "The directory of authorities by which peers are judged in a grid. A manager with a proxy as credential takes "
            "``X509_CERT_DIR``, else ``/etc/grid-security/certificates``, unless it is given; without one the credential's own authority "
            'judges. A worker with one must allow managers in its policy: ``managers = ["/vo/Role=production"]`` in ``[allow]``.',
            "DIR",
        ),
    ]
    vomsdir: Annotated[
        _Path | None,
        Option(
            None,
            _path,
            "path, optional",
            "The directory of the VOMS servers whose attributes count (a manager with a proxy: ``X509_VOMS_DIR``, else "
            "``/etc/grid-security/vomsdir``); without one no attributes do.",
            "DIR",
        ),
    ]
    trust_interval: Annotated[
        int,
        Option(
            60,
            _whole(1),
            "int",
            "How many seconds pass between two looks at these directories; who is revoked is out then.",
            "SECONDS",
        ),
    ]
    dead_after: Annotated[
        float,
        Option(
            5.0,
            _seconds,
            "float",
            "After how many seconds of silence a peer counts as lost.",
            "SECONDS",
        ),
    ]
    key_memory: Annotated[
        Literal["secret", "locked", "ordinary"] | None,
        Option(
            None,
            _one_of("secret", "locked", "ordinary"),
            '{"secret", "locked", "ordinary"}, optional',
            "The memory in which keys wait, here and in child processes: hidden even from the kernel's own map of memory, locked against "
            "swap, or neither. The best there is if not given; `Summary.keys` says which that was. What is asked for and not there is an "
            "error.",
            "{secret,locked,ordinary}",
        ),
    ]
    message_bytes_max: Annotated[
        int,
        Option(
            1 << 30,
            _whole(MESSAGE_BYTES_MIN, MESSAGE_BYTES_MAX),
            "int",
            "The size limit of an item or result with everything that belongs to it, in bytes. Of a manager and a slot, the smaller one "
            "counts.",
            "BYTES",
        ),
    ]


class ManagerOptions(NodeOptions, total=False):
    """What managers and executors are told."""

    workers: Annotated[
        _Path | Iterable[str] | None,
        Option(
            None,
            _anything,
            "path or iterable of str, optional",
            "A file with one ``host:port`` or ``unix:/path`` a line, or such lines: workers that were started with "
            "``exoskel worker --listen``. The name in the worker's certificate follows where it isn't that of the host.",
        ),
    ]
    listen: Annotated[
        str | None,
        Option(
            None,
            _text,
            "str, optional",
            "An address such as ``0.0.0.0:7600`` or ``unix:/path`` at which workers join (``exoskel worker --join``).",
        ),
    ]
    wait: Annotated[
        float,
        Option(30.0, _waiting, "float", "How many seconds to wait for workers to join."),
    ]
    transport: Annotated[
        Literal["socketpair", "tcp"],
        Option(
            "socketpair",
            _one_of("socketpair", "tcp"),
            '{"socketpair", "tcp"}',
            "What carries the messages between the manager and its children; TCP on loopback is meant for measurements and tests.",
        ),
    ]
    protection: Annotated[
        Literal["plain", "integrity", "encrypted"] | None,
        Option(
            None,
            _one_of("plain", "integrity", "encrypted"),
            '{"plain", "integrity", "encrypted"}, optional',
            'The least protection of everything, whatever the policy says. With ``transport="tcp"``, "plain" lets data go in clear.',
        ),
    ]
    retries: Annotated[
        int,
        Option(
            3,
            _whole(1, (1 << 32) - 1),
            "int",
            "How many workers an item may take down, while it runs alone, before it becomes a `WorkerLostError`.",
        ),
    ]
    connect_timeout: Annotated[
        float,
        Option(5.0, _seconds, "float", "How many seconds one attempt to reach a worker may take."),
    ]
    ready_keys: Annotated[
        int,
        Option(
            4096,
            _whole(1),
            "int",
            "How many keys are held expanded for use at most, in ordinary memory (700 bytes each; the default is for a thousand busy "
            "sessions): by all managers of this process together that give the same number. `Summary.keys` says whether they are enough.",
        ),
    ]
    frame_items_max: Annotated[
        int,
        Option(
            4096,
            _whole(1, (1 << 32) - 1),
            "int",
            "How many items may travel together; 1 sends each by itself.",
        ),
    ]
    frame_bytes_max: Annotated[
        int,
        Option(
            1 << 20,
            _whole(1),
            "int",
            "How many bytes of items may travel together, unless a single item has more, or half of ``message_bytes_max`` is less. Smaller "
            "frames spread large items more evenly over slots; larger ones cost less for each item.",
        ),
    ]
    trace: Annotated[
        _Path | None,
        Option(
            None,
            _path,
            "path, optional",
            "A file to which all messages between this manager and its slots are written when it is closed (peer, size and time, no "
            "content), at most 4,194,304 of them: a trace that ``exoskel sim keycache --trace`` reads. Rank 0 is the manager "
            "(``--rank 0``: its cache alone).",
        ),
    ]


def declared(options: type) -> dict[str, Option]:
    """Return the options that a class declares, by name.

    Parameters
    ----------
    options : type
        `NodeOptions` or `ManagerOptions`.

    Returns
    -------
    dict of str to Option
        In the order of their declaration, those of all nodes last.
    """
    annotations = options.__annotations__
    return {
        name: next(part for part in get_args(annotations[name]) if isinstance(part, Option))
        for name in sorted(annotations, key=NodeOptions.__annotations__.__contains__)
    }


def checked(options: type, of: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check options and fill in what isn't given.

    Parameters
    ----------
    options : type
        `NodeOptions` or `ManagerOptions`.
    of : str
        Whose options they are, for messages.
    values : mapping
        What was given.

    Returns
    -------
    mapping
        All of them, read-only: paths are text, numbers are numbers.

    Raises
    ------
    TypeError
        For an option that there isn't, or one of another type.
    ValueError
        For a value that makes no sense.
    OSError
        For a file that can't be read.
    """
    known = declared(options)
    for name in values:
        if name not in known:
            raise TypeError(f"{of} got an unexpected option {name!r}{_similar(name, known)}")
    complete: dict[str, Any] = {}
    for name, option in known.items():
        value = values.get(name, option.default)
        if value is not None or option.default is not None:
            value = option.check(name, value)
        complete[name] = value
    return MappingProxyType(complete)


def _similar(name: str, known: Mapping[str, Option]) -> str:
    import difflib

    close = difflib.get_close_matches(name, known, 1)
    return f"; there is {close[0]!r}" if close else f"; there are {', '.join(known)}"


def documented(options: type) -> Callable[[type[_Class]], type[_Class]]:
    """Make a decorator for classes that take options: their docstring and their signature name each of them.

    Parameters
    ----------
    options : type
        `NodeOptions` or `ManagerOptions`.

    Returns
    -------
    callable
        The decorator; ``{options}`` in the docstring is where they go.
    """

    def decorate(decorated: type[_Class]) -> type[_Class]:
        lines = []
        for name, option in declared(options).items():
            lines.append(f"{name} : {option.kind}")
            lines += [f"    {line}" for line in _wrapped(option.text)]
        text = "\n    ".join(lines)
        decorated.__doc__ = (decorated.__doc__ or "").replace(PLACE_IN_DOCSTRING, text)
        decorated.__signature__ = _Signature(decorated, options)  # type: ignore[attr-defined]
        return decorated

    return decorate


def _wrapped(text: str) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= LINE_IN_DOCSTRING:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


class _Signature:
    """The signature of a class, made when somebody asks: `inspect` takes longer to import than all the rest."""

    def __init__(self, decorated: type, options: type) -> None:
        self._init = decorated.__init__  # type: ignore[misc]
        self._options = options

    def __get__(self, instance: object, owner: type) -> Any:
        if owner.__init__ is not self._init:  # type: ignore[misc]
            raise AttributeError("__signature__")  # of a subclass that takes something else
        from inspect import Parameter, signature

        _, *own = signature(self._init).parameters.values()
        named = [parameter for parameter in own if parameter.kind is not Parameter.VAR_KEYWORD]
        for name, option in declared(self._options).items():
            annotation = get_args(self._options.__annotations__[name])[0]
            named.append(
                Parameter(
                    name, Parameter.KEYWORD_ONLY, default=option.default, annotation=annotation
                )
            )
        return signature(self._init).replace(parameters=named)


def add_arguments(parser: "argparse.ArgumentParser", options: type) -> None:
    """Let a command take options.

    Parameters
    ----------
    parser : argparse.ArgumentParser
        The command's.
    options : type
        `NodeOptions` or `ManagerOptions`.
    """
    from argparse import ArgumentTypeError

    def reading(name: str, option: Option) -> Callable[[str], Any]:
        def read(text: str) -> Any:
            # Whether files are there is looked at later, with an error of its own.
            if option.check in (_path, _readable):
                return text
            try:
                return option.check(name, _number(option, text))
            except ValueError as error:
                raise ArgumentTypeError(str(error).removeprefix(f"{name}: ")) from None

        return read

    for name, option in declared(options).items():
        if option.metavar is None:
            continue
        word = f"--{name.replace('_', '-')}"
        default = "" if option.default is None else f" (default: {option.default})"
        text = option.text.replace("``", "").replace("`", "").replace("%", "%%")
        parser.add_argument(
            word,
            metavar=option.metavar,
            type=reading(word, option),
            default=option.default,
            help=text[0].lower() + text[1:].removesuffix(".") + default,
        )


def _number(option: Option, text: str) -> Any:
    """Return a word of a command line as the number that an option wants, if it is one."""
    try:
        return type(option.default)(text) if isinstance(option.default, int | float) else text
    except ValueError:
        return text


def given(options: type, arguments: "argparse.Namespace") -> dict[str, Any]:
    """Return the options among the arguments of a command.

    Parameters
    ----------
    options : type
        `NodeOptions` or `ManagerOptions`.
    arguments : argparse.Namespace
        Of a parser that `add_arguments` has seen.

    Returns
    -------
    dict of str to object
        What was given, with absolute paths, for `checked`.
    """
    found = {}
    for name, option in declared(options).items():
        value = getattr(arguments, name, None)
        if value is not None and option.check in (_path, _readable):
            value = os.path.abspath(value)
        if value is not None and value != option.default:
            found[name] = value
    return found


def as_command_line(values: Mapping[str, Any]) -> list[str]:
    """Return the words that give options to a command.

    Parameters
    ----------
    values : mapping
        As `given` returns them.

    Returns
    -------
    list of str
        ``--name`` and value in turn.
    """
    return [
        word
        for name, value in values.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


def of_children(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options of a manager that its children have as well: not what they get from it in another way.

    Parameters
    ----------
    values : mapping
        Checked options.

    Returns
    -------
    dict of str to object
        Checked options of a slot.
    """
    inherited = ("dead_after", "key_memory", "message_bytes_max")
    own = {name: values[name] for name in inherited}
    return {**checked(NodeOptions, "a slot", {}), **own}


def sealed(contents: bytes) -> int:
    """Put what a child is told into memory that nobody can change any more.

    Parameters
    ----------
    contents : bytes
        What.

    Returns
    -------
    int
        A descriptor; it is closed in children unless they are given it.

    Raises
    ------
    OSError
        If the kernel has no such memory for us.
    """
    import fcntl

    descriptor = os.memfd_create("exoskel-options", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(descriptor, contents)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor
