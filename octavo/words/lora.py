"""LoRA adapters, as users name them and as the engine passes them on."""

from __future__ import annotations

import msgspec

from octavo.words.errors import RequestError


class LoRARequest(msgspec.Struct, frozen=True):
    """An adapter to answer with: a folder in PEFT's format, under a name of the caller's choice.

    ``lora_int_id`` is vLLM's and says nothing here: adapters are told apart by their contents. Raises RequestError for
    a name or path that is no text.
    """

    lora_name: str
    lora_int_id: int = 1
    lora_path: str = ""

    def __post_init__(self) -> None:
        for field in ("lora_name", "lora_path"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value:
                raise RequestError(f"{field} of a LoRARequest must be text, got {value!r:.80}.", param="lora_request")


class Adapter(msgspec.Struct, array_like=True, frozen=True):
    """An adapter that was found and checked. ``content_hash`` covers its files: what has another one is another."""

    name: str
    path: str
    content_hash: str
