"""The one place where an error becomes a message, and where foreign text is made harmless.

It knows how to say things on a page. It does not know recordings.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from traces.errors import KVReplayError

_MARKUP = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$:&])")
log = logging.getLogger("kv_replay.page")


def plain(text: object) -> str:
    """Text with everything that Markdown, LaTeX or HTML could read as markup switched off."""
    one_line = " ".join(str(text).split())
    return _MARKUP.sub(r"\\\1", one_line)


def say_error(error: BaseException) -> None:
    """Show a user's mistake as its sentence; anything else as an internal error with details."""
    if isinstance(error, KVReplayError):
        st.error(plain(error), icon=":material/error:")
        return
    log.error("internal error on the page", exc_info=error)
    st.error(
        "Internal error: this is a fault of KV Replay, not of your data. What was shown before still holds.",
        icon=":material/bug_report:",
    )
    with st.expander("Details for a bug report"):
        st.code("".join(traceback.format_exception(error)), language=None)


@contextmanager
def guarded() -> Iterator[None]:
    """Show whatever goes wrong inside as a message, and go on after the block."""
    try:
        yield
    except Exception as error:
        say_error(error)
