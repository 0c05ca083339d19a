"""Uploads that go to disk while they come: in front of Streamlit's own upload handler, without a socket."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import resource
import shutil
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from streamlit.proto.Common_pb2 import FileURLs
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.uploaded_file_manager import UploadedFile
from streamlit.web.server.starlette.starlette_routes import create_upload_routes

from analyzer.pages.parts.store import STALE_S, Store
from analyzer.pages.parts.uploads import num_bytes, stored
from analyzer.web.multipart_file import MultipartFile
from analyzer.web.upload_to_disk import UploadsToDisk
from traces.errors import FileError

ROOT = Path(__file__).resolve().parent.parent
XSRF = "c0ffee"  # the same in cookie and header
CSV = b"a,b\n1,2\n"
CSV_ID = "a2b7d5004d96e62b24e41e53c5d85ebf"


def part(content: bytes, name: str = "one.csv") -> bytes:
    """The part with the file, of a form with the boundary "edge"."""
    head = f'--edge\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\nContent-Type: text/csv\r\n\r\n'
    return head.encode() + content + b"\r\n"


def plain_field(content: bytes) -> bytes:
    return b'--edge\r\nContent-Disposition: form-data; name="note"\r\n\r\n' + content + b"\r\n"


END = b"--edge--\r\n"


class Answer(NamedTuple):
    """status: 0 where none came; num_read: messages of the body that were asked for."""

    status: int
    body: str
    num_read: int


@dataclass
class World:
    """Streamlit's handler behind the middleware, one session "s", and the store of the pages."""

    root: Path
    most_bytes: int = 2**30
    from_bytes: int = 0
    base: str = ""
    manager: MemoryUploadedFileManager = field(
        default_factory=lambda: MemoryUploadedFileManager("/_stcore/upload_file")
    )

    def __post_init__(self) -> None:
        runtime: Any = SimpleNamespace(is_active_session=lambda id_: id_ == "s")
        to_disk = Middleware(
            UploadsToDisk,
            most_bytes=lambda: self.most_bytes,
            root=lambda: self.root,
            from_bytes=self.from_bytes,
        )
        routes = create_upload_routes(runtime, self.manager, self.base)
        self.app = Starlette(routes=routes, middleware=[to_disk])
        self.store = Store(self.root)

    async def ask(
        self,
        pieces: AsyncIterator[bytes] | list[bytes],
        file: str = "f",
        *,
        method: str = "PUT",
        session: str = "s",
        xsrf: str = XSRF,
        stated: int | None = None,
        kind: str = "multipart/form-data; boundary=edge",
        leaves: bool = False,
    ) -> Answer:
        """One request. stated: its Content-Length; leaves: the browser goes away after the pieces."""
        source = _each(pieces) if isinstance(pieces, list) else pieces
        headers = {
            "content-type": kind,
            "x-xsrftoken": xsrf,
            "cookie": f"_streamlit_xsrf={XSRF}",
        } | ({} if stated is None else {"content-length": str(stated)})
        sent: list[dict[str, Any]] = []
        num_read = 0

        async def receive() -> dict[str, Any]:
            nonlocal num_read
            num_read += 1
            async for piece in source:
                return {"type": "http.request", "body": piece, "more_body": True}
            if leaves:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        path = f"{'/' if self.base else ''}{self.base}/_stcore/upload_file/{session}/{file}"
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
        }
        await self.app(scope, receive, send)
        status = next((m["status"] for m in sent if m["type"] == "http.response.start"), 0)
        return Answer(status, b"".join(m.get("body", b"") for m in sent).decode(), num_read)

    def put(self, *pieces: bytes, **how: Any) -> Answer:
        return asyncio.run(self.ask(list(pieces), **how))

    def delete(self, **how: Any) -> Answer:
        return asyncio.run(self.ask([], method="DELETE", **how))

    def uploaded(self, file: str = "f") -> UploadedFile:
        """What a file uploader of the page gives."""
        (record,) = self.manager.get_files("s", [file])
        return UploadedFile(record, FileURLs())

    def parts(self) -> list[Path]:
        """Files in the making, and those that no page took yet."""
        return sorted((self.root / "uploads").glob(".part-*"))


