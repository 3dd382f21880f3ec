"""A certificate authority, a host, a user and a proxy with attributes: new for each run, by OpenSSL and `voms-proxy-fake`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.certificates.attributes import Issuer, write_proxy
from tests.certificates.openssl import Certificate, Workshop, pem
from tests.certificates.trust_files import signing_policy, write_lsc

# Names that nobody else has on a machine whose /etc/grid-security we write to for a while.
BASE = "/DC=org/DC=exoskel-bench"
USER = f"{BASE}/O=Users/CN=Ada"
VO = "vo.exoskel-bench.org"
FQANS = (f"/{VO}/Role=production", f"/{VO}")
VOMS_ADDRESS = "voms.exoskel-bench.org:15000"
HOST_KEYS = {"rsa": "RSA-2048", "ecdsa": "P-256"}


@dataclass(frozen=True)
class People:
    """Where the files of one run are."""

    folder: Path
    hash: str

    @property
    def anchors(self) -> Path:
        """An IGTF directory with the one authority and its revocation list."""
        return self.folder / "certificates"

    @property
    def vomsdir(self) -> Path:
        """Who may state attributes for the virtual organisation."""
        return self.folder / "vomsdir"

    @property
    def authority(self) -> Path:
        """The authority's certificate."""
        return self.anchors / f"{self.hash}.0"

    @property
    def proxy(self) -> Path:
        """The user's proxy with attributes: certificate, key, chain, as the tools of grids write them."""
        return self.folder / "proxy.pem"

    def host(self, key: str, what: str) -> Path:
        """The host's certificate (`what` = "cert") or its key ("key"), for a `key` of HOST_KEYS."""
        return self.folder / f"host-{key}.{what}"


def make_people(folder: Path) -> People:
    """Everything that a run needs, in `folder`."""
    workshop = folder / "workshop"
    workshop.mkdir(parents=True)
    shop = Workshop(workshop)
    start = datetime.now(UTC) - timedelta(hours=1)
    life: dict[str, Any] = {"start": start, "end": start + timedelta(days=8)}
    root = shop.self_signed(f"{BASE}/CN=CA", shop.key("RSA-2048"), **life)

    def issue(name: str, *extensions: str, key: str = "RSA-2048") -> Certificate:
        basic = ("basicConstraints=critical,CA:FALSE", "keyUsage=critical,digitalSignature")
        return shop.issue(root, name, key=key, extensions=(*basic, *extensions), **life)

    people = People(folder, root.hash)
    people.anchors.mkdir()
    people.authority.write_text(pem(root.der))
    (people.anchors / f"{people.hash}.r0").write_text(pem(shop.crl(root, **life), "X509 CRL"))
    policy = signing_policy(root.subject, f"{BASE}/*")
    (people.anchors / f"{people.hash}.signing_policy").write_text(policy)
    for key, kind in HOST_KEYS.items():
        names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
        usage = "extendedKeyUsage=serverAuth"
        host = issue(f"{BASE}/O=Hosts/CN=localhost", names, usage, key=kind)
        people.host(key, "cert").write_text(pem(host.der))
        people.host(key, "key").write_bytes(host.key.read_bytes())
        people.host(key, "key").chmod(0o600)
    user = issue(USER, "extendedKeyUsage=clientAuth")
    server = issue(f"{BASE}/O=Hosts/CN={VOMS_ADDRESS.partition(':')[0]}")
    lsc = people.vomsdir / VO / f"{VOMS_ADDRESS.partition(':')[0]}.lsc"
    write_lsc(lsc, (server.subject, root.subject))
    issuer = Issuer(server, VO, VOMS_ADDRESS)
    options = ("-rfc", "-bits", "2048", "-newformat")
    write_proxy(people.proxy, people.anchors, user, issuer, FQANS, *options, hours=24)
    return people
