"""Denoise and render real magnetic-resonance slices on three workers, one of them not trusted.

The images ship inside the wheels of nibabel and pydicom. Two workers are in the trusted domain ``lab`` of the policy, where data travel in
clear; the third is a rented machine outside of it, where everything is encrypted. All three run on this machine, each with
an address of its own, so the policy decides by real addresses and real certificates.

    python examples/mr_images.py           # all images
    python examples/mr_images.py --kill    # the same; a worker is killed in mid-run, and the results are the same
"""

import argparse
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

import exoskel as ex
from mr_filters import Slice, denoise, render

OUTPUT = Path(__file__).resolve().parent / "output"

STRENGTHS = (0.6, 0.9, 1.2, 1.6)
WINDOWS = ((0.5, 99.5), (5, 99), (20, 99.8), (40, 99.9))

POLICY = """\
# Loopback addresses stand for machines here: on a real site these are the switches of the lab.
[domain.lab]
addresses = ["127.0.0.0/24"]
names = ["*.lab.example.org"]

[[rule]]
from = "lab"
to = "lab"
protection = "plain"

[allow]
managers = ["head.lab.example.org"]
"""


class Host(NamedTuple):
    """A machine of the example."""

    name: str
    """What its certificate proves."""
    address: str
    """Where it listens: what the policy sees."""


HOSTS = (
    Host("node1.lab.example.org", "127.0.0.1"),
    Host("node2.lab.example.org", "127.0.0.2"),
    Host("vm7.rented.example.org", "127.0.1.1"),
)


