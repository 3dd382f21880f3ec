"""``exoskel up`` over the real OpenSSH."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import ssh_server
from tests.site import Site, free_address

import exoskel as ex
from exoskel.cli import main


def test_workers_are_started_by_openssh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    what = ssh_server.missing()
    if what is not None:
        pytest.skip(what)
    site = Site(tmp_path)
    for name in ("server", "home"):
        (tmp_path / name).mkdir()
    line = f"{free_address()} lab1.example.org listen=127.0.0.1 slots=1"
    (tmp_path / "hosts.txt").write_text(f"{line}\n")

    with ssh_server.server(tmp_path / "server", tmp_path / "home") as command:
        words = ["up", str(tmp_path / "hosts.txt"), "--json", "--ssh", " ".join(command)]
        words += ["--directory", str(tmp_path / "pki"), "--policy", str(site.policy)]

        def up(*more: str, python: str = sys.executable) -> tuple[int, dict[str, Any]]:
            capsys.readouterr()
            code = main([*words, "--python", python, *more])
            [host] = json.loads(capsys.readouterr().out)["hosts"]
            return code, host

        code, host = up(python="/no/such/python")
        assert (code, host["state"]) == (1, "failed")
        assert "is /no/such/python there? see --python" in host["answer"]
        try:
            assert up()[1]["state"] == "started"
            runs = tmp_path / "home/.exoskel/run"
            assert {path.suffix for path in runs.glob("worker-*")} >= {".pem", ".toml", ".log"}
            assert up()[1]["state"] == "running"
            with site.connect(ex.Farm(abs), 1, workers=[line]) as manager:
                assert list(manager.map([-1, -2])) == [1, 2]
        finally:
            code, host = up("--stop")
        assert (code, host["state"]) == (0, "stopped")
        assert up("--stop")[1]["state"] == "not running"
