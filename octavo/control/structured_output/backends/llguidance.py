"""Grammars by llguidance: an Earley parser over derivatives of regular expressions, walked along the token trie.

A mask takes some 50 microseconds. All work is bounded by fuel (``LIMITS``), never by a clock, so what is refused is
refused on every machine. Compiled grammars live in Rust and are copied, state and all, in microseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import llguidance
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

from octavo.control.structured_output.backends.llguidance_end import EndFinder
from octavo.control.structured_output.choice_regex import choice_regex
from octavo.control.structured_output.closing import LONGEST_END, JsonCloser, Row
from octavo.control.structured_output.demands import (
    LEAST,
    MAX_DEMANDED,
    MOST,
    MOST_COUNTED,
    NO_SCHEMAS,
    check_lark,
    check_regex,
    check_schema,
    check_texts,
)
from octavo.control.structured_output.grammar import MaskRows, Way
from octavo.tokenizer.tokenizer import TokenizerVocab
from octavo.words.errors import RequestError, UnsupportedError
from octavo.words.structured_outputs import StructuredOutputParams

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_GRAMMAR_BYTES = 1 << 20
MAX_NESTING = 64
WHITESPACE = r"[ \n\r\t]{1,4}"
"""Between the parts of JSON unless asked otherwise. Bounded: a weak model would write blanks for ever."""

STATES_PER_CHARACTER = 12
"""Of a text that is counted: masks look at each way that its next character may begin, up to ten in JSON."""
LIMITS = LLParserLimits(max_lexer_states=STATES_PER_CHARACTER * MAX_DEMANDED, verbose_errors=False)
"""As much text as may be demanded fits, and a hostile expression ends soon enough: with some 100 MiB."""
ALL_ALLOWED = -1
ENCODED_CHARACTERS = 256
"""Of a text that must come, what a mask looks at: its first token is wanted, and that anew before each token."""

BELOW_WORDS = re.compile(r"(?: \(at [^\n]*)?\n +\d+ \||\n<non-verbose/>|\n(?:stack backtrace:\n)? *\d+: ")
"""Below its words the library draws the place, says that it could say more, or, after a fault of its own, its calls."""


class LLGuidanceBackend:
    """Compiles for one vocabulary, whose texts may end with any of ``eos_token_ids``."""

    def __init__(self, vocabulary: TokenizerVocab, eos_token_ids: Sequence[int]) -> None:
        words = _Vocabulary(vocabulary, eos_token_ids[0])
        self._closer = cache(partial(JsonCloser, words.tokens, eos_token_ids))
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(words),
            n_vocab=vocabulary.num_text_tokens,
            eos_token=list(eos_token_ids),
        )
        self.num_mask_words = (vocabulary.num_text_tokens + 31) // 32

    def compile(self, params: StructuredOutputParams) -> LLGuidanceGrammar:
        matcher = LLMatcher(self._tokenizer, grammar_text(params), log_level=0, limits=LIMITS)
        grammar = LLGuidanceGrammar(params.kind, matcher, self._closer, self.num_mask_words)
        grammar.fill(np.empty((1, self.num_mask_words), np.int32), ())  # a mask tells whether any text is allowed
        if grammar.error is not None:
            raise RequestError(grammar.error, param="structured_outputs")
        if params.is_json:
            grammar.way_from_start = self._way_from_start(matcher)
        return grammar

    def _way_from_start(self, matcher: LLMatcher) -> Way:
        """For all copies of a grammar, on the thread that compiles it."""
        return EndFinder(matcher.deep_copy(), self._closer(), self.num_mask_words).find(LONGEST_END, LONGEST_END)


class LLGuidanceGrammar:
    """One matcher for a constraint of that kind; ``closer`` is asked for what knows the vocabulary's JSON, where
    somebody needs it.

    ``way_from_start`` leads to JSON's end; None where there is none of at most LONGEST_END tokens.
    """

    def __init__(self, kind: str, matcher: LLMatcher, closer: Callable[[], JsonCloser], num_mask_words: int) -> None:
        self.way_from_start: Way = None
        self._kind = kind
        self._matcher = matcher
        self._closer = closer
        self._num_mask_words = num_mask_words
        self._is_at_start = True

    @property
    def error(self) -> str | None:
        return _refusal_text(self._kind, self._matcher.get_error()) if self._matcher.is_error() else None

    @property
    def is_complete(self) -> bool:
        return self._matcher.is_stopped()

    def accept(self, token_ids: Sequence[int]) -> bool:
        self._is_at_start = False
        return self._matcher.consume_tokens(list(token_ids))

    def fill(self, rows: MaskRows, draft_token_ids: Sequence[int]) -> None:
        num_taken, address, row_bytes = 0, rows.ctypes.data, rows.strides[0]
        for number, draft in enumerate((*draft_token_ids, None)):
            self._matcher.unsafe_compute_mask_ptr(address + number * row_bytes, row_bytes)
            if draft is None or self._matcher.try_consume_tokens([draft]) != 1:
                break
            num_taken += 1
        rows[num_taken + 1 :] = ALL_ALLOWED
        self._matcher.rollback(num_taken)

    def narrow(self, row: Row) -> None:
        self._closer().narrow(row)

    def way_to_end(self, draft_token_ids: Sequence[int], most: int, known: Way = None) -> Way:
        way = self.way_from_start
        if self._is_at_start and not draft_token_ids:
            return way if way is not None and len(way) <= most else None
        matcher = self._matcher.deep_copy()
        if matcher.try_consume_tokens(list(draft_token_ids)) < len(draft_token_ids):
            return []  # drafts that are not allowed: nothing follows them
        return EndFinder(matcher, self._closer(), self._num_mask_words, known or way or ()).find(most)

    def copy(self) -> LLGuidanceGrammar:
        copied = LLGuidanceGrammar(self._kind, self._matcher.deep_copy(), self._closer, self._num_mask_words)
        copied.way_from_start, copied._is_at_start = self.way_from_start, self._is_at_start
        return copied


def check_grammar(params: StructuredOutputParams) -> None:
    """Raise RequestError for what no vocabulary could make compile; needs no tokenizer."""
    text = grammar_text(params)
    refused, messages = LLMatcher.validate_grammar_with_warnings(text, None, limits=LIMITS)
    if refused:
        raise _refusal(params, messages[0])


def grammar_text(params: StructuredOutputParams) -> str:
    """The constraint as llguidance reads it. Raises RequestError for one that is too big, too deep or no JSON, or that
    demands more text than there may be.
    """
    try:
        text = _TEXTS[params.kind](params)
    except RequestError:
        raise
    except UnsupportedError as error:
        raise RequestError(_sentence(params.kind, str(error)), param="structured_outputs") from error
    except (ValueError, TypeError, KeyError, RecursionError, GbnfToLarkError) as error:
        raise _refusal(params, str(error) or type(error).__name__) from error
    if len(text) > MAX_GRAMMAR_BYTES:
        raise _refusal(params, f"it is {len(text):,} bytes long, and at most {MAX_GRAMMAR_BYTES:,} are taken")
    return text


def _json_text(params: StructuredOutputParams) -> str:
    schema = json.loads(params.json) if isinstance(params.json, str) else params.json
    if schema is False:
        raise UnsupportedError("no value satisfies the schema false; give true or {} for any JSON value")
    return _schema_text(params, {} if schema is True else schema)


def _json_object_text(params: StructuredOutputParams) -> str:
    return _schema_text(params, {"type": "object"})


def _schema_text(params: StructuredOutputParams, schema: Any) -> str:
    _check_nesting(params, schema)
    check_schema(schema)
    schema = _with_whole_bounds(schema)
    if params.disable_additional_properties:
        schema = _closed(schema)
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_json_options(params))


def _json_options(params: StructuredOutputParams) -> JsonCompileOptions:
    if params.disable_any_whitespace:
        return {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
    if params.whitespace_pattern:
        check_regex(params.whitespace_pattern)
    return {"whitespace_pattern": params.whitespace_pattern or WHITESPACE}


def _regex_text(params: StructuredOutputParams) -> str:
    regex = _unanchored(str(params.regex))
    check_regex(regex)
    return LLMatcher.grammar_from_regex(regex)


def _choice_text(params: StructuredOutputParams) -> str:
    texts = params.choice or ()
    check_texts(texts)
    return LLMatcher.grammar_from_regex(choice_regex(texts))


def _grammar_text(params: StructuredOutputParams) -> str:
    grammar = any_to_lark(str(params.grammar))
    check_lark(grammar)
    return LLMatcher.grammar_from_lark(grammar)


def _structural_tag_text(params: StructuredOutputParams) -> str:
    given = params.structural_tag
    tag: Any = json.loads(given) if isinstance(given, str) else given
    structures, triggers = tag["structures"], tag["triggers"]
    if not structures:
        raise ValueError("it has no structures: name one at least")
    tags = [
        llguidance.StructTag(
            trigger=_trigger_of(structure["begin"], triggers),
            begin=structure["begin"],
            grammar=_checked_schema(params, structure["schema"]),
            end=structure["end"],
        )
        for structure in structures
    ]
    return str(llguidance.StructTag.to_grammar(tags, assume_special=False))


_TEXTS = {
    "json": _json_text,
    "regex": _regex_text,
    "choice": _choice_text,
    "grammar": _grammar_text,
    "json_object": _json_object_text,
    "structural_tag": _structural_tag_text,
}


def _trigger_of(begin: str, triggers: Sequence[str]) -> str:
    found = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
    if found is None:
        raise ValueError(f"no trigger begins the tag {begin!r}")
    return found


def _checked_schema(params: StructuredOutputParams, schema: Any) -> dict[str, Any]:
    _check_nesting(params, schema)
    check_schema(schema)
    return {**_with_whole_bounds(schema), "x-guidance": _json_options(params)}


def _unanchored(regex: str) -> str:
    """The whole text must match: anchors at the ends say what holds already."""
    start = regex[1:] if regex.startswith("^") else regex
    return start[:-1] if start.endswith("$") and not start.endswith("\\$") else start


def _with_whole_bounds(schema: Any) -> Any:
    """The schema with its bounds as whole numbers (2 for 2.0), and without those that no answer reaches."""
    if isinstance(schema, list):
        return [_with_whole_bounds(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: value if key in NO_SCHEMAS else _whole(key, value) for key, value in schema.items()}
    return {key: value for key, value in inner.items() if key not in MOST or not _is_never_reached(value)}


def _whole(key: str, value: Any) -> Any:
    is_bound = key in (*LEAST, *MOST) and isinstance(value, float) and value.is_integer()
    return int(value) if is_bound else _with_whole_bounds(value)


def _is_never_reached(bound: Any) -> bool:
    return isinstance(bound, int) and bound > MOST_COUNTED


def _closed(schema: Any) -> Any:
    """The schema with every object that names its properties, and says no more, allowing no others."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _closed(value) for key, value in schema.items()}
    return {"additionalProperties": False, **inner} if "properties" in inner else inner


