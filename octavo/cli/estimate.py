"""``octavo estimate``: what a model needs of this machine, from its headers alone."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Mapping
from typing import Any

from octavo.checkpoint.facts import read_model_facts
from octavo.checkpoint.resolve import resolve_model
from octavo.config.flat import add_cli_arguments, config_from_namespace
from octavo.control.kv.planning import KVCacheLimits, RankNeeds, max_concurrency, plan_kv_cache
from octavo.device.platform.detect import detect_caps
from octavo.engine.build import find_drafter
from octavo.plan.kv_specs import drafter_kv_cache_specs, kv_cache_specs
from octavo.plan.plan import Plan
from octavo.plan.planner import make_plan
from octavo.words.kv_cache_spec import AnyKVCacheSpec
from octavo.words.model_facts import ModelFacts

GIB = 1 << 30

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="catalogue name, local folder, .gguf file or hub id")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_cli_arguments(parser, skip=("model",))


def run(args: argparse.Namespace) -> int:
    config = config_from_namespace(args)
    checkpoint = resolve_model(
        config.model.model, revision=config.model.revision, download_dir=config.load.download_dir
    )
    facts = read_model_facts(checkpoint)
    files = find_drafter(config, facts)
    drafter = None if files is None else files.facts
    plan = make_plan(config, facts, detect_caps(config.parallel.device), drafter)
    for line in plan.explained():
        logger.debug("Plan: %s", line)
    figures = estimate(
        facts,
        plan,
        num_blocks_override=config.cache.num_gpu_blocks_override,
        drafter_specs={} if drafter is None else drafter_kv_cache_specs(plan, drafter),
    )
    print(json.dumps(figures) if args.json else as_text(figures))
    return 0


def estimate(
    facts: ModelFacts,
    plan: Plan,
    *,
    num_blocks_override: int | None = None,
    drafter_specs: Mapping[str, AnyKVCacheSpec] | None = None,
) -> dict[str, Any]:
    """Bytes of weights, of adapters and of KV per token, the longest length that fits, and how many such requests.

    ``drafter_specs``: what a drafter's layers ask of the KV cache.
    """
    specs = kv_cache_specs(facts, plan)
    rank = RankNeeds(specs=specs, available_bytes=plan.kv_cache_bytes or 0, drafter_specs=drafter_specs or {})
    limits = KVCacheLimits(
        max_model_len=None,
        model_max_len=plan.max_model_len or facts.max_position,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        block_size=plan.block_size,
        num_blocks_override=num_blocks_override,
    )
    kv_plan = plan_kv_cache(rank, limits)
    own = sum(spec.page_bytes // spec.block_size for spec in specs.values())
    drafters = sum(spec.page_bytes // spec.block_size for spec in (drafter_specs or {}).values())
    tensors = (*kv_plan.tensors, *(kv_plan.drafter.tensors if kv_plan.drafter is not None else ()))
    return {
        "architecture": facts.architecture,
        "num_parameters": facts.num_parameters,
        "dtype": plan.dtype,
        "quantization": plan.quantization,
        "file_bytes": facts.weight_bytes,
        "weight_bytes": plan.weight_bytes,
        "drafter_bytes": plan.drafter_bytes,
        "adapter_bytes": plan.adapter_bytes,
        "kv_bytes_per_token": own + drafters,
        "kv_cache_bytes": sum(tensor.size_bytes for tensor in tensors),
        "longest_length": kv_plan.max_model_len,
        "concurrency": max_concurrency(kv_plan, max_num_batched_tokens=plan.max_num_batched_tokens),
    }


def as_text(figures: dict[str, Any]) -> str:
    form = figures["dtype"] if figures["quantization"] == "none" else figures["quantization"]
    beside = []
    if figures["drafter_bytes"]:
        beside.append(f"the drafter's     {figures['drafter_bytes'] / GIB:.2f} GiB of them")
    if figures["adapter_bytes"]:
        beside.append(f"LoRA adapters     {figures['adapter_bytes'] / GIB:.2f} GiB at most")
    return "\n".join(
        (
            f"architecture      {figures['architecture']}, {figures['num_parameters'] / 1e6:,.0f} M parameters",
            f"weights           {figures['weight_bytes'] / GIB:.2f} GiB as {form} "
            f"({figures['file_bytes'] / GIB:.2f} GiB in the files)",
            *beside,
            f"KV per token      {figures['kv_bytes_per_token']:,} bytes",
            f"KV cache          {figures['kv_cache_bytes'] / GIB:.2f} GiB",
            f"longest length    {figures['longest_length']:,} tokens",
            f"concurrency       {figures['concurrency']:.2f} requests of that length",
        )
    )
