"""What goes on at once while a front end starts."""

from __future__ import annotations

import os
import shutil
import threading
from functools import partial
from pathlib import Path

import pytest

from octavo.config.engine_config import EngineConfig
from octavo.config.flat import config_from_kwargs
from octavo.engine.client import EngineCoreClient, make_client
from octavo.frontend.start import start_front_end
from tests.waiting import soon

TEMPLATE = "{{ messages[0]['content'] }}"


@pytest.fixture
def piped(succ: Path, tmp_path: Path) -> Path:
    """A model whose chat template, a file that only its tokenizer reads, comes out of a pipe."""
    folder = tmp_path / "model"
    shutil.copytree(succ, folder)
    template = folder / "chat_template.jinja"
    template.unlink(missing_ok=True)
    os.mkfifo(template)
    return folder


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_weights_are_packed_while_the_tokenizer_is_still_read(piped: Path) -> None:
    """Deterministic: the core starts once the tokenizer is being read, which it is until the core has started."""
    pipe = piped / "chat_template.jinja"
    in_vain = threading.Timer(60, lambda: pipe.write_text("too late"))  # so that nobody waits for ever
    in_vain.daemon = True
    in_vain.start()

    def make(config: EngineConfig) -> EngineCoreClient:
        assert soon(partial(opened, pipe, writers), seconds=30), "nobody reads the tokenizer yet"
        client = make_client(config, multiprocess=False)
        with os.fdopen(writers[0], "w") as file:
            file.write(TEMPLATE)
        return client

    writers: list[int] = []
    parts = start_front_end(config_from_kwargs(model=str(piped), max_model_len=64), make)
    in_vain.cancel()
    try:
        assert parts.client.info.phases["load weights"] > 0
        assert parts.tokenizer.chat_template == TEMPLATE
    finally:
        parts.client.shutdown()


def opened(pipe: Path, writers: list[int]) -> bool:
    """Open a pipe for writing, which can be done once somebody reads from it."""
    try:
        writers.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True
