from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path

import pytest

from octavo.config.absent import ABSENT
from octavo.config.cache import CacheConfig
from octavo.config.engine_config import EngineConfig
from octavo.config.flat import (
    EngineArgs,
    add_cli_arguments,
    config_from_kwargs,
    config_from_namespace,
    flat,
    markdown_table,
    non_default,
    options,
    options_page,
    with_hyphens,
)
from octavo.config.server import ServeConfig
from octavo.words.errors import ConfigError, UnknownOptionError


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_cli_arguments(parser)
    return parser


def parsed(parser: argparse.ArgumentParser, line: str) -> EngineConfig:
    return config_from_namespace(parser.parse_args(with_hyphens(line.split())))


def test_option_names_are_unique_over_the_tree() -> None:
    counts = Counter(leaf.name for leaf in options())
    assert [name for name, count in counts.items() if count > 1] == []
    assert len(counts) > 20


def test_every_option_has_help_and_a_default_that_it_accepts() -> None:
    for leaf in options():
        assert leaf.option.help.endswith((".", ")."))
        assert config_from_kwargs(**{leaf.name: leaf.default}) == EngineConfig(), leaf.name


def test_without_arguments_all_defaults_stand() -> None:
    assert config_from_kwargs() == EngineConfig()
    assert non_default(EngineConfig()) == {}


def test_keyword_arguments_land_in_their_area() -> None:
    config = config_from_kwargs(model="tiny", max_num_seqs=3, block_size=16, watermark=0.25)
    assert (config.model.model, config.scheduler.max_num_seqs, config.cache.block_size) == ("tiny", 3, 16)
    assert non_default(config) == {"model": "tiny", "block_size": 16, "max_num_seqs": 3, "watermark": 0.25}


def test_a_config_survives_being_flattened() -> None:
    config = config_from_kwargs(max_model_len="auto", enable_prefix_caching=False, num_threads=2)
    assert config_from_kwargs(**flat(config)) == config


def test_an_unknown_name_is_an_error_with_the_nearest_one() -> None:
    with pytest.raises(UnknownOptionError, match="'max_num_seq'.*'max_num_seqs'") as caught:
        config_from_kwargs(max_num_seq=1)
    assert caught.value.nearest == "max_num_seqs"
    with pytest.raises(UnknownOptionError) as caught:
        config_from_kwargs(zzzzzz=1)
    assert caught.value.nearest is None


def test_an_option_that_only_other_engines_have_says_what_to_do_instead() -> None:
    with pytest.raises(
        UnknownOptionError, match="^unknown option 'swap_space': nothing is swapped, .*; leave it out.$"
    ):
        config_from_kwargs(swap_space=4)
    with pytest.raises(ConfigError, match="^tensor_parallel_size=2 cannot be had: give 1$"):
        config_from_kwargs(tensor_parallel_size=2)
    assert config_from_kwargs(tensor_parallel_size=1) == EngineConfig()


def test_no_option_is_called_absent_and_all_that_the_advice_names_are_there() -> None:
    ours = {leaf.name for leaf in (*options(), *options(ServeConfig))}
    assert not ours & set(ABSENT)
    named = {word for advice in ABSENT.values() for word in re.findall(r"[a-z]+(?:_[a-z]+)+", advice)}
    assert named <= ours


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_num_seqs", 0, ">= 1"),
        ("max_num_seqs", 1.5, "an integer"),
        ("max_num_seqs", True, "an integer"),
        ("max_num_seqs", "many", "an integer"),
        ("max_model_len", "long", "'auto'"),
        ("max_model_len", 0, ">= 1"),
        ("dtype", "int8", "auto, float32, bfloat16, float16"),
        ("dtype", None, "auto, float32"),
        ("watermark", 0.95, "<= 0.9"),
        ("watermark", float("nan"), "a number"),
        ("enable_prefix_caching", "perhaps", "true or false"),
        ("seed", -1, ">= 0"),
        ("seed", float("inf"), "an integer"),
        ("model", 5, "a text"),
        ("kv_cache_memory_bytes", "4 GB of it", "an integer"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_possible(name: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_kwargs(**{name: value})
    assert f"{name}={value!r}" in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("text", "num_bytes"), [("4096", 4096), ("2K", 2000), ("1.5GiB", 3 << 29), ("256 MiB", 256 << 20), (77, 77)]
)
def test_byte_options_take_suffixes(text: object, num_bytes: int) -> None:
    assert config_from_kwargs(kv_cache_memory_bytes=text).cache.kv_cache_memory_bytes == num_bytes


def test_flags_are_derived_from_the_fields(parser: argparse.ArgumentParser) -> None:
    config = parsed(parser, "--max-num-seqs 3 --dtype float32 --max-model-len auto --kv-cache-memory-bytes 1GiB")
    assert non_default(config) == {
        "dtype": "float32",
        "max_model_len": "auto",
        "kv_cache_memory_bytes": 1 << 30,
        "max_num_seqs": 3,
    }


def test_flags_may_be_written_with_underscores(parser: argparse.ArgumentParser) -> None:
    config = parsed(parser, "--max_num_seqs 3 --chat_template=a_b --no-enable_prefix_caching")
    assert config.scheduler.max_num_seqs == 3
    assert config.model.chat_template == "a_b"
    assert config.cache == CacheConfig(enable_prefix_caching=False)


def test_boolean_flags_have_a_negative_form(parser: argparse.ArgumentParser) -> None:
    assert not parsed(parser, "--no-enable-chunked-prefill").scheduler.enable_chunked_prefill
    assert parsed(parser, "--enable-chunked-prefill").scheduler.enable_chunked_prefill


def test_a_wrong_flag_value_is_a_usage_error(parser: argparse.ArgumentParser) -> None:
    with pytest.raises(argparse.ArgumentError, match="max_num_seqs='0'.*>= 1"):
        parser.parse_args(["--max-num-seqs", "0"])


def test_other_entries_of_a_namespace_are_left_alone() -> None:
    namespace = argparse.Namespace(prompt="x", block_size=8)
    assert non_default(config_from_namespace(namespace, max_num_seqs=2)) == {"block_size": 8, "max_num_seqs": 2}


def test_engine_args_is_the_flat_view(parser: argparse.ArgumentParser) -> None:
    arguments = EngineArgs("tiny", max_num_seqs=4)
    assert (arguments.model, arguments.max_num_seqs, arguments.block_size) == ("tiny", 4, None)
    assert arguments.create_engine_config() == config_from_kwargs(model="tiny", max_num_seqs=4)
    assert repr(arguments) == "EngineArgs(model='tiny', max_num_seqs=4)"
    with pytest.raises(AttributeError, match="max_num_seqz"):
        _ = arguments.max_num_seqz
    from_flags = EngineArgs.from_cli_args(parser.parse_args(["--block-size", "8"]))
    assert from_flags.create_engine_config().cache.block_size == 8


def test_the_docs_table_has_a_row_for_each_option() -> None:
    table = markdown_table()
    assert [leaf.flag for leaf in options() if f"| `{leaf.flag}` |" not in table] == []


def test_the_docs_page_is_up_to_date() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "options.md"
    assert page.read_text() == options_page(), "run: make docs"
