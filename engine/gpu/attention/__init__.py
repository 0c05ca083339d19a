"""Paged attention: one interface, four ways to compute it, and the rules for choosing one.

`get_backend` is the door. What each backend is for, how exact it is and what it cannot do: docs/attention.md.
"""

from engine.gpu.attention.choose import BACKENDS, get_backend
from engine.gpu.attention.interface import AttentionBackend, decode_bytes
from engine.gpu.attention.need import CacheShape

__all__ = ["BACKENDS", "AttentionBackend", "CacheShape", "decode_bytes", "get_backend"]
