"""Pages of the documentation run, block after block, as a reader would type them, and show what they say."""

from pathlib import Path

import pytest
from tests.documents import GRID, ROOT, Block, Reader, blocks, is_shown, pages

PAGE = """\
```python
# hello.py
print("hello")
```

```sh
python hello.py
```

You see:

```text
...llo
```

<!-- exit code 3 -->
```python
import sys; sys.exit(3)
```

<!-- not run: needs two machines -->
```sh
exoskel up hosts.txt
```

## Elsewhere

```text
nothing
```
"""


def test_blocks_are_saved_run_compared_or_left_out_for_a_reason() -> None:
    saved, shown, failing, left_out = blocks(PAGE)
    assert (saved.file, saved.source) == ("hello.py", '# hello.py\nprint("hello")\n')
    assert (shown.language, shown.file, shown.shown) == ("sh", None, "...llo\n")
    assert (failing.code, failing.not_run, failing.line) == (3, None, 17)
    assert (left_out.not_run, left_out.code, left_out.shown) == ("needs two machines", 0, None)


@pytest.mark.parametrize(
    ("said", "shown", "expected"),
    [("a\n", "a\n", True), ("a\nb\n", "a\n", False), ("a 17\nb", "a ...\nb\n", True)],
)
def test_output_is_what_the_page_shows(said: str, shown: str, expected: bool) -> None:
    assert is_shown(said, shown) is expected


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    follow_page(page.read_text(), tmp_path)


SERVICE = """\
<!-- site: grid -->

```python
# echo.py
from exoskel import service

def handler(connection, identity):
    connection.sendall(f"{identity.vo}\\n".encode())

service.serve(handler, listen="127.0.0.1:8443", certificate="hostcert.pem", key="hostkey.pem")
```

<!-- serves 127.0.0.1:8443 -->
```sh
python echo.py
```

```sh
openssl s_client -connect 127.0.0.1:8443 -cert $X509_USER_PROXY -cert_chain $X509_USER_PROXY -quiet 2>errors
```

```text
exoskel.test
```
"""


def test_what_serves_runs_until_the_end_of_the_page(tmp_path: Path) -> None:
    follow_page(SERVICE, tmp_path)


def test_a_page_must_stop_its_workers_in_the_background(tmp_path: Path) -> None:
    page = """\
```sh
exoskel pki init ca
exoskel pki issue --directory ca --role worker --name lab1 --output lab1.pem
exoskel worker --listen tcp://127.0.0.1:7601 --slots 1 --credential lab1.pem --background
```
"""
    with pytest.raises(AssertionError, match="worker-"):
        follow_page(page, tmp_path)


def follow_page(page: str, place: Path) -> None:
    reader = Reader(place, has_grid=GRID in page)
    try:
        for block in blocks(page):
            if block.not_run is None:
                follow(reader, block)
    finally:
        left = reader.end()
    assert left == [], "the page leaves this running"


def test_blocks_that_do_not_run_say_why() -> None:
    """``python -m tests.documents`` lists them."""
    reasons = [
        block.not_run for page in pages() for block in blocks(page.read_text()) if block.not_run
    ]
    assert [reason for reason in reasons if len(reason.split()) < 3] == []


def test_the_first_script_of_the_guide_is_among_the_examples() -> None:
    first = next(b for b in blocks((ROOT / "docs/guide/start.md").read_text()) if b.file)
    assert first.source == f"# hello.py\n{(ROOT / 'examples/hello.py').read_text()}"


def follow(reader: Reader, block: Block) -> None:
    code, said = reader.follow(block)
    assert code == block.code, f"line {block.line}: {said}"
    if block.shown is not None:
        assert is_shown(said, block.shown), f"line {block.line}: {said}"