async def _each(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# ---- what a page gets ---------------------------------------------------------------------------


def test_the_page_gets_the_file_from_disk_and_streamlit_holds_a_token(world: World) -> None:
    answer = world.put(part(CSV * 50_000, "mine.csv.gz"), END)

    upload = world.uploaded()
    assert answer.status == 204
    assert (upload.name, upload.type) == ("mine.csv.gz", "text/csv")
    assert len(upload.getvalue()) == 81
    assert num_bytes(upload) == 400_000
    assert [p.stat().st_size for p in world.parts()] == [400_000]
    entry = stored(world.store, upload)
    assert Path(entry.path).read_bytes() == CSV * 50_000
    assert Path(entry.path).name == "file.csv.gz"
    assert (entry.name, entry.num_bytes) == ("mine.csv.gz", 400_000)
    assert world.parts() == []


def test_a_file_is_known_by_its_content_whichever_way_it_came(world: World) -> None:
    world.put(part(CSV), END)
    by_token = stored(world.store, world.uploaded())

    assert by_token.id == CSV_ID
    assert world.store.spool(BytesIO(CSV), "two.csv").id == CSV_ID


def test_a_body_below_the_limit_is_left_to_streamlit(tmp_path: Path) -> None:
    world = World(tmp_path, from_bytes=1_000)

    world.put(part(CSV), END, stated=150)

    assert world.uploaded().getvalue() == CSV
    assert world.parts() == []
    assert num_bytes(world.uploaded()) == 8
    assert stored(world.store, world.uploaded()).id == CSV_ID


def test_a_body_from_the_limit_on_or_of_unstated_size_goes_to_disk(tmp_path: Path) -> None:
    world = World(tmp_path, from_bytes=1_000)

    world.put(part(CSV), END, file="stated", stated=1_000)
    world.put(part(CSV), END, file="unstated")

    assert len(world.parts()) == 2


def test_a_page_may_ask_twice_for_the_same_upload(world: World) -> None:
    world.put(part(CSV), END)

    first, again = (stored(world.store, world.uploaded()) for _ in range(2))

    assert (first.id, first.path) == (again.id, again.path)


def test_an_upload_that_is_gone_again_is_said_by_its_name_and_size(world: World) -> None:
    world.put(part(CSV), END)
    world.store.delete(stored(world.store, world.uploaded()))

    with pytest.raises(FileError, match=r"^one\.csv: its 8 bytes are not kept any more\. Drop"):
        stored(world.store, world.uploaded())


def test_a_file_that_looks_like_a_token_is_a_file(world: World) -> None:
    world.put(part(CSV), END)
    token = bytes(world.uploaded().getvalue())
    forged = token[:-1] + (b"0" if token[-1:] != b"0" else b"1")
    plain = SimpleNamespace(name="odd.txt", size=len(forged), getvalue=lambda: forged)

    assert num_bytes(plain) == 81
    world.put(part(forged, "odd.txt"), END, file="odd")
    entry = stored(world.store, world.uploaded("odd"))
    assert Path(entry.path).read_bytes() == forged


@pytest.mark.parametrize("stated", [None, 0, 200])
def test_an_empty_file_is_said_to_be_empty(tmp_path: Path, stated: int | None) -> None:
    world = World(tmp_path, from_bytes=100)
    world.put(part(b"", "nothing.csv"), END, stated=stated)

    with pytest.raises(FileError, match=r"^nothing\.csv: the file is empty\."):
        stored(world.store, world.uploaded())


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1_000])
def test_content_is_kept_to_the_byte_however_the_body_is_cut(world: World, size: int) -> None:
    content = (
        b"\r\n--edg\r\n--edge\x00--\r\r\n\r\n-\n--edge--" + bytes(range(256)) + b"\r\n--ed"
    )
    body = part(content) + END

    answer = world.put(*(body[i : i + size] for i in range(0, len(body), size)))

    assert answer.status == 204
    assert Path(stored(world.store, world.uploaded()).path).read_bytes() == content


@pytest.mark.parametrize(
    ("sent", "known"),
    [
        ("größe 漢字.csv", "größe 漢字.csv"),
        ("a%22b.zip", "a%22b.zip"),
        ("../../x.csv", "../../x.csv"),
    ],
)
def test_names_reach_streamlit_as_they_were_sent(world: World, sent: str, known: str) -> None:
    world.put(part(CSV, sent), END)

    assert world.uploaded().name == known
    assert Path(stored(world.store, world.uploaded()).path).is_relative_to(world.root)


def test_a_base_path_of_the_server_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, base="replay/here")

    assert world.put(part(CSV), END).status == 204
    assert stored(world.store, world.uploaded()).id == CSV_ID


# ---- what is refused, and leaves nothing ----------------------------------------------------------


def test_streamlit_refuses_before_anything_is_read(world: World) -> None:
    body = part(CSV), END

    assert world.put(*body, xsrf="bad0").status == 403
    assert world.put(*body, session="other")[::2] == (400, 0)
    assert world.put(*body, xsrf="bad0").num_read == 0
    assert world.put(*body, stated=3 * 2**30) == (413, "File too large", 0)
    assert not (world.root / "uploads").exists()


