from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from octavo.util.os_random import OsRandom

MANY = 2_000


def test_ids_have_128_bits_and_numbers_63() -> None:
    random = OsRandom()
    assert all(len(random.hex()) == 32 for _ in range(MANY))
    numbers = [random.number() for _ in range(MANY)]
    assert 0 <= min(numbers) < 2**60 and 2**62 < max(numbers) < 2**63
    assert len(set(numbers)) == MANY


def test_threads_never_get_the_same() -> None:
    random = OsRandom()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: random.hex(), range(8 * MANY)))
    assert len(set(found)) == 8 * MANY


def test_no_two_sources_give_the_same() -> None:
    assert OsRandom().hex() != OsRandom().hex()
