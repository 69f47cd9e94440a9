"""Logits processors that users bring: loaded by name, and told apart from our own where they fail."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from octavo.device.sample.logits_processors import LogitsProcessor, SamplingBatch
from octavo.util.lazy import resolve
from octavo.words.errors import ConfigError, EngineError, RequestError
from octavo.words.messages import NewRequestData

METHODS = ("add", "remove", "apply")


class CustomProcessor:
    """A user's processor under its name: what it raises names it, and a request that it does not take fails alone."""

    def __init__(self, name: str, processor: LogitsProcessor) -> None:
        self.name = name
        self.num_applied = 0
        self._processor = processor

    def add(self, slot: int, request: NewRequestData) -> None:
        try:
            self._processor.add(slot, request)
        except Exception as error:
            raise RequestError(f"the logits processor {self.name} does not take this request: {error}") from error

    def remove(self, slot: int) -> None:
        self._processor.remove(slot)

    def apply(self, logits: Tensor, batch: SamplingBatch) -> bool:
        try:
            changed = self._processor.apply(logits, batch)
        except Exception as error:
            raise EngineError(f"the logits processor {self.name} failed: {type(error).__name__}: {error}") from error
        if not isinstance(changed, bool):
            raise EngineError(
                f"the logits processor {self.name} must return whether it changed anything (True or False), "
                f"got {type(changed).__name__}."
            )
        self.num_applied += changed
        return changed


def load_custom_processors(names: str | None, vocab_size: int) -> Sequence[CustomProcessor]:
    """The processors of ``--logits-processors``, in order; each class is called with the size of the vocabulary.

    Raises ConfigError naming the one that is not there, is none, or cannot be made.
    """
    return [_load(name.strip(), vocab_size) for name in (names or "").split(",") if name.strip()]


def _load(name: str, vocab_size: int) -> CustomProcessor:
    try:
        processor = resolve(name)(vocab_size)
    except Exception as error:
        raise ConfigError(
            f'logits_processors: {name!r} cannot be made: {type(error).__name__}: {error}. Give "module:Class", '
            "a class that is called with the size of the vocabulary."
        ) from error
    missing = [method for method in METHODS if not callable(getattr(processor, method, None))]
    if missing:
        raise ConfigError(
            f"logits_processors: {name!r} is no logits processor: it has no {' and no '.join(missing)} "
            "(octavo.device.sample.logits_processors:LogitsProcessor says what each must do)."
        )
    return CustomProcessor(name, processor)
