from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from octavo.checkpoint.resolve import resolve_model
from octavo.frontend.load_tokenizer import load_tokenizer
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.words.errors import RequestError

CHATML = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- else %}{{- 'You help.' }}{%- endif %}
    {{- "\\n\\n# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "assistant" and message.tool_calls %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user' if loop.first or messages[loop.index0 - 1].role != "tool" else '' }}
        {{- '\\n<tool_response>\\n' ~ message.content ~ '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

TRIMMING = """{{ bos_token }}
{%- set ns = namespace(system='', count=0) -%}
{% for message in messages %}
    {%- if message['role'] == 'system' -%}
        {% set ns.system = message['content'] | trim %}{% continue %}
    {%- endif -%}
    {%- if message['role'] == 'stop' -%}{% break %}{%- endif -%}
    {% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {%- set ns.count = ns.count + 1 %}
    <start_of_turn>{{ role }}
    {{ (ns.system ~ '\\n\\n' if ns.count == 1 and ns.system else '') + message['content'] | trim }}<end_of_turn>
{% endfor %}
{%- if add_generation_prompt %}<start_of_turn>model
{% endif %}
"""

MACROS = """{% macro show(value, indent=2) %}{{ value | tojson(indent=indent) }}{% endmacro %}
{%- for message in messages %}
{% generation %}[{{ loop.index }}/{{ loop.length }}] {{ message.role | upper }}: {{ message.content }}
{% endgeneration %}

{%- if message.tool_calls %}{{ show(message.tool_calls) }}{{ show(message.tool_calls[0], indent=none) }}{% endif %}
{{ "%s has %d characters" | format(message.role, message.content | default('') | length) }}
{{ message.content.split() | map('capitalize') | join(', ') if message.content else 'nothing' }}
{% endfor %}
{{- dict(a=1, b='\u00e9') | tojson }}{{ messages | length * 2 }}{{ strftime_now('%Y') | length }}
{% if thinking is defined %}{{ thinking }}{% endif %}{{ 1.0 }} {{ none }} {{ true }} {{ [1, 'a'] }} {{ {'k': 'v'} }}
"""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": 'Finds <things> & "people" in Zürich 🦙',
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
        },
    }
]
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "id": "1", "function": {"name": "look_up", "arguments": {"q": "é 你好"}}}],
}
PLAIN = [{"role": "user", "content": "  Hello, wörld! 🦙\n"}]
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "plain": (PLAIN, None),
    "system": ([{"role": "system", "content": " Be brief. "}, *PLAIN], None),
    "turns": ([*PLAIN, {"role": "assistant", "content": "Hi <b>"}, {"role": "user", "content": "And 'you'?"}], None),
    "tools": (PLAIN, TOOLS),
    "tool call": ([*PLAIN, CALL, {"role": "tool", "tool_call_id": "1", "content": '{"found": 3}'}], TOOLS),
}


@pytest.fixture(scope="module")
def tokenizer(succ: Path) -> Tokenizer:
    return load_tokenizer(resolve_model(str(succ)))


@pytest.fixture(scope="module")
def oracle(succ: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(succ)


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("template", [CHATML, TRIMMING, MACROS], ids=["chatml", "trimming", "macros"])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_templates_are_rendered_byte_for_byte_as_transformers_renders_them(
    tokenizer: Tokenizer, oracle: Any, template: str, conversation: str, add_generation_prompt: bool
) -> None:
    messages, tools = CONVERSATIONS[conversation]
    if template is TRIMMING and tools:
        messages = [{**message, "content": message["content"] or ""} for message in messages]
    options: dict[str, Any] = {"tools": tools, "add_generation_prompt": add_generation_prompt, "thinking": "on"}
    expected = oracle.apply_chat_template(messages, chat_template=template, tokenize=False, **options)
    assert tokenizer.with_chat_template(template).render_chat_template(messages, **options) == expected
    assert len(expected) > 10


@pytest.mark.parametrize("template", [CHATML, TRIMMING], ids=["chatml", "trimming"])
@pytest.mark.parametrize("prefix", ["Sure: \n", "a ", "Sure", ""])
def test_a_continued_message_ends_where_transformers_ends_it(
    tokenizer: Tokenizer, oracle: Any, template: str, prefix: str
) -> None:
    messages = [*PLAIN, {"role": "assistant", "content": prefix}]
    options: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    expected = oracle.apply_chat_template(messages, chat_template=template, tokenize=False, **options)
    rendered = tokenizer.with_chat_template(template).render_chat_template(messages, **options)
    assert rendered == expected
    kept = prefix if template is CHATML else prefix.rstrip()  # the other trims contents
    assert rendered.rstrip("\n" if not kept else "").endswith(kept)
    ids = tokenizer.with_chat_template(template).apply_chat_template(messages, **options)
    assert bytes(ids[len(ids) - len(kept) :]) == kept.encode()


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("{{ missing.attribute }}", "'missing' is undefined"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% if %}", "Expected an expression"),
        ("{{ messages | no_such_filter }}", "no_such_filter"),
        ("{% include 'x' %}", "loader"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ namespace(__init__=1) }}", "__init__"),
        ("{{ cycler.__init__.__globals__.os.system('touch /tmp/octavo_was_here') }}", "unsafe"),
    ],
)
def test_what_goes_wrong_in_a_template_is_a_request_error_with_its_words(template: str, said: str) -> None:
    with pytest.raises(RequestError, match="^chat template: ") as raised:
        ChatTemplate(template).render({"messages": [{"role": "user", "content": "x"}]})
    assert said in str(raised.value)


