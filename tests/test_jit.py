"""The compiled core is never older than its sources."""

from __future__ import annotations

from pathlib import Path

from engine.core.jit import cache_folder


def sources(folder: Path) -> Path:
    core = folder / "core"
    core.mkdir()
    (folder / "cost_model.py").write_text("cost = 1\n")
    (core / "pool.py").write_text("a = 1\n")
    (core / "loop.py").write_text("b = 1\n")
    return core


def test_a_change_in_any_file_gives_all_of_them_a_new_cache(tmp_path: Path) -> None:
    core = sources(tmp_path)
    first = cache_folder(core)

    (core / "pool.py").write_text("a = 2\n")
    second = cache_folder(core)
    (tmp_path / "cost_model.py").write_text("cost = 2\n")
    third = cache_folder(core)

    assert len({first, second, third}) == 3


def test_the_same_sources_find_their_cache_again(tmp_path: Path) -> None:
    core = sources(tmp_path)

    assert cache_folder(core) == cache_folder(core)
    assert cache_folder(core).parent == core / "__pycache__"


def test_caches_of_older_sources_are_removed(tmp_path: Path) -> None:
    core = sources(tmp_path)
    old = cache_folder(core)
    old.mkdir(parents=True)

    (core / "pool.py").write_text("a = 2\n")
    cache_folder(core)

    assert not old.exists()
