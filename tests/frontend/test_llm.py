"""LLM on the counting model SUCC: every text is known exactly. One engine for most tests, in-process."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from octavo.config.flat import EngineArgs
from octavo.engine.stats import IterationStats
from octavo.frontend.llm import LLM
from octavo.frontend.llm_engine import LLMEngine
from octavo.words.errors import ConfigError, EngineDeadError, EngineError, ModelNotFoundError, RequestError
from octavo.words.inputs import PromptType
from octavo.words.messages import SchedulerStats
from octavo.words.sampling_params import RequestOutputKind, SamplingParams
from tests.held import held
from tests.succ import EOT, make_succ

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# The tiny model gains nothing from threads, and shares the machine's few CPUs with other tests.
SMALL: dict[str, Any] = {"num_threads": 1}
GREEDY = SamplingParams(temperature=0.0, max_tokens=40)


@pytest.fixture(scope="module")
def llm(succ: Path) -> Iterator[LLM]:
    with LLM(str(succ), **SMALL, max_model_len=2048, block_size=16) as llm:
        yield llm


def texts(llm: LLM, prompts: Any, params: Any = GREEDY, **options: Any) -> list[str]:
    return [output.outputs[0].text for output in llm.generate(prompts, params, use_tqdm=False, **options)]


def metric(llm: LLM, name: str) -> float:
    return sum(found.value for found in llm.get_metrics() if found.name == f"vllm:{name}")


def test_the_model_counts_to_its_end_token(llm: LLM) -> None:
    [output] = llm.generate("A", GREEDY, use_tqdm=False)
    [choice] = output.outputs
    assert choice.text == ALPHABET[1:]
    assert len(choice.token_ids) == 26 and choice.token_ids[-1] == EOT
    assert choice.finish_reason == "stop"
    assert output.prompt == "A" and output.prompt_token_ids == [ord("A")]
    assert output.finished


def test_outputs_come_in_the_order_of_prompts_whatever_ends_first(llm: LLM) -> None:
    assert texts(llm, ["A", "w", "K", "x"]) == [ALPHABET[1:], "xyz", ALPHABET[11:], "yz"]


@pytest.mark.parametrize(
    "prompt", ["w", [ord("w")], {"prompt": "w"}, {"prompt_token_ids": [ord("w")]}, {"prompt": "w", "cache_salt": "s"}]
)
def test_every_form_of_prompt_is_served_alone_and_in_a_list(llm: LLM, prompt: PromptType) -> None:
    assert texts(llm, prompt) == ["xyz"]
    assert texts(llm, [prompt, "A"]) == ["xyz", ALPHABET[1:]]


def test_no_prompts_no_outputs(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []
    assert llm.chat([], GREEDY) == []


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    params = [SamplingParams(temperature=0.0, max_tokens=n) for n in (1, 2, 3)]
    assert texts(llm, ["A", "A", "A"], params) == ["B", "BC", "BCD"]
    assert params[0].max_tokens == 1 and params[0].output_kind == 0, "the caller's parameters are not touched"


@pytest.mark.parametrize("name", ["sampling_params", "priority"])
def test_lists_must_have_the_length_of_the_prompts(llm: LLM, name: str) -> None:
    options: dict[str, Any] = {"sampling_params": [GREEDY], "priority": [1]}
    with pytest.raises(RequestError, match=f"{name} has 1 entries for 2 prompts") as caught:
        llm.generate(["A", "B"], **{name: options[name]}, use_tqdm=False)
    assert caught.value.param == name


def test_a_bad_prompt_is_named_by_its_index_before_anything_runs(llm: LLM) -> None:
    steps = metric(llm, "prompt_tokens")
    for bad in ("", [], {"prompt_token_ids": [320]}, "A" * 3000, {"text": "A"}):
        with pytest.raises(RequestError, match=r"^prompts\[2\]: "):
            llm.generate(["A", "B", bad, "C"], GREEDY, use_tqdm=False)
    assert metric(llm, "prompt_tokens") == steps
    assert texts(llm, "w") == ["xyz"]


@pytest.mark.parametrize(
    ("prompts", "params", "said"),
    [
        ((letter for letter in "AB"), GREEDY, "got generator"),
        (None, GREEDY, "got NoneType"),
        (65, GREEDY, "got int"),
        (b"A", GREEDY, "got bytes"),
        (np.array([65, 66]), GREEDY, "got ndarray"),
        ("A", {"temperature": 0}, "must be SamplingParams, got dict"),
        (["A", "w"], [GREEDY, 3], r"prompts\[1\]: .*must be SamplingParams, got int"),
        ("A", "greedy", "got str"),
    ],
)
def test_arguments_of_another_type_are_request_errors(llm: LLM, prompts: Any, params: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        llm.generate(prompts, params, use_tqdm=False)
    assert texts(llm, "w") == ["xyz"]


def test_numpy_integers_are_one_prompt(llm: LLM) -> None:
    assert texts(llm, [np.int64(119)]) == ["xyz"]


@pytest.mark.parametrize("messages", [None, "A", {"role": "user", "content": "A"}, 5])
def test_messages_of_another_type_are_request_errors(llm: LLM, messages: Any) -> None:
    with pytest.raises(RequestError, match="a list of messages"):
        llm.chat(messages, GREEDY, use_tqdm=False)


def test_defaults_come_from_the_model(llm: LLM, succ: Path, tmp_path: Path) -> None:
    assert llm.get_default_sampling_params() == SamplingParams()
    folder = make_succ(tmp_path / "warm")
    (folder / "generation_config.json").write_text('{"eos_token_id": [257, 258], "temperature": 0.5, "top_k": 3}')
    for source, expected in (("auto", SamplingParams(temperature=0.5, top_k=3)), ("octavo", SamplingParams())):
        with LLM(str(folder), **SMALL, generation_config=source, max_model_len=64) as other:
            assert other.get_default_sampling_params() == expected
            assert texts(other, "A", GREEDY) == [ALPHABET[1:]], "end tokens count in either case"


def test_chat_renders_the_template(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "K"}, {"role": "assistant", "content": "L"}]
    one = llm.chat(conversation, GREEDY, use_tqdm=False)
    assert [output.outputs[0].text for output in one] == [ALPHABET[12:]]
    assert one[0].prompt == "KL"
    two = llm.chat([conversation, [{"role": "user", "content": "w"}]], GREEDY, use_tqdm=False)
    assert [output.outputs[0].text for output in two] == [ALPHABET[12:], "xyz"]


def test_chat_takes_a_template_of_the_callers_own(llm: LLM) -> None:
    messages = [{"role": "user", "content": "B"}]
    [output] = llm.chat(messages, GREEDY, chat_template="A{{ messages[0].content }}", use_tqdm=False)
    assert (output.prompt, output.outputs[0].text) == ("AB", ALPHABET[2:])
    assert llm.chat(messages, GREEDY, use_tqdm=False)[0].prompt == "B"
    with pytest.raises(RequestError, match="chat template: "):
        llm.chat(messages, GREEDY, chat_template="{% if %}", use_tqdm=False)


def test_chat_names_the_bad_conversation(llm: LLM) -> None:
    good = [{"role": "user", "content": "K"}]
    with pytest.raises(RequestError, match=r"^messages\[1\]: "):
        llm.chat([good, [{"content": "no role"}]], GREEDY, use_tqdm=False)
    with pytest.raises(RequestError, match="add_generation_prompt=False"):
        llm.chat(good, GREEDY, continue_final_message=True)


def test_stop_strings_end_the_request_in_the_core_too(llm: LLM) -> None:
    [output] = llm.generate("A", GREEDY.clone(stop=["FG"]), use_tqdm=False)
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("BCDE", "stop")
    assert output.outputs[0].stop_reason == "FG"
    assert metric(llm, "num_requests_running") == 0
    assert metric(llm, "kv_cache_usage_perc") == 0.0


def test_several_choices_of_one_prompt(llm: LLM) -> None:
    params = SamplingParams(n=3, temperature=1.0, seed=1, max_tokens=5)
    [output] = llm.generate("A", params, use_tqdm=False)
    assert [choice.index for choice in output.outputs] == [0, 1, 2]
    assert {choice.text for choice in output.outputs} == {"BCDEF"}


def test_a_second_round_hits_the_prefix_cache_until_it_is_reset(llm: LLM) -> None:
    prompt = ALPHABET * 4
    assert llm.reset_prefix_cache() is True
    [cold] = llm.generate(prompt, GREEDY, use_tqdm=False)
    [warm] = llm.generate(prompt, GREEDY, use_tqdm=False)
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 96)
    assert warm.outputs[0].text == cold.outputs[0].text
    assert llm.reset_prefix_cache() is True
    [cold] = llm.generate(prompt, GREEDY, use_tqdm=False)
    assert cold.num_cached_tokens == 0


def test_metrics_count_what_was_asked_and_answered(llm: LLM) -> None:
    before = {name: metric(llm, name) for name in ("prompt_tokens", "generation_tokens", "request_success")}
    llm.generate(["A", "w"], GREEDY, use_tqdm=False)
    after = {name: metric(llm, name) for name in before}
    assert {name: after[name] - before[name] for name in before} == {
        "prompt_tokens": 2,
        "generation_tokens": 26 + 4,
        "request_success": 2,
    }


def test_workers_are_called_by_name(llm: LLM) -> None:
    assert llm.collective_rpc("check_health") == [None]
    with pytest.raises(EngineError, match="no_such_method"):
        llm.collective_rpc("no_such_method")
    with pytest.raises(ConfigError, match="name of a method"):
        llm.collective_rpc(len)  # type: ignore[arg-type]


class Interrupter:
    """A stat logger during whose third step the user presses Ctrl-C."""

    def __init__(self) -> None:
        self.num_steps = 0

    def record(self, scheduler: SchedulerStats, iteration: IterationStats) -> None:
        self.num_steps += 1
        if self.num_steps == 3:
            signal.raise_signal(signal.SIGINT)

    def log(self) -> None:
        pass


def test_ctrl_c_aborts_everything(succ: Path) -> None:
    with LLM(str(succ), **SMALL, max_model_len=256) as llm:
        llm._engine._statistics.add(Interrupter())
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["A", "B", "C"], GREEDY, use_tqdm=False)
        assert not llm._engine.has_unfinished_requests()
        assert metric(llm, "num_requests_running") == 0
        assert metric(llm, "kv_cache_usage_perc") == 0.0
        assert texts(llm, "w") == ["xyz"]


class TokenCounter:
    """A stat logger of the user's own."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_lines = 0

    def record(self, scheduler: SchedulerStats, iteration: IterationStats) -> None:
        self.num_tokens += iteration.num_generation_tokens

    def log(self) -> None:
        self.num_lines += 1