def test_a_file_larger_than_it_may_be_is_refused_while_it_comes(tmp_path: Path) -> None:
    world = World(tmp_path, most_bytes=3 * 2**20)
    pieces = [part(b"")[:-2], *([b"x" * 2**20] * 50)]

    answer = world.put(*pieces)

    assert answer[:2] == (413, "File too large")
    assert answer.num_read <= 6
    assert world.parts() == []
    assert world.put(part(b"x" * 3 * 2**20), END).status == 204


def test_a_file_one_byte_larger_than_it_may_be_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, most_bytes=1_000)

    assert world.put(part(b"x" * 1_001), END)[:2] == (413, "File too large")
    assert world.parts() == []
    assert world.put(part(b"x" * 1_000), END).status == 204


def test_fields_around_a_file_cannot_grow_without_end(tmp_path: Path) -> None:
    world = World(tmp_path, most_bytes=2**20)

    answer = world.put(part(CSV), plain_field(b"")[:-2], *([b"x" * 2**20] * 50))

    assert answer[:2] == (413, "File too large")
    assert answer.num_read <= 6
    assert world.parts() == []


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ([b"no form at all"], "Expected boundary character"),
        ([END], "Expected 1 file, but got 0"),
        ([b""], "Expected 1 file, but got 0"),
        ([plain_field(b"text"), END], "Expected 1 file, but got 0"),
        ([part(CSV), part(CSV, "two.csv"), END], "Expected 1 file, but got several"),
        ([part(CSV)], "Expected 1 file, but got 0"),
        ([part(CSV)[:-12]], "Expected 1 file, but got 0"),
        ([b"--edge\r\nbroken header\r\n\r\n"], "Found invalid character"),
        ([b'--edge\r\nContent-Disposition: form-data; filename="x"\r\n\r\nx\r\n', END], '"name" must be provided'),
        ([b"--edge\r\n" + b"X-%d: y\r\n" % 1 * 100 + b"\r\n"], "Maximum header count exceeded"),
        ([plain_field(b"").replace(b"note", b"n" * 900)] * 1_200, "Too many parts."),
    ],
)  # fmt: skip
def test_what_is_no_form_of_one_file_is_refused(
    world: World, pieces: list[bytes], says: str
) -> None:
    answer = world.put(*pieces)

    assert answer.status == 400
    assert says in answer.body
    assert world.parts() == []
    assert world.manager.get_files("s", ["f"]) == []


@pytest.mark.parametrize(
    "kind",
    ["application/octet-stream", "", "multipart/form-data", f"multipart/form-data; boundary={'b' * 300}"],
)  # fmt: skip
def test_a_body_without_a_boundary_is_streamlits_to_refuse(world: World, kind: str) -> None:
    answer = world.put(part(CSV), END, kind=kind)

    assert answer.status == 400
    assert not (world.root / "uploads").exists()


def test_a_field_beside_the_file_does_no_harm(world: World) -> None:
    answer = world.put(plain_field(b"text"), part(CSV), plain_field(b"more"), END)

    assert answer.status == 204
    assert stored(world.store, world.uploaded()).id == CSV_ID


def test_a_browser_that_goes_away_leaves_nothing(world: World) -> None:
    answer = world.put(part(CSV * 300_000)[:-2], leaves=True)

    assert answer.status == 0
    assert world.parts() == []
    assert world.manager.get_files("s", ["f"]) == []


def test_a_server_that_stops_leaves_nothing(world: World) -> None:
    async def stopped() -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield part(b"x" * 2**21)[:-2]
            await asyncio.sleep(3600)

        request = asyncio.create_task(world.ask(pieces()))
        while not world.parts() and not request.done():
            await asyncio.sleep(0.001)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request

    asyncio.run(stopped())

    assert world.parts() == []


def test_what_is_written_late_for_a_request_that_is_over_makes_no_file(world: World) -> None:
    form = MultipartFile(b"edge", world.store.open_part, 1_000, 0)

    form.discard()
    form.feed(part(CSV) + END)
    form.close()

    assert world.parts() == []


# ---- files that are taken back --------------------------------------------------------------------


def test_a_file_that_is_taken_back_goes_at_once(world: World) -> None:
    world.put(part(CSV), END)

    assert world.delete(xsrf="bad0").status == 403
    assert len(world.parts()) == 1
    assert world.delete().status == 204
    assert world.parts() == []


def test_a_file_that_a_page_has_stays_when_the_browser_takes_it_back(world: World) -> None:
    world.put(part(CSV), END)
    entry = stored(world.store, world.uploaded())

    world.delete()

    assert world.store.get(entry.id) == entry


def test_a_file_that_is_sent_again_takes_the_place_of_the_first(world: World) -> None:
    world.put(part(CSV), END)
    world.put(part(b"other"), END)

    assert [p.read_bytes() for p in world.parts()] == [b"other"]
    assert Path(stored(world.store, world.uploaded()).path).read_bytes() == b"other"


