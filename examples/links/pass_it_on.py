"""A capability that is narrowed and passed on: three processes.

The ocean gives the atmosphere a startpoint. The atmosphere narrows it, without asking the ocean, and passes it on to a plotter. The plotter
asks the ocean directly, and can do no more than the narrower startpoint says.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import lab

import exoskel as ex
from exoskel import links

NAMES = ("ocean.example.org", "atmosphere.example.org", "plotter.example.org")


def ocean(place: Path) -> None:
    """Offer two handlers, and say the startpoint."""
    with links.Node(place / f"{NAMES[0]}.pem", listen="127.0.0.1:0") as node:
        coupler = node.endpoint("coupler")
        state = {"level": 0.0}

        @coupler.handler
        def level() -> float:
            return state["level"]

        @coupler.handler
        def rise(metres: float) -> None:
            state["level"] += metres

        print(coupler.startpoint(to="*.example.org", expires=3600).text(), flush=True)
        sys.stdin.read()


def plotter(place: Path, text: str) -> None:
    """Do what the narrower startpoint allows, and try what it doesn't."""
    with links.Node(place / f"{NAMES[2]}.pem") as node:
        coupler = node.bind(text)
        print("the plotter reads the level:", coupler.request("level").result(timeout=20))
        try:
            coupler.request("rise", 10.0)
        except ValueError as error:
            print("the plotter can't raise it:", error)


def atmosphere(place: Path) -> None:
    """Use the startpoint, narrow it, and pass it on."""
    lab.issue(place, *NAMES)
    with (
        lab.process(__file__, "ocean", place) as text,
        links.Node(place / f"{NAMES[1]}.pem") as node,
    ):
        coupler = node.bind(text)
        coupler.request("rise", 0.25).result(timeout=20)
        # Its text could go by mail as well, or in an argument of another endpoint's handler.
        narrower = coupler.attenuate(to=NAMES[2], handlers=["level"], expires=60)
        command = [sys.executable, __file__, "plotter", str(place), narrower.text()]
        subprocess.run(command, check=True)
        try:
            node.bind(narrower).request("level").result(timeout=20)
        except ex.RefusedError as error:
            print("the atmosphere can't use it any more:", error)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["ocean", folder]:
            ocean(Path(folder))
        case ["plotter", folder, text]:
            plotter(Path(folder), text)
        case _:
            with tempfile.TemporaryDirectory() as folder:
                atmosphere(Path(folder))
