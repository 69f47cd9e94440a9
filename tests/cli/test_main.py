from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.cli.main import COMMANDS, main


def run_octavo(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "octavo.cli.main", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, input=stdin, check=False)


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
    assert f"octavo {command}" in done.stdout


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


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--temperature", "3", "--prompt", "x"], "--temperature: temperature must be between 0 and 2"),
        (["--max-num-seqs", "0", "--prompt", "x"], "max_num_seqs"),
        (["--dtype", "float8", "--prompt", "x"], "float8"),
        (["--logit-bias", "nope", "--prompt", "x"], "--logit-bias"),
        (["--prompt-file", "/does/not/exist"], "/does/not/exist"),
        ([], "no prompt"),
    ],
)
def test_a_wrong_value_is_one_clear_line(succ: Path, args: list[str], said: str) -> None:
    done = run_octavo("generate", str(succ), *args)
    assert done.returncode in (1, 2)
    assert said in done.stderr.splitlines()[-1] or said in done.stderr.splitlines()[-2]
    assert "Traceback" not in done.stderr


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


def test_models_lists_the_catalogue() -> None:
    assert "smollm2-135m" in run_octavo("models").stdout


def test_pull_refuses_an_unknown_name() -> None:
    done = run_octavo("pull", "smollm2-13m")
    assert done.returncode != 0
    assert "smollm2-135m" in done.stderr
    assert "Traceback" not in done.stderr
