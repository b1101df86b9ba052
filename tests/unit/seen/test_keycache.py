"""The cache of keys met last: exact, and of fixed size."""

from __future__ import annotations

from hashlib import sha1

from hypothesis import given
from hypothesis import strategies as st

from scrapy_ha.seen.bloom import KEY_BYTES
from scrapy_ha.seen.keycache import KeyCache

ZERO = bytes(KEY_BYTES)

keys = st.one_of(
    st.binary(max_size=24),
    # Alike, so that one is found across two others.
    st.text(alphabet="\0a", min_size=KEY_BYTES, max_size=KEY_BYTES).map(str.encode),
)


def digest(n: int) -> bytes:
    return sha1(n.to_bytes(8, "big")).digest()


@given(added=st.lists(keys, max_size=30), asked=st.lists(keys, max_size=30))
def test_never_claims_what_was_not_added(added: list[bytes], asked: list[bytes]) -> None:
    cache = KeyCache(size=16)
    for key in added:
        cache.add(key)
    assert {key for key in asked if key in cache} <= set(added)


def test_a_key_found_across_two_others_is_not_claimed() -> None:
    cache = KeyCache(size=8)  # one bucket
    cache.add(b"a" * 10 + b"b" * 10)
    cache.add(b"c" * 10 + b"d" * 10)
    assert b"b" * 10 + b"c" * 10 not in cache


def test_knows_what_was_added_last() -> None:
    cache = KeyCache(size=1024)
    for n in range(10_000):
        cache.add(digest(n))
        assert digest(n) in cache


def test_keeps_most_of_as_many_keys_as_it_has_places() -> None:
    cache = KeyCache(size=4096)
    for n in range(4096):
        cache.add(digest(n))
    assert sum(digest(n) in cache for n in range(4096)) > 0.8 * 4096


def test_forgets_old_keys_and_does_not_grow() -> None:
    cache = KeyCache(size=1024)
    for n in range(20_000):
        cache.add(digest(n))
    assert sum(digest(n) in cache for n in range(20_000)) <= 1024


def test_keys_that_fit_no_place_are_left_to_the_store() -> None:
    cache = KeyCache(size=64)
    for key in (ZERO, b"", b"short", b"x" * 64):
        cache.add(key)
        assert key not in cache
