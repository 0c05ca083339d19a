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
from collections.abc import Callable, Iterator, Mapping
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
    # With a driver attached V8 looks up where in its script each error arose, and so parses Plotly again
    # and again while it starts: 0.7 s that nobody else's browser takes.
    "--js-flags=--no-enable-lazy-source-positions",
]
CHART_DRAWN = """() => {
  const g = document.querySelector('.st-key-timeline .js-plotly-plot');
  return g && g._fullLayout && g.calcdata && g.querySelector('.xaxislayer-above text') && !document.querySelector('[data-testid=stSkeleton]');
}"""
# Done when the server has had nothing to send for so long: a zoom is told 140 ms after the wheel rests.
QUIET_MS = 260
QUIET = """(quiet_ms) => new Promise((done) => {
  let since = performance.now();
  const look = () => {
    const app = document.querySelector('[data-testid=stApp]');
    const rests = app && app.dataset.testScriptState === 'notRunning' && !document.querySelector('[data-testid=stSkeleton]');
    if (!rests) since = performance.now();
    if (performance.now() - since >= quiet_ms) done(true); else setTimeout(look, 20);
  };
  look();
})"""
FITS = """() => [...document.querySelectorAll('.js-plotly-plot')].every(g => g._fullLayout
  && Math.abs(g._fullLayout.width - g.parentElement.getBoundingClientRect().width) < 2)"""
WAIT_MS = 180_000


@dataclass
class Watched:
    """A browser page and what went wrong in it. errors: of the console; outside: requests that
    left the machine; clean_url: where it stood when nobody had touched it yet, "" where it has to be
    opened anew (all state of the app is in the URL)."""

    page: Any
    clean_url: str = ""
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

    def settle(self, quiet_ms: int = QUIET_MS) -> None:
        """Wait until the server has nothing more to send, and the browser nothing to draw."""
        self.page.wait_for_timeout(40)  # what was just done has been told to the server
        self.page.evaluate(QUIET, quiet_ms)

    def steady(self, script: str, for_ms: int = 400) -> Any:
        """What a script gives, once it has given the same for so long."""
        last, since = self.page.evaluate(script), time.monotonic()
        while time.monotonic() - since < for_ms / 1e3:
            self.page.wait_for_timeout(50)
            now = self.page.evaluate(script)
            if now != last:
                last, since = now, time.monotonic()
        return last

    def untouched(self, url: str, drawn: Callable[[Watched, str], object]) -> None:
        """Show that URL as nobody has touched it: opened by `drawn`, unless it still stands so."""
        if not self.clean_url or self.page.url != self.clean_url:
            self.elsewhere(url, drawn)
            self.clean_url = self.page.url
        else:  # the URL is written before the page is drawn
            self.settle()
        self.page.mouse.move(0, 0)
        self.page.evaluate(
            "() => document.querySelector('[data-testid=stMain]')?.scrollTo(0, 0)"
        )

    def elsewhere(self, url: str, drawn: Callable[[Watched, str], object]) -> None:
        """Open another URL; whoever wants the untouched one after that opens it anew."""
        self.clean_url = ""
        self.errors.clear()
        self.outside.clear()
        drawn(self, url)
        self.settle()

    def resize(self, width: int, height: int) -> None:
        """Another size of the window, and every chart in it."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.wait_for_function(FITS, timeout=WAIT_MS)
        self.settle()

    def picture(self, name: str, full_page: bool = False) -> Path:
        ARTIFACTS.mkdir(exist_ok=True)
        path = ARTIFACTS / f"{name}.png"
        self.page.screenshot(path=path, full_page=full_page)
        return path


@dataclass(frozen=True)
class Server:
    """A server of the app. pid: of its one process."""

    address: str
    pid: int


@contextmanager
def running_app(cache: Path, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """The address of a server of the app on a free port of loopback."""
    with running_server(cache, env) as server:
        yield server.address


@contextmanager
def running_server(
    cache: Path, env: Mapping[str, str] | None = None, port: int | None = None
) -> Iterator[Server]:
    """A server of the app on loopback. port: None for any that is free."""
    if port is None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
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
            yield Server(f"http://127.0.0.1:{port}", server.pid)
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
        chromium.new_context()  # the one that pages share
        try:
            yield chromium
        finally:
            chromium.close()


@contextmanager
def watched_page(
    chromium: Any, width: int, height: int, scheme: str = "light", *, fresh: bool = False
) -> Iterator[Watched]:
    """A page whose console and requests are watched, in a browser that remembers nobody.

    fresh: that has no script cached either, which every opening of the app would take seconds for.
    """
    context = chromium.new_context() if fresh else chromium.contexts[0]
    context.set_default_navigation_timeout(WAIT_MS)
    watched = Watched(context.new_page())
    watched.page.set_viewport_size({"width": width, "height": height})
    watched.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
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
        if fresh:
            context.close()
        else:
            _forget(watched.page)


def _forget(page: Any) -> None:
    """Close the page, and with the last one what the app has stored in the browser; scripts stay."""
    context = page.context
    if len(context.pages) == 1:
        context.clear_cookies()
        if page.url.startswith("http"):
            page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
    page.close()


def _is_outside(url: str) -> bool:
    return not url.startswith(
        ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:", "chrome-error:")
    )
