"""Bloom filters over fingerprints, in both kinds and in layers."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_ha.errors import SettingError
from scrapy_ha.seen import bloom as module
from scrapy_ha.seen.bloom import KEY_BYTES, Bloom, LayeredBloom, PyBloom, RBloom, bytes_needed, normal, pick

KINDS = ["pybloom", "rbloom"]


def keys(count: int, salt: str = "") -> list[bytes]:
    return [hashlib.sha1(f"{salt}{n}".encode()).digest() for n in range(count)]


@pytest.mark.parametrize("cls", [PyBloom, RBloom])
def test_what_was_added_is_perhaps_seen_and_few_others_are(cls: type[Bloom]) -> None:
    """No false negative; false positives at about the rate asked for."""
    bloom = cls(10_000, 0.01)  # type: ignore[call-arg]
    bloom.add_many(keys(5000))
    for key in keys(10_000)[5000:]:
        bloom.add(key)
    assert bloom.count == 10_000
    assert all(key in bloom for key in keys(10_000))
    assert sum(key in bloom for key in keys(20_000, "other")) < 20_000 * 0.01 * 1.5
    assert 0.4 < bloom.fill_ratio() < 0.6


@pytest.mark.parametrize("kind", KINDS)
def test_many_at_once_set_the_bits_of_one_by_one(kind: str) -> None:
    """What is made anew is the filter that was."""
    many, single = (LayeredBloom(1000, 0.01, kind) for _ in range(2))
    many.add_many(keys(2500))
    for key in keys(2500):
        single.add(key)
    assert list(many.dump()) == list(single.dump())


@pytest.mark.parametrize("cls", [PyBloom, RBloom])
def test_bits_come_back(cls: type[Bloom]) -> None:
    """In another filter of the same size, as another process would have it; not in one of another size."""
    bloom, other = cls(1001, 0.01), cls(1001, 0.01)  # type: ignore[call-arg]
    bloom.add_many(keys(1000))
    other.load(bloom.dump(), bloom.count)
    assert other.count == 1000
    assert all(key in other for key in keys(1000))
    other.add_many(keys(1, "more"))
    assert keys(1, "more")[0] in other
    with pytest.raises(ValueError, match="size"):
        cls(5000, 0.01).load(bloom.dump(), 1)  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", KINDS)
@given(bits=st.binary(max_size=40), count=st.sampled_from([0, 5, -1, None, "5", 2**70]), whole=st.booleans())
def test_any_bits_are_taken_or_refused(kind: str, bits: bytes, count: object, whole: bool) -> None:
    """Whatever a file says: an error that is foreseen, or a filter that answers. rbloom alone panics."""
    bloom = pick(kind)(20, 0.01)
    if whole:
        bits = (bits + bytes(len(bloom.dump())))[: len(bloom.dump())]
    try:
        bloom.load(bits, count)  # type: ignore[arg-type]
    except ValueError:
        bloom = pick(kind)(20, 0.01)
    assert bloom.count >= 0
    bloom.add(keys(1)[0])
    assert keys(1)[0] in bloom


@pytest.mark.parametrize("kind", KINDS)
def test_more_layers_than_there_are_bits_for(kind: str) -> None:
    """A layer is made for bits that could fill it, so a short file cannot take all memory."""
    bloom = LayeredBloom(1000, 0.01, kind)
    first = next(iter(bloom.dump()))
    with pytest.raises(ValueError, match="size"):
        bloom.load([first] * 60)
    assert len(bloom.layers) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("capacity", "error_rate"), [(1, 0.5), (7, 0.9), (1000, 0.01)])
def test_layers_come_back(kind: str, capacity: int, error_rate: float) -> None:
    """All of them, also the smallest, whose bits are few."""
    bloom, other = (LayeredBloom(capacity, error_rate, kind) for _ in range(2))
    bloom.add_many(keys(5000))
    other.load(bloom.dump())
    assert [layer.count for layer in other.layers] == [layer.count for layer in bloom.layers]
    assert all(key in other for key in keys(5000))


@given(st.binary(max_size=100))
def test_any_key_becomes_a_normal_one(key: bytes) -> None:
    """Of fixed length; a fingerprint of the usual length stays as it is."""
    assert len(normal(key)) == KEY_BYTES
    assert len(key) != KEY_BYTES or normal(key) == key


@pytest.mark.parametrize("kind", KINDS)
def test_more_keys_than_planned(kind: str) -> None:
    """D4: further layers come, all keys are known, and the error rate stays what was asked for."""
    bloom = LayeredBloom(1000, 0.02, kind)
    assert not bloom.is_filling
    for key in keys(800):
        bloom.add(key)
    assert bloom.is_filling
    bloom.add_many(keys(5000)[800:])
    assert bloom.count == 5000
    assert len(bloom.layers) == 3
    assert [layer.capacity for layer in bloom.layers] == [1000, 2000, 4000]
    assert all(key in bloom for key in keys(5000))
    assert sum(key in bloom for key in keys(20_000, "other")) <= 20_000 * 0.02
    assert 0 < bloom.estimated_error() <= 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_a_filter_far_too_small_never_says_new_of_what_was_added(kind: str) -> None:
    """However many come; it only says «perhaps» more often."""
    bloom = LayeredBloom(1, 0.5, kind)
    bloom.add_many(keys(3000))
    assert all(key in bloom for key in keys(3000))


def test_a_size_beyond_memory_is_refused() -> None:
    """D4: with the memory it would need, and before any is taken."""
    with pytest.raises(SettingError, match=r"HA_SEEN_CAPACITY = 1000000000000 .* needs [\d,]+ MB"):
        LayeredBloom(10**12, 0.01, "pybloom")
    assert bytes_needed(10**12, 0.01) == pytest.approx(1.198e12, rel=0.001)


def test_memory_that_files_lie_in_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container whose limit is filled by files that were read: they make room when asked to."""
    said = {
        "/proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n",
        "/sys/fs/cgroup/memory.max": "4000000\n",
        "/sys/fs/cgroup/memory.current": "3900000\n",
        "/sys/fs/cgroup/memory.stat": (
            "anon 400000\nfile 3500000\ninactive_file 2000000\nactive_file 500000\n"
        ),
    }
    monkeypatch.setattr(module.Path, "read_text", lambda self: read(said, str(self)))
    assert module.available_memory() == 2_600_000
    said["/sys/fs/cgroup/memory.max"] = "max\n"
    assert module.available_memory() == 8_192_000
    del said["/sys/fs/cgroup/memory.max"]
    assert module.available_memory() == 8_192_000
    said.clear()
    assert module.available_memory() is None


def read(said: dict[str, str], path: str) -> str:
    if path not in said:
        raise FileNotFoundError(path)
    return said[path]


def test_without_rbloom(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken where it is installed, and only then; asked for by name, its absence is said."""
    assert pick("auto") is RBloom
    assert pick("pybloom") is PyBloom
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    assert pick("auto") is PyBloom
    with pytest.raises(SettingError, match="pip install"):
        pick("rbloom")
