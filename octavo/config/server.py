"""The HTTP server in front of an engine. The engine knows nothing of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from octavo.config.fields import Option


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """What the user asked of ``octavo serve``. Lists are written with commas."""

    host: Annotated[str, Option("Address to listen on; 0.0.0.0 = every one this machine has.")] = "127.0.0.1"
    port: Annotated[int, Option("Port to listen on; 0 = any free one.", at_least=0, at_most=65535)] = 8000
    uds: Annotated[str | None, Option("Path of a unix-domain socket to listen on in place of host and port.")] = None
    served_model_name: Annotated[
        str | None, Option("Names by which clients may call the model, the first one shown (default: the model).")
    ] = None
    api_key: Annotated[str | None, Option("Keys of which clients must send one (Bearer or x-api-key).")] = None
    api_key_file: Annotated[
        str | None, Option("File with such keys, one a line; unlike a flag it is not seen in the list of processes.")
    ] = None
    ssl_keyfile: Annotated[str | None, Option("Private key (PEM) with which to serve HTTPS.")] = None
    ssl_certfile: Annotated[
        str | None, Option("Certificate (PEM) to it, with those that lead to its root; both or neither are given.")
    ] = None
    allowed_origins: Annotated[
        str | None, Option("Origins that a browser may call from (CORS); none unless given.")
    ] = None
    allowed_hosts: Annotated[
        str | None, Option("Values the Host header may have; others get a 403 (default: any).")
    ] = None
    root_path: Annotated[str, Option("Path under which a proxy shows the server.")] = ""
    max_request_bytes: Annotated[int, Option("Largest body of a request.", at_least=1024)] = 16 << 20
    max_header_bytes: Annotated[int, Option("Most bytes of a request's headers.", at_least=1024)] = 64 << 10
    request_read_timeout: Annotated[
        float,
        Option(
            "Seconds within which a request must have come whole; later it gets a 408 and its connection is closed. "
            "0 = any time.",
            at_least=0,
        ),
    ] = 60.0
    max_choices: Annotated[int, Option("Most answers one request may ask for: prompts x n.", at_least=1)] = 1024
    shutdown_timeout: Annotated[
        float,
        Option(
            "Seconds that running answers get after SIGTERM or Ctrl-C; 0 = none. A second signal cuts them.",
            at_least=0,
        ),
    ] = 0.0
    sse_keep_alive_interval: Annotated[
        float, Option("Seconds of silence after which a stream gets a comment; 0 = never.", at_least=0)
    ] = 15.0
    response_store_bytes: Annotated[
        int, Option("Memory for answers of /v1/responses that may be asked for again; the oldest go first.", at_least=0)
    ] = 32 << 20
    enable_force_include_usage: Annotated[bool, Option("Send token counts at the end of every stream.")] = False
    tool_call_parser: Annotated[
        str,
        Option(
            "How the model writes calls of tools: hermes, mistral, deepseek, harmony, pythonic or llama3_json; "
            "auto = as its chat template says, none = calls are not looked for."
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        Option(
            "How the model writes thoughts: think, qwen3, deepseek_r1 or mistral; auto = as its chat template says, "
            "none = thoughts are content."
        ),
    ] = "auto"
    lora_modules: Annotated[
        str | None,
        Option(
            'LoRA adapters to serve as models from the start: name=path, or {"name": ..., "path": ...}; several with '
            "commas or spaces between.",
            listed=True,
        ),
    ] = None
    lora_folder: Annotated[
        str | None,
        Option("Folder below which /v1/load_lora_adapter may load adapters; without it there is no such route."),
    ] = None
    dev_mode: Annotated[
        bool, Option("Routes that change the engine: reset_prefix_cache, collective_rpc, pause, resume, server_info.")
    ] = False
    disable_docs: Annotated[bool, Option("No /docs and /openapi.json.")] = False
    disable_ui: Annotated[bool, Option("No page at /ui.")] = False
    disable_access_log: Annotated[bool, Option("No log line for each request.")] = False


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """The tree of what ``octavo serve`` knows beside EngineConfig."""

    server: ServerConfig = field(default_factory=ServerConfig)
