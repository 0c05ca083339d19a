"""What every test shares: installed packages are searched for Streamlit components once a run."""

from __future__ import annotations

import functools
import sys

import pytest


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
