"""The options of managers, executors and workers.

Each is declared once, here: its type, its default, what is accepted and what it means. Signatures, docstrings, the options of
``exoskel worker`` and what slots are started with follow from that. `crates/py/src/options.rs` reads them.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, TypeVar, get_args

if TYPE_CHECKING:
    import argparse

    from .launchers import Launcher
    from .sandbox import Sandbox
    from .status import Status

__all__ = [
    "DISCOVER",
    "PROOFS",
    "LinkOptions",
    "ManagerOptions",
    "NodeOptions",
    "WorkerOptions",
    "add_arguments",
    "as_command_line",
    "checked",
    "documented",
    "given",
    "of_children",
    "of_items",
    "sealed",
    "some_checked",
    "without_discover",
]

# Less than this leaves no room for what goes with the items.
MESSAGE_BYTES_MIN = 1 << 18
# No handshake can say more.
MESSAGE_BYTES_MAX = 1 << 48
SECONDS_MAX = 1e9
TIMES_MAX = 1e6
# The words after which the text of options is put into a docstring.
PLACE_IN_DOCSTRING = "{options}"
LINE_IN_DOCSTRING = 110

# What a node proves itself by, and judges others by besides its policy.
PROOFS = ("credential", "key", "revocation_list", "trust_anchors", "vomsdir")

# In the place of a file of workers, or among the lines of a list: those that announce themselves. A file of this name is "./discover".
DISCOVER = "discover"

# How the number of slots is said, and what it is called elsewhere.
_COUNTS = {"Manager": "ParDegree(N)", "Executor": "max_workers=N", "Pool": "processes=N"}
_COUNTS_ELSEWHERE = (
    "max_workers",
    "n_jobs",
    "n_processes",
    "n_workers",
    "num_processes",
    "num_workers",
    "processes",
    "slots",
)

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


def _lines(name: str, value: Any) -> Any:
    if isinstance(value, str | os.PathLike):
        return value
    if hasattr(value, "__iter__"):
        return list(value)
    counts = ", ".join(
        f"{count} of {'an' if of[0] in 'AEIOU' else 'a'} {of}" for of, count in _COUNTS.items()
    )
    raise TypeError(
        f'got {name}={value!r}, expected a file or a list of lines, such as ["lab1:7601"]; how many slots there are is said by {counts}'
    )


def _function(name: str, value: Any) -> Any:
    if not callable(value):
        raise TypeError(f"got {name}={value!r}, expected a function")
    return value


def checked_launcher(name: str, value: Any) -> Any:
    # A class has it as well, though nothing that it launches.
    if isinstance(value, type) or not callable(getattr(value, "launch", None)):
        raise TypeError(
            f'got {name}={value!r}, expected a launcher, such as exoskel.Ssh(["lab1", "lab2"])'
        )
    return value


def _sandbox(name: str, value: Any) -> Any:
    from .sandbox import Sandbox

    if not isinstance(value, Sandbox):
        raise TypeError(f"got {name}={value!r}, expected an exoskel.Sandbox")
    return value


def _arguments(name: str, value: Any) -> tuple[Any, ...]:
    try:
        return tuple(value)
    except TypeError:
        raise TypeError(f"got {name}={value!r}, expected a tuple of arguments") from None


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


def _times(name: str, value: Any) -> float:
    try:
        times = float(value)
    except (TypeError, ValueError, OverflowError):
        times = 0.0
    if isinstance(value, bool | str | bytes) or not 1 < times < TIMES_MAX:
        raise ValueError(
            f"got {name}={value!r}, expected a number above 1: how many times the usual time is too long"
        )
    return times


def _waiting(name: str, value: Any) -> float:
    return 0.0 if value == 0 and not isinstance(value, bool) else _seconds(name, value)


def _exceptions(name: str, value: Any) -> tuple[type[BaseException], ...]:
    classes = value if isinstance(value, tuple) else (value,)
    for kind in classes:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise TypeError(
                f"got {name}={value!r}, expected a class of exceptions or a tuple of them, such as (OSError, TimeoutError)"
            )
    return classes


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
            "A credential file, as `exoskel pki issue` writes it for this role. In a grid, a manager may have a proxy and a worker "
            "a host certificate. Needed as soon as other machines take part.",
            "FILE",
        ),
    ]
    key: Annotated[
        _Path | None,
        Option(
            None,
            _path,
            "path, optional",
            "The private key, if the credential doesn't hold it (``hostkey.pem``). Its mode is 0600 or 0400.",
            "FILE",
        ),
    ]
    policy: Annotated[
        _Path | None,
        Option(
            None,
            _readable,
            "path, optional",
            "The policy file (TOML). Without a policy, bulk data of children of this process travel in clear, and everything else "
            "is encrypted. Changes of this file, of the credential and of the revocation list are taken up at once, for running "
            "sessions too.",
            "FILE",
        ),
    ]
    revocation_list: Annotated[
        _Path | None,
        Option(
            None,
            _readable,
            "path, optional",
            "The authority's ``revoked.crl``, if it is newer than the list in the credential.",
            "FILE",
        ),
    ]
    trust_anchors: Annotated[
        _Path | None,
        Option(
            None,
            _path,
            "path, optional",
            "The directory of a grid's authorities, by which peers are judged. A manager with a proxy takes ``X509_CERT_DIR``, else "
            "``/etc/grid-security/certificates``. Without a directory, the credential's own authority judges. With a directory, a "
            'worker\'s policy must allow managers: ``managers = ["/vo/Role=production"]`` in ``[allow]``.',
            "DIR",
        ),
    ]
    vomsdir: Annotated[
        _Path | None,
        Option(
            None,
            _path,
            "path, optional",
            "The directory of the VOMS servers whose attributes count. A manager with a proxy takes ``X509_VOMS_DIR``, else "
            "``/etc/grid-security/vomsdir``. Without a directory, no attributes count.",
            "DIR",
        ),
    ]
    trust_interval: Annotated[
        int,
        Option(
            60,
            _whole(1),
            "int",
            "How many seconds pass before these directories are read again. A peer that was revoked is out by then.",
            "SECONDS",
        ),
    ]
    key_memory: Annotated[
        Literal["secret", "locked", "ordinary"] | None,
        Option(
            None,
            _one_of("secret", "locked", "ordinary"),
            '{"secret", "locked", "ordinary"}, optional',
            "The memory for keys, here and in child processes. ``secret`` memory is hidden even from the kernel's own map, "
            "``locked`` memory is never swapped out. The default is the best kind that the kernel gives; `Summary.keys` names it. "
            "It is an error if the kernel doesn't give the kind that you name.",
            "{secret,locked,ordinary}",
        ),
    ]
    message_bytes_max: Annotated[
        int,
        Option(
            1 << 30,
            _whole(MESSAGE_BYTES_MIN, MESSAGE_BYTES_MAX),
            "int",
            "The largest item or result, in bytes, with everything that belongs to it. Of a manager and a slot, the smaller limit "
            "counts.",
            "BYTES",
        ),
    ]

    inner_threads: Annotated[
        int | None,
        Option(
            None,
            _whole(0),
            "int, optional",
            "How many threads each library inside a slot may start (BLAS, OpenMP, Numba). If not given, the slot's share of the cores, unless "
            "variables such as ``OMP_NUM_THREADS`` are set. 0 sets no limit. A manager's number is for its children; a worker has a number of its own.",
            "THREADS",
        ),
    ]


class LinkOptions(NodeOptions, total=False):
    """What nodes of a program's own links are told."""

    dead_after: Annotated[
        float,
        Option(
            10.0,
            _seconds,
            "float",
            "After how many seconds of silence a peer counts as gone. Both sides say one; the smaller one holds.",
        ),
    ]


