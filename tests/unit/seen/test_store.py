"""The store of what was seen: exact whatever its filter says, and whole after any kill."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_ha.crc import crc32c
from scrapy_ha.errors import StoreDamaged, StoreLocked
from scrapy_ha.seen import delta, tier
from scrapy_ha.seen.store import SeenStore
from scrapy_ha.testing.clock import FakeClock

KINDS = ["pybloom", "rbloom"]


def keys(count: int, salt: str = "") -> list[bytes]:
    return [hashlib.sha1(f"{salt}{n}".encode()).digest() for n in range(count)]


def make(path: Path, **arguments: Any) -> SeenStore:
    return SeenStore(path / "seen", **{"capacity": 1000, **arguments})


@pytest.fixture(params=KINDS)
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SeenStore]:
    store = make(tmp_path, kind=request.param)
    store.open()
    yield store
    store.close()


def die(store: SeenStore) -> None:
    """Leave *store* as ``kill -9`` leaves it: what was written is there, nothing is tidied up."""
    store._db.close()


def test_new_once(store: SeenStore) -> None:
    """A key is new until it is added."""
    one, two = keys(2)
    assert one not in store
    store.add(one)
    assert one in store
    assert two not in store
    assert store.tier.certain == 2


def test_a_hopeless_filter_loses_no_key(tmp_path: Path) -> None:
    """D3: with 64 bits for 10,000 keys every one is found new once, and settled on disk."""
    store = make(tmp_path, capacity=7, error_rate=0.9, kind="pybloom")
    store.open()
    store.tier.bloom._grow = lambda: None  # type: ignore[method-assign]
    new = 0
    for key in keys(10_000):
        if key not in store:
            new += 1
            store.add(key)
    assert new == 10_000
    assert store.tier.false_positives > 5000
    assert all(key in store for key in keys(10_000))
    store.close()


def test_more_than_planned(store: SeenStore) -> None:
    """D4: capacity 1000, 5000 keys: all answers are right."""
    for key in keys(5000):
        assert key not in store
        store.add(key)
    assert all(key in store for key in keys(5000))


def test_said_when_it_fills(tmp_path: Path) -> None:
    """At four fifths, once per layer."""
    said: list[int] = []
    store = make(tmp_path, on_filling=lambda bloom: said.append(bloom.count))
    store.open()
    store.add_many(keys(2599))
    assert said == [800]
    store.add_many(keys(1000, "more"))
    assert said == [800, 2600]
    store.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("closed", [True, False])
def test_kept_over_a_restart(tmp_path: Path, kind: str, closed: bool) -> None:
    """With the filter's file, whether the last owner closed it or was killed; no key is read for it."""
    store = make(tmp_path, kind=kind)
    assert store.open().fresh
    store.add_many(keys(500))
    store.tier.save()
    store.add_many(keys(900)[500:])
    if closed:
        store.close()
    else:
        die(store)
    again = make(tmp_path, kind=kind)
    opened = again.open()
    assert not opened.rebuilt
    assert opened.count == 900
    assert all(key in again for key in keys(900))
    assert not any(key in again for key in keys(900, "other"))
    again.close()


def damage_nothing(files: list[Path]) -> None:
    pass


def remove(files: list[Path]) -> None:
    for file in files:
        file.unlink()


