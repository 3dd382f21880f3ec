"""Two processes: an ocean offers an endpoint, an atmosphere calls it.

Without arguments the script is the atmosphere, and starts the ocean beside itself.
"""

import sys
import tempfile
from pathlib import Path

import lab
import numpy as np

from exoskel import links


def ocean(place: Path) -> None:
    """Offer a field, and say the startpoint."""
    temperature = np.full((180, 360), 15.0)
    with links.Node(place / "ocean.example.org.pem", listen="127.0.0.1:0") as node:
        coupler = node.endpoint("coupler")

        @coupler.handler
        def surface() -> np.ndarray:
            return temperature

        @coupler.handler
        def heat(call: links.Call, degrees: float) -> str:
            nonlocal temperature
            # Not in place: the array of an answer that is under way is not copied.
            temperature = temperature + degrees
            return f"heated by {call.peer}"

        print(coupler.startpoint(to="*.example.org", expires=3600).text(), flush=True)
        sys.stdin.read()


def atmosphere(place: Path) -> None:
    """Call the ocean."""
    lab.issue(place, "ocean.example.org", "atmosphere.example.org")
    with (
        lab.process(__file__, "ocean", place) as text,
        links.Node(place / "atmosphere.example.org.pem") as node,
    ):
        coupler = node.bind(text)
        print(coupler.request("heat", 0.5).result(timeout=20))
        field = coupler.request("surface").result(timeout=20)
        print(field.shape, field.mean())
        print(coupler.protection, "over", coupler.method)


if __name__ == "__main__":
    if sys.argv[1:2] == ["ocean"]:
        ocean(Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            atmosphere(Path(folder))
