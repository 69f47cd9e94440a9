from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from octavo.cli.main import COMMANDS, main
from octavo.cli.sampling_flags import HELP, NOT_FLAGS
from octavo.config.env import child_variables
from octavo.words.sampling_params import SamplingParams

OCTAVO = [sys.executable, "-m", "octavo.cli.main"]


def run_octavo(*args: str, stdin: str | bytes = "", **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*OCTAVO, *args],
        capture_output=True,
        timeout=120,
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        env=child_variables(**variables),
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from octavo.cli.main import main; main(['--help']); "
        "heavy = {'torch', 'numpy', 'tokenizers', 'jinja2', 'zmq', 'huggingface_hub', 'transformers'}; "
        "sys.exit(bool(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], stdout=subprocess.DEVNULL, check=False).returncode == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    done = run_octavo(command, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith(f"usage: octavo {command}")
    assert len(done.stdout.splitlines()[0]) < 80
    assert "--verbose" in done.stdout


def test_every_sampling_flag_has_help() -> None:
    assert set(HELP) | NOT_FLAGS == {field.name for field in msgspec.structs.fields(SamplingParams)}


def test_no_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: octavo" in capsys.readouterr().out


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generat"]) == 2
    assert "Did you mean generate?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "nearest"),
    [
        (["generate", "m", "--max-num-seq", "8"], "--max-num-seqs"),
        (["generate", "m", "--temprature", "1"], "--temperature"),
        (["bench", "throughput", "--num-promts", "8"], "--num-prompts"),
        (["estimate", "m", "--max-model-length", "8"], "--max-model-len"),
    ],
)
def test_an_unknown_flag_names_the_nearest_and_exits_with_2(args: list[str], nearest: str) -> None:
    done = run_octavo(*args)
    assert done.returncode == 2
    assert f"Did you mean {nearest}?" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_character_that_the_terminal_lacks_is_written_as_an_escape(succ: Path) -> None:
    args = ["generate", str(succ), "--prompt", "é", "--max-tokens", "1", "--no-progress"]
    done = run_octavo(*args, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.startswith(">>> \\xe9\n")


@pytest.mark.parametrize(
    ("flag", "advice"),
    [
        ("--enable-auto-tool-choice", "tools are always on, --tool-call-parser says how the model writes calls"),
        ("--speculative-config={}", "give its entries as options: --speculative-method, --speculative-model,"),
        ("--model=x", "the model stands by itself, as in octavo serve MODEL"),
    ],
)
def test_a_flag_that_only_other_engines_have_says_what_to_do_instead(flag: str, advice: str) -> None:
    done = run_octavo("serve", "m", flag)
    assert done.returncode == 2
    assert f"unknown flag {flag.partition('=')[0]}: {advice}" in done.stderr
    assert "Did you mean" not in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--temperature", "3", "--prompt", "x"], "--temperature: temperature must be between 0 and 2"),
        (["--n", "2", "--temperature", "0", "--prompt", "x"], "--n: n must be 1 when temperature is 0"),
        (["--max-num-seqs", "0", "--prompt", "x"], "max_num_seqs"),
        (["--dtype", "float8", "--prompt", "x"], "float8"),
        (["--logit-bias", "nope", "--prompt", "x"], "--logit-bias"),
        (["--structured-outputs", "{}", "--prompt", "x"], "exactly one"),
        (["--prompt-file", "/does/not/exist"], "/does/not/exist"),
        ([], "no prompt"),
    ],
)
def test_a_wrong_value_is_one_clear_line(succ: Path, args: list[str], said: str) -> None:
    done = run_octavo("generate", str(succ), *args)
    assert done.returncode in (1, 2)
    assert said in done.stderr.splitlines()[-1] or said in done.stderr.splitlines()[-2]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["generate", "no-such-model", "--prompt", "x"], ["chat", "no-such-model"]])
def test_a_wrong_sampling_flag_is_told_before_a_model_is_looked_for(command: list[str]) -> None:
    done = run_octavo(*command, "--top-p", "2")
    assert done.returncode == 2
    assert "--top-p: top_p must be above 0 and at most 1, got 2.0." in done.stderr
    assert "no-such-model" not in done.stderr


def test_a_missing_model_says_where_it_was_looked_for_and_how_to_get_it() -> None:
    done = run_octavo("generate", "no-such-model", "--prompt", "x")
    assert done.returncode == 1
    assert "no-such-model" in done.stderr
    assert "octavo pull" in done.stderr
    assert "Traceback" not in done.stderr


