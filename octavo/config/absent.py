"""Options that users bring along from other engines and that Octavo lacks, with what to do instead."""

from __future__ import annotations

from collections.abc import Mapping

_GPU = "it concerns GPUs; leave it out"

ABSENT: Mapping[str, str] = {
    "data_parallel_size": "start a server for each replica, on a port of its own",
    "api_server_count": "one process serves HTTP; leave it out",
    "swap_space": "nothing is swapped, a preempted request is computed again; leave it out",
    "cpu_offload_gb": _GPU,
    "max_seq_len_to_capture": _GPU,
    "cudagraph_capture_sizes": _GPU,
    "disable_custom_all_reduce": _GPU,
    "compilation_config": "nothing is compiled; leave it out, or give enforce_eager",
    "tokenizer_mode": "the tokenizer of the model's files is the only one; leave it out",
    "task": "give runner=generate or runner=pooling",
    "convert": "give runner=generate or runner=pooling",
    "hf_overrides": "edit the model's config.json",
    "override_generation_config": "give generation_config=octavo, and what you want in each request",
    "limit_mm_per_prompt": "images, sound and video are not taken; leave it out",
    "speculative_config": "give its entries as options: speculative_method, speculative_model, num_speculative_tokens, "
    "prompt_lookup_min, prompt_lookup_max",
    "structured_outputs_config": "llguidance is the only backend; leave it out",
    "guided_decoding_backend": "llguidance is the only backend; leave it out",
    "enable_auto_tool_choice": "tools are always on, tool_call_parser says how the model writes calls; leave it out",
    "enable_prompt_tokens_details": "cached tokens are always in the usage; leave it out",
    "enable_log_requests": "the access log has a line for each request; leave it out",
    "disable_log_requests": "what requests say is never logged; leave it out, or give disable_access_log",
    "kv_transfer_config": "keys and values stay in this process; leave it out",
}
"""By the name of the option; each reads on from "unknown option 'NAME': "."""
