"""The Requests page: what each request was in, and when; how long they took, in A and in B.

It reads downward: swim lanes, the chosen request, distributions, goodput, table.
"""

from __future__ import annotations

from analyzer.pages.parts import shell
from analyzer.pages.parts.request_lanes import lanes_section
from analyzer.pages.parts.shell import Opened


def page() -> None:
    """Draw the page."""
    shell.draw(_body, "Requests")


def _body(opened: Opened) -> None:
    lanes_section(opened)
