"""Where chat templates run: Jinja's sandbox, in which all that costs time or memory is paid from a budget."""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
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

MAX_MADE_CHARACTERS = 64 * 1024 * 1024
"""Most characters and list entries that one rendering may make on its way, all together."""
MAX_NUMBER = 1_000_000
"""Largest integer a template may pass to a function, a filter, ``*`` or ``**``."""


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


@contextmanager
def rendering(seconds: float) -> Iterator[None]:
    """What templates do inside is paid from a new budget of so many seconds, and of what they may make."""
    token = _BUDGET.set(_Budget(seconds))
    try:
        yield
    finally:
        _BUDGET.reset(token)


@functools.cache
def environment() -> _Sandbox:
    """The environment that templates are compiled in."""
    sandbox = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    sandbox.filters["tojson"] = _tojson
    sandbox.filters = {name: _metered(function) for name, function in sandbox.filters.items()}
    sandbox.filters[_EACH] = _each
    sandbox.filters[_JOINED] = _metered(_joined)
    sandbox.globals["raise_exception"] = _raise_exception
    sandbox.globals["strftime_now"] = _strftime_now
    sandbox.globals["dict"] = _Dict()
    sandbox.globals["namespace"] = _Namespace
    sandbox.finalize = _charge_output
    return sandbox


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
