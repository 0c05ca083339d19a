"""How fast the dashboard is, as a browser sees it: first picture, zoom, page switch, upload.

    python benchmarks/dashboard_speed.py [--write] [--ten-million] [--no-upload | --upload-only] [--runs N]

It makes recordings of 20 thousand, 1 million (and 10 million) steps out of the bundled sample in a
temporary folder, starts the app on loopback, drives Chromium at 1,280 px, and prints tables:

- first visit: nothing of the pair has been looked at by this server, which itself is warm;
- first picture: a new browser, nothing cached in it, a server that knows all figures of the pair; and a
  browser that has been here before, which has Streamlit's and Plotly's scripts (7 MB) already;
- zoom: from the last mouse event (drag: mouse-up, wheel: the last turn) until the figure that the
  server sends for the new range is drawn;
- page switch: from the press on the link until everything of that page is drawn, the first time
  and then;
- upload: a zip of a recording of 500 MB from the file chooser until it is drawn, and by how much the
  server's memory then stood above idle at most, and after it.

Wall times, medians; the aims are those of the product. Machines are noisy: beside each stands the CPU time
that server and browser took together, and a loop of fixed work is timed beside each size. Where it takes
longer than on the line before, everything does.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a script finds the project; hence imports below it (E402)

from analyzer.pages.parts.store import Store  # noqa: E402
from benchmarks.big_recording import make_big  # noqa: E402
from tests.browser.driver import (  # noqa: E402
    CHART_DRAWN,
    Server,
    Watched,
    browser,
    running_server,
    watched_page,
)

SAMPLES = ROOT / "traces" / "samples" / "recordings"
SIDES = ("chat-recompute", "chat-swap")
STEPS_OF_SAMPLE = 19_328
SIZES = {"20 thousand": 1, "1 million": 52, "10 million": 518}
UPLOAD_BYTES = 500e6
PROBE_COPIES = 52
WAIT_MS = 600_000
NOTHING_AT_WORK = "() => ![...document.querySelectorAll('[data-testid=stMain] button')].some(b => b.innerText.trim() === 'Cancel')"
CHART = ".st-key-timeline .js-plotly-plot"
AIMS = {"first picture": 3.0, "zoom": 0.8, "switch": 1.0, "upload": 10.0}


def _plot(key: str) -> str:
    return (
        f"(document.querySelector('.st-key-{key} .js-plotly-plot')?._fullLayout"
        f" && document.querySelector('.st-key-{key} .js-plotly-plot .xaxislayer-above text'))"
    )


_MAP = f"({_plot('block_map')} && document.querySelector('.st-key-block_map image'))"
_QUIET = (
    "document.querySelector('[data-testid=stApp]').dataset.testScriptState === 'notRunning'"
)
_HEADED = f"() => document.querySelector('[data-testid=stMain] h1') && {_QUIET}"
DRAWN = {  # by the link's name; a page that shows no part of the pair is there when it has a heading
    "Compare": CHART_DRAWN,
    "Preemptions": f"() => {_plot('around_chart')} && {_plot('preemptions_over_time')}",
    "Requests": f"() => {_plot('lanes')} && document.querySelector('.st-key-requests_csv button')",
    "Block map": f"() => {_MAP} || /ownership/.test(document.querySelector('[data-testid=stMain]').innerText)",
    "Crossover": f"() => {_plot('cx_curves')} && {_plot('cx_map')} && {_QUIET}",
    "What-if": _HEADED,
    "Sweeps": _HEADED,
    "Fleet": _HEADED,
    "Diagnose": "() => document.querySelector('[data-testid=stMain] textarea')",
    "Report": f"() => {_plot('report_timeline')}",
}


# ---- the machine, and the server's memory ---------------------------------------------------------


def fixed_work_s() -> float:
    """Seconds that a fixed loop takes, the median of three."""
    tries = []
    for _ in range(3):
        started = time.monotonic()
        total = 0
        for i in range(5_000_000):
            total += i & 7
        tries.append(time.monotonic() - started)
    return statistics.median(tries)


def memory_mb(pid: int) -> tuple[float, float]:
    """Resident and anonymous memory of a process, MB. Linux's /proc; zeros elsewhere."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0, 0.0
    found = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    return tuple(int(found[n][0]) * 1024 / 1e6 for n in ("VmRSS", "RssAnon"))  # type: ignore[return-value]  # two names


class Took(NamedTuple):
    """One try. cpu_s: of server and browser together, also what they do after it was drawn."""

    wall_s: float
    cpu_s: float


