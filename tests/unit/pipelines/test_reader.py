"""One document per key, however often it was written."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_ha.errors import StoreError
from scrapy_ha.pipelines import reader as module
from scrapy_ha.pipelines.reader import SpoolReader
from scrapy_ha.pipelines.spool import Spool


def spool_of(path: Path, pairs: list[tuple[bytes, bytes]], segment_bytes: int = 2**26) -> SpoolReader:
    spool = Spool(path, segment_bytes=segment_bytes)
    spool.open()
    for key, payload in pairs:
        spool.append(key, payload)
    spool.close()
    return SpoolReader(path)


def test_the_last_write_of_a_key_wins_at_its_place(tmp_path: Path) -> None:
    pairs = [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"b", b"2"), (b"d", b"1")]
    reader = spool_of(tmp_path, pairs)
    assert [(r.key, r.payload) for r in reader.documents()] == [
        (b"a", b"2"),
        (b"c", b"1"),
        (b"b", b"2"),
        (b"d", b"1"),
    ]
    assert reader.findings.records == 6


@pytest.mark.parametrize("filter_bytes", [1, 2**16])
@given(keys=st.lists(st.integers(0, 30), max_size=200))
def test_documents_are_what_a_dict_would_hold(
    tmp_path_factory: pytest.TempPathFactory, keys: list[int], filter_bytes: int
) -> None:
    """Also with a filter so small that it takes every key for one that came before."""
    pairs = [(b"%d" % key, b"%d" % n) for n, key in enumerate(keys)]
    latest = dict(pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FILTER_MIN", filter_bytes)
        patch.setattr(module, "_FILTER_MAX", filter_bytes)
        reader = spool_of(tmp_path_factory.mktemp("spool"), pairs, segment_bytes=500)
        found = [(record.key, record.payload) for record in reader.documents()]
    assert found == [pair for pair in pairs if latest[pair[0]] == pair[1]]


def test_memory_does_not_grow_with_the_documents(tmp_path: Path) -> None:
    """Those that were written once."""
    reader = spool_of(tmp_path, [(b"key-%d" % n, b"x" * 100) for n in range(20_000)])
    tracemalloc.start()
    try:
        assert sum(1 for _ in reader.documents()) == 20_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * 2**20, peak


def test_a_snapshot_of_the_moment_it_was_made(tmp_path: Path) -> None:
    """What is appended later, also between the two readings, does not count."""
    spool = Spool(tmp_path)
    spool.open()
    spool.append(b"a", b"1")
    spool.append(b"b", b"1")
    spool.flush()
    documents = SpoolReader(tmp_path).documents()
    first = next(documents)
    spool.append(b"b", b"2")
    spool.close()
    assert [(r.key, r.payload) for r in [first, *documents]] == [(b"a", b"1"), (b"b", b"1")]


def test_no_spool(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(StoreError, match="no spool"):
            SpoolReader(path)
