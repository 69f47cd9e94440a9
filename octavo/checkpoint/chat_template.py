"""The chat template of a checkpoint and the special tokens that it may name. Text only: nothing is rendered here."""

from __future__ import annotations

from pathlib import Path

from octavo.checkpoint.gguf_facts import gguf_token_id
from octavo.checkpoint.gguf_header import GGUFFile
from octavo.checkpoint.record import Record, is_unicode, read_json_record
from octavo.checkpoint.resolve import Checkpoint
from octavo.words.errors import CheckpointError

MAX_TEMPLATE_BYTES = 4 * 1024 * 1024
DEFAULT = "default"
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
GGUF_SPECIAL_TOKENS = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",  # spelt so in the format
    "pad_token": "padding",
    "cls_token": "cls",
    "mask_token": "mask",
}


def read_chat_template(checkpoint: Checkpoint) -> str | None:
    """Return the template called "default" as Jinja text, None where the checkpoint has none."""
    return read_chat_templates(checkpoint).get(DEFAULT)


def read_chat_templates(checkpoint: Checkpoint) -> dict[str, str]:
    """Return all templates by name ("default", "tool_use", ...).

    In a folder ``chat_template.jinja`` (with ``additional_chat_templates/``) comes before ``chat_template.json`` and
    that before ``tokenizer_config.json``. Raises CheckpointError for a broken file.
    """
    if checkpoint.kind == "gguf":
        return _from_gguf(checkpoint.gguf)
    folder = checkpoint.path
    return _from_jinja(folder) or _from_json(folder / "chat_template.json") or _from_json(_config_path(folder))


def read_special_tokens(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the texts of special tokens by the names that templates use (bos_token, eos_token, ...)."""
    if checkpoint.kind == "gguf":
        return _gguf_special_tokens(checkpoint.gguf)
    path = _config_path(checkpoint.path)
    if not path.exists():
        return {}
    config = read_json_record(path)
    found = {name: _token_text(config, name) for name in SPECIAL_TOKENS if name in config}
    return {name: text for name, text in found.items() if text is not None}


def _config_path(folder: Path) -> Path:
    return folder / "tokenizer_config.json"


def _from_jinja(folder: Path) -> dict[str, str]:
    found = {}
    if (folder / "chat_template.jinja").exists():
        found[DEFAULT] = _read_text(folder / "chat_template.jinja")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = _read_text(path)
    return found


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_TEMPLATE_BYTES:
            raise CheckpointError(path, f"a chat template of more than {MAX_TEMPLATE_BYTES} bytes")
        # Bytes, so that no newline is translated: templates are rendered byte for byte.
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(path, "is not UTF-8") from error


def _from_json(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    config = read_json_record(path)
    value = config.get("chat_template")
    if isinstance(value, dict):
        return {str(name): _checked(path, text) for name, text in value.items()}
    if isinstance(value, list):
        return dict(_named(path, entry) for entry in value)
    return {} if value is None else {DEFAULT: _checked(path, value)}


def _named(path: Path, entry: object) -> tuple[str, str]:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise CheckpointError(path, "an entry of 'chat_template' has no name")
    return entry["name"], _checked(path, entry.get("template"))


def _checked(path: Path, text: object) -> str:
    if not isinstance(text, str) or len(text) > MAX_TEMPLATE_BYTES or not is_unicode(text):
        raise CheckpointError(path, f"'chat_template' must be Unicode text of at most {MAX_TEMPLATE_BYTES} characters")
    return text


def _token_text(config: Record, name: str) -> str | None:
    """A special token is its text, or an object that has it as ``content``."""
    value = config.get(name)
    text = value.get("content") if isinstance(value, dict) else value
    if text is not None and not (isinstance(text, str) and is_unicode(text)):
        raise CheckpointError(config.file, f"{name!r} must be Unicode text or an object with 'content'")
    return text


def _from_gguf(file: GGUFFile) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    found = {}
    for key, value in file.metadata.items():
        if key == prefix or (key.startswith(prefix + ".") and isinstance(value, str)):
            found[key[len(prefix) + 1 :] or DEFAULT] = _checked(file.path, value)
    return found


def _gguf_special_tokens(file: GGUFFile) -> dict[str, str]:
    tokens = file.metadata.get("tokenizer.ggml.tokens", ())
    ids = {name: gguf_token_id(file, key) for name, key in GGUF_SPECIAL_TOKENS.items()}
    for name, token in ids.items():
        if token is not None and token >= len(tokens):
            raise CheckpointError(file.path, f"{name} is id {token} of a vocabulary of {len(tokens)}")
    return {name: tokens[token] for name, token in ids.items() if token is not None}
