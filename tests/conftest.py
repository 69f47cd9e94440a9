"""Models that many tests share."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import octavo
from octavo.checkpoint.catalogue import models_dir, pull
from tests.succ import make_succ

# How long an example takes to make or to run is the machine's business: no test asserts a speed.
settings.register_profile("octavo", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("octavo")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--native-library", type=Path, help="use this build of octavo._native, such as build/emulated's")


def pytest_configure(config: pytest.Config) -> None:
    """An own build takes the place of the installed one in this process (not in those that tests start)."""
    path: Path | None = config.getoption("--native-library")
    if path is None:
        return
    spec = importlib.util.spec_from_file_location("octavo._native", path)
    assert spec is not None and spec.loader is not None
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    sys.modules[spec.name] = library
    setattr(octavo, "_native", library)  # noqa: B010 (mypy knows of no such attribute)


@pytest.fixture(scope="session")
def succ(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the model that counts; its answers are known exactly."""
    return make_succ(tmp_path_factory.mktemp("models") / "succ")


@pytest.fixture(scope="session")
def smollm2() -> str:
    """Name of the one real model that every run of the tests uses; downloaded once if it is not in the cache."""
    pull("smollm2-135m", progress=False)
    return "smollm2-135m"


@pytest.fixture(
    scope="session",
    params=[
        "smollm2-135m",
        pytest.param("gemma3-270m", marks=pytest.mark.models),
        pytest.param("qwen2.5-coder-0.5b", marks=pytest.mark.models),
    ],
)
def real_model(request: pytest.FixtureRequest) -> str:
    """Each of the real models in turn; all but the smallest are for ``make test-models``."""
    name: str = request.param
    if name == "smollm2-135m":
        pull(name, progress=False)
    if not (models_dir() / name).is_dir():
        pytest.skip(f"{name} is not in the model cache: python scripts/test_models.py {name}")
    return name


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Commands run in the test's own process set up logging; the next test must not inherit it."""
    logger = logging.getLogger("octavo")
    before = logger.handlers[:], logger.propagate, logger.level
    yield
    logger.handlers[:], logger.propagate = before[0], before[1]
    logger.setLevel(before[2])
