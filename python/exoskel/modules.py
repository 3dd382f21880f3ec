"""The user's own modules travel with the functions that need them.

Functions of a script's neighbours (``import filters`` beside ``job.py``) are pickled by name, and a worker on another machine has
no such file. So the manager collects the source text of these modules, named by SHA-256, and a worker serves them to ``import``.
Installed packages don't travel: what a worker lacks of those is named, per worker, before work starts.
"""

import ast
import contextlib
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import linecache
import os
import pickle
import pickletools
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from .errors import ProgramError

__all__ = [
    "ModuleSource",
    "collect",
    "collect_named",
    "install",
    "lacking",
    "missing",
    "names_of_code",
    "requirements",
    "travelling",
]

# A function, or the pickle of one that was made before.
Named = Callable[..., Any] | bytes | bytearray | memoryview

# All sources of a program together; they are held in memory at both ends.
SOURCE_BYTES_MAX = 16 * 1024 * 1024

# What travels only because it is loaded: with it, the sources fit into the smallest message that a worker may be told to take.
LOADED_BYTES_MAX = 128 * 1024


class ModuleSource(NamedTuple):
    """The source text of one module."""

    name: str
    """Its dotted name."""
    digest: str
    """The SHA-256 of the source, in hexadecimal."""
    source: bytes
    """The source text as it is in the file; empty for a package without ``__init__.py``."""
    is_package: bool
    """Whether it has submodules."""
    filename: str
    """Where it is at the manager, for tracebacks."""


def collect(functions: Iterable[Named]) -> dict[str, ModuleSource]:
    """Return the sources of the modules beside the user's script that functions need.

    Parameters
    ----------
    functions : iterable of callable or bytes
        The functions, or their pickles.

    Returns
    -------
    dict
        The sources by module name, parents before children.

    Raises
    ------
    ProgramError
        If they are larger than 16 MiB together, or one can't be read.
    """
    return collect_named(_names(functions))


def collect_named(names: Iterable[str]) -> dict[str, ModuleSource]:
    """Return the sources of those modules that are beside the user's script, with what they import of these; see `collect`.

    Parameters
    ----------
    names : iterable of str
        Modules, by their dotted names.
    """
    root = _root()
    wanted = [parent for name in names for parent in _with_parents(name)]
    found: dict[str, ModuleSource] = {}
    bytes_total = 0
    while wanted:
        name = wanted.pop()
        location = None if name in found else _file_of(name, root)
        if location is None:
            continue
        found[name] = _source(name, *location)
        source, is_package = found[name].source, found[name].is_package
        bytes_total += len(source)
        if bytes_total > SOURCE_BYTES_MAX:
            raise ProgramError(
                f"got more than {SOURCE_BYTES_MAX} bytes of modules beside the script (the last was {name}), "
                "expected a few source files; install large packages at the workers instead"
            )
        for imported in _imports(source, name, is_package):
            wanted += _with_parents(imported)
    return dict(sorted(found.items()))


def travelling(functions: Iterable[Named]) -> dict[str, ModuleSource]:
    """Return the sources that `collect` finds, and those of the modules beside the script that are loaded.

    Items, and calls that come later, may need any of these. As many travel as make up 128 KiB with what the functions need, the
    smallest first; what can't be read stays here.

    Parameters
    ----------
    functions : iterable of callable or bytes
        The functions, or their pickles.

    Returns
    -------
    dict
        The sources by module name, parents before children.

    Raises
    ------
    ProgramError
        If what the functions need is larger, or can't be read.
    """
    root = _root()
    found = collect(functions)
    left = LOADED_BYTES_MAX - sum(len(module.source) for module in found.values())
    loaded = []
    for name in set(sys.modules) - set(found):
        if name.partition(".")[0] in sys.stdlib_module_names:
            continue
        location = _file_of(name, root)
        with contextlib.suppress(ProgramError):
            if location is not None:
                loaded.append(_source(name, *location))
    for module in sorted(loaded, key=lambda module: (len(module.source), module.name)):
        left -= len(module.source)
        if left < 0:
            break
        found[module.name] = module
    return dict(sorted(found.items()))


