"""How one request wants its text pooled into numbers."""

from __future__ import annotations

import msgspec

from octavo.words.errors import RequestError

TASKS = ("embed", "classify", "score", "token_embed")


class PoolingParams(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One pooling request; a wrong value raises RequestError naming the field.

    ``task``: "embed" (one vector), "classify" (a probability per label), "score" (one number for a pair of texts by a
    cross-encoder) or "token_embed" (a vector per token). ``use_activation`` False leaves out the last step (making the
    length 1, or probabilities); None does as the checkpoint says. ``dimensions`` keeps the first numbers of a vector
    (Matryoshka), and makes its length 1 again. ``truncate_prompt_tokens``: keep so many tokens of a longer text, -1 as
    many as the model takes; None refuses it. ``second_text_at`` is where the second text of a pair begins.
    """

    task: str = "embed"
    use_activation: bool | None = None
    dimensions: int | None = None
    truncate_prompt_tokens: int | None = None
    second_text_at: int | None = None

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise RequestError(f"task must be one of {', '.join(TASKS)}, got {self.task!r}.", param="task")
        for name, least in (("dimensions", 1), ("truncate_prompt_tokens", -1)):
            value = getattr(self, name)
            is_integer = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and (not is_integer or value < least or value == 0):
                raise RequestError(f"{name} must be an integer of at least 1, got {value!r}.", param=name)