def test_a_file_that_nobody_took_is_removed_after_a_day(world: World) -> None:
    world.put(part(CSV), END)
    world.put(part(b"later"), END, file="later")
    old = next(p for p in world.parts() if p.read_bytes() == CSV)
    os.utime(old, (time.time() - STALE_S - 60,) * 2)

    world.store.spool(BytesIO(b"anything"), "any.csv")

    assert [p.read_bytes() for p in world.parts()] == [b"later"]
    with pytest.raises(FileError, match="not kept any more"):
        stored(world.store, world.uploaded())


# ---- the disk ---------------------------------------------------------------------------------------


@contextmanager
def files_of_at_most(num: int) -> Iterator[None]:
    """The system refuses larger files to this process, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_is_said_on_the_page(world: World) -> None:
    with files_of_at_most(2**20):
        answer = world.put(part(b"x" * 2**20), b"", plain_field(b"y"), END, file="fits")
        assert answer.status == 204
        answer = world.put(part(b"x" * (2**20 + 1), "big.zip"), END)

    assert answer.status == 204  # the widget would say no more than a number
    assert [p.stat().st_size for p in world.parts()] == [2**20]
    assert num_bytes(world.uploaded()) == 1_048_577
    with pytest.raises(FileError) as caught:
        stored(world.store, world.uploaded())
    assert str(caught.value) == (
        f"big.zip: it could not be stored (File too large). Make room in {world.root}, "
        "or set KV_REPLAY_CACHE to a folder that has some."
    )


def test_a_disk_without_room_for_the_file_is_not_filled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000))

    world.put(part(CSV), END, file="fits", stated=1_000)
    world.put(part(b"x" * 5_000), END, stated=5_200)

    assert [p.read_bytes() for p in world.parts()] == [CSV]
    with pytest.raises(FileError, match=r"could not be stored \(No space left on device\)"):
        stored(world.store, world.uploaded())


def test_a_folder_that_cannot_be_written_is_said_on_the_page(world: World) -> None:
    (world.root / "uploads").write_text("in the way")

    assert world.put(part(CSV), END).status == 204
    with pytest.raises(FileError, match=r"^one\.csv: it could not be stored \(File exists\)"):
        stored(world.store, world.uploaded())


def test_a_copy_that_fails_leaves_no_part(world: World) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.store.spool(BytesIO(CSV), "one.csv", stop)
    with files_of_at_most(4), pytest.raises(FileError, match=r"could not be stored"):
        world.store.spool(BytesIO(CSV), "one.csv")

    assert world.parts() == []


# ---- memory and other sessions ------------------------------------------------------------------------


def test_a_large_file_is_never_held_in_memory(world: World) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield part(b"")[:-2]
        for i in range(1_024):
            yield bytes([i % 256]) * 2**16
        yield b"\r\n" + END

    tracemalloc.start()
    try:
        asyncio.run(world.ask(pieces(), stated=2**26 + 200))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert num_bytes(world.uploaded()) == 67_108_864
    assert peak_bytes < 8 * 2**20


def test_two_uploads_at_once_do_not_mix(world: World) -> None:
    async def both() -> list[Answer]:
        async def pieces(letter: bytes) -> AsyncIterator[bytes]:
            yield part(b"", f"{letter.decode()}.csv")[:-2]
            for _ in range(40):
                yield letter * 100_000
                await asyncio.sleep(0)
            yield b"\r\n" + END

        asked = (world.ask(pieces(b"a"), "one"), world.ask(pieces(b"b"), "two"))
        return list(await asyncio.gather(*asked))

    assert [a.status for a in asyncio.run(both())] == [204, 204]
    for file, letter in (("one", b"a"), ("two", b"b")):
        entry = stored(world.store, world.uploaded(file))
        assert Path(entry.path).read_bytes() == letter * 4_000_000
        assert entry.name == f"{letter.decode()}.csv"


def test_the_disk_is_written_beside_the_thread_that_serves_all_sessions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_in = []

    def open_part(store: Store) -> Any:
        opened_in.append(threading.get_ident())
        return real(store)

    real = Store.open_part
    monkeypatch.setattr(Store, "open_part", open_part)

    world.put(part(CSV), END)

    assert len(opened_in) == 1
    assert opened_in[0] != threading.get_ident()


def test_every_page_with_a_file_uploader_asks_for_its_files_here() -> None:
    given = [
        path
        for path in (ROOT / "analyzer").rglob("*.py")
        if re.search(
            r"\bfile_uploader\(|\bcamera_input\(|accept_file=", path.read_text("utf-8")
        )
    ]

    assert len(given) == 3
    for path in given:
        imported = {
            alias.name
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.ImportFrom)
            and node.module == "analyzer.pages.parts.uploads"
            for alias in node.names
        }
        assert "stored" in imported, path