def _check_nesting(params: StructuredOutputParams, schema: Any) -> None:
    level, depth = [schema], 0
    while level:
        if depth > MAX_NESTING:
            raise _refusal(params, f"it is nested more than {MAX_NESTING} levels deep")
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
        ]
        depth += 1


def _refusal(params: StructuredOutputParams, reason: str) -> RequestError:
    return RequestError(_refusal_text(params.kind, reason), param="structured_outputs")


def _refusal_text(kind: str, reason: str) -> str:
    """One line: what was asked, why it cannot be had, and what can. ``reason`` is ours or the library's."""
    told = next((told for sign, told in _REASONS.items() if sign in reason), None)
    if told is None:
        where = BELOW_WORDS.search(reason)
        told = " ".join(reason[: where.start() if where else None].split()).rstrip(".") + _ADVICE.get(kind, "")
    return _sentence(kind, told)


def _sentence(kind: str, reason: str) -> str:
    return f"structured_outputs.{kind} cannot be used: {reason}."


_REASONS = {
    "NoExtensionBias": "no text of this vocabulary holds to it; give every rule an alternative that ends, for one that "
    "always names itself never does",
    "lexer error: too many": "its regular expressions take too many states; use fewer, or smaller repetitions",
    "Current row has": "a token can be read in too many ways; write lists as (list: list item), not (list: item list), "
    "and fewer alternatives that begin alike",
    "oneOf constraints": "the branches of a oneOf may overlap; use anyOf, or branches that differ in type or in the "
    "const of a required property",
    "decimal literal invalid": "a repetition counts too far; give it no upper bound",
    "too big": "it is too big; use fewer and shorter alternatives, or smaller repetitions",
}
"""Signs of what the library says in words of its own."""

_ADVICE = {"grammar": "; grammars are written in Lark, with a rule start, or in GBNF, with a rule root"}


class _Vocabulary:
    """Our vocabulary under the names that llguidance asks for."""

    def __init__(self, vocabulary: TokenizerVocab, eos_token_id: int) -> None:
        self._vocabulary = vocabulary
        self.eos_token_id = eos_token_id
        self.bos_token_id = None
        self.special_token_ids = sorted(vocabulary.special_ids)
        self.tokens = [vocabulary.token_bytes(token_id) for token_id in range(vocabulary.num_text_tokens)]

    def __call__(self, text: str | bytes) -> list[int]:
        plain = (text.decode() if isinstance(text, bytes) else text)[:ENCODED_CHARACTERS]
        return self._vocabulary.encode(plain, add_special_tokens=False, allow_special=False)
