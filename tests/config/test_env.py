from __future__ import annotations

from pathlib import Path

import pytest

from octavo.config.env import child_variables, read_environment
from octavo.words.errors import ConfigError


def test_without_variables_the_defaults_stand() -> None:
    found = read_environment({})
    assert found.cache_root == Path.home() / ".cache" / "octavo"
    assert (found.offline, found.logging_level, found.logging_json) == (False, "INFO", False)


def test_the_cache_root_is_ours_before_the_desktop_s() -> None:
    assert read_environment({"XDG_CACHE_HOME": "/x"}).cache_root == Path("/x/octavo")
    assert read_environment({"XDG_CACHE_HOME": "/x", "OCTAVO_CACHE_ROOT": "/y"}).cache_root == Path("/y")


@pytest.mark.parametrize(("value", "offline"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_the_hub_s_offline_switch_is_read(value: str, offline: bool) -> None:
    assert read_environment({"HF_HUB_OFFLINE": value}).offline is offline


def test_logging_is_read() -> None:
    found = read_environment({"OCTAVO_LOGGING_LEVEL": "debug", "OCTAVO_LOGGING_JSON": "1"})
    assert (found.logging_level, found.logging_json) == ("DEBUG", True)


def test_a_logging_level_that_is_none_is_refused_with_the_list() -> None:
    with pytest.raises(ConfigError, match="OCTAVO_LOGGING_LEVEL=LOUD cannot be had: give one of DEBUG, INFO"):
        read_environment({"OCTAVO_LOGGING_LEVEL": "loud"})


def test_a_child_gets_the_variables_and_the_extra_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_TEST_VARIABLE", "a")
    assert child_variables(OTHER="b").items() >= {"OCTAVO_TEST_VARIABLE": "a", "OTHER": "b"}.items()
