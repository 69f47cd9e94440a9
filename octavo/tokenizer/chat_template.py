"""Rendering of chat templates: Hugging Face's Jinja dialect, in a sandbox with a budget.

A template comes out of a model file and its input from strangers, so neither may read attributes of Python objects,
run for long or fill the memory. What a template writes is byte for byte what Transformers makes of it.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import cached_property
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context
from jinja2.visitor import NodeTransformer

from octavo.words.errors import RequestError

MAX_TEMPLATE_CHARACTERS = 256 * 1024
MAX_SECONDS = 2.0
MAX_MADE_CHARACTERS = 64 * 1024 * 1024
"""Most characters and list entries that one rendering may make on its way, all together."""
MAX_NUMBER = 1_000_000
"""Largest integer a template may pass to a function, a filter, ``*`` or ``**``."""

RESERVED_OPTIONS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "self",
        "tokenize",
        "tokenizer",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Names that callers set by arguments of their own; a request's template options may not hold them."""


class ChatTemplate:
    """One template. It is compiled at its first use; ``text`` is its source."""

    def __init__(self, text: str, *, max_seconds: float = MAX_SECONDS) -> None:
        self.text = text
        self._max_seconds = max_seconds

    def render(self, names: Mapping[str, Any]) -> str:
        """Return what the template writes, given ``names``.

        Raises RequestError with the template's own words where it raises, and where it does not compile, does
        something forbidden or does not end in time. ``names`` must be plain data (check_plain).
        """
        if isinstance(self._compiled, RequestError):
            raise RequestError(str(self._compiled), param="messages")
        token = _BUDGET.set(_Budget(self._max_seconds))
        try:
            return self._compiled.render(names)
        except Exception as error:  # a template may raise anything that Python can
            raise _as_request_error(error) from error
        finally:
            _BUDGET.reset(token)

    @cached_property
    def _compiled(self) -> jinja2.Template | RequestError:
        """The compiled template, or why there is none: a hostile one is not compiled again for every request."""
        if len(self.text) > MAX_TEMPLATE_CHARACTERS:
            return RequestError(f"chat template: longer than {MAX_TEMPLATE_CHARACTERS} characters.")
        try:
            return _environment().from_string(self.text)
        except Exception as error:  # Python's compiler has its own limits
            return _as_request_error(error)


