from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fuseledger.errors import OutputError
from fuseledger.report import atomic
from fuseledger.report.atomic import write_atomically


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """The new text replaces the old one, and nothing else is left in the folder."""
    path = tmp_path / "plan.json"
    path.write_text("old")
    write_atomically(path, "µ new\n")
    assert path.read_text(encoding="utf-8") == "µ new\n"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the last step fails the old text stays, and the temporary file goes."""
    path = tmp_path / "plan.json"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "replace", fail)
    with pytest.raises(OutputError, match=r"plan\.json: cannot be written: no space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """A path in no folder is one line that names the folder."""
    with pytest.raises(OutputError, match=r"no folder .*nowhere$"):
        write_atomically(tmp_path / "nowhere" / "plan.json", "new")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """Writing onto a folder is one line, and the folder stays."""
    with pytest.raises(OutputError, match="directory"):
        write_atomically(tmp_path, "new")
    assert tmp_path.is_dir()


def test_a_link_keeps_pointing_to_its_file(tmp_path: Path) -> None:
    """The file behind a link is replaced, not the link."""
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_permissions_are_kept_or_those_of_a_new_file(tmp_path: Path) -> None:
    """An existing file keeps its mode; a new one gets what the umask leaves of 0666."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("")
    old.chmod(0o640)
    write_atomically(old, "x")
    write_atomically(new, "x")
    plain = tmp_path / "plain"
    plain.write_text("")
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert new.stat().st_mode == plain.stat().st_mode


def test_a_device_is_written_to_directly() -> None:
    """/dev/null stays a device."""
    write_atomically(Path("/dev/null"), "gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
