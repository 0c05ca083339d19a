"""The Requests page: what each request was in, and when; how long they took, in A and in B.

It reads downward: swim lanes, the chosen request, goodput, distributions, table.
"""

from __future__ import annotations

from analyzer.pages.parts import shell
from analyzer.pages.parts.request_lanes import lanes_section
from analyzer.pages.parts.request_latencies import latencies_section
from analyzer.pages.parts.request_list import list_section
from analyzer.pages.parts.shell import Opened


def page() -> None:
    """Draw the page."""
    shell.draw(_body, "Requests")


def _body(opened: Opened) -> None:
    """Lanes, the chosen request, bounds, distributions and the table of the shown runs."""
    lanes_section(opened)
    latencies_section(opened)
    list_section(opened)