def test_a_stat_logger_of_the_users_own_hears_of_every_step(succ: Path) -> None:
    counter = TokenCounter()
    args = EngineArgs(str(succ), **SMALL, max_model_len=64)
    with LLMEngine.from_engine_args(args, stat_loggers=[counter]) as engine:
        engine.add_request("w", "w", GREEDY)
        engine.add_request("A", "A", GREEDY.clone(max_tokens=5))
        while engine.has_unfinished_requests():
            engine.step()
        engine.do_log_stats()
    assert (counter.num_tokens, counter.num_lines) == (4 + 5, 1)


def test_parameters_meet_in_one_stream(succ: Path) -> None:
    """Deltas of several choices, stop strings held back and cut, min_tokens before a stop and before two ends."""
    expected = {
        ("choices", 0): ("BCDEFGHIJK", "stop", "LMN"),
        ("choices", 1): ("BCDEFGHIJK", "stop", "LMN"),
        ("late stop", 0): (ALPHABET[1:], "stop", None),
        ("late end", 0): ("xyzABCDEFG", "length", None),
    }
    args = EngineArgs(str(succ), **SMALL, max_model_len=256, block_size=16, num_gpu_blocks_override=20)
    for kind in RequestOutputKind:
        found: dict[tuple[str, int], tuple[str, str | None, int | str | None]] = {}
        several = GREEDY.clone(temperature=1.0, seed=1, n=2, stop=["LMN"], logprobs=1, output_kind=kind)
        with LLMEngine.from_engine_args(args) as engine:
            engine.add_request("choices", "A", several)
            engine.add_request("late stop", "A", GREEDY.clone(stop=["E"], min_tokens=10, output_kind=kind))
            engine.add_request("late end", "w", GREEDY.clone(min_tokens=6, max_tokens=10, output_kind=kind))
            while engine.has_unfinished_requests():
                for output in engine.step():
                    for choice in output.outputs:
                        key = output.request_id, choice.index
                        before = found.get(key, ("",))[0] if kind is RequestOutputKind.DELTA else ""
                        found[key] = before + choice.text, choice.finish_reason, choice.stop_reason
        assert found == expected


