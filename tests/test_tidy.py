"""The house rules that no compiler checks: arrows between crates, file sizes, names, links and commands in documents."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINES_MAX = 1000
# Names that say nothing about what is inside.
EMPTY_NAMES = {"common", "helper", "helpers", "misc", "shared", "tools", "util", "utils"}

# Who may know whom: the layers of ARCHITECTURE.md. Everything that is not named here is forbidden.
ARROWS = {
    "identity": set(),
    "confinement": set(),
    "data": set(),
    "journal": set(),
    "link": {"identity"},
    "flow": set(),
    "redist": set(),
    "trust": {"identity"},
    "service": {"identity", "trust"},
    # Its tests play random programs.
    "task": {"flow", "meaning"},
    "meaning": {"flow", "task"},
    "transfer": {"redist"},
    "member": {"redist", "transfer"},
    "trace": set(),
    "determinism": set(),
    "node": {"determinism", "identity", "link", "flow", "task"},
    "net": {
        "identity",
        "trust",
        "link",
        "flow",
        "task",
        "redist",
        "transfer",
        "member",
        "node",
    },
    "sim": {
        "determinism",
        "identity",
        "journal",
        "link",
        "flow",
        "meaning",
        "task",
        "node",
    },
    "keycache": {"determinism", "link", "trace"},
    "keycache-live": {"keycache", "link", "trace"},
    # Its tests start a keeper; the library itself has neither tokio nor TLS.
    "c": {"redist", "transfer", "member", "net"},
    "py": {
        "confinement",
        "data",
        "redist",
        "transfer",
        "member",
        "net",
        # The machines of jobs, whose drivers are Python.
        "node",
        "sim",
        "keycache",
        "keycache-live",
        "trace",
        "service",
        "trust",
        "identity",
        "journal",
        "link",
        "flow",
    },
}
# Crates without input and output fence themselves in with a clippy.toml of their own.
SANS_IO = {
    "data",
    "identity",
    "journal",
    "link",
    "flow",
    "redist",
    "task",
    "transfer",
    "node",
    "trace",
    "determinism",
    "keycache",
    "sim",
}
FENCED = (
    "std::time::Instant::now",
    "std::time::SystemTime::now",
    "std::thread::spawn",
    "std::env::var",
)
# `py` speaks to the interpreter. `net` has a file for locked memory, one that is told of forks, and one for memory that another
# process writes to.
UNSAFE_ALLOWED = {"c", "py"}
UNSAFE_FILES = {
    "crates/net/src/key_memory.rs",
    "crates/net/src/leaving.rs",
    "crates/net/src/fork.rs",
    "crates/net/src/ring/memory.rs",
    "crates/member/src/memory.rs",
    "crates/member/src/streaming.rs",
}
GLOSSARY = ROOT / "docs" / "glossary.md"
SHARED_NAMES_MAX = 25


def repository_files(*endings: str) -> Iterator[Path]:
    """Files that belong to the repository: what is built or installed beside them does not."""
    skipped = {
        ".git",
        ".venv",
        ".venv-peers",
        "target",
        "dist",
        "results",
        "output",
        "node_modules",
    }
    for directory, folders, names in os.walk(ROOT):
        folders[:] = [
            f
            for f in folders
            if f not in skipped and not f.startswith((".mypy", ".ruff", ".pytest"))
        ]
        for name in names:
            if name.endswith(endings):
                yield Path(directory) / name


def relative(path: Path) -> str:
    """For messages."""
    return str(path.relative_to(ROOT))


def crates() -> list[Path]:
    """Folders of the workspace's crates."""
    return sorted(path.parent for path in ROOT.glob("crates/*/Cargo.toml"))


@pytest.mark.parametrize("crate", crates(), ids=lambda path: path.name)
def test_crates_know_only_the_layers_below_them(crate: Path) -> None:
    manifest = tomllib.loads((crate / "Cargo.toml").read_text())
    tables = ["dependencies", "dev-dependencies", "build-dependencies"]
    named = {name for table in tables for name in manifest.get(table, {})}
    known = {name.removeprefix("exoskel-") for name in named if name.startswith("exoskel-")}
    assert crate.name in ARROWS, f"{crate.name} has no place among the layers yet"
    assert known <= ARROWS[crate.name], f"{crate.name} must not know {known - ARROWS[crate.name]}"


@pytest.mark.parametrize("crate", crates(), ids=lambda path: path.name)
def test_crates_have_the_fences_of_their_layer(crate: Path) -> None:
    manifest = tomllib.loads((crate / "Cargo.toml").read_text())
    assert manifest["lints"] == {"workspace": True}
    source = (crate / "src" / "lib.rs").read_text()
    if crate.name not in UNSAFE_ALLOWED:
        assert re.search(r"^#!\[(forbid|deny)\(unsafe_code\)\]", source, re.MULTILINE)
    if crate.name in SANS_IO:
        fence = (crate / "clippy.toml").read_text()
        assert [method for method in FENCED if method not in fence] == []


