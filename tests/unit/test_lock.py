"""One owner per directory."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_ha import lock
from scrapy_ha.errors import StoreError, StoreLocked
from scrapy_ha.lock import DirectoryLock

HOLD = """
import sys
from pathlib import Path
from scrapy_ha.lock import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_by_name_until_the_first_is_killed(tmp_path: Path) -> None:
    """The message names directory, pid and host; the kernel frees the lock on ``kill -9``."""
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path), "HA_SECRET=hunter2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"held\n"
        with pytest.raises(StoreLocked) as refused:
            DirectoryLock(tmp_path).acquire()
        assert str(tmp_path) in str(refused.value)
        assert f"pid {owner.pid} on host {socket.gethostname()}" in str(refused.value)
        assert "hunter2" not in str(refused.value)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
    mine = DirectoryLock(tmp_path)
    mine.acquire()
    assert json.loads(mine.path.read_text())["pid"] == os.getpid()
    mine.release()


def test_two_locks_in_one_process_exclude_one_another(tmp_path: Path) -> None:
    one, two = DirectoryLock(tmp_path), DirectoryLock(tmp_path)
    one.acquire()
    with pytest.raises(StoreLocked):
        two.acquire()
    one.release()
    one.release()
    two.acquire()
    with pytest.raises(StoreLocked):
        one.acquire()
    two.release()


def test_a_child_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    """One that a spider started and that outlives it."""
    one = DirectoryLock(tmp_path)
    one.acquire()
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        close_fds=False,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        one.release()
        two = DirectoryLock(tmp_path)
        two.acquire()
        two.release()
    finally:
        child.communicate()


FORKED = """
import os, sys, time
from pathlib import Path
from scrapy_ha.lock import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
lock.acquire()
child = os.fork()
if not child:
    lock.release()  # as its own clean-up may do
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """Such as a worker of a process pool, which outlives a killed parent; nor does it give it up."""
    owner = subprocess.Popen(
        [sys.executable, "-c", FORKED, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    try:
        with pytest.raises(StoreLocked, match=f"pid {owner.pid} "):
            DirectoryLock(tmp_path).acquire()
        owner.kill()
        owner.wait()
        mine = DirectoryLock(tmp_path)
        mine.acquire()
        mine.release()
    finally:
        os.kill(child, signal.SIGKILL)
        owner.kill()
        owner.communicate()


def test_a_directory_that_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="missing"):
        DirectoryLock(tmp_path / "missing").acquire()


@given(
    st.binary(max_size=300)
    | st.recursive(st.none() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_whatever_the_file_holds_the_owner_is_described_in_one_line(data: bytes) -> None:
    line = lock._describe(data)
    assert line.isprintable()
    assert len(line) < 1000


def test_a_long_hostile_owner_is_cut(tmp_path: Path) -> None:
    owner = {"pid": "\x1b[2J" * 1000, "host": "h\nh", "since": [], "command": {}}
    line = lock._describe(json.dumps(owner).encode())
    assert line.isprintable()
    assert len(line) < 1000