@pytest.fixture(scope="module")
def interrupted(succ: Path) -> Iterator[LLM]:
    worker = "tests.engine.interrupted_worker:InterruptedWorker"
    with LLM(str(succ), **SMALL, max_model_len=256, block_size=16, worker_cls=worker) as llm:
        yield llm


def test_ctrl_c_in_the_middle_of_a_step_waits_for_its_end(interrupted: LLM) -> None:
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            interrupted.generate(["A", "B" * 101, "C"], GREEDY, use_tqdm=False)
        assert metric(interrupted, "num_requests_running") == 0
        assert metric(interrupted, "kv_cache_usage_perc") == 0.0
        assert texts(interrupted, ["A", "B" * 60]) == [ALPHABET[1:], ALPHABET[2:]]


def test_ctrl_c_loses_no_output_of_those_who_go_on(interrupted: LLM) -> None:
    engine = interrupted._engine
    engine.add_request("one token", [65] * 101, GREEDY.clone(max_tokens=1))
    engine.add_request("several", "A", GREEDY)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    found = {}
    while engine.has_unfinished_requests():
        found |= {output.request_id: output.outputs[0].text for output in engine.step()}
    assert found == {"one token": "B", "several": ALPHABET[1:]}


def test_a_second_ctrl_c_does_not_wait_and_ends_the_engine(succ: Path) -> None:
    worker = "tests.engine.interrupted_worker:InterruptedWorker"
    with LLM(str(succ), **SMALL, max_model_len=256, worker_cls=worker) as llm:
        with pytest.raises(KeyboardInterrupt):
            llm.generate("A" * 102, GREEDY, use_tqdm=False)
        with pytest.raises(EngineDeadError, match="KeyboardInterrupt"):
            llm.generate("A", GREEDY, use_tqdm=False)