def main() -> int:
    """Run the example.

    Returns
    -------
    int
        The exit code.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kill", action="store_true", help="kill a worker in mid-run")
    parser.add_argument(
        "--slots", type=int, default=len(HOSTS), help="how many slots to use (default: %(default)s)"
    )
    parser.add_argument(
        "--repeat", type=int, default=1, help="run each image so often (default: %(default)s)"
    )
    arguments = parser.parse_args()

    slices = load_slices()
    jobs = [
        Slice(pixels, strength, window)
        for _ in range(arguments.repeat)
        for pixels, strength, window in itertools.product(slices, STRENGTHS, WINDOWS)
    ]
    print(f"{len(slices)} slices x {len(STRENGTHS)} strengths x {len(WINDOWS)} windows", end="")
    print(
        f" x {arguments.repeat} times = {len(jobs)} images"
        if arguments.repeat > 1
        else f" = {len(jobs)} images"
    )

    program = ex.Pipeline(denoise, render)
    digest = hashlib.sha256()
    samples: list[NDArray[numpy.uint8]] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="exoskel-mr-")))
        site = Site(directory)
        workers = [
            stack.enter_context(site.worker(host, max(1, -(-arguments.slots // len(HOSTS)))))
            for host in HOSTS
        ]
        manager = stack.enter_context(
            ex.Manager(
                program,
                ex.ParDegree(arguments.slots),
                workers=site.hosts_file(workers),
                credential=site.issue("manager", "head.lab.example.org"),
                policy=site.policy,
            )
        )
        started = time.perf_counter()
        for index, image in enumerate(manager.map(jobs, progress=True)):
            digest.update(repr(image.shape).encode())
            digest.update(image)
            if index % (len(jobs) // 48 or 1) == 0:
                samples.append(image)
            if arguments.kill and index == len(jobs) // 3:
                print(f"killing worker {workers[1].host.name}", file=sys.stderr)
                workers[1].kill()
        seconds = time.perf_counter() - started
        print(manager.summary())
    picture = montage(samples[:48])
    print(
        f"{len(jobs)} images in {seconds:.1f} s; a sample of them is in {os.path.relpath(picture)}"
    )
    print(f"SHA-256 of all results: {digest.hexdigest()}")
    return 0


def load_slices() -> list[NDArray[Any]]:
    """Return the slices of the volumes and images that ship inside nibabel and pydicom."""
    import nibabel
    import pydicom
    import pydicom.data

    # 24 slices of 128 x 96, twice.
    path = Path(nibabel.__file__).parent / "tests" / "data" / "example4d.nii.gz"
    volumes = numpy.asanyarray(nibabel.Nifti1Image.from_filename(path).dataobj)
    slices = [
        numpy.rot90(volumes[:, :, level, volume])
        for volume in range(volumes.shape[3])
        for level in range(volumes.shape[2])
    ]
    for name in ("MR_small.dcm", "examples_overlay.dcm"):
        path = pydicom.data.get_testdata_file(name, download=False)
        if not isinstance(path, str):
            raise FileNotFoundError(
                f"{name} is not in this version of pydicom; install the one of requirements.lock"
            )
        slices.append(pydicom.dcmread(path).pixel_array)
    return slices


class Worker:
    """A worker of the example: a real ``exoskel worker`` process.

    Parameters
    ----------
    host : Host
        Its machine.
    process : subprocess.Popen
        The process.
    address : str
        Where it listens, ``host:port``.
    """

    def __init__(self, host: Host, process: subprocess.Popen[str], address: str) -> None:
        self.host = host
        self.process = process
        self.address = address

    def kill(self) -> None:
        """End it without a chance to say so, as when somebody pulls the plug."""
        self.process.send_signal(signal.SIGKILL)


class Site:
    """A private authority, a policy and workers, in a directory.

    Parameters
    ----------
    directory : Path
        The directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.policy = directory / "policy.toml"
        self.policy.write_text(POLICY, encoding="utf-8")
        self._exoskel("pki", "init", str(directory / "pki"))

    def issue(self, role: str, name: str) -> Path:
        """Return a new credential file."""
        path = self.directory / f"{role}-{name}.pem"
        self._exoskel(
            "pki",
            "issue",
            "--directory",
            str(self.directory / "pki"),
            "--role",
            role,
            "--name",
            name,
            "--days",
            "1",
            "--output",
            str(path),
        )
        return path

    @contextmanager
    def worker(self, host: Host, slots: int) -> Iterator[Worker]:
        """Run a worker for the time of a ``with`` block."""
        # Away from this directory: it has the stages only because they travel to it.
        home = self.directory / host.name
        home.mkdir()
        options = [
            "--listen",
            f"tcp://{host.address}:0",
            "--slots",
            str(slots),
            "--policy",
            str(self.policy),
        ]
        options += ["--credential", str(self.issue("worker", host.name)), "--json"]
        command = [sys.executable, "-P", "-m", "exoskel", "worker", *options]
        log = home / "worker.log"
        with (
            open(log, "wb") as file,
            subprocess.Popen(
                command, cwd=home, stdout=subprocess.PIPE, stderr=file, text=True
            ) as process,
        ):
            try:
                if process.stdout is None or not (line := process.stdout.readline()):
                    process.wait()
                    raise RuntimeError(
                        f"the worker on {host.name} did not start: {log.read_text()}"
                    )
                yield Worker(host, process, json.loads(line)["listen"].removeprefix("tcp://"))
            finally:
                process.terminate()

    def hosts_file(self, workers: list[Worker]) -> Path:
        """Return a hosts file: where each worker listens, and who it must prove to be."""
        path = self.directory / "hosts.txt"
        path.write_text(
            "".join(f"{worker.address} {worker.host.name}\n" for worker in workers),
            encoding="utf-8",
        )
        return path

    def _exoskel(self, *arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-P", "-m", "exoskel", *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
        )


def montage(images: list[NDArray[numpy.uint8]], columns: int = 8) -> Path:
    """Write images side by side into one PNG file.

    Parameters
    ----------
    images : list of numpy.ndarray
        Grey images.
    columns : int
        How many stand in a row.

    Returns
    -------
    Path
        The file.
    """
    from PIL import Image

    side = 160
    sheet = Image.new("L", (columns * side, -(-len(images) // columns) * side))
    for index, image in enumerate(images):
        small = Image.fromarray(image)
        small.thumbnail((side, side))
        row, column = divmod(index, columns)
        sheet.paste(
            small,
            (column * side + (side - small.width) // 2, row * side + (side - small.height) // 2),
        )
    OUTPUT.mkdir(exist_ok=True)
    path = OUTPUT / "mr_images.png"
    sheet.save(path)
    return path


if __name__ == "__main__":
    sys.exit(main())
