"""How weights get into memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from octavo.config.fields import Option


@dataclass(frozen=True, kw_only=True)
class LoadConfig:
    """What the user asked about loading."""

    load_format: Annotated[
        str,
        Option(
            "Weight files; auto = by what is there, dummy = seeded random weights, mock = no model at all.",
            choices=("auto", "safetensors", "gguf", "dummy", "mock"),
        ),
    ] = "auto"
    download_dir: Annotated[str | None, Option("Cache folder for hub downloads (default: the hub's own cache).")] = None
