"""Files are replaced as a whole; what is not a regular file is written to as it is."""

import os
import stat
import threading
from pathlib import Path

import pytest

from ringsim.files import atomic_file
from tests.ringsim.commands import refused, run


def write(path: Path, content: bytes) -> None:
    """By the one function that writes files."""
    with atomic_file(path) as file:
        file.write(content)


def test_a_regular_file_is_replaced(tmp_path: Path) -> None:
    """By a new one, which nobody sees before it is whole; an error leaves the old one alone."""
    path = tmp_path / "file"
    write(path, b"old")
    before = path.stat().st_ino
    with atomic_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert (path.read_bytes(), path.stat().st_ino == before) == (b"new", False)
    with pytest.raises(ZeroDivisionError), atomic_file(path) as file:
        file.writelines(b"half of" * (1 // count) for count in (1, 0))
    assert [(kept.name, kept.read_bytes()) for kept in tmp_path.iterdir()] == [("file", b"new")]


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    """Also where there is no target yet; the new file appears in the target's directory, whole."""
    (tmp_path / "there").mkdir()
    target, link, second = tmp_path / "there" / "target", tmp_path / "link", tmp_path / "second"
    link.symlink_to("there/target")
    second.symlink_to(link)
    for before, content in ((None, b"old"), (b"old", b"new")):
        with atomic_file(second) as file:
            file.write(content)
            file.flush()
            assert (target.read_bytes() if target.exists() else None) == before
        assert (target.read_bytes(), os.readlink(link), second.is_symlink()) == (content, "there/target", True)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["link", "second", "target", "there"]


def test_a_file_that_is_read_only_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the directory would let a new one take its place; a command says so before its work."""
    path = tmp_path / "ring.html"
    path.write_bytes(b"old")
    path.chmod(0o444)
    # Root may write.
    monkeypatch.setattr(os, "access", lambda place, mode: not (mode & os.W_OK and Path(place) == path))
    with pytest.raises(PermissionError, match=f"Permission denied: '{path}'"):
        write(path, b"new")
    assert f"{path}: is read-only" in refused("animate", "--ranks", "2", "-o", path)
    assert path.read_bytes() == b"old"


def test_what_is_no_place_for_a_file_is_refused(tmp_path: Path) -> None:
    """A loop of links, and a directory, by their own paths; they stay, and nothing is left beside them."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=r"symbolic links.*/a"):
        write(tmp_path / "a", b"new")
    with pytest.raises(IsADirectoryError, match=r"Is a directory: '.*/folder'"):
        write(tmp_path / "folder", b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "folder"]


def test_a_fifo_is_written_to(tmp_path: Path) -> None:
    """Through a link, and by a command, too: its reader gets the page, and the FIFO stays one."""
    fifo, link = tmp_path / "page.html", tmp_path / "link.html"
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()), daemon=True)
    reader.start()
    assert run("animate", "--ranks", "3", "-o", link).stderr == f"wrote {link}\n"
    reader.join(10)
    assert read[0].startswith(b"<!DOCTYPE html>")
    assert stat.S_ISFIFO(fifo.lstat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.html", "page.html"]


def test_what_dev_stdout_leads_to_is_written_to(tmp_path: Path) -> None:
    """A pipe, and a deleted file, whose names in /proc are those of no files."""
    receiving, sending = os.pipe()
    write(Path(f"/proc/self/fd/{sending}"), b"new")
    assert os.read(receiving, 10) == b"new"
    os.close(receiving)
    os.close(sending)
    with (tmp_path / "deleted").open("w+b") as file:
        (tmp_path / "deleted").unlink()
        write(Path(f"/proc/self/fd/{file.fileno()}"), b"new")
        assert file.read() == b"new"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_devices_stay_devices(tmp_path: Path) -> None:
    """Nodes of the same numbers as /dev/null, which takes all, and /dev/full, which has no room."""
    for name, minor in (("null", 3), ("full", 7)):
        try:
            os.mknod(tmp_path / name, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
            (tmp_path / name).open("wb").close()
        except PermissionError:
            pytest.skip("no device nodes can be made or opened here")
    write(tmp_path / "null", b"new")
    with pytest.raises(OSError, match=r"No space left on device: '.*/full'"):
        write(tmp_path / "full", b"new")
    assert all(stat.S_ISCHR((tmp_path / name).lstat().st_mode) for name in ("null", "full"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "null"]