BOMBS = {
    "range": "{% for i in range(10**9) %}{% endfor %}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "literal output": "{% for i in range(99999) %}" + "x" * 100_000 + "{% endfor %}",
    "block capture": "{% set x = 'aaaaaaaaaaaaaaaa' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 40,
    "concatenation": "{% set x = 'aaaaaaaaaaaaaaaa' %}" + "{% set x = x ~ x %}" * 40,
    "addition": "{% set x = 'aaaaaaaaaaaaaaaa' %}" + "{% set x = x + x %}" * 40,
    "repetition": "{{ 'a' * 999999 * 999999 }}",
    "power": "{{ 10 ** 999999 ** 999999 }}",
    "justified": "{{ 'a'.ljust(10**10) }}",
    "centred": "{{ 'a' | center(10000000000) }}",
    "percent format": "{{ '%9999999999d' % 1 }}",
    "format filter": "{{ '%9999999999d' | format(1) }}",
    "format method": "{{ '{:9999999999}'.format(1) }}",
    "mapped filter": "{{ range(99999) | map('center', 99999) | join }}",
    "lorem ipsum": "{{ lipsum(n=1000000000) }}",
    "recursive macro": "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n else '' }}{% endmacro %}{{ f(60) }}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "parentheses": "{{ " + "(" * 6000 + "1" + ")" * 6000 + " }}",
    "brackets": "{{ " + "[" * 6000 + "]" * 6000 + " }}",
    "nested ifs": "{% if 1 %}" * 6000 + "{% endif %}" * 6000,
    "attribute chain": "{{ a" + ".b" * 5_000 + " }}",
    "sum chain": "{{ " + "1 + " * 5_000 + "1 }}",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_template_cannot_run_for_long_nor_fill_the_memory(bomb: str) -> None:  # GG03
    template = ChatTemplate(BOMBS[bomb], max_seconds=0.3)
    begun = time.thread_time()
    with pytest.raises(RequestError, match="^chat template: "):
        template.render({"messages": []})
    assert time.thread_time() - begun < 10  # nothing that hangs passes here


def test_fifty_renderings_of_a_raising_template_at_once_all_get_its_message() -> None:
    template = ChatTemplate("{{ raise_exception('no ' ~ messages) }}")
    said: list[str] = []

    def render(number: int) -> None:
        try:
            template.render({"messages": number})
        except RequestError as error:
            said.append(str(error))

    threads = [threading.Thread(target=render, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(said) == sorted(f"chat template: no {number}" for number in range(50))


def test_a_long_conversation_stays_within_the_budget(tokenizer: Tokenizer) -> None:
    messages = [{"role": ("user", "assistant")[i % 2], "content": "words " * 2_000} for i in range(101)]
    rendered = tokenizer.with_chat_template(CHATML).render_chat_template(messages)
    assert rendered.count("words") == 202_000


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages", "add_generation_prompt", "bos_token"])
def test_template_options_cannot_replace_reserved_names(tokenizer: Tokenizer, name: str) -> None:
    from octavo.tokenizer.chat_template import check_template_options

    with pytest.raises(RequestError, match=name):
        check_template_options({name: "x"}, {"bos_token": "<bos>"})
    if name not in ("messages", "add_generation_prompt"):
        with pytest.raises(RequestError, match=name):
            options: dict[str, Any] = {name: "x"}
            tokenizer.render_chat_template(PLAIN, **options)


def test_a_model_without_a_template_says_so(succ: Path, tmp_path: Path) -> None:
    from octavo.tokenizer.tokenizer_json import tokenizer_from_folder

    with pytest.raises(RequestError, match="no chat template"):
        tokenizer_from_folder(succ).apply_chat_template(PLAIN)
