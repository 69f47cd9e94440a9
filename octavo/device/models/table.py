"""Architectures by name: ``ModelFacts.architecture`` -> "module:Class", resolved when a model is built."""

from __future__ import annotations

MODELS: dict[str, str] = {
    "llama": "octavo.device.models.llama:LlamaForCausalLM",
    "mistral": "octavo.device.models.mistral:MistralForCausalLM",
    "qwen2": "octavo.device.models.qwen2:Qwen2ForCausalLM",
    "qwen3": "octavo.device.models.qwen3:Qwen3ForCausalLM",
    "gemma3": "octavo.device.models.gemma3:Gemma3ForCausalLM",
    "bert": "octavo.device.models.bert:BertModel",
    "roberta": "octavo.device.models.bert:BertModel",
    "distilbert": "octavo.device.models.bert:BertModel",
}
