"""Many copies in one call of the CUDA driver: cuMemcpyBatchAsync (driver 12.8 or newer), without a package.

It is reached through the driver's own library, which torch has loaded anyway. Before it is used it has
to move a few bytes both ways correctly. Where it is missing or fails, torch's loop in C++ takes its
place, and `name` says so. It knows addresses, not blocks.

Source: CUDA driver API reference, cuMemcpyBatchAsync and CUmemcpyAttributes.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch

from engine.gpu.copy_paths import Piece, in_one_call, piece_bytes, pointers

_LIBRARIES = ("libcuda.so.1", "libcuda.so")
_SAME_ADDRESS = 91  # CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
_STREAM_ORDER = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: read when the stream gets there


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("source_access_order", ctypes.c_int),
        ("source_hint", _Location),
        ("destination_hint", _Location),
        ("flags", ctypes.c_uint),
    )


class ManyCopies:
    """Hands pieces over in one call; callable as copy_paths.Many.

    pinned: whether the host's side is. name: the call that is used, and, where that is not the driver's,
    why.
    """

    def __init__(self, device: Any, library: Any = None, *, pinned: bool = True) -> None:
        self.device = torch.device(device)
        self._call: Any = None
        self._has_fail_index = False
        if self.device.type == "cpu":
            self.name = "torch._foreach_copy_"
            return
        library = library or _driver()
        fault = "" if pinned else "the host memory is not pinned"
        fault = fault or self._find(library) or self._see_addresses(library) or self._try_out()
        if fault:
            self._call = None
            self.name = f"torch._foreach_copy_ (cuMemcpyBatchAsync: {fault})"
        else:
            self.name = "cuMemcpyBatchAsync"

    def __call__(self, dst: Piece, src: Piece, lengths: np.ndarray, split: bool) -> None:
        """Enqueue all pieces on the current stream; between them no order is promised.

        Raises: RuntimeError with the driver's code where it refuses.
        """
        if self._call is None:
            in_one_call(dst, src, lengths, split)
            return
        sizes = piece_bytes(dst.pool, lengths, split)
        self._batch(pointers(dst, split), pointers(src, split), sizes)

    def _find(self, library: Any) -> str:
        """Look the call up; "" or why there is none. CUDA 13 dropped one argument under a new symbol."""
        if library is None:
            return "no libcuda.so.1"
        for symbol, has_fail_index in (
            ("cuMemcpyBatchAsync_v2", False),
            ("cuMemcpyBatchAsync", True),
        ):
            try:
                call = getattr(library, symbol)
            except AttributeError:
                continue
            call.restype = ctypes.c_int
            self._call, self._has_fail_index = call, has_fail_index
            return ""
        return "needs a driver for CUDA 12.8 or newer"

    def _see_addresses(self, library: Any) -> str:
        """Nothing where the device reaches registered host memory by the host's addresses, or why not: there
        a copy would end in a fault that takes the whole context with it."""
        device, same = ctypes.c_int(), ctypes.c_int()
        index = self.device.index
        ordinal = torch.cuda.current_device() if index is None else index
        code = library.cuDeviceGet(ctypes.byref(device), ctypes.c_int(ordinal))
        code = code or library.cuDeviceGetAttribute(
            ctypes.byref(same), ctypes.c_int(_SAME_ADDRESS), device
        )
        if code != 0:
            return f"cuDeviceGetAttribute failed with CUDA error {code}"
        return "" if same.value else "pinned memory has other addresses on this device"

    def _batch(self, dst: np.ndarray, src: np.ndarray, sizes: np.ndarray) -> None:
        """One call for copies of sizes[i] bytes from src[i] to dst[i], all (n,) uint64."""
        attributes = _Attributes(source_access_order=_STREAM_ORDER)
        first = ctypes.c_size_t(0)  # the attributes hold from the first copy on
        failed = ctypes.c_size_t(0)
        stream = torch.cuda.current_stream(self.device).cuda_stream
        code = self._call(
            ctypes.c_void_p(dst.ctypes.data),
            ctypes.c_void_p(src.ctypes.data),
            ctypes.c_void_p(sizes.ctypes.data),
            ctypes.c_size_t(len(sizes)),
            ctypes.byref(attributes),
            ctypes.byref(first),
            ctypes.c_size_t(1),
            *((ctypes.byref(failed),) if self._has_fail_index else ()),
            ctypes.c_void_p(stream),
        )
        if code != 0:
            raise RuntimeError(
                f"cuMemcpyBatchAsync refused {len(sizes)} copies with CUDA error {code}"
            )

    def _try_out(self) -> str:
        """Move two pieces out and in again and look at them; "" or what went wrong."""
        with torch.cuda.device(self.device), torch.cuda.stream(torch.cuda.Stream()):
            there = torch.arange(64, dtype=torch.uint8, device=self.device)
            here = torch.zeros(64, dtype=torch.uint8).pin_memory()
            back = torch.zeros_like(there)
            try:
                for dst, src in ((here, there), (back, here)):
                    of = np.array([src.data_ptr(), src.data_ptr() + 32], np.uint64)
                    to = np.array([dst.data_ptr() + 32, dst.data_ptr()], np.uint64)
                    self._batch(to, of, np.array([32, 32], np.uint64))
                torch.cuda.current_stream().synchronize()
            except RuntimeError as fault:
                return str(fault)
            swapped = torch.arange(64, dtype=torch.uint8).roll(32)
            if not torch.equal(here, swapped) or not torch.equal(back.cpu(), swapped.roll(32)):
                return "it moved other bytes than asked for"
        return ""


def _driver() -> Any:
    """The driver's library; None where there is none."""
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
