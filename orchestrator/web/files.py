"""The files of the page, and the page of one run as one file."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

PAGE = "page.html"
FILES = {"/style.css": "style.css", "/chart.js": "chart.js", "/app.js": "app.js"}
"""Path of a request -> file of static/."""


@cache
def page_file(name: str) -> str:
    return (files("orchestrator.web") / "static" / name).read_text("utf-8")


def whole_page(values: Mapping[str, Any]) -> str:
    """The page of a run with its values, style and scripts: one file that loads nothing, and whose policy allows nothing else."""
    style, scripts = page_file("style.css"), [page_file("chart.js"), page_file("app.js")]
    data = json.dumps(values, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(_digest, scripts))}",
            f"style-src {_digest(style)}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    replaced = {
        "<!-- policy -->": f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<link rel="stylesheet" href="/style.css">': f"<style>{style}</style>",
        '<script src="/chart.js"></script>': f'<script type="application/json" id="values">{data}</script>'
        f"<script>{scripts[0]}</script>",
        '<script src="/app.js"></script>': f"<script>{scripts[1]}</script>",
    }
    page = page_file(PAGE)
    for tag in replaced:
        assert page.count(tag) == 1, tag
    for tag, text in replaced.items():
        page = page.replace(tag, text)
    return page


def _digest(text: str) -> str:
    """The source of a policy that allows this text alone."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
