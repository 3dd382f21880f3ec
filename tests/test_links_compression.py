"""Compression on links: only where it is asked for, only what gains by it, and not what is encrypted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.test_links import NAMES, Lab

from exoskel import links


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Lab]:
    made = Lab(tmp_path)
    capsys.readouterr()
    yield made
    for node in made.nodes:
        node.close()


@pytest.mark.parametrize("protection", ["plain", "integrity", "encrypted"])
@pytest.mark.parametrize("compress_encrypted", [False, True])
def test_values_come_over_as_they_are(
    lab: Lab, protection: links.Protection, compress_encrypted: bool
) -> None:
    options: dict[str, Any] = {"compression": "zstd", "compress_encrypted": compress_encrypted}
    endpoint = lab.node(NAMES[0], "127.0.0.1:0").endpoint(
        "coupler", protection=protection, **options
    )

    @endpoint.handler
    def twice(value: Any) -> Any:
        return value * 2

    endpoint.region("field", np.zeros(100_000))
    bound = lab.node(NAMES[1]).bind(endpoint.startpoint(to=NAMES[1]), **options)
    noise = np.random.default_rng(1).random(50_000)
    for value in (np.zeros(100_000), noise, np.ones((300, 300), "i4")):
        np.testing.assert_array_equal(bound.request("twice", value).result(20), value * 2)
    assert bound.request("twice", "text " * 5000).result(20) == "text " * 10_000
    assert bound.request("twice", 3).result(20) == 6
    assert bound.region("field").get().result(20).shape == (100_000,)
    assert bound.protection == protection


def test_other_compressions_are_told(lab: Lab) -> None:
    node = lab.node(NAMES[0])
    with pytest.raises(ValueError, match="got compression='lz4', expected 'zstd'"):
        node.endpoint("coupler", compression="lz4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="compress_encrypted=True without compression"):
        node.endpoint("coupler", compress_encrypted=True)