def test_generate_prints_texts_and_a_summary(succ: Path) -> None:
    done = run_octavo("generate", str(succ), "--prompt", "A", "--prompt", "w", "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert ">>> A\nBCDEFGHIJKLMNOPQRSTUVWXYZ\n" in done.stdout
    assert ">>> w\nxyz\n" in done.stdout
    assert "2 requests, 2 prompt + 30 output tokens" in done.stderr
    assert "start-up" in done.stderr


def test_generate_prints_one_json_object_per_prompt(succ: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("A\n\nw\n")
    done = run_octavo(
        "generate", str(succ), "--prompt-file", str(prompts), "--json", "--temperature", "0", "--logprobs", "1"
    )
    first, second = map(json.loads, done.stdout.splitlines())
    assert set(first) == {"prompt", "text", "token_ids", "finish_reason", "logprobs"}
    assert (second["prompt"], second["text"], second["finish_reason"]) == ("w", "xyz", "stop")
    assert second["token_ids"] == [120, 121, 122, 257]
    assert second["logprobs"][0]["120"]["token"] == "x"
    assert second["logprobs"][0]["120"]["rank"] == 1


def test_generate_reads_prompts_from_standard_input(succ: Path) -> None:
    done = run_octavo("generate", str(succ), "--temperature", "0", stdin="w\n")
    assert ">>> w\nxyz\n" in done.stdout


@pytest.mark.parametrize("source", ["standard input", "--prompt-file"])
def test_prompts_that_are_no_text_are_wrong_usage(succ: Path, tmp_path: Path, source: str) -> None:
    (tmp_path / "prompts").write_bytes(b"ab\xff")
    args = ["--prompt-file", str(tmp_path / "prompts")] if source == "--prompt-file" else []
    done = run_octavo("generate", str(succ), *args, stdin=b"ab\xff")
    assert done.returncode == 2
    assert source in done.stderr
    assert "byte 2 is not UTF-8" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_logprobs_of_the_prompt_are_printed_if_asked(succ: Path) -> None:
    done = run_octavo("generate", str(succ), "--prompt", "AB", "--max-tokens", "1", "--prompt-logprobs", "1", "--json")
    first, second = json.loads(done.stdout)["prompt_logprobs"]
    assert first is None
    assert second["66"]["rank"] == 1


def test_generate_repeats_itself_for_a_seed(succ: Path) -> None:
    args = (
        "generate",
        str(succ),
        "--prompt",
        "A",
        "--temperature",
        "2",
        "--ignore-eos",
        "--max-tokens",
        "40",
        "--json",
    )
    one, again, other = (run_octavo(*args, "--seed", seed).stdout for seed in ("7", "7", "8"))
    assert one == again
    assert one != other


def test_several_choices_are_listed(succ: Path) -> None:
    done = run_octavo("generate", str(succ), "--prompt", "w", "--n", "2", "--temperature", "0.5", "--json")
    answer = json.loads(done.stdout)
    assert [choice["text"] for choice in answer["choices"]] == ["xyz", "xyz"]


def test_chat_streams_and_keeps_the_conversation(succ: Path) -> None:
    done = run_octavo("chat", str(succ), "--temperature", "0", stdin="w\n/reset\nA\n/exit\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "xyz\nBCDEFGHIJKLMNOPQRSTUVWXYZ\n"


def test_what_is_no_text_in_a_chat_is_an_error_and_the_next_message_is_answered(succ: Path) -> None:
    done = run_octavo("chat", str(succ), "--temperature", "0", stdin=b"\xff\nw\n")
    assert (done.returncode, done.stdout) == (0, "xyz\n"), done.stderr
    assert "not valid Unicode" in done.stderr
    assert "Traceback" not in done.stderr


def test_models_lists_the_catalogue() -> None:
    assert "smollm2-135m" in run_octavo("models").stdout


def test_the_start_is_told_on_stderr_and_the_plan_with_reasons_if_asked(succ: Path) -> None:
    args = ("generate", str(succ), "--prompt", "w", "--temperature", "0", "--max-model-len", "64")
    plain, verbose, quiet = run_octavo(*args), run_octavo(*args, "-v"), run_octavo(*args, OCTAVO_LOGGING_LEVEL="error")
    assert plain.stdout == verbose.stdout == quiet.stdout == ">>> w\nxyz\n\n"
    assert "(main pid=" in plain.stderr
    assert "Using max model len 64" in plain.stderr
    assert "Plan: " not in plain.stderr
    assert "Plan: max_model_len = 64 (as asked)" in verbose.stderr
    assert len(quiet.stderr.splitlines()) == 1  # the summary


def test_the_log_is_json_if_asked(succ: Path) -> None:
    done = run_octavo("estimate", str(succ), "-v", OCTAVO_LOGGING_JSON="1")
    messages = [json.loads(line)["message"] for line in done.stderr.splitlines()]
    assert any(message.startswith("Plan: dtype = ") for message in messages)


def test_a_logging_level_that_is_none_is_wrong_usage() -> None:
    done = run_octavo("models", OCTAVO_LOGGING_LEVEL="loud")
    assert done.returncode == 2
    assert "give one of DEBUG" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_is_one_line_and_130(succ: Path) -> None:
    args = ["generate", str(succ), "--prompt", "A", "--ignore-eos", "--max-tokens", "4000", "--no-progress"]
    with subprocess.Popen([*OCTAVO, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        log = iter(process.stderr.readline, "")
        assert any("Start-up phases" in line for line in log)
        process.send_signal(signal.SIGINT)
        assert list(log) == ["octavo generate: interrupted\n"]
        assert process.wait(30) == 130


@pytest.mark.parametrize("args", [["models"], ["--help"]])
def test_a_reader_that_has_gone_is_no_error_to_talk_about(args: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*OCTAVO, *args], stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("args", [["models"], ["--help"]])
def test_a_full_disk_is_one_line(args: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*OCTAVO, *args], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert b"No space left on device" in done.stderr


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run_octavo("pull", "smollm2-135m", OCTAVO_CACHE_ROOT=str(tmp_path / "file"))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert str(tmp_path / "file") in done.stderr


@pytest.mark.parametrize(
    ("limit_kib", "said"), [(700_000, "memory are available to this process"), (4_000_000, "1 prompt + 4 output")]
)
def test_under_a_memory_cap_it_runs_or_says_what_is_missing(succ: Path, limit_kib: int, said: str) -> None:
    """Case ST08."""
    command = (
        f"ulimit -v {limit_kib}; exec {sys.executable} -m octavo.cli.main generate {succ} --prompt w --num-threads 1"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == (0 if limit_kib > 1_000_000 else 1)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_pull_refuses_an_unknown_name() -> None:
    done = run_octavo("pull", "smollm2-13m")
    assert done.returncode != 0
    assert "smollm2-135m" in done.stderr
    assert "Traceback" not in done.stderr
