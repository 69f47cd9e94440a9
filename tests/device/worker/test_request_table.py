from __future__ import annotations

import pytest

from octavo.device.worker.block_table import BlockTables
from octavo.device.worker.request_table import FIRST_COLUMNS, RequestTable
from octavo.words.messages import NewRequestData, ResolvedSampling
from octavo.words.sampling_params import SamplingParams


class Recorder:
    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def add(self, slot: int, request: NewRequestData) -> None:
        self.events.append((f"add {request.request_id}", slot))

    def remove(self, slot: int) -> None:
        self.events.append(("remove", slot))


def request(request_id: str, prompt: list[int], output: list[int] | None = None) -> NewRequestData:
    return NewRequestData(
        request_id=request_id,
        prompt_token_ids=prompt,
        output_token_ids=output or [],
        sampling=ResolvedSampling(params=SamplingParams(), seed=0, max_tokens=1, num_text_tokens=9),
        block_ids=(),
        num_computed_tokens=0,
    )


def test_holders_hear_who_comes_and_goes_and_in_which_slot() -> None:
    recorder = Recorder()
    table = RequestTable(2, BlockTables([]), [recorder])
    first, second = table.add(request("a", [1])), table.add(request("b", [2]))
    table.remove("a")
    assert table.add(request("c", [3])) == first
    assert recorder.events == [("add a", first), ("add b", second), ("remove", first), ("add c", first)]
    assert table.slots(["c", "b"]) == [first, second]


def test_a_request_that_never_came_can_go() -> None:
    table = RequestTable(1, BlockTables([]))
    table.remove("nobody")
    assert len(table) == 0


def test_a_request_is_not_added_twice() -> None:
    table = RequestTable(2, BlockTables([]))
    table.add(request("a", [1]))
    with pytest.raises(AssertionError, match="twice"):
        table.add(request("a", [1]))


def test_outputs_of_an_earlier_life_come_behind_the_prompt() -> None:
    table = RequestTable(1, BlockTables([]))
    slot = table.add(request("a", [1, 2], [3]))
    assert table.token_ids[slot, :3].tolist() == [1, 2, 3]
    assert (table.num_tokens[slot], table.num_prompt_tokens[slot]) == (3, 2)


def test_columns_follow_the_longest_request() -> None:
    table = RequestTable(2, BlockTables([]))
    prompt = list(range(FIRST_COLUMNS - 1))
    table.add(request("long", prompt))
    short = table.add(request("short", [5]))
    assert table.token_ids.shape == (2, FIRST_COLUMNS)
    for token in (7, 8):
        table.append(table.slots(["long", "short"]), [[token], [token + 10]])
    assert table.token_ids.shape == (2, 2 * FIRST_COLUMNS)
    (slot,) = table.slots(["long"])
    assert table.token_ids[slot, : FIRST_COLUMNS + 1].tolist() == [*prompt, 7, 8]
    assert table.token_ids[short, :3].tolist() == [5, 17, 18]