def requirements(functions: Iterable[Named]) -> list[str]:
    """Return the installed packages without which functions can't be loaded: a worker without them is of no use.

    These are the modules that their pickles name, and those that modules beside the script import whenever they are imported
    themselves. An import inside a function or a branch, or one whose failure is caught, may never be needed.

    Parameters
    ----------
    functions : iterable of callable or bytes
        The functions, or their pickles.

    Returns
    -------
    list of str
        Top-level module names, sorted; neither the standard library nor modules that travel.
    """
    functions = list(functions)
    root = _root()
    names: set[str] = set()
    for function in functions:
        if isinstance(function, (bytes, bytearray, memoryview)):
            names |= set(_names_of_pickle(bytes(function)))
        else:
            names |= set(_names_of_pickle(_pickled(function)))
    for module in collect(functions).values():
        # Not all of them may be needed (a module of a package that nobody imports), so only what is loaded here counts.
        names |= {
            name
            for name in _imports(module.source, module.name, module.is_package, _always)
            if name in sys.modules
        }
    tops = {name.partition(".")[0] for name in names}
    tops -= sys.stdlib_module_names | {"__main__", "__mp_main__", "exoskel", "cloudpickle", ""}
    return sorted(top for top in tops if _file_of(top, root) is None and _is_installed(top))


def missing(names: Iterable[str]) -> list[str]:
    """Return those of some top-level modules that this process could not import; nothing is imported."""
    return [name for name in names if not _is_installed(name)]


def lacking(error: ImportError, worker: str) -> str:
    """Say which module a worker lacks, and what to do about it.

    Parameters
    ----------
    error : ImportError
        What the import raised there.
    worker : str
        The name of the worker.

    Returns
    -------
    str
        The text.
    """
    name = error.name or str(error)
    return f"worker {worker} can't import {name}: {error}; install it there, or, if it is a module of yours, put it beside the script"


