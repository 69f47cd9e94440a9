"""From the body of a chat completion to its prompt, its tools and its sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.server.api_error import ApiError
from octavo.server.context import ServerContext
from octavo.server.conversation import conversation_ids
from octavo.server.openai.chat_words import MESSAGE_KEYS, ChatCompletionRequest
from octavo.server.openai.generation import sampling_params, truncated
from octavo.server.tool_use import ToolUse, openai_tool_use, openai_tools
from octavo.words.inputs import TokensPrompt
from octavo.words.sampling_params import SamplingParams


def check_unsupported(body: ChatCompletionRequest) -> None:
    """Refuse clearly what cannot be done."""
    if body.functions:
        raise ApiError(400, "functions are not possible; use tools.", param="functions")
    if body.modalities not in (None, ["text"]):
        raise ApiError(400, 'modalities can be ["text"] only.', param="modalities")
    if body.echo:
        raise ApiError(400, "echo is not possible in a chat; use /v1/completions.", param="echo")
    if body.chat_template is not None:
        raise ApiError(400, "a chat_template is not taken from a request.", param="chat_template")


def chat_tools(body: ChatCompletionRequest) -> ToolUse:
    """What the request says of tools. Raises ApiError."""
    functions = openai_tools(body.tools, lambda tool: tool.get("function"))
    return openai_tool_use(functions, body.tool_choice, body.parallel_tool_calls, _named_function)


def _named_function(choice: Mapping[str, Any]) -> Any:
    function = choice.get("function")
    return function.get("name") if isinstance(function, Mapping) else None


async def chat_prompt(body: ChatCompletionRequest, context: ServerContext, tools: ToolUse) -> TokensPrompt:
    """The conversation as tokens. Raises RequestError naming the message that is wrong."""
    llm = context.llm
    keys: set[str] = set()
    if isinstance(body.messages, list):
        keys.update(*(message for message in body.messages if isinstance(message, dict)))
    context.bodies.warn_of(f"messages[].{key}" for key in keys - MESSAGE_KEYS)
    ids = await conversation_ids(
        llm,
        body.messages,
        tools=tools.for_template,
        continues=bool(body.continue_final_message),
        adds=body.add_generation_prompt,
        **template_options(body),
    )
    prompt: TokensPrompt = {"prompt_token_ids": truncated(ids, body, llm.info.max_model_len)}
    if body.cache_salt is not None:
        prompt["cache_salt"] = body.cache_salt
    return prompt


def template_options(body: ChatCompletionRequest) -> dict[str, Any]:
    """Variables of the template that a request sets; reserved names are refused before they could be arguments."""
    options = dict(body.chat_template_kwargs or {})
    reserved = {"tools", "messages", "add_generation_prompt", "continue_final_message", "self"} & options.keys()
    if reserved:
        names = ", ".join(sorted(reserved))
        raise ApiError(400, f"chat_template_kwargs may not hold {names}.", param="chat_template_kwargs")
    if body.reasoning_effort is not None:
        options.setdefault("reasoning_effort", body.reasoning_effort)
    return options


def chat_params(body: ChatCompletionRequest, defaults: SamplingParams) -> SamplingParams:
    """Sampling parameters of a chat; ``max_completion_tokens`` goes before ``max_tokens``, its old name."""
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true.", param="top_logprobs")
    if (body.top_logprobs or 0) < 0:
        raise ApiError(400, "top_logprobs must be at least 0.", param="top_logprobs")
    most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    if most is not None and most < 1:
        raise ApiError(400, f"{name} must be at least 1.", param=name)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return sampling_params(body, defaults, max_tokens=most, logprobs=logprobs)
