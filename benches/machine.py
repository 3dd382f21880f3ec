"""What numbers are measured on, and where this repository is."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def describe(packages: Sequence[str]) -> dict[str, Any]:
    """What numbers were measured on."""
    model = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    query = ["dpkg-query", "--show", "--showformat", "${Package} ${Version}\n", *packages]
    versions: list[str] = []
    # Without names the query would be for all that is installed.
    if packages and shutil.which("dpkg-query"):
        done = subprocess.run(query, capture_output=True, text=True, check=False)
        versions = done.stdout.splitlines()
    return {
        "processor": model[0] if model else platform.processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "date": time.strftime("%Y-%m-%d"),
        "peers": versions,
    }
