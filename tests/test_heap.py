"""What is there for good is left out of collections of cycles; what comes after it is collected."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from types import ModuleType

import pytest

from analyzer.pages.parts import heap


@pytest.fixture(autouse=True)
def thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(heap, "_num_modules", 0)
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_what_is_imported_is_left_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert heap.settle()
    assert gc.get_freeze_count() > 10_000
    assert not heap.settle()

    monkeypatch.setitem(sys.modules, "imported_by_a_page", ModuleType("imported_by_a_page"))

    assert heap.settle()


def test_a_cycle_that_is_made_after_it_is_collected() -> None:
    heap.settle()
    gone = _lost_cycle()
    gc.collect()

    assert gone() is None


def test_a_cycle_that_was_dead_before_it_does_not_stay() -> None:
    gone = _lost_cycle()

    heap.settle()

    assert gone() is None


class Node:
    """May refer to itself."""


def _lost_cycle() -> weakref.ref[Node]:
    node = Node()
    node.itself = node  # type: ignore[attr-defined]  # a cycle, by an attribute that no class needs
    return weakref.ref(node)