def install(sources: Iterable[ModuleSource | Sequence[Any]]) -> None:
    """Serve the sources of a manager to ``import`` in this process.

    When a source has changed, the modules that were loaded are dropped, so that the next import takes the new one.

    Parameters
    ----------
    sources : iterable of ModuleSource
        As `collect` returned them.

    Raises
    ------
    ProgramError
        If a source is not what its digest says.
    """
    changed = False
    for fields in sources:
        source = ModuleSource(*fields)
        if hashlib.sha256(source.source).hexdigest() != source.digest:
            raise ProgramError(
                f"got a source of module {source.name} that doesn't match its digest"
            )
        if source.name.partition(".")[0] == "exoskel":
            raise ProgramError(f"got a source for {source.name}, expected modules of the user only")
        known = _finder.sources.get(source.name)
        changed = changed or (known is not None and known.digest != source.digest)
        _finder.sources[source.name] = source
        if source.source:
            # Without a time: such an entry is never compared with a file of this machine.
            text = importlib.util.decode_source(source.source)
            linecache.cache[source.filename] = (
                len(text),
                None,
                text.splitlines(keepends=True),
                source.filename,
            )
    if changed:
        # All of them: those that didn't change may hold names imported from one that did.
        for name in _finder.sources:
            sys.modules.pop(name, None)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _SourceFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds and loads the modules that a manager sent, and no others."""

    def __init__(self) -> None:
        self.sources: dict[str, ModuleSource] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        source = self.sources.get(name)
        if source is None:
            return None
        spec = importlib.machinery.ModuleSpec(
            name, self, origin=source.filename, is_package=source.is_package
        )
        spec.has_location = True
        return spec

    def is_package(self, name: str) -> bool:
        return self._source(name).is_package

    def get_source(self, name: str) -> str:
        return importlib.util.decode_source(self._source(name).source)

    def get_code(self, name: str) -> CodeType:
        source = self._source(name)
        code: CodeType = self.source_to_code(source.source, source.filename)
        return code

    def _source(self, name: str) -> ModuleSource:
        source = self.sources.get(name)
        if source is None:
            raise ImportError(f"got no source of module {name} from the manager", name=name)
        return source


_finder = _SourceFinder()


def _source(name: str, filename: str, is_package: bool) -> ModuleSource:
    # A package without __init__.py is its directory.
    source = _read(filename, name) if filename.endswith(".py") else b""
    return ModuleSource(name, hashlib.sha256(source).hexdigest(), source, is_package, filename)


def _root() -> str:
    """Return the directory beside which modules travel: that of the script, or the working directory."""
    main = sys.modules.get("__main__")
    filename = getattr(main, "__file__", None)
    if filename is None:
        return os.path.realpath(os.getcwd())
    root = os.path.dirname(os.path.realpath(filename))
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        # `python -m package.job`: the neighbours are those of the package.
        for _ in range(spec.name.count(".")):
            root = os.path.dirname(root)
    # A runner such as pytest is no script of the user's.
    return os.path.realpath(os.getcwd()) if _is_of_python(root) else root


def _file_of(name: str, root: str) -> tuple[str, bool] | None:
    """Return the file of a module that travels and whether it is a package; None for one that doesn't."""
    top = name.partition(".")[0]
    if top in ("exoskel", "__main__", "__mp_main__", "") or top in sys.builtin_module_names:
        return None
    module = sys.modules.get(name)
    if module is not None:
        filename = getattr(module, "__file__", None)
        if filename is None:
            # A package without __init__.py travels if it lies in the root.
            paths = [os.path.realpath(path) for path in getattr(module, "__path__", ())]
            return next(((path, True) for path in paths if _travels(path, root)), None)
        filename = os.path.realpath(filename)
        return (
            (filename, hasattr(module, "__path__"))
            if filename.endswith(".py") and _travels(filename, root)
            else None
        )
    # Not loaded here: an import inside a function that hasn't run.
    parent, _, last = name.rpartition(".")
    if not parent:
        return _find_top(name, root)
    place = _file_of(parent, root)
    if place is None or not place[1]:
        return None
    directory = os.path.dirname(place[0]) if place[0].endswith(".py") else place[0]
    base = os.path.join(directory, last)
    candidates = ((os.path.join(base, "__init__.py"), True), (f"{base}.py", False))
    return next((found for found in candidates if os.path.isfile(found[0])), None)


def _find_top(name: str, root: str) -> tuple[str, bool] | None:
    """Ask the import system for a top-level module that isn't loaded; this runs none of its code."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    is_package = spec.submodule_search_locations is not None
    filename = spec.origin or next(iter(spec.submodule_search_locations or ()), None)
    if filename is None or not (filename.endswith(".py") or os.path.isdir(filename)):
        return None
    filename = os.path.realpath(filename)
    return (filename, is_package) if _travels(filename, root) else None


def _travels(filename: str, root: str) -> bool:
    return filename.startswith(root.rstrip(os.sep) + os.sep) and not _is_of_python(filename)


@cache
def _homes_of_python() -> tuple[str, ...]:
    homes = {
        sysconfig.get_path(kind)
        for kind in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    }
    homes |= {*site.getsitepackages(), site.getusersitepackages()}
    if sys.prefix != sys.base_prefix:
        homes.add(sys.prefix)
    return tuple(os.path.realpath(home) + os.sep for home in homes if home)


def _is_of_python(path: str) -> bool:
    """Say whether a file belongs to an installation: the standard library, installed packages, a virtual environment."""
    parts = path.split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    return (path + os.sep).startswith(_homes_of_python())


def _is_installed(name: str) -> bool:
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _read(filename: str, name: str) -> bytes:
    try:
        with open(filename, "rb") as file:
            return file.read()
    except OSError as error:
        raise ProgramError(
            f"can't read the source of module {name}, which the program needs at the workers: {error}"
        ) from error


def _imports(
    source: bytes,
    name: str,
    is_package: bool,
    nodes: Callable[[ast.AST], Iterator[ast.AST]] = ast.walk,
) -> set[str]:
    """Return every module that a source may import, inside functions too; more names than needed do no harm.

    `nodes` says where to look for imports.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        # Loaded in spite of that, so the file was changed since; the worker will say where it is wrong.
        return set()
    package = name if is_package else name.rpartition(".")[0]
    found: set[str] = set()
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                kept = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*kept, *filter(None, [base])])
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    found.discard("")
    return found


