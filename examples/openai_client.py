"""Talk to a running server with OpenAI's client: octavo serve smollm2-135m, then python examples/openai_client.py."""

from __future__ import annotations

import sys

from openai import OpenAI


def main() -> None:
    client = OpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1", api_key="none")
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Why is the sky blue?"}], max_tokens=64, stream=True
    )
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
