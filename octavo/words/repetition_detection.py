"""When an answer that repeats itself ends."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from octavo.words.errors import RequestError

MAX_PATTERN_TOKENS = 4_096


class RepetitionDetectionParams(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """An answer ends once its end is ``min_count`` times the same ``min_pattern_size`` to ``max_pattern_size`` tokens.

    Its ``finish_reason`` is then "repetition". Raises RequestError naming what is out of range.
    """

    max_pattern_size: int
    min_pattern_size: int = 1
    min_count: int = 2

    def __post_init__(self) -> None:
        for name, least, most in (
            ("min_pattern_size", 1, MAX_PATTERN_TOKENS),
            ("max_pattern_size", self.min_pattern_size, MAX_PATTERN_TOKENS),
            ("min_count", 2, MAX_PATTERN_TOKENS),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise RequestError(
                    f"repetition_detection.{name} must be an integer from {least} to {most}, got {value!r:.40}.",
                    param="repetition_detection",
                )

    def is_met(self, token_ids: Sequence[int], num_output_tokens: int) -> bool:
        """Whether the last ``num_output_tokens`` of ``token_ids`` end with such a repetition."""
        most = min(self.max_pattern_size, num_output_tokens // self.min_count)
        return any(self._repeats(token_ids, size) for size in range(self.min_pattern_size, most + 1))

    def _repeats(self, token_ids: Sequence[int], size: int) -> bool:
        if token_ids[-1] != token_ids[-1 - size]:  # so it is nearly always
            return False
        length = size * (self.min_count - 1)
        return token_ids[-length:] == token_ids[-length - size : -size]
