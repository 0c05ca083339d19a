"""What the collector of cycles need not look at again: whatever is there once a page has been imported.

Streamlit collects after every run of a script, and what was imported (Plotly's classes alone are some
hundred thousand objects) made that 0.15 s in which nothing else ran, the last of the page's messages
included. It knows the interpreter, and nothing of pages.
"""

from __future__ import annotations

import gc
import sys
import threading

_once = threading.Lock()
_num_modules = 0


def settle() -> bool:
    """Leave what is alive out of later collections, where more has been imported since the last time:
    so often at most as there are imports that wait for a page. Whether it was.

    What is dead already is collected first: left out it would stay for ever, 160 MB after a walk through
    all pages.
    """
    global _num_modules
    with _once:
        if len(sys.modules) <= _num_modules:
            return False
        _num_modules = len(sys.modules)
        gc.collect()
        gc.freeze()
        return True
