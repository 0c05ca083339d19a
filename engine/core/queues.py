"""The waiting, running and swapped queues, as arrays.

Under first come first served the waiting queue is a doubly linked list through the request table
(its last row is the ring's head), so that a victim goes to the front and an abort leaves from the
middle in constant time. Under the priority policy it is a binary heap of ranks.
"""

from __future__ import annotations

from typing import Any

from engine.core.jit import inlined, kernel
from engine.core.state import NONE


@inlined
def _swap_heap(s: Any, i: Any, j: Any) -> None:
    a, b = s.requests[i].heap, s.requests[j].heap
    s.requests[i].heap, s.requests[j].heap = b, a
    s.requests[a].heap_pos = j
    s.requests[b].heap_pos = i


@kernel
def _sift_up(s: Any, i: Any) -> None:
    while i > 0:
        parent = (i - 1) // 2
        if s.requests[s.requests[parent].heap].rank <= s.requests[s.requests[i].heap].rank:
            return
        _swap_heap(s, i, parent)
        i = parent


@kernel
def _sift_down(s: Any, i: Any) -> None:
    n = s.c[0].heap_size
    while True:
        child = 2 * i + 1
        if child >= n:
            return
        if (
            child + 1 < n
            and s.requests[s.requests[child + 1].heap].rank
            < s.requests[s.requests[child].heap].rank
        ):
            child += 1
        if s.requests[s.requests[i].heap].rank <= s.requests[s.requests[child].heap].rank:
            return
        _swap_heap(s, i, child)
        i = child


@kernel
def wait_push(s: Any, r: Any, priority: Any, at_front: Any) -> None:
    """Put request r into the waiting queue: its front, its back, or where its rank belongs."""
    c = s.c[0]
    if priority:
        i = c.heap_size
        s.requests[i].heap = r
        s.requests[r].heap_pos = i
        c.heap_size += 1
        _sift_up(s, i)
    else:
        head = len(s.requests) - 1
        p = head if at_front else s.requests[head].wait_prev
        n = s.requests[p].wait_next
        s.requests[p].wait_next = r
        s.requests[n].wait_prev = r
        s.requests[r].wait_prev = p
        s.requests[r].wait_next = n
    c.num_waiting += 1


@inlined
def wait_head(s: Any, priority: Any) -> Any:
    """The request that would be admitted next. There must be one."""
    if priority:
        return s.requests[0].heap
    return s.requests[len(s.requests) - 1].wait_next


@kernel
def wait_remove(s: Any, r: Any, priority: Any) -> None:
    """Take request r out of the waiting queue, wherever it stands."""
    c = s.c[0]
    if priority:
        i = s.requests[r].heap_pos
        last = c.heap_size - 1
        if i != last:
            _swap_heap(s, i, last)
        c.heap_size -= 1
        if i != last:
            _sift_up(s, i)
            _sift_down(s, i)
    else:
        p, n = s.requests[r].wait_prev, s.requests[r].wait_next
        s.requests[p].wait_next = n
        s.requests[n].wait_prev = p
    c.num_waiting -= 1


@kernel
def run_remove_at(s: Any, i: Any) -> None:
    """Take the request at place i out of the running queue; the rest keeps its order."""
    c = s.c[0]
    for k in range(i, c.num_running - 1):
        s.seats[k].running = s.seats[k + 1].running
    c.num_running -= 1


@inlined
def run_place(s: Any, r: Any) -> Any:
    """Place of request r in the running queue, or NONE."""
    for i in range(s.c[0].num_running):
        if s.seats[i].running == r:
            return i
    return NONE


@kernel
def swapped_push(s: Any, r: Any) -> None:
    """Put request r among the swapped, in order of rank."""
    c = s.c[0]
    i = c.num_swapped
    while i > 0 and s.requests[s.requests[i - 1].swap_queue].rank > s.requests[r].rank:
        s.requests[i].swap_queue = s.requests[i - 1].swap_queue
        i -= 1
    s.requests[i].swap_queue = r
    c.num_swapped += 1


@kernel
def swapped_remove(s: Any, r: Any) -> None:
    """Take request r out of the swapped queue."""
    c = s.c[0]
    i = 0
    while s.requests[i].swap_queue != r:
        i += 1
    for k in range(i, c.num_swapped - 1):
        s.requests[k].swap_queue = s.requests[k + 1].swap_queue
    c.num_swapped -= 1