class WorkerOptions(NodeOptions, total=False):
    """What workers are told."""

    dead_after: Annotated[
        float,
        Option(
            60.0,
            _seconds,
            "float",
            "For how many seconds of silence a slot keeps its manager at most. The smaller value of manager and worker counts.",
            "SECONDS",
        ),
    ]


class ManagerOptions(NodeOptions, total=False):
    """What managers and executors are told."""

    dead_after: Annotated[
        float,
        Option(
            5.0,
            _seconds,
            "float",
            "After how many seconds of silence a slot and its manager give each other up. The smaller value of manager and worker "
            "counts (``exoskel worker --dead-after``: 60 unless given).",
        ),
    ]
    patience: Annotated[
        float,
        Option(
            60.0,
            _seconds,
            "float",
            "How many seconds a run that has no slot left waits for one, before it ends with `NoWorkerError`. As long as one slot "
            "works, all other workers are tried for ever.",
        ),
    ]

    workers: Annotated[
        _Path | Iterable[str] | None,
        Option(
            None,
            _lines,
            'path, iterable of str, or "discover", optional',
            "A file with one worker a line, ``host:port NAME`` or ``unix:/path NAME``, or an iterable of such lines. ``NAME`` is "
            "the name in the worker's certificate; it may be left out if it is that of the host. The port may be left out if it is 7601. "
            "What follows as ``key=value`` is for ``exoskel up``. The workers were started with ``exoskel worker --listen``. "
            '"discover" (a file of that name is "./discover"): workers of this network that announce themselves '
            "(``exoskel worker --announce``), if the ``[discover]`` of the policy allows their names. They tell of others that they hear on "
            'their own networks. In an iterable, "discover" stands beside other lines.',
        ),
    ]
    listen: Annotated[
        str | None,
        Option(
            None,
            _text,
            "str, optional",
            "The address at which workers join (``exoskel worker --join``), such as ``0.0.0.0:7600`` or ``unix:/path``.",
        ),
    ]
    launch: Annotated[
        "Launcher | None",
        Option(
            None,
            checked_launcher,
            "Local, Ssh or another launcher, optional",
            "Starts the slots, on hosts where nothing has been prepared: `Ssh` needs nothing there but Exoskel. They are processes of a job of "
            "the manager's own (`Job`), so they need no credential, and their tasks can talk to each other (`exoskel.links.here`).",
        ),
    ]
    min: Annotated[
        int | None,
        Option(
            None,
            _whole(1),
            "int, optional",
            "With how many hosts launched slots begin, if others can't be reached; one, if not given. The log names hosts that can't be reached.",
        ),
    ]
    sandbox: Annotated[
        "Sandbox | None",
        Option(
            None,
            _sandbox,
            "Sandbox, optional",
            "What slots that are launched may use of their hosts: files, network, memory. They are held to it before they run a function.",
        ),
    ]
    handler_threads: Annotated[
        int,
        Option(
            1,
            _whole(1, 256),
            "int",
            "How many calls of its siblings each slot that is launched handles at the same time. A handler that waits for what another one does "
            "needs more than one.",
        ),
    ]
    on_capacity: Annotated[
        Callable[["Status"], object] | None,
        Option(
            None,
            _function,
            "callable, optional",
            "A function that is called with a `Status` whenever slots come or are lost, from the first ones on. It runs in a thread "
            "of its own that holds no lock, so it may use the manager. Changes in quick succession are told once. An exception in "
            "it is logged as a warning.",
        ),
    ]
    wait: Annotated[
        float,
        Option(
            30.0,
            _waiting,
            "float",
            "How many seconds to wait for slots at the start. With ``workers``, the wait ends when one slot works and every worker "
            "has been tried. With ``listen``, it ends when all slots are there.",
        ),
    ]
    transport: Annotated[
        Literal["socketpair", "tcp", "shared memory"],
        Option(
            "socketpair",
            _one_of("socketpair", "tcp", "shared memory"),
            '{"socketpair", "tcp", "shared memory"}',
            "What carries the messages between the manager and its children. Workers that the manager reaches over a Unix socket "
            'share memory with it, too, if this is "shared memory". TCP on loopback is meant for measurements and tests.',
        ),
    ]
    protection: Annotated[
        Literal["plain", "integrity", "encrypted"] | None,
        Option(
            None,
            _one_of("plain", "integrity", "encrypted"),
            '{"plain", "integrity", "encrypted"}, optional',
            'The least protection of every wire, whatever the policy says. With ``transport="tcp"``, "plain" lets data travel in '
            "clear.",
        ),
    ]
    retries: Annotated[
        int,
        Option(
            3,
            # What the driver counts of an item.
            _whole(1, 255),
            "int",
            "How many slots an item may take down while it runs alone, before its outcome is a `WorkerLostError`. With "
            "``retries_on``: how often an item runs at most.",
        ),
    ]
    timeout: Annotated[
        float | None,
        Option(
            None,
            _seconds,
            "float, optional",
            "How many seconds an item or a call may run on a slot. The time for which it waits or its functions are loaded doesn't "
            "count. Then an `ItemTimeoutError` is raised in its function. If the function goes on for one more second (a tenth of "
            "``timeout`` if that is longer), its slot ends. Either way the outcome is an `ItemTimeoutError`, and no other item is "
            "charged.",
        ),
    ]
    retries_on: Annotated[
        type[Exception] | tuple[type[Exception], ...] | None,
        Option(
            None,
            _exceptions,
            "class of exceptions or tuple of them, optional",
            "Exceptions after which an item runs again, on another slot if there is one. It runs ``retries`` times at most. The "
            "last exception is its outcome.",
        ),
    ]
    stragglers: Annotated[
        float | None,
        Option(
            None,
            _times,
            "float, optional",
            "An item that runs for more than this many times the usual time of its stage is given to an idle slot as well. Busy slots "
            "get it after twice that time. It must run for more than 0.1 seconds. The first result counts. The other slot ends the item: an `ItemTimeoutError` "
            "is raised in its function, and a function that goes on for one more second ends its slot. For functions without effects; a good number "
            "is 2. Stages outside a farm and reductions have no second copies.",
        ),
    ]
    connect_timeout: Annotated[
        float,
        Option(
            5.0,
            _seconds,
            "float",
            "How many seconds one attempt to reach a worker may take. A slot of this machine has more time while it imports what it needs.",
        ),
    ]
    ready_keys: Annotated[
        int,
        Option(
            4096,
            _whole(1),
            "int",
            "How many keys are held expanded for use at most. Each takes 700 bytes of ordinary memory; the default is for a thousand busy sessions. "
            "All managers of this process that give the same number share these keys. `Summary.keys` says whether they are enough.",
        ),
    ]
    frame_items_max: Annotated[
        int,
        Option(
            4096,
            _whole(1, (1 << 32) - 1),
            "int",
            "How many items travel together at most; 1 sends each item by itself.",
        ),
    ]
    frame_bytes_max: Annotated[
        int,
        Option(
            1 << 20,
            _whole(1),
            "int",
            "How many bytes of items travel together at most, unless a single item has more, or half of ``message_bytes_max`` is "
            "less. Smaller frames spread large items more evenly over slots; larger frames cost less for each item.",
        ),
    ]
    initializer: Annotated[
        Callable[..., object] | None,
        Option(
            None,
            _function,
            "callable, optional",
            "A function that runs once in each slot, before its first item. A slot in which it raises gets no items. When no slot "
            "is left, the run ends with an `InitializerError` that names the exception.",
        ),
    ]
    initargs: Annotated[
        Iterable[Any],
        Option((), _arguments, "tuple", "The arguments of the initializer."),
    ]
    trace: Annotated[
        _Path | None,
        Option(
            None,
            _path,
            "path, optional",
            "A file for a trace of all messages between this manager and its slots: peer, size and time, no content, at most 4,194,304 "
            "messages. It is written when the manager is closed, and ``exoskel sim keycache --trace`` reads it. Rank 0 is the manager "
            "(``--rank 0``: its cache alone).",
        ),
    ]


