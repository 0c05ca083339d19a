"""Host memory for the pools: how much there is, and buffers of it, pinned for CUDA or left as they are.

A buffer is an anonymous mapping of zero pages: what nobody writes is not committed. Pinning
(cudaHostRegister) commits all of it at once. Torch's own pinned allocator is not used, because it rounds
sizes up to a power of two: 33 GiB would take 64. It does not know what lies in a buffer (kv_cache.py).
"""

from __future__ import annotations

import contextlib
import mmap
import resource
import sys
import weakref
from pathlib import Path
from typing import Any

import torch

from traces.errors import SettingsError

GIB = 2**30
# Python 3.11's mmap does not name it. Source: Linux, asm-generic/mman.h (x86 and Arm).
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_CGROUP = Path("/sys/fs/cgroup")
# Source: vLLM issue 51080 (512 GiB and more fails whatever is free); others report 96 to 128 GiB.
_LARGE_BYTES = 96 * GIB
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every device of the process


def available_host_bytes(proc: Path = Path("/proc"), cgroup: Path = _CGROUP) -> int | None:
    """Bytes a new buffer can take before the machine, or the container's limit, is full.

    None where the system does not say (it is not Linux): then nothing is refused beforehand.
    """
    free = _number_of(proc / "meminfo", "MemAvailable:")
    if free is None:
        return None
    free *= 1024
    for limit, used, stat, cache in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        most, taken = _number_of(cgroup / limit), _number_of(cgroup / used)
        if most is not None and taken is not None:
            reclaimable = _number_of(cgroup / stat, cache) or 0
            free = min(free, max(0, most - taken + reclaimable))
    return free


def _number_of(file: Path, key: str = "") -> int | None:
    """The number behind `key` (or the first one) in a small system file; None: no file, no number."""
    try:
        words = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return None
    for line in words:
        value = line[1:2] if key and line[:1] == [key] else line[:1] if not key else []
        if value and value[0].isdigit():
            return int(value[0])
    return None


class HostBuffer:
    """num_bytes zero bytes of page-aligned host memory; pinned on request.

    bytes (num_bytes,) uint8: the memory; pinned: whether the device can copy from and to it by itself.

    Raises: SettingsError where the memory is not there or cannot be pinned.
    """

    def __init__(self, num_bytes: int, *, pin: bool, what: str, remedy: str) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        if not pin:  # pages that may never be written are not to be accounted for beforehand
            flags |= _NO_RESERVE
        try:
            self._map = mmap.mmap(-1, num_bytes, flags=flags)
        except (OSError, ValueError, OverflowError) as fault:
            raise SettingsError(
                f"{what} needs {gib(num_bytes)} GiB of host memory, which the system refused ({fault}). {remedy}"
            ) from fault
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self.pinned = False
        self._unpin: Any = None
        if pin:
            self._pin(what, remedy)

    def _pin(self, what: str, remedy: str) -> None:
        """Lock the pages and tell the driver; huge pages make the first touch several times faster."""
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel built without them; small pages do
                self._map.madvise(mmap.MADV_HUGEPAGE)
        cudart, pointer = torch.cuda.cudart(), self.bytes.data_ptr()
        code = int(cudart.cudaHostRegister(pointer, len(self.bytes), _PORTABLE))
        if code != 0:
            _clear_pending_error()
            raise SettingsError(pin_error(what, len(self.bytes), code, remedy))
        self.pinned = True
        self._unpin = weakref.finalize(self, _unregister, cudart, pointer)

    def close(self) -> None:
        """Unpin now instead of when the last reference goes. No copy may be under way."""
        if self._unpin is not None:
            self._unpin()
        self.pinned = False


def _clear_pending_error() -> None:
    """A refusal stays pending in CUDA's runtime and would be reported by the next kernel launch: launch one."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda").add_(1)


def _unregister(cudart: Any, pointer: int) -> None:
    code = int(cudart.cudaHostUnregister(pointer))
    if code not in (0, 4):  # 4: the driver is shutting down and has unpinned everything
        raise RuntimeError(f"cudaHostUnregister failed with CUDA error {code}")


def pin_error(what: str, num_bytes: int, code: int, remedy: str) -> str:
    """One sentence or two about memory that the driver would not pin, with the limits that may be the reason."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft // 1024} KiB"
    free = available_host_bytes()
    there = "" if free is None else f", {gib(free)} GiB of host memory are available"
    if num_bytes >= _LARGE_BYTES:
        there += "; some drivers pin no more than about 100 GiB in one piece, none 512"
    return (
        f"{what}: {gib(num_bytes)} GiB of host memory cannot be pinned (CUDA error {code}; `ulimit -l` is {limit}{there}). "
        f"Raise the limit (`ulimit -l unlimited`, in Docker --ulimit memlock=-1), or {remedy[:1].lower()}{remedy[1:]}"
    )


def gib(num_bytes: float) -> str:
    """Bytes as GiB with three significant digits, for messages."""
    return f"{num_bytes / GIB:.3g}" if num_bytes < 1000 * GIB else f"{num_bytes / GIB:.0f}"