def test_unsafe_code_is_where_it_may_be() -> None:
    allowing = {
        relative(path)
        for crate in crates()
        if crate.name not in UNSAFE_ALLOWED
        for path in sorted(crate.rglob("*.rs"))
        if re.search(r"(allow|expect)\(\s*unsafe_code", path.read_text())
    }
    assert allowing == UNSAFE_FILES


def test_only_one_crate_knows_python() -> None:
    users = [
        relative(crate)
        for crate in crates()
        if "pyo3" in (crate / "Cargo.toml").read_text() and crate.name != "py"
    ]
    assert users == []


def test_files_hold_one_idea() -> None:
    endings = (".rs", ".py", ".pyi")
    sizes = {relative(path): path.read_text().count("\n") for path in repository_files(*endings)}
    assert {path: lines for path, lines in sizes.items() if lines > LINES_MAX} == {}


def test_names_say_what_is_inside() -> None:
    named = [relative(path) for path in repository_files(".rs", ".py") if path.stem in EMPTY_NAMES]
    folders = {
        relative(path.parent)
        for path in repository_files(".rs", ".py")
        if path.parent.name in EMPTY_NAMES
    }
    assert named == []
    assert folders == set()


def test_rust_modules_are_all_reached() -> None:
    """A file that no `mod` names is compiled by nobody."""
    dead = []
    for crate in crates():
        sources = crate / "src"
        text = {path: path.read_text() for path in sources.rglob("*.rs")}
        for path in text:
            if (
                path in {sources / "lib.rs", sources / "main.rs"}
                or "bin" in path.relative_to(sources).parts
            ):
                continue
            folder = path.parent.parent if path.name == "mod.rs" else path.parent
            name = path.parent.name if path.name == "mod.rs" else path.stem
            parents = [folder / "lib.rs", folder / "mod.rs", folder.with_suffix(".rs")]
            if not any(re.search(rf"\bmod {name}\b", text.get(parent, "")) for parent in parents):
                dead.append(relative(path))
    assert dead == []


def test_rust_documentation_has_no_examples_that_nobody_runs() -> None:
    """The recipe of the tests leaves out rustdoc, which would look through each crate for nothing."""
    fence = re.compile(r"^\s*//[/!] ```(\S*)$", re.MULTILINE)
    sources = (path for crate in crates() for path in sorted((crate / "src").rglob("*.rs")))
    # Every other fence opens a block.
    opened = {relative(path): set(fence.findall(path.read_text())[::2]) for path in sources}
    assert {path: kinds for path, kinds in opened.items() if kinds - {"text"}} == {}


def documents() -> list[Path]:
    """What people read."""
    return sorted(repository_files(".md"))