def declared(options: type) -> dict[str, Option]:
    """Return the options that a class declares, by name.

    Parameters
    ----------
    options : type
        `WorkerOptions` or `ManagerOptions`.

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
        `WorkerOptions` or `ManagerOptions`.
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
    refuse_unknown(options, of, values)
    known = declared(options)
    complete: dict[str, Any] = {}
    for name, option in known.items():
        value = values.get(name, option.default)
        if value is not None or option.default is not None:
            value = option.check(name, value)
        complete[name] = value
    return MappingProxyType(complete)


def refuse_unknown(options: type, of: str, values: Iterable[str], own: Iterable[str] = ()) -> None:
    """Refuse options that there aren't.

    Parameters
    ----------
    options : type
        `WorkerOptions` or `ManagerOptions`.
    of : str
        Whose options they are, for messages.
    values : iterable of str
        The names of those that were given.
    own : iterable of str
        Other parameters, which somebody may have meant.

    Raises
    ------
    TypeError
        For an option that there isn't. The text says what there is.
    """
    known = declared(options)
    for name in values:
        if name in known:
            continue
        if name in _COUNTS_ELSEWHERE and of in _COUNTS:
            hint = f"; the number of slots is {_COUNTS[of]}"
        else:
            hint = _similar(name, [*own, *known])
        raise TypeError(f"{of} got an unexpected option {name!r}{hint}")


def some_checked(options: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Check what is given anew in the place of options.

    Parameters
    ----------
    options : type
        `NodeOptions` or `ManagerOptions`.
    values : mapping
        Some of them.

    Returns
    -------
    dict of str to object
        These, checked.

    Raises
    ------
    TypeError, ValueError
        As `checked` does.
    """
    known = declared(options)
    return {name: known[name].check(name, value) for name, value in values.items()}


