"""A server of the app on loopback and a page in Chromium: what browser tests and pictures share.

It knows how to start both and when a chart is drawn. It does not know what a page should say.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ARTIFACTS = ROOT / "artifacts"
CHROMIUM = next(
    (
        p
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (p := shutil.which(name))
    ),
    None,
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CHART_DRAWN = """() => {
  const g = document.querySelector('.st-key-timeline .js-plotly-plot');
  return g && g._fullLayout && g.calcdata && g.querySelector('.xaxislayer-above text') && !document.querySelector('[data-testid=stSkeleton]');
}"""
IDLE = "() => !document.querySelector('[data-testid=stStatusWidget]')"
WAIT_MS = 180_000


@dataclass
class Watched:
    """A browser page and what went wrong in it. errors: of the console; outside: requests that
    left the machine."""

    page: Any
    errors: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def open(self, url: str) -> float:
        """Go there and wait for the chart; returns the seconds until it was drawn."""
        started = time.monotonic()
        self.page.goto(url)
        self.wait_for_chart()
        return time.monotonic() - started

    def wait_for_chart(self) -> None:
        self.page.wait_for_function(CHART_DRAWN, timeout=WAIT_MS)

    def settle(self) -> None:
        """Wait until the server has nothing more to send, and the browser nothing to draw."""
        self.page.wait_for_function(IDLE, timeout=WAIT_MS)
        self.page.wait_for_timeout(700)

    def picture(self, name: str, full_page: bool = False) -> Path:
        ARTIFACTS.mkdir(exist_ok=True)
        path = ARTIFACTS / f"{name}.png"
        self.page.screenshot(path=path, full_page=full_page)
        return path


@contextmanager
def running_app(cache: Path, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """The address of a server of the app on a free port of loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = cache / "server.log"
    cache.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "streamlit",
        "run",
        "app.py",
        "--server.address=127.0.0.1",
        f"--server.port={port}",
    ]
    environment = {**os.environ, "KV_REPLAY_CACHE": str(cache), **(env or {})}
    with (
        log.open("wb") as out,
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT
        ) as server,
    ):
        try:
            _wait_until_healthy(f"http://127.0.0.1:{port}", server, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def _wait_until_healthy(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        if server.poll() is not None:
            raise RuntimeError(f"the server ended at once:\n{log.read_text()}")
        try:
            with urllib.request.urlopen(f"{address}/_stcore/health", timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"the server did not answer within a minute:\n{log.read_text()}")


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, headless=True, args=FLAGS
        )
        try:
            yield chromium
        finally:
            chromium.close()


@contextmanager
def watched_page(
    chromium: Any, width: int, height: int, scheme: str = "light"
) -> Iterator[Watched]:
    """A fresh page, nothing cached, whose console and requests are watched."""
    context = chromium.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    watched = Watched(context.new_page())
    watched.page.on(
        "console",
        lambda m: (
            watched.errors.append(m.text) if m.type == "error" and "404" not in m.text else None
        ),
    )
    watched.page.on("pageerror", lambda e: watched.errors.append(str(e)))
    watched.page.on(
        "request", lambda r: watched.outside.append(r.url) if _is_outside(r.url) else None
    )
    try:
        yield watched
    finally:
        context.close()


def _is_outside(url: str) -> bool:
    return not url.startswith(
        ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:", "chrome-error:")
    )
