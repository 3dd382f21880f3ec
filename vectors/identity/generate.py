"""Makes the vectors of grid identity anew: chains, trust directories, vomsdirs and their manifest.

Needs Debian 12's `openssl`, `voms-clients` and `faketime`, nothing of this project. What it makes is committed, so nobody needs to
run it; keys and serial numbers differ from run to run, names and verdicts don't.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.certificates.openssl import openssl
from tests.certificates.vectors import attribute_cases, path_cases, proxy_cases, strict_cases
from tests.certificates.vectors.manifest import Manifest
from tests.certificates.vectors.world import World

HERE = Path(__file__).resolve().parent
MADE = ["chains", "trust", "vomsdir", "manifest.json"]


def main() -> None:
    """Removes what was made before and makes it again."""
    for name in MADE:
        old = HERE / name
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        manifest = make(World(Path(folder), HERE))
    manifest.write(provenance())
    print(f"{len(manifest.cases)} cases")


def make(world: World) -> Manifest:
    """All cases, in the order of the manifest."""
    manifest = Manifest(HERE)
    classic = world.root("Classic", "RSA-2048")
    world.root("Stranger", "RSA-2048", directory=None)
    world.below(classic, "Issuing", "RSA-2048", directory="default")
    path_cases.end_entities(world, manifest)
    path_cases.encodings(world, manifest)
    path_cases.authorities(world, manifest)
    path_cases.revocation(world, manifest)
    path_cases.directories(world, manifest)
    strict_cases.encodings(world, manifest)
    strict_cases.lists(world, manifest)
    strict_cases.keys(world, manifest)
    strict_cases.purposes(world, manifest)
    proxy_cases.kinds(world, manifest)
    proxy_cases.depths(world, manifest)
    proxy_cases.shapes(world, manifest)
    proxy_cases.older(world, manifest)
    organisation = attribute_cases.Organisation(world)
    attribute_cases.good(world, manifest, organisation)
    attribute_cases.signer_cases(world, manifest, organisation)
    attribute_cases.faults(world, manifest, organisation)
    strict_cases.attributes(world, manifest, organisation)
    world.write_directories()
    path_cases.finish_directories(world)
    return manifest


def provenance() -> dict[str, str]:
    """Which programs made the files."""
    packages = ["openssl", "voms-clients", "libvomsapi1v5", "faketime"]
    query = ["dpkg-query", "--show", "--showformat", "${Package} ${Version}; ", *packages]
    versions = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    return {
        "made by": "vectors/identity/generate.py",
        "with": f"{openssl('version').decode().strip()}; {versions.strip('; ')}",
        "on": "2026-11-22, Debian 12",
        "commands": "openssl genpkey, req, ca, ca -gencrl, x509 -subject_hash, dgst -sign; faketime voms-proxy-fake",
    }


if __name__ == "__main__":
    main()