def _similar(name: str, known: Sequence[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, known, 1)
    return f"; there is {close[0]!r}" if close else f"; there are {', '.join(known)}"


def documented(options: type) -> Callable[[type[_Class]], type[_Class]]:
    """Make a decorator for classes that take options: their docstring and their signature name each of them.

    Parameters
    ----------
    options : type
        `WorkerOptions` or `ManagerOptions`.

    Returns
    -------
    callable
        The decorator; ``{options}`` in the docstring is where they go.
    """

    def decorate(decorated: type[_Class]) -> type[_Class]:
        lines = []
        for name, option in _besides(decorated.__init__, options).items():
            lines.append(f"{name} : {option.kind}")
            lines += [f"    {line}" for line in _wrapped(option.text)]
        text = "\n    ".join(lines)
        decorated.__doc__ = (decorated.__doc__ or "").replace(PLACE_IN_DOCSTRING, text)
        decorated.__signature__ = _Signature(decorated, options)  # type: ignore[attr-defined]
        return decorated

    return decorate


def _besides(init: Any, options: type) -> dict[str, Option]:
    """Return the options that have no parameter of their own, as those have that stand at another place elsewhere."""
    code = init.__code__
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {name: option for name, option in declared(options).items() if name not in own}


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
        for name, option in _besides(self._init, self._options).items():
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
        `WorkerOptions` or `ManagerOptions`.
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
        if option.kind == "int, optional":
            return int(text)
        return type(option.default)(text) if isinstance(option.default, int | float) else text
    except ValueError:
        return text


def given(options: type, arguments: "argparse.Namespace") -> dict[str, Any]:
    """Return the options among the arguments of a command.

    Parameters
    ----------
    options : type
        `WorkerOptions` or `ManagerOptions`.
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


def of_items(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is expected of each item, as a driver takes it.

    Parameters
    ----------
    values : mapping
        Checked options, or what takes their place.

    Returns
    -------
    dict of str to object
        The seconds for which an item may run, and the pickle of the exceptions for which it runs again.

    Raises
    ------
    ProgramError
        If one of these can't be pickled.
    """
    from .manager import pickled

    classes = values["retries_on"]
    return {
        "timeout": values["timeout"],
        "retries_on": None if classes is None else pickled(classes),
    }


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
    inherited = ("dead_after", "inner_threads", "key_memory", "message_bytes_max")
    own = {name: values[name] for name in inherited}
    return {**checked(WorkerOptions, "a slot", {}), **own}


def without_discover(
    workers: "str | os.PathLike[str] | Sequence[str] | None",
) -> "tuple[str | os.PathLike[str] | Sequence[str] | None, bool]":
    """Tell workers that are listed from the wish to find others.

    Parameters
    ----------
    workers : path or sequence of str, optional
        As users say it.

    Returns
    -------
    tuple
        The file or the list without that wish, none if nothing is left; and whether there was one.
    """
    if workers is None or isinstance(workers, (str, os.PathLike)):
        return (None, True) if workers == DISCOVER else (workers, False)
    listed = [line for line in workers if line != DISCOVER]
    return (listed or None, True) if len(listed) < len(workers) else (workers, False)


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
