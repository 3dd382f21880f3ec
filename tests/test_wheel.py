"""The check that `make wheel` runs on its wheel."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from exoskel import _core

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = Path(str(_core.__file__))


@pytest.fixture(scope="module")
def check() -> ModuleType:
    """Load the script, which belongs to no package."""
    spec = importlib.util.spec_from_file_location("check_wheel", ROOT / "packaging/check_wheel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Pack a wheel that holds the extension module alone."""
    file = tmp_path / "exoskel-0.1.0-cp311-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.write(LIBRARY, "exoskel/_core.abi3.so")
    return file


def test_symbols_of_a_newer_glibc_are_found(
    check: ModuleType, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = check.needed_versions(LIBRARY.read_bytes())
    assert "GLIBC_2.2.5" in versions
    monkeypatch.setattr(check, "GLIBC_NEWEST", (99, 0))
    newest = check.check_libraries(wheel)
    assert f"GLIBC_{newest}" in versions
    monkeypatch.setattr(check, "GLIBC_NEWEST", (2, 2))
    with pytest.raises(SystemExit, match=rf"symbols of glibc {newest}"):
        check.check_libraries(wheel)


def test_what_is_no_wheel_of_ours_is_refused(
    check: ModuleType, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "BYTES_MAX", 1000)
    with pytest.raises(SystemExit, match="expected at most 1,000"):
        check.main(wheel)
    with pytest.raises(SystemExit, match="expected manylinux_2_28"):
        check.main(wheel.with_name("exoskel-0.1.0-cp311-abi3-linux_x86_64.whl"))
    with pytest.raises(ValueError, match="no ELF file"):
        check.needed_versions(b"MZ")


def test_the_library_for_c_is_whole_and_small(check: ModuleType, wheel: Path) -> None:
    """What it must not have is found in the extension module, which has it."""
    with pytest.raises(SystemExit, match=r"got no exoskel/native/include/exoskel\.f90, exoskel/"):
        check.check_native(wheel)
    headers = ROOT / "crates/c/include"
    library = ROOT / "python/exoskel/native/lib/libexoskel.so"

    def packed(library: Path, more: str = "") -> Path:
        file = wheel.with_name("native.whl")
        with zipfile.ZipFile(file, "w") as archive:
            archive.write(library, check.LIBRARY)
            archive.write(headers / "exoskel.f90", "exoskel/native/include/exoskel.f90")
            header = (headers / "exoskel.h").read_text() + more
            archive.writestr("exoskel/native/include/exoskel.h", header)
        return file

    assert check.check_native(packed(library)) == library.stat().st_size
    with pytest.raises(SystemExit, match="got tokio, rustls, aws_lc inside"):
        check.check_native(packed(LIBRARY))
    with pytest.raises(SystemExit, match=r"got no exoskel_fly in exoskel/native/lib/libexoskel"):
        check.check_native(packed(library, "int exoskel_fly(void);"))