def _cpu_s() -> float:
    """CPU seconds so far of all processes that this one started. Linux's /proc; 0 elsewhere."""
    parent: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = int(path.parent.name), path.read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue  # it has ended
        parent[pid], ticks[pid] = int(rest[1]), int(rest[11]) + int(rest[12])
    mine = {os.getpid()}
    grown = True
    while grown:
        more = {pid for pid, above in parent.items() if above in mine} - mine
        mine |= more
        grown = bool(more)
    return sum(ticks.get(pid, 0) for pid in mine - {os.getpid()}) / os.sysconf("SC_CLK_TCK")


@contextmanager
def watching_memory(pid: int) -> Iterator[dict[str, tuple[float, float]]]:
    """Memory at the start ("idle"), at most ("peak") and at the end ("after")."""
    seen = {"idle": memory_mb(pid)}
    seen["peak"] = seen["idle"]
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.05):
            now = memory_mb(pid)
            seen["peak"] = (max(seen["peak"][0], now[0]), max(seen["peak"][1], now[1]))

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()
        seen["after"] = memory_mb(pid)


# ---- what is measured -----------------------------------------------------------------------------


def first_picture(chromium: Any, url: str) -> Took:
    with watched_page(chromium, 1280, 800, fresh=True) as page:
        started, before = time.monotonic(), _cpu_s()
        page.page.goto(url)
        page.page.wait_for_function(CHART_DRAWN, timeout=WAIT_MS)
        wall_s = time.monotonic() - started
        page.settle()
        return Took(wall_s, _cpu_s() - before)


def until_worked_out(chromium: Any, url: str) -> None:
    """Stay there until all figures of long runs are known, which takes both processors for a while."""
    with watched_page(chromium, 1280, 800) as page:
        page.page.goto(url)
        page.page.wait_for_function(CHART_DRAWN, timeout=WAIT_MS)
        page.settle()
        page.page.wait_for_function(NOTHING_AT_WORK, timeout=WAIT_MS)


def pictures_again(chromium: Any, url: str, runs: int) -> list[Took]:
    """The first picture in a browser that has been there before."""
    found = []
    with watched_page(chromium, 1280, 800, fresh=True) as page:
        for i in range(runs + 2):  # a script's compiled form is kept from its second use on
            page.page.goto("about:blank")
            started, before = time.monotonic(), _cpu_s()
            page.page.goto(url)
            page.page.wait_for_function(CHART_DRAWN, timeout=WAIT_MS)
            wall_s = time.monotonic() - started
            page.settle()
            if i >= 2:
                found.append(Took(wall_s, _cpu_s() - before))
    return found


_WATCH = f"""() => {{
  const g = document.querySelector('{CHART}');
  window.kvBefore = g.data[0].x;
  window.kvSince = null;
  const note = () => {{ window.kvSince = performance.now(); }};
  for (const kind of ['mouseup', 'wheel', 'keydown']) window.addEventListener(kind, note, {{capture: true, once: kind !== 'wheel'}});
}}"""
_SINCE = f"""() => {{
  const g = document.querySelector('{CHART}');
  return window.kvSince !== null && g && g.data && g.data[0].x !== window.kvBefore && performance.now() - window.kvSince;
}}"""


def zoom(page: Watched, act: Callable[[], None]) -> Took:
    """From the last event of an act until the server's new figure is drawn."""
    page.page.evaluate(_WATCH)
    before = _cpu_s()
    act()
    took = page.page.wait_for_function(_SINCE, timeout=WAIT_MS, polling="raf").json_value()
    page.settle()
    return Took(float(took) / 1e3, _cpu_s() - before)


def zooms(chromium: Any, url: str, runs: int) -> dict[str, list[Took]]:
    found: dict[str, list[Took]] = {"drag": [], "wheel": []}
    with watched_page(chromium, 1280, 800, fresh=True) as page:
        page.page.goto(url)
        page.page.wait_for_function(CHART_DRAWN, timeout=WAIT_MS)
        page.settle()
        for i in range(runs):
            found["drag"].append(zoom(page, lambda i=i: _drag(page, 0.15 + 0.12 * (i % 5))))  # type: ignore[misc]  # i is bound
            zoom(page, lambda: page.page.keyboard.press("0"))
            found["wheel"].append(zoom(page, lambda i=i: _wheel(page, 0.2 + 0.12 * (i % 5))))  # type: ignore[misc]  # i is bound
            zoom(page, lambda: page.page.keyboard.press("0"))
    return found


def _drag(page: Watched, at: float) -> None:
    box = page.page.locator(f"{CHART} .nsewdrag").first.bounding_box()
    y = box["y"] + 60
    page.page.mouse.move(box["x"] + box["width"] * at, y)
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + box["width"] * (at + 0.05), y + 3, steps=5)
    page.page.mouse.up()


def _wheel(page: Watched, at: float) -> None:
    box = page.page.locator(f"{CHART} .nsewdrag").first.bounding_box()
    page.page.mouse.move(box["x"] + box["width"] * at, box["y"] + 60)
    page.page.keyboard.down("Control")
    for _ in range(5):
        page.page.mouse.wheel(0, -200)
    page.page.keyboard.up("Control")