def test_a_step_with_nobody_to_wait_for_returns_at_once(succ: Path) -> None:
    args = EngineArgs("simulated", distributed_executor_backend="simulated", tokenizer=str(succ), plugins="")
    with LLMEngine.from_engine_args(args, multiprocess=True) as engine:
        assert engine.step() == []


def test_a_length_of_auto_is_what_the_memory_holds(succ: Path) -> None:
    """200,000 bytes are six blocks of 32 tokens, of which one is the null block."""
    with LLM(str(succ), **SMALL, dtype="float32", max_model_len="auto", kv_cache_memory_bytes=200_000) as llm:
        assert llm.info.max_model_len == 160
        [output] = llm.generate([[65] * 159], GREEDY.clone(max_tokens=None), use_tqdm=False)
        assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("B", "length")
        with pytest.raises(RequestError, match="160"):
            llm.generate([[65] * 160], GREEDY, use_tqdm=False)
        assert metric(llm, "num_preemptions") == 0


def test_two_engines_in_one_process_and_in_two_threads_keep_to_themselves(succ: Path, llm: LLM) -> None:
    found: dict[str, list[str]] = {}

    def ask(name: str, engine: LLM, prompts: list[str]) -> None:
        found[name] = texts(engine, prompts)

    with LLM(str(succ), **SMALL, max_model_len=64) as other:
        threads = [
            threading.Thread(target=ask, args=("a", llm, ["A", "w"] * 8)),
            threading.Thread(target=ask, args=("b", other, ["w", "A"] * 8)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {"a": [ALPHABET[1:], "xyz"] * 8, "b": ["xyz", ALPHABET[1:]] * 8}


def test_progress_goes_to_stderr(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["A", "w"], GREEDY, use_tqdm=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Processed prompts: 100%" in captured.err and "2/2" in captured.err


def test_a_request_that_can_never_fit_raises_and_the_next_is_served(succ: Path) -> None:
    """Case PC05: 40 usable blocks of 16 tokens hold 640."""
    with LLM(str(succ), **SMALL, max_model_len=2048, block_size=16, num_gpu_blocks_override=41) as llm:
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=40)
        with pytest.raises(RequestError, match=r"^prompts\[1\]: .*640"):
            llm.generate(["A", "A" * 900], params, use_tqdm=False)
        [small] = llm.generate("A" * 4, params, use_tqdm=False)
        assert len(small.outputs[0].token_ids) == 40
        [exact] = llm.generate([[65] * 600], params, use_tqdm=False)
        assert (len(exact.outputs[0].token_ids), exact.outputs[0].finish_reason) == (40, "length")
        with pytest.raises(RequestError, match="640"):
            llm.generate([[65] * 640], params, use_tqdm=False)


def test_a_request_that_outgrows_the_cache_ends_there(succ: Path) -> None:
    """Case PC06."""
    with LLM(str(succ), **SMALL, max_model_len=2048, block_size=16, num_gpu_blocks_override=41) as llm:
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=1000)
        [solo] = llm.generate([[65] * 600], params, use_tqdm=False)
        assert solo.outputs[0].finish_reason == "length"
        assert len(solo.outputs[0].token_ids) == 40
        both = llm.generate([[65] * 600, [66] * 600], params, use_tqdm=False)
        assert [len(output.outputs[0].token_ids) for output in both] == [40, 40]
        assert metric(llm, "kv_cache_usage_perc") == 0.0


def test_three_hundred_mixed_requests_leave_the_cache_empty(succ: Path) -> None:
    """Case PC12, offline."""
    with LLM(str(succ), **SMALL, max_model_len=256, block_size=16, num_gpu_blocks_override=30, max_num_seqs=8) as llm:
        engine = llm._engine
        prompts = [ALPHABET[number % 26] * (1 + number % 90) for number in range(300)]
        finished: set[str] = set()
        for number, prompt in enumerate(prompts):
            params = SamplingParams(n=1 + 2 * (number % 10 == 0), temperature=1.0, seed=number, max_tokens=8)
            engine.add_request(str(number), prompt, params)
            if number % 3 == 0:
                finished |= {output.request_id for output in engine.step() if output.finished}
            if number % 7 == 0:
                engine.abort_request(str(number))
        while engine.has_unfinished_requests():
            finished |= {output.request_id for output in engine.step() if output.finished}
        assert len(finished) > 200
        assert metric(llm, "num_preemptions") > 0
        for name in ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"):
            assert metric(llm, name) == 0.0
        assert llm.reset_prefix_cache() is True


def test_the_engine_loop_streams_and_aborts(succ: Path) -> None:
    with LLMEngine.from_engine_args(EngineArgs(str(succ), max_model_len=256)) as engine:
        engine.add_request("a", "A", GREEDY)
        engine.add_request("w", "w", GREEDY)
        engine.step()
        engine.abort_request(["a", "unknown"])
        seen = []
        while engine.has_unfinished_requests():
            seen += [(output.request_id, output.outputs[0].text) for output in engine.step()]
        assert seen[-1] == ("w", "xyz")
        assert "a" not in {request_id for request_id, _ in seen}
        with pytest.raises(RequestError):
            engine.add_request("b", "")


def test_start_up_says_what_was_found(succ: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "octavo"), LLM(str(succ), **SMALL, max_model_len=128, block_size=16) as llm:
        phases = llm.info.phases
    lines = "\n".join(caplog.messages)
    for expected in (
        "non-default args: {",
        "Loading weights took ",
        " GiB memory and ",
        "Available KV cache memory: ",
        "Using max model len 128",
        "CPU KV cache size: ",
        "Maximum concurrency for 128 tokens per request: ",
        "init engine (profile, create kv cache, warmup model) took ",
        "Plan: dtype = ",
    ):
        assert expected in lines
    assert {"read headers", "plan", "init worker", "load weights", "profile", "warm up"} <= phases.keys()


def test_the_process_keeps_its_torch_settings(succ: Path) -> None:
    import torch

    def settings() -> tuple[Any, ...]:
        return (
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.random.initial_seed(),
            gc.get_freeze_count(),
        )

    before = settings()
    with LLM(str(succ), max_model_len=64, num_threads=1 + before[0]) as llm:
        texts(llm, "A")
        assert settings() == before
    assert settings() == before


def test_a_model_that_is_not_there_and_an_option_that_is_none() -> None:
    with pytest.raises(ModelNotFoundError):
        LLM("no-such-model")
    with pytest.raises(ConfigError, match="max_num_seqs"):
        LLM("no-such-model", max_num_seq=3)


def test_a_closed_llm_says_so(succ: Path) -> None:
    llm = LLM(str(succ), **SMALL, max_model_len=64)
    llm.close()
    llm.close()
    with pytest.raises(EngineDeadError, match="shut down"):
        llm.generate("A", GREEDY, use_tqdm=False)


@pytest.mark.parametrize("multiprocess", [False, True])
def test_five_rounds_leave_nothing_behind(succ: Path, multiprocess: bool) -> None:
    def one_round() -> None:
        with LLM(str(succ), **SMALL, max_model_len=64, multiprocess=multiprocess) as llm:
            assert texts(llm, "w") == ["xyz"]

    one_round()
    before = held()
    for _ in range(5):
        one_round()
    assert held() == before


def test_an_llm_that_is_dropped_ends_its_process(succ: Path) -> None:
    others = set(psutil.Process().children())
    llm = LLM(str(succ), **SMALL, max_model_len=64, multiprocess=True)
    [child] = set(psutil.Process().children()) - others
    del llm
    gc.collect()
    child.wait(10)
    assert os.getpid() not in {process.ppid() for process in psutil.process_iter(["ppid"]) if process.pid == child.pid}
