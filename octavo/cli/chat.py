"""``octavo chat``: a conversation in the terminal, streamed."""

from __future__ import annotations

import argparse
import itertools
import sys
from typing import TYPE_CHECKING, Any

from octavo.cli.sampling_flags import add_sampling_arguments, check_sampling_flags, sampling_params_from
from octavo.config.flat import EngineArgs, add_cli_arguments
from octavo.device.platform.torch_library import importing_an_engine
from octavo.words.errors import RequestError
from octavo.words.inputs import TokensPrompt
from octavo.words.outputs import RequestOutput
from octavo.words.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from octavo.frontend.llm_engine import LLMEngine

HELP = "Commands: /reset forgets the conversation, /exit ends. Ctrl-C stops an answer."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="catalogue name, local folder, .gguf file or hub id")
    parser.add_argument("--system", help="a system message before the conversation")
    add_sampling_arguments(parser)
    add_cli_arguments(parser, skip=("model", "seed"))


def run(args: argparse.Namespace) -> int:
    with importing_an_engine():
        from octavo.frontend.llm_engine import LLMEngine

    check_sampling_flags(args)
    # Lines of statistics would come in the middle of an answer.
    args.disable_log_stats = getattr(args, "disable_log_stats", True)
    args.runner = getattr(args, "runner", "generate")  # a model that only pools is refused before it is loaded
    with LLMEngine.from_engine_args(EngineArgs.from_cli_args(args)) as engine:
        defaults = engine.default_sampling_params.clone(max_tokens=None)
        conversation = Conversation(engine, sampling_params_from(args, defaults), system=args.system)
        if sys.stdin.isatty():
            print(HELP, file=sys.stderr)
        while (line := read_line()) is not None:
            if line == "/exit":
                break
            if line == "/reset":
                conversation.reset()
            elif line:
                conversation.answer(line)
    return 0


def read_line() -> str | None:
    """One line of the user's, stripped; None at the end of input."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None


class Conversation:
    """The messages so far, and one answer at a time from the engine."""

    def __init__(self, engine: LLMEngine, params: SamplingParams, *, system: str | None = None) -> None:
        self._engine = engine
        self._params = params.clone(n=1, output_kind=RequestOutputKind.DELTA)
        self._request_ids = itertools.count()
        self._system = [{"role": "system", "content": system}] if system else []
        self.reset()

    def reset(self) -> None:
        self.messages: list[dict[str, Any]] = list(self._system)

    def answer(self, text: str) -> None:
        """Stream the answer to one message; an interrupted or failed one leaves the conversation consistent."""
        self.messages.append({"role": "user", "content": text})
        try:
            self.messages.append({"role": "assistant", "content": self._stream()})
        except RequestError as error:
            self.messages.pop()
            print(f"error: {error}", file=sys.stderr)

    def _stream(self) -> str:
        """Print the answer as it comes; Ctrl-C ends it where it is."""
        parts: list[str] = []
        request_id = str(next(self._request_ids))
        try:
            self._engine.add_request(request_id, self._prompt(), self._params)
            while self._engine.has_unfinished_requests():
                for output in self._engine.step():
                    assert isinstance(output, RequestOutput), "an engine that generates"
                    parts.append(output.outputs[0].text)
                    print(parts[-1], end="", flush=True)
        except KeyboardInterrupt:
            self._engine.abort_request([request_id])
        print()
        return "".join(parts)

    def _prompt(self) -> TokensPrompt:
        return {"prompt_token_ids": self._engine.tokenizer.apply_chat_template(self.messages)}
