"""What is cached is not computed again, but where its log-probabilities are asked for.

Blocks hold 16 tokens; the model counts up and never stops by itself.
"""

from __future__ import annotations

from tests.fakes import ControlPlane, scheduled


def test_a_cached_prefix_is_not_computed_again_but_one_token_always_is():
    plane = ControlPlane()
    plane.add("a", range(64), max_tokens=1)
    plane.run()
    plane.add("b", range(64), max_tokens=1)
    (new,) = plane.step().new_requests
    assert new.num_computed_tokens == 48
    assert scheduled(plane.steps[-1]) == {"b": 16}
    assert plane.last_output("b").num_cached_tokens == 48
    stats = plane.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (128, 48)


def test_hits_are_counted_at_admission_only():
    plane = ControlPlane(max_num_seqs=1)
    plane.add("a", range(32), max_tokens=4)
    plane.step()
    plane.add("b", range(32), max_tokens=1)
    plane.step()
    plane.step()
    assert plane.scheduler.stats().prefix_cache_queries == 32
    plane.run()
    assert plane.scheduler.stats().prefix_cache_queries == 64


def test_cached_tokens_are_those_of_the_first_admission():
    plane = ControlPlane(num_blocks=5)
    plane.add("a", 32, max_tokens=2)
    plane.add("b", 32, max_tokens=4)
    plane.run()
    assert plane.scheduler.stats().num_preemptions == 1
    assert plane.last_output("b").num_cached_tokens == 0


def test_resetting_the_cache_is_refused_while_a_request_runs():
    plane = ControlPlane()  # PC14
    plane.add("a", range(40), max_tokens=2)
    plane.step()
    assert not plane.scheduler.reset_prefix_cache()
    plane.run()
    assert plane.token_ids("a") == [140, 141]
    assert plane.scheduler.reset_prefix_cache()
    plane.add("b", range(40), max_tokens=1)
    plane.run()
    assert plane.last_output("b").num_cached_tokens == 0


def test_a_salt_keeps_a_prefix_apart():
    plane = ControlPlane()
    for request_id, salt in (("a", "x"), ("b", "x"), ("c", "y"), ("d", None)):
        plane.add(request_id, range(40), max_tokens=1, cache_salt=salt)
        plane.run()
    assert [plane.last_output(request_id).num_cached_tokens for request_id in "abcd"] == [0, 32, 0, 0]


def test_prompt_logprobs_are_collected_over_chunks_and_sent_once():
    plane = ControlPlane(max_num_batched_tokens=32)
    plane.add("a", range(70), prompt_logprobs=0, max_tokens=3)
    plane.run()
    first, *rest = plane.outputs["a"]
    assert [row.token_ids[0] for row in first.prompt_logprobs or ()] == list(range(1, 70))
    assert [output.prompt_logprobs for output in rest] == [None, None]


def test_a_request_for_prompt_logprobs_computes_what_is_cached():
    plane = ControlPlane()
    plane.add("a", range(40), max_tokens=1)
    plane.run()
    plane.add("b", range(40), prompt_logprobs=0, max_tokens=1)
    plane.run()
    assert len(plane.last_output("b").prompt_logprobs or ()) == 39
    assert plane.last_output("b").num_cached_tokens == 0


def test_prompt_logprobs_of_a_preempted_prefill_start_again():
    plane = ControlPlane(num_blocks=7, long_prefill_token_threshold=16)  # 6 usable
    plane.add("a", 16, max_tokens=17)
    b = plane.add("b", 75, prompt_logprobs=0, max_tokens=2)
    for _ in range(4):
        plane.step()
    assert len(b.prompt_logprobs) == 64
    assert plane.step().preempted_request_ids == ["b"]  # a took a second block, b needs a fifth.
    assert b.prompt_logprobs == []
    plane.run()
    first, second = plane.outputs["b"]
    assert [row.token_ids[0] for row in first.prompt_logprobs or ()] == b.prompt_token_ids[1:]
    assert second.prompt_logprobs is None


def test_prompt_logprobs_are_not_sent_again_after_a_preemption():
    plane = ControlPlane(num_blocks=5)
    plane.add("a", 32, max_tokens=2)
    plane.add("b", 32, prompt_logprobs=0, max_tokens=3)
    plane.run()
    assert plane.scheduler.stats().num_preemptions == 1
    assert [len(output.prompt_logprobs or ()) for output in plane.outputs["b"]] == [31, 0, 0]