def switches(chromium: Any, url: str, runs: int) -> dict[str, list[Took]]:
    """Page -> each switch to it, the first visit first."""
    found: dict[str, list[Took]] = {name: [] for name in DRAWN}
    with watched_page(chromium, 1280, 900, fresh=True) as page:
        page.page.goto(url)
        page.page.wait_for_function(CHART_DRAWN, timeout=WAIT_MS)
        page.settle()
        order = [*list(DRAWN)[1:], "Compare"]
        for _ in range(runs + 1):
            for name in order:
                link = page.page.get_by_role("link", name=name, exact=True).first
                started, before = time.monotonic(), _cpu_s()
                link.click()
                path = "/" if name == "Compare" else f"/{name.lower().replace(' ', '-')}"
                page.page.wait_for_function(
                    f"() => location.pathname === '{path}'", timeout=WAIT_MS
                )
                page.page.wait_for_function(DRAWN[name], timeout=WAIT_MS)
                wall_s = time.monotonic() - started
                page.settle()
                found[name].append(Took(wall_s, _cpu_s() - before))
    return found


def upload(chromium: Any, server: Server, archive: Path) -> dict[str, Any]:
    """Seconds from the file chooser to the picture, and the server's memory over it."""
    with watched_page(chromium, 1280, 900, fresh=True) as page:
        page.page.goto(f"{server.address}/?source=Recordings")
        page.page.wait_for_function(CHART_DRAWN, timeout=WAIT_MS)
        page.settle()
        field = page.page.locator("[data-testid=stSidebar] input[type=file]")
        with watching_memory(server.pid) as memory:
            started = time.monotonic()
            field.set_input_files(archive)
            page.page.wait_for_function("() => /[?&]a=file/.test(location.search)", timeout=WAIT_MS)  # fmt: skip
            stored_s = time.monotonic() - started
            page.page.wait_for_function(
                f"() => !/against/.test(document.querySelector('h1')?.innerText ?? 'against') && ({CHART_DRAWN})()"
                f" && document.querySelector('{CHART}')._fullLayout.xaxis.range[1] > 1e5",
                timeout=WAIT_MS,
            )
            drawn_s = time.monotonic() - started
            page.page.wait_for_function(
                "() => /shown by itself/.test(document.querySelector('[data-testid=stMain]').innerText)",
                timeout=WAIT_MS,
            )
            all_s = time.monotonic() - started
            page.settle()
            time.sleep(3)
    return {"stored": stored_s, "drawn": drawn_s, "all": all_s, "memory": memory}


# ---- recordings and tables ------------------------------------------------------------------------


def recordings(root: Path, copies: int) -> list[Path]:
    if copies == 1:
        return [SAMPLES / name for name in SIDES]
    made = [root / f"{name}-{copies}" for name in SIDES]
    for name, out in zip(SIDES, made, strict=True):
        make_big(SAMPLES / name, out, copies)
    return made


def archive_of(root: Path, num_bytes: float) -> Path:
    """A zip of a recording of about so many bytes; Parquet is compressed already, so it is stored."""
    probe, folder = root / "probe", root / "upload"
    make_big(
        SAMPLES / SIDES[0], probe, PROBE_COPIES
    )  # large parts are packed closer than the sample's
    one = sum(p.stat().st_size for p in probe.rglob("*") if p.is_file()) / PROBE_COPIES
    make_big(SAMPLES / SIDES[0], folder, max(1, round(num_bytes / one)))
    path = root / "upload.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for part in sorted(p for p in folder.rglob("*") if p.is_file()):
            archive.write(part, part.relative_to(folder))
    return path


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(
        f"| {' | '.join(row)} |" for row in (head, ["---"] + ["--:"] * (len(head) - 1), *rows)
    )


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


def said(tries: list[Took]) -> str:
    return f"{spread([t.wall_s for t in tries])}, {statistics.median(t.cpu_s for t in tries):.2f} CPU s"