def _as_request_error(error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    reasons = {RecursionError: "nested too deeply.", MemoryError: "needs too much memory."}
    reason = reasons.get(type(error)) or str(error) or type(error).__name__
    return RequestError(f"chat template: {reason}", param="messages")


def check_template_options(options: Mapping[str, Any], special_tokens: Mapping[str, str]) -> dict[str, Any]:
    """Return extra names for a template, checked; RequestError for a name that is ours or a value that is no data."""
    for name in options:
        if name in RESERVED_OPTIONS or name in special_tokens:
            raise RequestError(f"chat template option {name!r} is reserved.", param="chat_template_kwargs")
    return {str(name): check_plain(value, f"chat_template_kwargs.{name}") for name, value in options.items()}


def check_plain(value: Any, where: str, depth: int = 0) -> Any:
    """Return a copy of ``value`` made of plain JSON types only; RequestError naming ``where`` for anything else."""
    if depth > 64:
        raise RequestError(f"{where} is nested too deeply (more than 64 levels).", param=where)
    if type(value) is str:
        return _unicode(value, where)
    if value is None or type(value) in (int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {_plain_key(key, where): check_plain(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [check_plain(item, where, depth + 1) for item in value]
    raise RequestError(f"{where} holds a {type(value).__name__}; only JSON values are possible.", param=where)


def _plain_key(key: object, where: str) -> str:
    if type(key) is not str:
        raise RequestError(f"{where} has a key that is no string: {key!r}.", param=where)
    return _unicode(key, where)


def _unicode(text: str, where: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(f"{where} holds half of a surrogate pair: it is not valid Unicode.", param=where) from error
    return text


class _Budget:
    """What is left to one rendering."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._left = MAX_MADE_CHARACTERS

    def tick(self) -> None:
        if time.monotonic() > self._deadline:
            raise RequestError(f"chat template: did not end within {self._seconds:g} seconds.", param="messages")

    def charge(self, value: Any) -> Any:
        """Count a value that the template made, and return it."""
        self.tick()
        if isinstance(value, str | list | tuple):
            self._left -= len(value)
            if self._left < 0:
                raise RequestError("chat template: makes too much text.", param="messages")
        return value


_BUDGET: ContextVar[_Budget] = ContextVar("chat_template_budget")


@functools.cache
def _environment() -> _Sandbox:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.filters = {name: _metered(function) for name, function in environment.filters.items()}
    environment.filters[_EACH] = _each
    environment.filters[_JOINED] = _metered(_joined)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    environment.finalize = _charge_output
    return environment


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which every call, loop pass and piece of text is paid from the rendering's budget."""

    intercepted_binops = frozenset(["*", "**", "+", "%"])

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return cast(nodes.Template, _Meter().visit(super()._parse(source, name, filename)))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse_large(args, kwargs)
        budget = _BUDGET.get()
        budget.tick()
        return budget.charge(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _refuse_wide_format(value.__self__)
        return wrapped

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator in ("*", "**"):
            _refuse_large((left, right), {})
            if operator == "**" and isinstance(right, int) and right > 1000:
                raise RequestError("chat template: exponent too large.", param="messages")
            _refuse_long_repeat(left, right)
        if operator == "%":
            _refuse_wide_format(left)
        return _BUDGET.get().charge(super().call_binop(context, operator, left, right))


class _Meter(NodeTransformer):
    """Rewrites a parsed template so that loops, ``~`` and literal text pass the budget too."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        node.iter = nodes.Filter(node.iter, _EACH, [], [], None, None, lineno=node.lineno)
        return self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return self.generic_visit(nodes.Filter(parts, _JOINED, [], [], None, None, lineno=node.lineno))

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return nodes.Const(node.data, lineno=node.lineno)


_WIDE_FORMAT = re.compile(r"%[-+ #0]*\d{7}|%[^%a-zA-Z]*\.\d{7}|:[^{}\s]*\d{7}[^{}]*\}")
_EACH, _JOINED = "each_in_budget", "joined_in_budget"


def _each(items: Iterable[Any]) -> Iterator[Any]:
    budget = _BUDGET.get()
    for item in items:
        budget.tick()
        yield item


def _joined(parts: Iterable[Any]) -> str:
    return "".join(map(str, parts))


def _metered(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def filter_in_budget(*args: Any, **kwargs: Any) -> Any:
        _refuse_large(args[1:], kwargs)
        if function.__name__ == "do_format":
            _refuse_wide_format(args[0])
        budget = _BUDGET.get()
        budget.tick()
        return budget.charge(function(*args, **kwargs))

    return filter_in_budget


@pass_context
def _charge_output(_context: Context, value: Any) -> Any:
    return _BUDGET.get().charge(value)


def _refuse_large(args: Iterable[Any], kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise RequestError(f"chat template: passes a number above {MAX_NUMBER}.", param="messages")


def _refuse_long_repeat(left: object, right: object) -> None:
    for text, count in ((left, right), (right, left)):
        long = isinstance(text, str | list | tuple) and isinstance(count, int) and len(text) * count
        if long and long > MAX_MADE_CHARACTERS:
            raise RequestError("chat template: makes too much text.", param="messages")


def _refuse_wide_format(form: object) -> None:
    if isinstance(form, str) and _WIDE_FORMAT.search(form):
        raise RequestError("chat template: a format that is a million characters wide.", param="messages")


class _GenerationTag(Extension):
    """``{% generation %}`` marks assistant text for training; here it only writes its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(lineno)

    def _body(self, caller: Macro) -> str:
        return str(caller())


class _Dict:
    """``dict`` without the class, whose attributes lead elsewhere."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _Namespace(Namespace):
    """Jinja's namespace, without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # any name may be a keyword, even self
        values = dict(*args[1:], **kwargs)
        for name in values:
            _refuse_private(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}: names must not begin with _")


def _raise_exception(message: object) -> None:
    raise jinja2.exceptions.TemplateError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
