"""The end of folders in which foreign code has put what it likes. Run under an account without rights: root removes everything."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.test_sandbox import ACCOUNT, folder, python_for_all

from exoskel import own_folders

__all__ = ["folder"]

# What is left, each by a program that runs in the folder.
LEFT = {
    "what nobody may list": "os.mkdir('x'); open('x/y', 'w'); os.chmod('x', 0o300)",
    "what nobody may enter": "os.makedirs('x/y'); os.chmod('x/y', 0); os.chmod('x', 0)",
    "what nobody may write to": "os.makedirs('x/y/z'); os.chmod('x/y', 0o500); os.chmod('x', 0o500)",
    "more folders below one another than descriptors": """
for _ in range(700):
    os.mkdir('x' * 200)
    os.chdir('x' * 200)
open('end', 'w')
""",
    "more folders below one another than Python calls functions": """
for _ in range(5000):
    os.mkdir('x')
    os.chdir('x')
""",
    "many names, odd ones too": r"""
os.mkdir(b'\xff')
os.mkdir('0')
os.mkdir('1')
open(b'\xff/\n', 'w')
os.mkdir(b'\xff/0')
os.mkdir('0/0')
for number in range(2000):
    os.mkdir(f'1/{number}')
    open(f'1/{number}/-rf', 'w')
""",
    "links and pipes": "os.mkfifo('pipe'); os.symlink('..', 'up'); os.symlink('/', 'root'); os.mkdir('x'); os.symlink('../..', 'x/up')",
}
REMOVING = "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)); from exoskel import own_folders; own_folders.remove(sys.argv[1])"


@pytest.mark.parametrize("left", LEFT)
def test_a_folder_goes_whatever_is_in_it(left: str, folder: Path) -> None:
    own = Path(tempfile.mkdtemp(dir=folder))
    beside = folder / "beside"
    beside.write_text("kept")
    root = Path(__file__).parents[1]
    modules = [path for path in sys.path if path.endswith("site-packages")]
    env = {
        "PYTHONPATH": os.pathsep.join([str(root / "python"), *modules]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    account: dict[str, Any] = {}
    if os.getuid() == 0:
        account = {"user": ACCOUNT, "group": ACCOUNT, "extra_groups": []}
        os.chown(own, ACCOUNT, ACCOUNT)
    python = python_for_all()
    for program, cwd in ((f"import os\n{LEFT[left]}", own), (REMOVING, folder)):
        command = [python, "-c", program, str(own)]
        subprocess.run(command, cwd=cwd, env=env, timeout=100, check=True, **account)
    assert not own.exists()
    assert beside.read_text() == "kept"


def test_a_folder_that_is_not_there_is_no_error_nor_a_link_followed(tmp_path: Path) -> None:
    own_folders.remove(tmp_path / "missing")
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("kept")
    link = tmp_path / "link"
    link.symlink_to(kept)
    own_folders.remove(link)
    assert (kept / "file").read_text() == "kept"
