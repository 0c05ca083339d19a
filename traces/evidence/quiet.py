"""Lines that no grammar could want, found by their shape and counted without being taken apart.

Most lines of a log are access lines. What they are (prefixes, length, start of a record) does not hang on their
digits, so two lines that differ in digits only are of one shape and of one kind. The kind of a shape
is found once, by the very code that reads all lines; lines of a quiet kind are then counted a megabyte at a
time. The records and everything that is seen of the outside are the same as without it.

It knows which texts may not be judged by their shape: those in which digits are escapes or JSON numbers, and
those that hold the words of a grammar.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from traces.evidence.records import (
    WINDOW_CHARS,
    WINDOW_LINES,
    Quiet,
    Reading,
    Record,
    Window,
    quiet_kind,
)

MAX_READ = 500_000  # samples; of the statistics lines behind them only some are read
ONE_OF = 11  # of these; prime, so that lines of several ranks take turns
MAX_SHAPES = 1 << 16
SLICE_LINES = 512
MAX_CHARS = 2000  # longer lines are read by themselves
# what says of a record: None: a grammar may want it; else whether it is noise (access lines, progress bars)
Judge = Callable[[str], bool | None]

_SHAPE = bytes.maketrans(b"123456789", b"000000000")
# one JSON object a line as Docker writes it: no digit in it stands outside a string
_DOCKER = re.compile(
    rb'\{"log":"[^"\\]*\\n","stream":"\w+"(?:,"[\w.]+":"[^"\\]*")*,"time":"[^"\\]*"\}\s*$'
)


def read_blocks(
    blocks: Iterable[tuple[int, bytes, bool]],
    seen: Reading,
    judge: Judge,
    hungry: Callable[[], bool],
    sated: Callable[[str | None], bool] = lambda text: False,
) -> Iterator[Record]:
    """Records of a source's blocks, but those that say nothing: they are counted in `seen`.

    hungry: whether somebody still wants records that no grammar knows (for examples, say). sated: asked with
    None, whether there are so many samples that one of eleven is enough from here on; asked with a record, whether
    it is a sample and nothing else. What is not read of these is counted in seen.unread.
    """
    shapes = Shapes(judge, sated)
    window = Window(seen)
    for number, block, piece in blocks:
        if piece:
            window.add(number, _text(block[:-1]))
            if window.full:
                yield from window.flush()
        else:
            yield from _read_block(number, block, window, shapes, hungry)
    yield from window.end()


def _read_block(
    number: int, block: bytes, window: Window, shapes: Shapes, hungry: Callable[[], bool]
) -> Iterator[Record]:
    """The records of whole lines, the first of which has that number."""
    lines = block.split(b"\n")
    of = block.translate(_SHAPE).split(b"\n")
    del lines[-1], of[-1]  # behind the last line's end
    for first in range(0, len(lines), SLICE_LINES):  # what one slice teaches, the next one uses
        part, shape = lines[first : first + SLICE_LINES], of[first : first + SLICE_LINES]
        yield from _read_slice(number + first, part, shape, window, shapes, hungry())


def _read_slice(
    number: int,
    lines: list[bytes],
    of: list[bytes],
    window: Window,
    shapes: Shapes,
    hungry: bool,
) -> Iterator[Record]:
    kinds = shapes.kinds(of, hungry)
    at, end = 0, len(lines)
    while at < end:
        try:
            loud = kinds.index(None, at)
        except ValueError:
            loud = end
        while at < loud:
            upto = _room(kinds, at, loud, window)
            if upto == at:  # lines have to be looked at one by one
                window.add(number + at, _text(lines[at]))
                at += 1
            else:
                _pass_over(number, lines, kinds[at:upto], at, upto, window)
                at = upto
            if window.full:
                yield from window.flush()
        if loud < end:
            text = _text(lines[loud])
            window.add(number + loud, text)
            shapes.learn(of[loud], text)
            at = loud + 1
            if window.full:
                yield from window.flush()


def _room(kinds: list[Quiet | None], at: int, end: int, window: Window) -> int:
    """Up to which of these quiet lines they may be counted at once: to the end of the window."""
    if window.partial or window.size + (end - at) * MAX_CHARS > WINDOW_CHARS:
        end = min(end, at + max(0, (WINDOW_CHARS - window.size) // MAX_CHARS))
    if window.partial:
        return at
    left = WINDOW_LINES - window.num_rows
    if end - at <= left:
        return end
    upto = at
    while left and upto < end:
        kind = kinds[upto]
        left -= kind is not None and not kind.blank
        upto += 1
    return upto


def _pass_over(
    number: int,
    lines: list[bytes],
    kinds: list[Quiet | None],
    at: int,
    upto: int,
    window: Window,
) -> None:
    last = upto - 1
    while last >= at and (kind := kinds[last - at]) is not None and kind.blank:
        last -= 1
    kind = kinds[last - at] if last >= at else None
    whole = None if kind is None else (number + last, _text(lines[last]), kind)
    counts: Counter[Quiet] = Counter(kinds)  # type: ignore[arg-type]  # none of them is None
    window.pass_over(counts, whole, number + upto - 1)


def _text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace").rstrip("\r\n")


class Shapes:
    """Kinds of the shapes that were seen. `kinds` answers for many lines at once."""

    def __init__(
        self, judge: Judge, sated: Callable[[str | None], bool] = lambda text: False
    ) -> None:
        self.judge = judge
        self.sated = sated
        self.turn = 0
        self.noise: dict[bytes, Quiet] = {}
        self.all: dict[bytes, Quiet] = {}
        self.loud: set[bytes] = set()
        self.stats: dict[bytes, Quiet] = {}

    def kinds(self, shapes: list[bytes], hungry: bool) -> list[Quiet | None]:
        """The kind of each, None for what has to be read."""
        found = list(map((self.noise if hungry else self.all).get, shapes))
        if self.sated(None):
            for i, kind in enumerate(found):
                if kind is None and (stat := self.stats.get(shapes[i])) is not None:
                    self.turn = (self.turn + 1) % ONE_OF
                    found[i] = stat if self.turn else None
        return found

    def learn(self, shape: bytes, text: str) -> None:
        """Find out what lines of that shape are, from one of them."""
        if self.sated(None) and shape not in self.stats and len(self.stats) < MAX_SHAPES:
            stat = self._kind(shape, text, lambda body: False if self.sated(body) else None)
            if stat is not None and not stat.blank:
                self.stats[shape] = replace(stat, unread=True)
        if shape in self.all or shape in self.loud:
            return
        if len(self.all) + len(self.loud) >= MAX_SHAPES:
            return
        kind = self._kind(shape, text, self.judge)
        if kind is None:
            self.loud.add(shape)
            return
        self.all[shape] = kind
        if kind.noise or kind.blank:
            self.noise[shape] = kind

    @staticmethod
    def _kind(shape: bytes, text: str, judge: Judge) -> Quiet | None:
        if len(text) > MAX_CHARS or "\r" in text or b"#000" in shape:
            return None
        docker = shape.startswith(b'{"')
        if docker and not _DOCKER.match(shape):
            return None
        if not docker and b"\\" in shape:
            return None
        return quiet_kind(text, judge)
