"""Texts that tokenizers trip over."""

from __future__ import annotations

import random


def _random_texts(number: int) -> list[str]:
    rng = random.Random(0)
    characters = "abcdefgh ABC  \n\t123.,;:!?'\"()[]{}<>/\\|@#$%^&*-_=+~`éñ你好🦙"
    return ["".join(rng.choice(characters) for _ in range(rng.randint(1, 80))) for _ in range(number)]


TEXTS = [
    "Hello world",
    "  leading and   runs     of      spaces  ",
    " one two  three\n\n four",
    "tabs\t\tand\n\nnew\n\n\nlines\r\n",
    "你好，世界！ 今天天气 怎么样",
    "مرحبا بالعالم",
    "नमस्ते दुनिया 한국어 텍스트",
    "🦙🦙 llama 👩‍👩‍👧‍👦 é ñ",
    "def f(x):\n    return x**2  # 12345 67\n\n\nclass A: pass",
    "1234567890 3.14159 2024-01-02 ½ ²",
    "ÀÉÎõü ßẞ 's 're I'LL don't",
    "https://example.com/a?b=c&d=e#f",
    "<table><tr><td> x</td>  </b>",
    "x> </a>  ><",
    " ",
    "",
    "\n",
    "    \n   \n",
    "a" * 60,
    " " * 100,
    "\n" * 50 + "x",
    "=====-----*****" * 4,
    *_random_texts(40),
]
