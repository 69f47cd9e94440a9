"""What ``octavo bench startup`` runs in a fresh process: start, one token, phases as JSON on standard output.

It starts as ``octavo generate`` does.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from octavo.device.platform.torch_import import import_torch_lazily
from octavo.device.platform.torch_library import importing_an_engine
from octavo.words.errors import OctavoError


def main() -> int:
    """Arguments: when the process was started (``time.time``), and the engine's options as JSON."""
    began, options = float(sys.argv[1]), json.loads(sys.argv[2])
    import_torch_lazily()
    try:
        print(json.dumps(measure(began, options)))
    except OctavoError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def measure(began: float, options: dict[str, Any]) -> dict[str, Any]:
    """Seconds until the first token is there, and of each phase before."""
    phases = {"interpreter": time.time() - began}
    imported = time.time()
    with importing_an_engine():
        from octavo.frontend.llm import LLM
        from octavo.words.sampling_params import SamplingParams

    phases["imports"] = time.time() - imported
    with LLM(**options) as llm:
        phases |= llm.info.phases
        before = time.time()
        llm.generate("Hello", SamplingParams(max_tokens=1, temperature=0.0), use_tqdm=False)
        phases["first_token"] = time.time() - before
        return {"time_to_first_token": time.time() - began, "phases": phases}


if __name__ == "__main__":
    raise SystemExit(main())
