"""Mistral: Llama's shape; the first releases attend within a sliding window in every layer."""

from __future__ import annotations

from octavo.device.models.llama import LlamaForCausalLM


class MistralForCausalLM(LlamaForCausalLM):
    """The window, where there is one, is in the facts' layer types; a head size of its own may be, too."""
