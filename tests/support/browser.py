"""A server of a folder, and headless Chromium on one of its pages. Owns no test."""

from __future__ import annotations

import http.server
import shutil
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

BROWSER = shutil.which("chromium")  # None where it is not installed
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0")


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Says nothing; without `has_types` it is a server that doesn't know what .wasm is. What a page
    asks for as `told?TEXT` is put into `told`."""

    has_types = True
    told: Queue[str] | None = None

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path == "/told" and self.told is not None:
            self.told.put(urllib.parse.unquote(query))
        super().do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def guess_type(self, path: Any) -> str:
        kinds = {".wasm": "application/wasm", ".mjs": "text/javascript", ".html": "text/html"}
        known = kinds.get(Path(path).suffix) if self.has_types else None
        return known or "application/octet-stream"


@contextmanager
def served(folder: Path, has_types: bool = True, told: Queue[str] | None = None) -> Iterator[str]:
    """The address of a server of a folder."""
    handler = type("Handler", (_Handler,), {"has_types": has_types, "told": told})
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(handler, directory=str(folder))
    ) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def told_by_browser(folder: Path, page: str, profile: Path, timeout_s: float = 300) -> str:
    """What a page of the folder tells, by asking for `told?TEXT`, when it is opened in Chromium.

    Args:
        profile: a folder for what the browser writes.
    """
    assert BROWSER is not None
    told: Queue[str] = Queue()
    with served(folder, told=told) as address:
        command = [BROWSER, *_FLAGS, f"--user-data-dir={profile}", f"{address}/{page}"]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as browser:
            try:
                return told.get(timeout=timeout_s)
            finally:
                browser.terminate()
