"""
The page of the inspector: static files, which are a part of the package.

The files have no secrets, so they need no token. The page takes the token from its link and sends it in a header with
each request. Why not a cookie? Browsers send the cookies of ``localhost`` to the servers of all its ports.
"""

import importlib.resources
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kopf._core.engines.status_server import Respond

if TYPE_CHECKING:
    from aiohttp import web

FOLDER = ('_kits', 'inspector')
"""The folder of the files in the package."""

INDEX = 'index.html'

TYPES = {'.html': 'text/html', '.css': 'text/css', '.js': 'text/javascript', '.svg': 'image/svg+xml'}

HEADERS = {
    'Content-Security-Policy': (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    'Cross-Origin-Opener-Policy': 'same-origin',
    'Cross-Origin-Resource-Policy': 'same-origin',
    'Referrer-Policy': 'no-referrer',
    'X-Content-Type-Options': 'nosniff',
    'Cache-Control': 'no-store',
}
"""The headers of all responses: the page loads no files from other hosts, and other hosts cannot embed it."""


def iter_files() -> Iterator[tuple[str, str, bytes]]:
    """Return the paths, the types, and the contents of the files."""
    folder = importlib.resources.files('kopf').joinpath(*FOLDER)
    for file in folder.iterdir():
        suffix = file.name[file.name.rfind('.') :]
        if suffix in TYPES:
            yield '/' if file.name == INDEX else f'/{file.name}', TYPES[suffix], file.read_bytes()


def make_response(content: bytes, type_: str) -> Respond:
    """Return the function that responds with the file."""

    async def respond(request: 'web.Request') -> 'web.StreamResponse':
        from aiohttp import web

        return web.Response(body=content, content_type=type_, charset='utf-8', headers=HEADERS)

    return respond
