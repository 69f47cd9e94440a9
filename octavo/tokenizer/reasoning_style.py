"""Between which tags a model writes its thoughts."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.words.errors import ConfigError


@dataclass(frozen=True)
class ReasoningStyle:
    """Tags around thoughts. ``always_begins_inside``: the model opens them without saying so."""

    name: str
    begin: str = "<think>"
    end: str = "</think>"
    always_begins_inside: bool = False

    def is_closed_by(self, prompt_tail: str) -> bool:
        """Whether the prompt ended the thoughts: none will come."""
        return prompt_tail.rstrip().endswith(self.end)

    def is_opened_by(self, prompt_tail: str) -> bool:
        """Whether an answer to the prompt begins inside thoughts."""
        return self.always_begins_inside or prompt_tail.rstrip().endswith(self.begin)


REASONING_STYLES = {
    style.name: style
    for style in (
        ReasoningStyle("think"),
        ReasoningStyle("qwen3"),
        ReasoningStyle("deepseek_r1", always_begins_inside=True),
        ReasoningStyle("mistral", "[THINK]", "[/THINK]"),
    )
}
"""harmony is not here: its tool format reads thoughts too."""


def reasoning_style(name: str) -> ReasoningStyle:
    """Raises ConfigError for a name that is not in the table."""
    if name not in REASONING_STYLES:
        raise ConfigError(f"reasoning_parser {name!r} is not known; there are {', '.join(REASONING_STYLES)}.")
    return REASONING_STYLES[name]


def style_of_template(chat_template: str | None) -> ReasoningStyle | None:
    """The style that a model with this chat template has, None where the template does not tell."""
    if chat_template is None:
        return None
    if "<think>" in chat_template or "</think>" in chat_template:
        # Both write the same tags; a template that drops thoughts by splitting at the end tag alone never saw a begin.
        return REASONING_STYLES["think" if "<think>" in chat_template else "deepseek_r1"]
    return REASONING_STYLES["mistral"] if "[THINK]" in chat_template else None