def truncate(files: list[Path]) -> None:
    for file in files:
        os.truncate(file, file.stat().st_size // 2)


def flip(files: list[Path]) -> None:
    for file in files:
        data = bytearray(file.read_bytes())
        data[min(len(data) - 1, delta.HEADER_BYTES + 3)] ^= 4
        file.write_bytes(data)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", ["bloom", "delta"])
@pytest.mark.parametrize("damage", [remove, truncate, flip])
def test_a_file_in_doubt_is_not_believed(tmp_path: Path, kind: str, suffix: str, damage: Any) -> None:
    """D5: missing, cut or changed: the filter is made anew, and every key is found."""
    store = make(tmp_path, kind=kind)
    store.open()
    store.add_many(keys(800))
    die(store)
    damage(list((tmp_path / "seen" / "bloom").glob(f"*.{suffix}")))
    again = make(tmp_path, kind=kind)
    cut_where_empty = suffix == "delta" and damage is truncate
    assert again.open().rebuilt is not cut_where_empty
    assert all(key in again for key in keys(800))
    again.close()


def test_a_file_of_another_hash_size_or_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D5: whatever it was made with must be what is asked for now."""
    store = make(tmp_path, kind="pybloom")
    store.open()
    store.add_many(keys(100))
    store.close()
    for arguments in ({"kind": "rbloom"}, {"capacity": 2000}, {"error_rate": 0.001}):
        again = make(tmp_path, **{"kind": "pybloom", **arguments})
        assert again.open().rebuilt
        assert all(key in again for key in keys(100))
        again.close()
    again = make(tmp_path, kind="pybloom")
    assert again.open().rebuilt
    again.close()
    monkeypatch.setattr(tier, "HASH", "another")
    again = make(tmp_path, kind="pybloom")
    assert again.open().rebuilt
    again.close()


def test_a_file_older_than_the_store(tmp_path: Path) -> None:
    """D5: one that was put back from a copy belongs to another state of the store."""
    store = make(tmp_path)
    store.open()
    store.add_many(keys(100))
    store.close()
    bloom = tmp_path / "seen" / "bloom"
    old = {file.name: file.read_bytes() for file in bloom.iterdir()}
    store = make(tmp_path)
    store.open()
    store.add_many(keys(200)[100:])
    store.close()
    for file in bloom.iterdir():
        file.unlink()
    for name, data in old.items():
        (bloom / name).write_bytes(data)
    again = make(tmp_path)
    assert again.open().rebuilt
    assert all(key in again for key in keys(200))
    again.close()


def test_after_a_power_cut_the_file_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was mapped and not closed may be gone when the machine was started anew."""
    store = make(tmp_path)
    store.open()
    store.add_many(keys(100))
    die(store)
    monkeypatch.setattr(tier, "_boot_id", lambda: "another")
    again = make(tmp_path)
    assert again.open().rebuilt
    assert all(key in again for key in keys(100))
    again.close()


def test_the_filter_is_written_anew_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When its list of later keys is full; what comes meanwhile is listed anew, and nothing is missed."""
    monkeypatch.setattr(tier, "FIRST_ENTRIES", 100)
    store = make(tmp_path)
    store.open()
    store.add_many(keys(350))
    assert store.tier.wants_saving
    write = store.tier.begin_save()
    assert not store.tier.wants_saving
    store.add_many(keys(390)[350:])
    die(store)
    copy = make(tmp_path)
    assert not copy.open().rebuilt
    assert all(key in copy for key in keys(390))
    die(copy)
    write()  # late, and of no use: its number is not the newest
    again = make(tmp_path)
    again.open()
    assert all(key in again for key in keys(390))
    again.close()


def test_without_space_for_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The filter lives in memory alone, and is made anew at the next start."""
    store = make(tmp_path)

    def full(handle: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(delta, "_reserve", full)
        store.open()
        store.add_many(keys(100))
        assert all(key in store for key in keys(100))
        store.close()
    again = make(tmp_path)
    assert again.open().rebuilt
    assert all(key in again for key in keys(100))
    again.close()


def test_space_that_ends_while_the_filter_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written then lacks the keys that could not be listed: it must not be believed."""
    monkeypatch.setattr(tier, "FIRST_ENTRIES", 100)
    monkeypatch.setattr(tier, "MOST_ENTRIES", 100)
    store = make(tmp_path)
    store.open()
    store.add_many(keys(150))
    write = store.tier.begin_save()

    def full(handle: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(delta, "_reserve", full)
        store.add_many(keys(400)[150:])
    write()
    die(store)
    again = make(tmp_path)
    assert again.open().rebuilt
    assert all(key in again for key in keys(400))
    again.close()


@pytest.mark.parametrize(
    "forged",
    [
        {"layers": [[1, 1]] * 60},
        {"layers": [[-1, 0]]},
        {"layers": {"a": "b"}},
        {"layers": [["many", 1e308]]},
        {"layers": []},
        None,
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_forged_file_is_not_believed(tmp_path: Path, kind: str, forged: dict[str, Any] | None) -> None:
    """One with the right checksum and a header of somebody's own."""
    store = make(tmp_path, kind=kind)
    store.open()
    store.add_many(keys(100))
    store.close()
    (file,) = (tmp_path / "seen" / "bloom").glob("*.bloom")
    content = file.read_bytes()
    at = len(tier.MAGIC) + 4
    size = int.from_bytes(content[at - 4 : at], "big")
    header = json.loads(content[at : at + size])
    packed = json.dumps({**header, **forged}).encode() if forged is not None else b"[" * 100_000
    body = tier.MAGIC + len(packed).to_bytes(4, "big") + packed + content[at + size : -4]
    file.write_bytes(body + crc32c(body).to_bytes(4, "big"))
    again = make(tmp_path, kind=kind)
    assert again.open().rebuilt
    assert all(key in again for key in keys(100))
    again.close()


def test_a_damaged_table_met_while_the_filter_is_made_anew(tmp_path: Path) -> None:
    """Reported as such, and nothing stays locked: without all keys the filter would say «new» of some."""
    store = make(tmp_path)
    store.open()
    store.add_many(keys(20_000))
    store._db.compact(b"s", b"t")
    store.close()
    remove(list((tmp_path / "seen" / "bloom").iterdir()))
    (table,) = (tmp_path / "seen" / "db").glob("*.ldb")
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    table.write_bytes(data)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="seen"):
            make(tmp_path).open()


def test_expiry(tmp_path: Path) -> None:
    """D10: seven days on, a key is new again, until it is added again."""
    clock = FakeClock(1_700_000_000)
    store = make(tmp_path, ttl=7 * 86400.0, clock=clock)
    store.open()
    (key,) = keys(1)
    store.add(key)
    clock.advance(6.9 * 86400)
    assert key in store
    clock.advance(0.2 * 86400)
    assert key not in store
    store.add(key)
    assert key in store
    store.close()


def test_forgetting(store: SeenStore) -> None:
    """One key, for good; the others stay."""
    store.add_many(keys(3))
    assert store.forget(keys(3)[1])
    assert not store.forget(keys(3)[1])
    assert [key in store for key in keys(3)] == [True, False, True]
    assert store.when(keys(1)[0]) is not None


def test_a_new_generation(tmp_path: Path) -> None:
    """Everything is new, at once and after a restart; the space comes back in bounded steps."""
    store = make(tmp_path)
    store.open()
    store.add_many(keys(500))
    store.begin_generation()
    assert not any(key in store for key in keys(500))
    store.add(keys(1)[0])
    store.close()
    again = make(tmp_path)
    again.open()
    assert sum(key in again for key in keys(500)) == 1
    assert again.maintain()
    assert not again.maintain()
    assert list(again.keys()) == keys(1)
    again.close()


def test_another_fingerprinter_is_noticed(tmp_path: Path) -> None:
    """Once: its name is kept from then on."""
    for identity, former in (("a", None), ("a", None), ("b", "a"), ("b", None)):
        store = make(tmp_path, identity=identity)
        assert store.open().former_identity == former
        store.close()


def test_one_owner(store: SeenStore, tmp_path: Path) -> None:
    """J9: a second one is refused."""
    with pytest.raises(StoreLocked):
        make(tmp_path).open()


@pytest.mark.parametrize("state", [b"", b"{", b"[]", b"{}", b'{"generation": "x"}', b"[" * 100_000])
def test_a_damaged_state_record(tmp_path: Path, state: bytes) -> None:
    """Refused with a word on where; nothing is left locked."""
    store = make(tmp_path)
    store.open()
    batch = store._db.batch()
    batch.put(b"m", state)
    store._db.write(batch)
    store.close()
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="state record"):
            make(tmp_path).open()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "forget", "reopen", "die", "check", "fresh"]), st.integers(0, 40)),
        max_size=60,
    )
)
def test_like_a_set(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]) -> None:
    """Whatever is done in whatever order, with a filter that is too small."""
    path = tmp_path_factory.mktemp("set")
    names = keys(41)
    model: set[bytes] = set()
    store = make(path, capacity=4, error_rate=0.4)
    store.open()
    for step, n in steps:
        key = names[n]
        if step == "add" and key not in store:
            store.add(key)
            model.add(key)
        elif step == "forget":
            assert store.forget(key) is (key in model)
            model.discard(key)
        elif step == "fresh":
            store.begin_generation()
            model.clear()
        elif step in {"reopen", "die"}:
            store.close() if step == "reopen" else die(store)
            store = make(path, capacity=4, error_rate=0.4)
            store.open()
        assert (key in store) is (key in model)
    assert {key for key in names if key in store} == model
    store.close()


WRITER = """
import hashlib, sys
from pathlib import Path
from scrapy_ha.seen.store import SeenStore
store = SeenStore(Path(sys.argv[1]), capacity=1000)
store.open()
n = int(sys.argv[2])
while True:
    key = hashlib.sha1(str(n).encode()).digest()
    if key not in store:
        store.add(key)
    print(n, flush=True)
    n += 1
"""


def test_fifty_kills(tmp_path: Path) -> None:
    """D7: it opens every time without help, and no key is missing whose addition was reported."""
    randomly = random.Random(7)
    path = tmp_path / "seen"
    reported = 0
    for _ in range(50):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(reported)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first, "it did not open"
        time.sleep(randomly.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        numbers = [
            int(line) for line in [first, *process.stdout.read().splitlines(True)] if line.endswith("\n")
        ]
        process.wait()
        process.stdout.close()
        reported = max(reported, numbers[-1] + 1)
    store = SeenStore(path, capacity=1000)
    store.open()
    assert reported > 50
    assert all(hashlib.sha1(str(n).encode()).digest() in store for n in range(reported))
    store.close()