@pytest.mark.parametrize("document", documents(), ids=relative)
def test_links_in_documents_resolve(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if path.startswith(("http://", "https://", "mailto:")):
            continue
        file = (document.parent / path).resolve() if path else document
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def anchors(document: Path) -> set[str]:
    """The names that a document's headings get on the web."""
    headings = re.findall(r"^#+ +(.*)$", document.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("document", documents(), ids=relative)
def test_commands_in_documents_exist(document: Path) -> None:
    """Recipes of the Makefile, files that are named, and the command line with its options."""
    recipes = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    unknown = []
    for line in commands(document):
        words = shlex.split(line, comments=True)
        match words:
            case ["make", *rest]:
                known = all("=" in word or word in recipes for word in rest)
            case ["exoskel", *rest]:
                known = is_command(rest)
            case _:
                paths = [
                    word for word in words if re.fullmatch(r"(\w[\w.-]*/)+[\w.-]+\.(py|rs)", word)
                ]
                known = all((ROOT / path).exists() for path in paths)
        if not known:
            unknown.append(line)
    assert unknown == []


def commands(document: Path) -> list[str]:
    """The lines of a document's shell blocks."""
    fence = r"^```(?:sh|console|bash)\n(.*?)^```"
    blocks = re.findall(fence, document.read_text(), re.DOTALL | re.MULTILINE)
    whole = [block.replace("\\\n", " ") for block in blocks]
    lines = [line.strip().removeprefix("$ ") for block in whole for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def is_command(words: list[str]) -> bool:
    """Whether the command line takes these words; what they do is for other tests."""
    from exoskel.cli.commands import parser

    try:
        parser().parse_args(words)
    except SystemExit as end:
        return end.code == 0
    return True


def test_documents_do_not_speak_of_where_they_were_written() -> None:
    # Where every tool of a grid looks for a user's proxy is no place of ours.
    home = re.compile(r"/(?:tmp(?!/x509up_u)|work|root)/|\bTODO\b|\bFIXME\b|\bXXX\b")
    tests = {Path(__file__).resolve()}
    found = [
        f"{relative(path)}: {line.strip()}"
        for path in repository_files(".md", ".rs", ".py", ".toml")
        if path not in tests and "tests" not in path.relative_to(ROOT).parts
        for line in path.read_text().splitlines()
        if home.search(line)
    ]
    assert found == []


def test_a_secret_has_not_been_committed() -> None:
    """Test keys are made by the tests; vectors hold only what they say is a test secret."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split("\0")
    keys = [name for name in listed if name.endswith((".key", ".pem", ".p12"))]
    assert [
        name for name in keys if not name.startswith(("vectors/", "tests/", "fuzz/corpus/"))
    ] == []


def test_no_link_leads_out_of_the_repository() -> None:
    outside = [
        relative(path)
        for path in ROOT.iterdir()
        if path.is_symlink() and not path.resolve().is_relative_to(ROOT)
    ]
    assert outside == []


def glossary_table(heading: str) -> list[list[str]]:
    """The rows of the table under a heading of the glossary."""
    text = GLOSSARY.read_text()
    section = re.split(
        r"^## ", text.partition(f"\n## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE
    )[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1:]]


def retired_words() -> list[str]:
    """The words as the glossary writes them: names of types and files in code style, others in lower case."""
    cells = (row[0] for row in glossary_table("Words that are no longer used"))
    return [word.strip() for cell in cells for word in cell.split(",")]


def test_words_that_the_glossary_retired_are_gone() -> None:
    words = retired_words()
    assert len(words) > 30
    names = [word.strip("`") for word in words if word.startswith("`") and "." not in word]
    prose = [word for word in words if not word.startswith("`")]
    # Within an identifier, too; what rounds numbers is not ours to name.
    patterns = {
        word: re.compile(rf"(?<![A-Za-z]){word}s?(?![a-z(])", re.IGNORECASE) for word in prose
    }
    code_patterns = {f"`{name}`": re.compile(rf"(?<![a-z]){name}(?![a-z])") for name in names}
    # The vectors are fixed: the name of a host in them, and the names of their fields, stay.
    not_ours = {GLOSSARY, ROOT / "CHANGELOG.md", Path(__file__).resolve()}
    found: dict[str, set[str]] = {}
    for path in repository_files(".rs", ".py", ".pyi", ".md", ".toml"):
        if path in not_ours:
            continue
        looked_for = patterns | (code_patterns if path.suffix in {".rs", ".py", ".pyi"} else {})
        text = path.read_text().replace("desk.example.org", "").replace('"floors', "")
        lower = text.lower()
        for word, pattern in looked_for.items():
            # Patterns are slow, and most words are nowhere.
            if word.strip("`").lower() in lower and pattern.search(text):
                found.setdefault(word, set()).add(relative(path))
        if f"`{path.name}`" in words:
            found.setdefault(f"`{path.name}`", set()).add(relative(path))
    assert {word: sorted(paths) for word, paths in found.items()} == {}


def type_names() -> dict[str, list[str]]:
    """Where each type of the crates is defined; tests define what they like."""
    definition = re.compile(
        r"^(?:(?:pub(?:\([a-z: ]+\))? )?(?:unsafe )?(?:struct|enum|trait|union)|(?:pub(?:\([a-z: ]+\))? )?type) ([A-Z]\w*)",
        re.MULTILINE,
    )
    names: dict[str, list[str]] = {}
    for crate in crates():
        for path in sorted((crate / "src").rglob("*.rs")):
            if "tests" in path.relative_to(crate).parts or path.stem == "tests":
                continue
            text = re.split(r"^#\[cfg\(test\)\]\nmod \w+ \{", path.read_text(), flags=re.MULTILINE)[
                0
            ]
            for name in definition.findall(text):
                names.setdefault(name, []).append(relative(path))
    return names


def test_a_type_name_stands_for_one_thing() -> None:
    reasons = {
        row[0].strip("`"): row[1] for row in glossary_table("Names that several types share")
    }
    assert all(reasons.values())
    assert len(reasons) <= SHARED_NAMES_MAX
    twice = {name: places for name, places in type_names().items() if len(places) > 1}
    assert {name: places for name, places in twice.items() if name not in reasons} == {}
    assert reasons.keys() - twice.keys() == set(), "the glossary gives reasons that nothing needs"