def measure(
    root: Path, name: str, copies: int, runs: int, port: int | None
) -> tuple[list[str], list[str]]:
    """A row of the first table and one of the second."""
    work = fixed_work_s()
    cache = root / f"cache-{copies}"
    a, b = (f"file:{Store(cache).link(f).id}" for f in recordings(root, copies))
    with running_server(cache, port=port) as server, browser() as chromium:
        first_picture(chromium, server.address)  # the server is warm, the pair unknown to it
        url = f"{server.address}/?source=Recordings&a={a}&b={b}"
        visit = first_picture(chromium, url)
        until_worked_out(chromium, url)
        again = [first_picture(chromium, url) for _ in range(runs)]
        back = pictures_again(chromium, url, runs)
        zoomed = zooms(chromium, url, runs)
        switched = switches(chromium, url, min(runs, 3))
        rss, anonymous = memory_mb(server.pid)
    speeds = [
        name,
        f"{visit.wall_s:.2f} s, {visit.cpu_s:.2f} CPU s",
        said(again),
        said(back),
        said(zoomed["drag"]),
        said(zoomed["wheel"]),
        f"{rss:,.0f} / {anonymous:,.0f} MB",
        f"{work:.2f} s",
    ]
    pages = [name]
    for tries in switched.values():
        pages.append(f"{tries[0].wall_s:.2f} / {statistics.median(t.wall_s for t in tries[1:]):.2f} s, {statistics.median(t.cpu_s for t in tries[1:]):.2f} CPU s")  # fmt: skip
    return speeds, pages


def measure_upload(root: Path, runs: int, port: int | None) -> list[str]:
    """A row of the third table."""
    work = fixed_work_s()
    archive = archive_of(root, UPLOAD_BYTES)
    found = []
    for i in range(runs):
        with (
            running_server(root / f"cache-upload-{i}", port=port) as server,
            browser() as chromium,
        ):
            first_picture(chromium, server.address)
            found.append(upload(chromium, server, archive))

    def above(when: str) -> str:
        rows = [[f["memory"][when][k] - f["memory"]["idle"][k] for f in found] for k in (0, 1)]
        return " / ".join(f"{statistics.median(r):,.0f}" for r in rows) + " MB"

    return [
        f"{archive.stat().st_size / 1e6:,.0f} MB",
        spread([f["stored"] for f in found]),
        spread([f["drawn"] for f in found]),
        spread([f["all"] for f in found]),
        above("peak"),
        above("after"),
        f"{work:.2f} s",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write a dated file of results")
    parser.add_argument("--ten-million", action="store_true", help="10 million steps too")
    parser.add_argument("--only", choices=list(SIZES), help="one size alone")
    of_upload = parser.add_mutually_exclusive_group()
    of_upload.add_argument("--no-upload", action="store_true", help="leave the upload out")
    of_upload.add_argument("--upload-only", action="store_true", help="the upload alone")
    parser.add_argument("--runs", type=int, default=5, help="of each measurement")
    parser.add_argument("--port", type=int, help="of the server; any free one otherwise")
    args = parser.parse_args()
    sizes = [args.only] if args.only else list(SIZES)[: 3 if args.ten_million else 2]
    speeds, pages, uploads = [], [], []
    if args.upload_only:
        sizes = []
    with tempfile.TemporaryDirectory(prefix="kv-replay-") as folder:
        root = Path(folder)
        for name in sizes:
            speed, page = measure(root, name, SIZES[name], args.runs, args.port)
            speeds.append(speed)
            pages.append(page)
            print(speed, page, flush=True)
        if not args.no_upload:
            uploads.append(measure_upload(root, min(args.runs, 3), args.port))
    text = report(speeds, pages, uploads, args.runs)
    print(text)
    if args.write:
        today = datetime.date.today().isoformat()
        out = Path(__file__).parent / "results" / f"{today}-dashboard-speed.md"
        out.write_text(text, "utf-8")


def report(
    speeds: list[list[str]], pages: list[list[str]], uploads: list[list[str]], runs: int
) -> str:
    parts = [
        "# The dashboard in a browser",
        f"{datetime.date.today()}, Python {platform.python_version()}, {platform.machine()}, Chromium without a window at 1,280 px, "
        f"`python benchmarks/dashboard_speed.py {' '.join(sys.argv[1:])}`. Wall seconds: median of {runs} (least to most). "
        "Two runs, A and B, of so many steps each. Fixed work is a Python loop of 5 million turns, timed just before: it says how "
        "fast the machine was. CPU seconds are of server and browser together, what they do after the picture included.",
    ]
    if speeds:
        parts += [
            table(
                [
                    "steps of each run",
                    "first visit",
                    f"first picture, aim {AIMS['first picture']:g} s",
                    "the same in a browser that was here before",
                    f"zoom by drag, aim {AIMS['zoom']:g} s",
                    f"zoom by wheel, aim {AIMS['zoom']:g} s",
                    "server's memory at the end: resident / anonymous",
                    "fixed work",
                ],
                speeds,
            ),
            f"Page switches, the first time / after that (aim {AIMS['switch']:g} s):",
            table(["steps of each run", *DRAWN], pages),
        ]
    if uploads:
        parts += [
            "Upload of a zip from the file chooser; memory above idle, resident / anonymous:",
            table(
                [
                    "zip",
                    "stored",
                    f"drawn, aim {AIMS['upload']:g} s",
                    "with all its figures",
                    "at most",
                    "3 s later",
                    "fixed work",
                ],
                uploads,
            ),
        ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
