"""Text to token ids and back, for one model."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from octavo.tokenizer.chat import check_messages, check_tools, continued, encode_chat
from octavo.tokenizer.chat_template import ChatTemplate, check_template_options
from octavo.tokenizer.encoder import Encoder
from octavo.tokenizer.vocabulary import Vocabulary
from octavo.words.errors import RequestError


class TokenizerVocab(Protocol):
    """What a grammar needs to know of a vocabulary."""

    @property
    def num_text_tokens(self) -> int: ...
    @property
    def special_ids(self) -> frozenset[int]: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def encode(self, text: str, add_special_tokens: bool = True, allow_special: bool = True) -> list[int]: ...


class Frame(NamedTuple):
    """Special tokens that a model wants around a text (usually a beginning, or nothing), and between two at once."""

    prefix_ids: Sequence[int] = ()
    suffix_ids: Sequence[int] = ()
    separator_ids: Sequence[int] = ()


NO_FRAME = Frame()


class Tokenizer:
    """A model's tokenizer and chat template. Thread-safe; it is never changed after it was built.

    ``special_tokens`` are texts by the names that chat templates use (bos_token, eos_token ...).
    """

    def __init__(
        self,
        encoder: Encoder,
        vocabulary: Vocabulary,
        *,
        bos_token_id: int | None,
        eos_token_id: int | None,
        frame: Frame = NO_FRAME,
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        self._encoder = encoder
        self._vocabulary = vocabulary
        self._frame = frame
        self._special_tokens = dict(special_tokens or {})
        self._template = None if chat_template is None else ChatTemplate(chat_template)
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id

    @property
    def num_suffix_tokens(self) -> int:
        """Special tokens behind a text."""
        return len(self._frame.suffix_ids)

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that steer the model and are no text."""
        return self._vocabulary.special_ids

    @property
    def num_text_tokens(self) -> int:
        """One past the highest id that has a token."""
        return self._vocabulary.size

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token."""
        return max((len(self.token_bytes(token_id)) for token_id in range(self.num_text_tokens)), default=1)

    @property
    def chat_template(self) -> str | None:
        """The template as Jinja text, if there is one."""
        return None if self._template is None else self._template.text

    def with_chat_template(self, text: str) -> Tokenizer:
        """The same tokenizer with another chat template."""
        other = copy.copy(self)
        other._template = ChatTemplate(text)
        return other

    def encode(
        self, text: str, add_special_tokens: bool = True, allow_special: bool = True, *, at_start: bool = True
    ) -> list[int]:
        """Return the ids of ``text``.

        ``add_special_tokens`` puts the model's beginning (and end) token around it. ``allow_special`` False reads the
        text of special tokens as plain text. ``at_start`` False says that other text stands before, so that a
        vocabulary that prefixes a space does not. Raises RequestError for text that is not Unicode (a lone surrogate).
        """
        ids = self._encoder.encode(checked_text(text), special=allow_special, at_start=at_start)
        return [*self._frame.prefix_ids, *ids, *self._frame.suffix_ids] if add_special_tokens else ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """The ids of two texts that are read at once: up to the second one, and from there."""
        ids = [self.encode(text, add_special_tokens=False) for text in (first, second)]
        frame = self._frame
        return [*frame.prefix_ids, *ids[0], *frame.separator_ids], [*ids[1], *frame.suffix_ids]

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ``token_ids``; bytes that are no whole character become U+FFFD, unknown ids nothing."""
        return self._vocabulary.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text."""
        return self._vocabulary.token_bytes(token_id)

    def bytes_of(self, token_ids: Iterable[int]) -> bytes:
        """The bytes that several tokens add to the text, one after the other."""
        return self._vocabulary.bytes_of(token_ids)

    def convert_id_to_token(self, token_id: int) -> str:
        """The token as the vocabulary writes it."""
        return self._vocabulary.token(token_id)

    def render_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """Return the conversation as the model's template writes it.

        ``continue_final_message`` leaves the last, assistant's, message open (and excludes ``add_generation_prompt``);
        a template that trims contents trims it too. Raises RequestError for malformed messages, for reserved names in
        ``kwargs``, and with the template's own message where it refuses.
        """
        names = self._names(messages, tools, add_generation_prompt, continue_final_message, kwargs)
        return self._render(names, continue_final_message)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> list[int]:
        """Return the ids of the rendered conversation.

        Only the template can write special tokens: their text inside messages, tools and ``kwargs`` stays plain text.
        Arguments and errors as for ``render_chat_template``.
        """
        names = self._names(messages, tools, add_generation_prompt, continue_final_message, kwargs)

        def render(given: Mapping[str, Any]) -> str:
            return self._render(given, continue_final_message)

        return encode_chat(self._encoder, self._vocabulary, render, names)

    def _names(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        options: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Everything the user gives to the template, checked."""
        if add_generation_prompt and continue_final_message:
            raise RequestError(
                "add_generation_prompt and continue_final_message exclude each other; set one to False.",
                param="continue_final_message",
            )
        return {
            **check_template_options(options, self._special_tokens),
            "messages": check_messages(messages, keeps_developer=self._mentions("developer")),
            "tools": check_tools(tools),
            "add_generation_prompt": bool(add_generation_prompt),
        }

    def _mentions(self, word: str) -> bool:
        return self._template is not None and word in self._template.text

    def _render(self, names: Mapping[str, Any], continue_final_message: bool) -> str:
        if self._template is None:
            raise RequestError(
                "this model has no chat template: set one (chat_template=...) or send a plain prompt.", param="messages"
            )
        given = {**self._special_tokens, **names}
        if continue_final_message:
            return continued(self._template.render, given)
        return self._template.render(given)


def checked_text(text: object) -> str:
    """Return ``text`` if it is text that can be encoded; RequestError otherwise."""
    if not isinstance(text, str):
        raise RequestError(f"text must be a string, got {type(text).__name__}.", param="prompt")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"text holds half of a surrogate pair at character {error.start}: it is not valid Unicode.", param="prompt"
        ) from error
    return text
