"""A browser on this machine that turns an HTML document into a PDF or a PNG.

It knows where browsers are found and how they are called. The document must hold all it needs: the
browser gets a profile of its own for this one call, and resolves no host name.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from traces.errors import SettingsError

VARIABLE = "KV_REPLAY_BROWSER"
NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
    "msedge",
)
PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
)
HOW_TO_GET = (
    "PNG and PDF are made by Chromium, Chrome or Edge, and none was found here. Install one (Debian and Ubuntu: "
    f"apt-get install chromium; macOS: brew install --cask chromium), or set {VARIABLE} to its program. HTML needs none."
)
TIMEOUT_S = 120.0
MOST_HEIGHT_PX = 2_400
END_COLOUR = (255, 0, 254)  # of a line below all else: what follows is cut off
_FLAGS = (
    "--headless",
    "--disable-gpu",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-sync",
    "--disable-quic",
    "--metrics-recording-only",
    "--mute-audio",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--run-all-compositor-stages-before-draw",
    "--virtual-time-budget=15000",
)


def find() -> Path:
    """The browser's program. Raises SettingsError that says how to get one."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        found = shutil.which(chosen)
        if found is None:
            raise SettingsError(
                f"{VARIABLE} is {chosen!r}, which is no program that can be run here. Set it to Chromium, Chrome or Edge, or unset it."
            )
        return Path(found)
    for name in (*NAMES, *PLACES):
        if found := shutil.which(name):
            return Path(found)
    raise SettingsError(HOW_TO_GET)


def is_there() -> bool:
    """Whether a browser is found."""
    try:
        find()
    except SettingsError:
        return False
    return True


def to_pdf(html: str) -> bytes:
    """The document printed, page size and margins as its style sheet says. Raises SettingsError."""
    return _run(
        html,
        "out.pdf",
        "--print-to-pdf={out}",
        "--no-pdf-header-footer",
        "--window-size=703,1000",
    )


def to_png(html: str, width_px: int, scale: int) -> bytes:
    """The document as a picture of `width_px * scale` by as many pixels as it is high, down to a line
    of END_COLOUR. Raises SettingsError."""
    taken = _run(
        html,
        "out.png",
        "--screenshot={out}",
        f"--window-size={width_px},{MOST_HEIGHT_PX}",
        f"--force-device-scale-factor={scale}",
    )
    with Image.open(io.BytesIO(taken)) as image:
        picture = image.convert("RGB")
    x = picture.width // 2
    column = picture.crop((x, 0, x + 1, picture.height)).tobytes()
    end = column.find(bytes(END_COLOUR))
    while end % 3 and end > 0:  # the bytes of two neighbours
        end = column.find(bytes(END_COLOUR), end + 1)
    if end > 0:
        picture = picture.crop((0, 0, picture.width, end // 3))
    out = io.BytesIO()
    picture.save(out, "PNG", optimize=True)
    return out.getvalue()


def _run(html: str, name: str, *arguments: str) -> bytes:
    """Let the browser open the document and make a file. Raises SettingsError where it does not."""
    program = find()
    with tempfile.TemporaryDirectory(prefix="kv-replay-", ignore_cleanup_errors=True) as folder:
        page, out = Path(folder) / "page.html", Path(folder) / name
        page.write_text(html, encoding="utf-8")
        command = [str(program), *_FLAGS, f"--user-data-dir={folder}/profile"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.append("--no-sandbox")  # Chromium refuses to run as root with it
        command += [a.format(out=out) for a in arguments]
        said = _call([*command, page.as_uri()], program)
        if not out.is_file() or not out.stat().st_size:
            raise SettingsError(
                f"{program.name} made no {name.rpartition('.')[2].upper()}{_last_words(said)}. "
                f"Write .html, which needs no browser, or set {VARIABLE} to another one."
            )
        return out.read_bytes()


def _call(command: list[str], program: Path) -> str:
    """Run the browser and all that it starts; returns what it said. Raises SettingsError."""
    with tempfile.TemporaryFile() as heard:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=heard,
                stderr=heard,
                start_new_session=True,
            )
        except OSError as error:
            raise SettingsError(
                f"{program.name} could not be started ({error.strerror}). Set {VARIABLE} to another browser, or write .html."
            ) from None
        try:
            process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise SettingsError(
                f"{program.name} did not finish within {TIMEOUT_S:g} s and was stopped. Try again on a quieter machine, or write .html."
            ) from None
        finally:
            _end(process)
        heard.seek(0)
        return heard.read().decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the browser with its helpers, if anything of it still runs."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    elif process.poll() is None:
        process.kill()
    process.wait()


def _last_words(said: str) -> str:
    """' (its last line)', without its time stamp; '' where it said nothing."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and "dbus" not in line]
    return f" ({lines[-1].rpartition('] ')[2][:200]})" if lines else ""