def _always(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements that run whenever the module is imported."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if isinstance(node, (ast.ClassDef, ast.With)):
            yield from _always(node)


def _names(functions: Iterable[Named]) -> set[str]:
    """Return the modules that functions name: in their pickles, and in imports inside their code."""
    names: set[str] = set()
    for function in functions:
        if isinstance(function, (bytes, bytearray, memoryview)):
            names |= set(_names_of_pickle(bytes(function)))
            names |= _strings_that_travel(bytes(function))
            continue
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            names |= set(names_of_code(code))
        names |= set(_names_of_pickle(_pickled(function)))
    return names


def _strings_that_travel(pickled: bytes) -> set[str]:
    """Return the words in a pickle that are modules beside the script.

    The imports inside a function that was pickled by value are words among others; one module too many does no harm.
    """
    root = _root()
    words = {
        argument
        for _, argument, _ in pickletools.genops(pickled)
        if isinstance(argument, str)
        and len(argument) < 256
        and argument.replace(".", "_").isidentifier()
    }
    return {
        word for word in words if _lies_in(root, word.partition(".")[0]) and _file_of(word, root)
    }


def _lies_in(root: str, top: str) -> bool:
    return os.path.exists(os.path.join(root, f"{top}.py")) or os.path.isdir(os.path.join(root, top))


def _with_parents(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]


def _pickled(function: Callable[..., Any]) -> bytes:
    import cloudpickle

    try:
        pickled: bytes = cloudpickle.dumps(function)
    except (TypeError, AttributeError, ValueError, pickle.PicklingError, RecursionError) as error:
        shown = getattr(function, "__qualname__", None) or repr(function)
        raise ProgramError(
            f"can't pickle the function {shown}: {error}; make what it refers to inside the function"
        ) from error
    return pickled


def names_of_code(code: CodeType) -> Iterator[str]:
    """Yield what the imports inside a function name, modules and what they have."""
    import dis

    base = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            base = instruction.argval
            yield base
        elif instruction.opname == "IMPORT_FROM":
            yield f"{base}.{instruction.argval}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_of_code(constant)


def _names_of_pickle(pickled: bytes) -> Iterator[str]:
    """Yield the modules that a pickle names: of its globals, and those that cloudpickle imports."""
    memo: dict[int, object] = {}
    pushed: list[object] = ["", ""]
    for opcode, argument, _ in pickletools.genops(pickled):
        match opcode.name:
            case "SHORT_BINUNICODE" | "BINUNICODE" | "BINUNICODE8" | "UNICODE":
                if pushed[-1] == _IMPORTER:
                    yield str(argument)
                pushed.append(argument)
            case "GET" | "BINGET" | "LONG_BINGET":
                value = memo.get(int(argument))  # type: ignore[arg-type]  # an index, by the opcode
                if pushed[-1] == _IMPORTER and isinstance(value, str):
                    yield value
                pushed.append(value)
            case "MEMOIZE":
                memo[len(memo)] = pushed[-1]
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[int(argument)] = pushed[-1]  # type: ignore[arg-type]  # an index, by the opcode
            case "GLOBAL":
                module, _, name = str(argument).partition(" ")
                yield module
                pushed.append((module, name))
            case "STACK_GLOBAL":
                yield str(pushed[-2])
                pushed.append((pushed[-2], pushed[-1]))
            case _:
                if opcode.stack_after:
                    pushed.append(None)
        del pushed[:-2]


# How cloudpickle writes a module that a function refers to: its name follows.
_IMPORTER = ("cloudpickle.cloudpickle", "subimport")
