"""Links with different protections in one program, between the same two nodes, over one session.

The policy says that the wires of this machine's loopback are safe, so that links are plain unless somebody asks for more: the policy by an
endpoint's name, the endpoint, the startpoint, or the caller.
"""

import tempfile
from pathlib import Path

import lab

from exoskel import links

POLICY = """\
[domain.lab]
addresses = ["127.0.0.0/8"]
names = ["*.example.org"]

[[rule]]
from = "lab"
to = "lab"
endpoint = "patients.*"
protection = "encrypted"

[[rule]]
from = "lab"
to = "lab"
protection = "plain"
"""


def offer(node: links.Node, name: str, protection: links.Protection) -> links.Endpoint:
    """Offer an endpoint that counts."""
    endpoint = node.endpoint(name, protection=protection)

    @endpoint.handler
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    return endpoint


def main(place: Path) -> None:
    """Open one link of each kind."""
    policy = place / "policy.toml"
    policy.write_text(POLICY)
    lab.issue(place, "ocean.example.org", "atmosphere.example.org")
    with (
        links.Node(place / "ocean.example.org.pem", policy=policy, listen="127.0.0.1:0") as ocean,
        links.Node(place / "atmosphere.example.org.pem", policy=policy) as atmosphere,
    ):
        field = offer(ocean, "field", "plain")
        steering = offer(ocean, "steering", "integrity")
        patients = offer(ocean, "patients.totals", "plain")
        to = atmosphere.name
        opened = {
            "nobody asks for more": atmosphere.bind(field.startpoint(to=to)),
            "the endpoint": atmosphere.bind(steering.startpoint(to=to)),
            "a rule of the policy": atmosphere.bind(patients.startpoint(to=to)),
            "the startpoint": atmosphere.bind(field.startpoint(to=to, protection="encrypted")),
            "the caller, later": atmosphere.bind(field.startpoint(to=to)),
        }
        for link in opened.values():
            assert link.request("total", [1, 2, 3]).result(timeout=20) == 6
        # It holds from the next record on.
        opened["the caller, later"].require("encrypted")
        assert opened["the caller, later"].request("total", [4]).result(timeout=20) == 4
        for who, link in opened.items():
            print(f"{link.startpoint.endpoint:16} {link.protection:10} {who}")
        print(len(opened), "links,", len(atmosphere.sessions()), "session")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
