"""The page at /ui: static files of the package, and nothing from anywhere else."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from octavo.server.responses import PAGE_HEADERS

FOLDER = Path(__file__).parent / "static"
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
HEADERS = {
    **PAGE_HEADERS,
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-cache",
}


def add_page(app: Starlette) -> None:
    """Serve the page and its files; these need no key, what they ask for does."""
    app.add_route("/ui", _show_page, methods=["GET"])
    app.add_route("/ui/static/{name}", _show_file, methods=["GET"])


async def _show_page(request: Request) -> Response:
    return _answer("index.html")


async def _show_file(request: Request) -> Response:
    return _answer(request.path_params["name"])


def _answer(name: str) -> Response:
    file = _files().get(name)
    if file is None:
        raise HTTPException(404)
    return Response(file, media_type=MEDIA_TYPES[Path(name).suffix], headers=HEADERS)


@cache
def _files() -> dict[str, bytes]:
    """All files by name: no other path can be asked for."""
    return {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.suffix in MEDIA_TYPES}
