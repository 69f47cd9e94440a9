"""The tree of everything a user can ask of an engine: the first of *asked, decided, learnt*."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.config.cache import CacheConfig
from octavo.config.load import LoadConfig
from octavo.config.lora import LoRAConfig
from octavo.config.model import ModelConfig
from octavo.config.observability import ObservabilityConfig
from octavo.config.parallel import ParallelConfig
from octavo.config.scheduler import SchedulerConfig
from octavo.config.speculation import SpeculationConfig
from octavo.config.supervision import SupervisionConfig


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What the user asked, by area. Leaf names are unique over the tree; nobody changes a config."""

    model: ModelConfig = field(default_factory=ModelConfig)
    load: LoadConfig = field(default_factory=LoadConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    lora: LoRAConfig = field(default_factory=LoRAConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    observability: ObservabilityConfig = field(default_factory=ObservabilityConfig)
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)
