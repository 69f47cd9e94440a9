from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from octavo.device.spec_decode.drafter import NoDrafter, SaidTokens
from octavo.device.worker.dummy import dummy_end, dummy_kv_cache_config, dummy_step
from octavo.device.worker.memory import PROFILED_TOKENS, PeakBytes, parameter_bytes, step_bytes
from octavo.words.messages import SchedulerOutput
from tests.device.worker.tiny_model import HIDDEN_SIZE, VOCAB_SIZE, Driver, TinyModel, greedy, make_runner


def test_the_peak_counts_what_lives_together() -> None:
    old = torch.zeros(1000)
    with PeakBytes() as bytes_:
        one = old + 1  # 4000
        two = one * 2  # 8000
        del one
        three = two + old.view(10, 100).flatten()  # still 8000: views of what was there are not new
        del two
        three[:500].add_(1)
    assert bytes_.peak == 8000
    del three


def test_a_view_keeps_its_storage_alive() -> None:
    with PeakBytes() as bytes_:
        view = torch.zeros(1000)[:1]
        other = torch.zeros(500)
    assert bytes_.peak == 6000
    del view, other


def test_tied_parameters_count_once() -> None:
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Linear(4, 8, bias=False))
    assert parameter_bytes(model) == 2 * 4 * 8 * 4
    model[1].weight = model[0].weight
    assert parameter_bytes(model) == 4 * 8 * 4


def test_step_bytes_grow_with_tokens_and_requests_and_cover_a_real_step() -> None:
    runner = make_runner(max_num_requests=64)
    specs = TinyModel().kv_cache_specs()
    config = dummy_kv_cache_config(specs, {}, PROFILED_TOKENS, 4096)
    runner.initialize_kv_cache(config)

    def bytes_for(tokens: int, requests: int) -> int:
        return step_bytes(runner, config, max_num_tokens=tokens, max_num_requests=requests, vocab_size=VOCAB_SIZE)

    tokens = 2048
    estimate = bytes_for(tokens, 1)
    assert estimate > bytes_for(256, 1)
    assert bytes_for(256, 64) > bytes_for(256, 1)
    large = dummy_kv_cache_config(specs, {}, tokens, 4096)
    runner.initialize_kv_cache(large)
    with PeakBytes() as real:
        runner.execute(dummy_step(large, 1, tokens, VOCAB_SIZE))
    assert tokens * HIDDEN_SIZE * 4 < real.peak < 1.5 * estimate
    assert estimate < 10 * real.peak


class Hungry(NoDrafter):
    """Guesses nothing, and takes so many bytes for each token computed and for each request that it is asked about."""

    follows_steps = True

    def propose(self, said: SaidTokens, num_drafts: Mapping[str, int]) -> dict[str, list[int]]:
        assert set(num_drafts.values()) == {DRAFTS}
        torch.zeros(int(said.num_kept.sum()) * BYTES_PER_TOKEN + len(num_drafts) * BYTES_PER_REQUEST, dtype=torch.uint8)
        return {}


DRAFTS, BYTES_PER_TOKEN, BYTES_PER_REQUEST = 3, 1 << 20, 1 << 24


def test_step_bytes_count_what_a_drafter_takes() -> None:
    """Its own peak comes when logits and samples are gone, so of those of a step only the larger one counts."""
    runner = make_runner(max_num_requests=64, drafter=Hungry())
    config = dummy_kv_cache_config(TinyModel().kv_cache_specs(), {}, PROFILED_TOKENS, 4096)
    runner.initialize_kv_cache(config)

    def bytes_for(tokens: int, requests: int) -> int:
        sizes = {"max_num_tokens": tokens, "max_num_requests": requests}
        return step_bytes(runner, config, vocab_size=VOCAB_SIZE, num_drafts=DRAFTS, **sizes)

    assert bytes_for(1048, 1) - bytes_for(48, 1) >= 1000 * BYTES_PER_TOKEN
    assert bytes_for(48, 64) - bytes_for(48, 8) >= 56 * BYTES_PER_REQUEST
    assert bytes_for(48, 1) >= 48 * BYTES_PER_TOKEN + BYTES_PER_REQUEST


def test_a_dummy_step_leaves_no_request_behind() -> None:
    runner = make_runner(max_num_requests=2)
    driver = Driver(runner)
    output = dummy_step(driver.config, 2, 5, VOCAB_SIZE)
    result = runner.sample(runner.execute(output))
    assert [len(tokens) for tokens in result.sampled_token_ids] == [1, 1]
    runner.sample(runner.execute(dummy_end(output)))
    driver.add("a", [3, 1, 4])
    driver.step(a=0)
    assert driver.outputs("a") == greedy([3, 1, 4], 1)


def test_dummy_requests_share_no_block_where_there_are_enough() -> None:
    config = dummy_kv_cache_config(TinyModel().kv_cache_specs(), {}, 64, 4096)
    output: SchedulerOutput = dummy_step(config, 2, 32, VOCAB_SIZE)
    block_ids = [block for new in output.new_requests for ids in new.block_ids for block in ids]
    assert len(block_ids) == len(set(block_ids)) == 4
    assert 0 not in block_ids
    assert max(block_ids) < config.num_blocks
