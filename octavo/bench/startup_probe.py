"""What ``octavo bench startup`` runs in a fresh process: start, one token, phases as JSON on standard output."""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    began, options = float(sys.argv[1]), json.loads(sys.argv[2])
    phases = {"interpreter": time.time() - began}

    imported = time.time()
    from octavo.frontend.llm import LLM
    from octavo.words.sampling_params import SamplingParams

    phases["imports"] = time.time() - imported
    with LLM(**options) as llm:
        phases.update(llm.info.phases)
        before = time.time()
        llm.generate("Hello", SamplingParams(max_tokens=1, temperature=0.0), use_tqdm=False)
        phases["first_token"] = time.time() - before
        total = time.time() - began
    print(json.dumps({"time_to_first_token": total, "phases": phases}))


if __name__ == "__main__":
    main()
