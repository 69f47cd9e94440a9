from __future__ import annotations

import numpy as np
import pytest

from octavo.device.sample.random_numbers import Purpose, exponentials, philox4x32, splitmix64, stream_keys

# The known answers that Random123 publishes for philox4x32-10 (kat_vectors).
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> np.ndarray:
    return np.array([[int(word, 16) for word in text.split()]], dtype=np.uint64)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter: str, key: str, expected: str) -> None:
    np.testing.assert_array_equal(philox4x32(words(counter), words(key)), words(expected))


# The first outputs of the authors' own program for this seed.
SPLITMIX64_OF_1234567 = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]


def test_splitmix_gives_the_published_answers() -> None:
    outputs = splitmix64(np.array([1234567], dtype=np.uint64), np.arange(4, dtype=np.uint64))
    assert outputs.tolist() == SPLITMIX64_OF_1234567


def test_a_stream_does_not_depend_on_the_others_of_its_call() -> None:
    seeds, choices, positions = [7, 2**63 - 1, 0], [0, 3, 1], [5, 100_000, 0]
    together = stream_keys(seeds, choices, positions, Purpose.TOKEN)
    alone = [stream_keys([s], [c], [p], Purpose.TOKEN)[0] for s, c, p in zip(seeds, choices, positions, strict=True)]
    assert together.tolist() == alone


def test_seed_choice_and_position_each_name_another_stream() -> None:
    keys = stream_keys([1, 2, 1, 1, 1 + 2**40], [0, 0, 1, 0, 0], [9, 9, 9, 10, 9], Purpose.TOKEN)
    assert len(set(keys.tolist())) == 5


@pytest.mark.parametrize("varied", ["seed", "choice", "position", "token id"])
def test_numbers_are_exponential_along_each_part_of_their_name(varied: str) -> None:
    count, bins = 20_000, 50
    steps, fixed = np.arange(count), np.full(count, 3)
    parts = {name: steps if name == varied else fixed for name in ("seed", "choice", "position")}
    keys = stream_keys(parts["seed"], parts["choice"], parts["position"], Purpose.TOKEN)
    numbers = exponentials(keys[:1], steps)[0] if varied == "token id" else exponentials(keys, fixed[:1])[:, 0]
    assert numbers.min() > 0.0
    assert np.isfinite(numbers).all()
    uniform = np.exp(-numbers)
    observed = np.histogram(uniform, bins, (0.0, 1.0))[0]
    chi_square = ((observed - count / bins) ** 2 / (count / bins)).sum()
    assert chi_square < 85.4  # 49 degrees of freedom, p = 0.001
    assert abs(np.corrcoef(uniform[:-1], uniform[1:])[0, 1]) < 0.03


def test_numbers_are_named_by_token_id_whatever_the_candidates() -> None:
    keys = stream_keys([1, 2], [0, 0], [4, 4], Purpose.TOKEN)
    some = np.array([[5, 900], [31, 2]])
    np.testing.assert_array_equal(
        exponentials(keys, some), np.take_along_axis(exponentials(keys, np.arange(1000)), some, axis=1)
    )
