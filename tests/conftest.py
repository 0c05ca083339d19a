"""What every test shares: components of Streamlit are searched for once a run, and `__main__` stays ours."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator

import pytest

MAIN = sys.modules["__main__"]


@pytest.fixture(scope="session", autouse=True)
def installed_components_are_found_once() -> None:
    """Each new AppTest reads the metadata of every installed package, over 0.3 s where torch is one.

    They do not change during a run. Without Streamlit loaded, nothing has anything to remember.
    """
    if "streamlit.testing.v1" in sys.modules:
        from streamlit.components.v2 import manifest_scanner

        manifest_scanner.scan_component_manifests = functools.cache(
            manifest_scanner.scan_component_manifests
        )


@pytest.fixture(autouse=True)
def main_module_is_ours() -> Iterator[None]:
    """An AppTest leaves its script as `__main__`, which a process that is spawned later would run."""
    sys.modules["__main__"] = MAIN
    yield
    sys.modules["__main__"] = MAIN
