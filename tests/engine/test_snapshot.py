from __future__ import annotations

from octavo.engine.core import EngineCore
from octavo.engine.snapshot import MAX_CELLS, MAX_REQUESTS, MAX_SPANS, block_map
from octavo.words.snapshot import BlockState
from tests.engine.test_core import make_core, run
from tests.fakes import ControlPlane, make_message


def cells_of(core: EngineCore) -> list[int]:
    return [state for state, length in core.call("snapshot").blocks.runs for _ in range(length)]


def test_cells_follow_blocks_through_an_answer() -> None:
    core = make_core()
    assert set(cells_of(core)) == {BlockState.FREE}
    core.add_request(make_message("a", 40, max_tokens=4, ignore_eos=True))
    core.step()
    assert cells_of(core).count(BlockState.USED) == 3
    run(core)
    assert cells_of(core).count(BlockState.CACHED) == 2 and BlockState.USED not in cells_of(core)


def test_a_prefix_that_two_requests_hold_is_shared() -> None:
    core = make_core()
    core.add_request(make_message("a", range(1000, 1040), max_tokens=8))
    core.step()
    core.add_request(make_message("b", range(1000, 1040), max_tokens=8))
    core.step()
    assert cells_of(core).count(BlockState.SHARED) == 2
    assert cells_of(core).count(BlockState.USED) == 2


def test_a_snapshot_says_what_the_scheduler_has_in_its_books() -> None:
    core = make_core(max_num_seqs=2)
    for request_id in "abc":
        core.add_request(make_message(request_id, 20, max_tokens=8))
    core.step()
    core.step()
    snapshot, scheduler = core.call("snapshot"), core.scheduler
    held = cells_of(core)
    assert len(held) == snapshot.blocks.num_blocks == scheduler.kv_cache.num_usable_blocks
    assert snapshot.blocks.num_free == scheduler.kv_cache.num_free_blocks == len(held) - held.count(BlockState.USED)
    assert snapshot.num_requests == 3
    assert [request.status for request in snapshot.requests] == ["running", "running", "waiting"]
    for told in snapshot.requests:
        request = scheduler.requests[told.request_id]
        assert (told.num_prompt_tokens, told.num_output_tokens) == (20, request.num_output_tokens)
        assert told.num_computed_tokens == request.num_computed_tokens
    assert [request.num_blocks for request in snapshot.requests] == [2, 2, 0]


def test_steps_are_timed_from_the_first_look_on_and_told_once() -> None:
    core = make_core()
    core.add_request(make_message("a", 5, max_tokens=2))
    run(core)
    assert core.call("snapshot").steps == []
    core.add_request(make_message("b", 5, max_tokens=2))
    run(core)
    steps = core.call("snapshot").steps
    assert [(step.num_prefill_tokens, step.num_decode_tokens) for step in steps] == [(5, 0), (0, 1)]
    assert all(set(step.seconds) == {"schedule", "execute", "sample", "update"} for step in steps)
    assert core.call("snapshot").steps == []


def test_a_snapshot_and_what_is_recorded_for_it_are_bounded() -> None:
    core = make_core(max_model_len=1024, num_blocks=80)
    core.call("snapshot")
    for number in range(MAX_REQUESTS + 10):
        core.add_request(make_message(f"r{number}", 4, max_tokens=40, ignore_eos=True))
    run(core, most_steps=5000)
    assert len(core._spans.take()) == MAX_SPANS
    plane = ControlPlane(num_blocks=3 * MAX_CELLS)
    found = block_map(plane.scheduler)
    assert (found.num_blocks, found.blocks_per_cell, found.runs) == (3 * MAX_CELLS - 1, 3, [(0, MAX_CELLS)])


def test_a_profile_goes_before_and_has_nothing_of_what_was_watched() -> None:
    core = make_core()
    core.call("snapshot")
    core.add_request(make_message("a", 5, max_tokens=2))
    run(core)
    assert core.call("stop_profile") == []
    core.call("start_profile")
    assert core.call("snapshot").steps == []
    core.add_request(make_message("b", 5, max_tokens=1))
    run(core)
    assert [span.name for span in core.call("stop_profile")][:3] == ["schedule", "execute", "sample"]
