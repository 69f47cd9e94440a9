from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from octavo.engine.plugins import GROUP, PluginError, load_plugins
from octavo.words.errors import ConfigError, EngineStartError

CALLS: list[str] = []


@pytest.fixture
def installed(request: pytest.FixtureRequest) -> Iterator[list[EntryPoint]]:
    """Three plugins in a module named after the test, so that each test has plugins that were never called."""
    module = types.ModuleType(f"plugins_of_{request.node.name}")

    def broken() -> None:
        raise RuntimeError("no licence")

    module.__dict__.update(good=lambda: CALLS.append("good"), other=lambda: CALLS.append("other"), broken=broken)
    sys.modules[module.__name__] = module
    CALLS.clear()
    yield [EntryPoint(name, f"{module.__name__}:{name}", GROUP) for name in ("good", "other", "broken")]
    del sys.modules[module.__name__]


def test_a_plugin_is_called_once_however_often_an_engine_starts(installed: list[EntryPoint]) -> None:
    for _ in range(3):
        assert load_plugins("good,other", installed) == ["good", "other"]
    assert CALLS == ["good", "other"]


def test_none_asks_for_all_and_empty_for_none(installed: list[EntryPoint]) -> None:
    assert load_plugins("", installed) == []
    assert CALLS == []
    assert load_plugins(None, installed[:2]) == ["good", "other"]


def test_a_failing_plugin_is_named_and_its_cause_is_the_last_line(installed: list[EntryPoint]) -> None:
    with pytest.raises(PluginError, match="plugin 'broken'") as caught:
        load_plugins(None, installed)
    assert isinstance(caught.value, EngineStartError)
    assert str(caught.value).splitlines()[-1] == "RuntimeError: no licence"


def test_a_plugin_that_is_not_installed_is_an_error_with_the_nearest_name(installed: list[EntryPoint]) -> None:
    with pytest.raises(ConfigError, match="installed: good, other, broken. Did you mean 'good'"):
        load_plugins("goood", installed)


def test_no_plugin_is_installed_here() -> None:
    assert load_plugins(None) == []
