from __future__ import annotations

import gc
from pathlib import Path

import pytest

from octavo.config.flat import EngineArgs
from octavo.frontend.llm_engine import LLMEngine
from octavo.words.errors import ModelNotFoundError


@pytest.mark.parametrize("enabled", [True, False])
def test_a_start_leaves_the_garbage_collector_as_the_user_had_it(enabled: bool, succ: Path) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        with LLMEngine.from_engine_args(EngineArgs(str(succ), max_model_len=256)):
            assert gc.isenabled() == enabled
        with pytest.raises(ModelNotFoundError):
            LLMEngine.from_engine_args(EngineArgs("no-such-model"))
        assert gc.isenabled() == enabled
        assert gc.get_freeze_count() == 0
    finally:
        gc.enable()
