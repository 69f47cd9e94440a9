"""The tokenizer of a checkpoint."""

from __future__ import annotations

from pathlib import Path

from octavo.checkpoint.chat_template import read_chat_template, read_special_tokens
from octavo.checkpoint.resolve import Checkpoint
from octavo.tokenizer.gguf import tokenizer_from_gguf
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.tokenizer.tokenizer_json import tokenizer_from_folder
from octavo.words.errors import ConfigError


def load_tokenizer(checkpoint: Checkpoint, *, chat_template: str | None = None) -> Tokenizer:
    """Build the tokenizer of ``checkpoint``.

    ``chat_template`` is Jinja text, or the path of a file that holds it, in place of the checkpoint's own. Raises
    CheckpointError for broken files, UnsupportedError for a kind that is not known, ConfigError for a missing template.
    """
    given = None if chat_template is None else _given_template(chat_template)
    if checkpoint.kind == "gguf":
        return tokenizer_from_gguf(checkpoint.gguf.metadata, file=checkpoint.path, chat_template=given)
    return tokenizer_from_folder(
        checkpoint.path,
        chat_template=read_chat_template(checkpoint) if given is None else given,
        special_tokens=read_special_tokens(checkpoint),
    )


def _given_template(text_or_path: str) -> str:
    """Text that holds no Jinja tag is the path of a file."""
    if "{%" in text_or_path or "{{" in text_or_path:
        return text_or_path
    path = Path(text_or_path).expanduser()
    if not path.is_file():
        raise ConfigError(f"chat_template {text_or_path!r} is neither Jinja text nor a file.")
    return path.read_bytes().decode("utf-8", errors="replace")
