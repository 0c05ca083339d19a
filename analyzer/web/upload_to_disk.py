"""Large uploads go to the store while they come in; Streamlit is given a token in their place.

Streamlit keeps what is uploaded in memory, twice while a page copies it. Here the body of
`PUT .../_stcore/upload_file/SESSION/FILE` is read only when Streamlit's own handler asks for it, so after
its checks of XSRF token, session and stated size, and what the handler is given is the same form with a
token for content (analyzer/pages/parts/uploads.py). The answer is Streamlit's; where it is no success, and
where the file is deleted before a page took it, nothing stays on disk.

It knows ASGI and the store's open file. It does not know Streamlit, nor what files mean.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from analyzer.pages.parts.store import Store, default_root
from analyzer.pages.parts.uploads import hand_over, take_back
from analyzer.web.multipart_file import BodyMalformedError, BodyTooLargeError, MultipartFile

FROM_BYTES = 4 * 2**20  # of a body; smaller ones are left to Streamlit
PIECE_BYTES = 2**20  # that are written at a time
_PATH = re.compile(r"/_stcore/upload_file/([^/]+)/([^/]+)$")  # behind any server.baseUrlPath


class UploadsToDisk:
    """Middleware that writes large uploads to the store."""

    def __init__(
        self,
        app: ASGIApp,
        most_bytes: Callable[[], int],
        root: Callable[[], Path] = default_root,
        from_bytes: int = FROM_BYTES,
    ) -> None:
        """most_bytes: of a file, as Streamlit has it (server.maxUploadSize); root: of the store that the
        pages use; from_bytes: of a body, smaller ones are left to Streamlit."""
        self.app = app
        self._most_bytes = most_bytes
        self._root = root
        self._from_bytes = from_bytes
        self._tokens: dict[tuple[str, ...], bytes] = {}  # by session and file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = _PATH.search(scope["path"]) if scope["type"] == "http" else None
        if found is not None and scope["method"] == "PUT" and self._is_large_form(scope):
            await self._put(found.groups(), scope, receive, send)
        elif found is not None and scope["method"] == "DELETE":
            await self._delete(found.groups(), scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _is_large_form(self, scope: Scope) -> bool:
        """Whether the body is a form, and large or of a size that nobody stated."""
        headers = Headers(scope=scope)
        kind, options = parse_options_header(headers.get("content-type"))
        stated = _stated_bytes(headers)
        is_large = stated is None or stated >= self._from_bytes
        return kind == b"multipart/form-data" and b"boundary" in options and is_large

    async def _put(
        self, which: tuple[str, ...], scope: Scope, receive: Receive, send: Send
    ) -> None:
        upload = _Upload(partial(self._form, scope), receive, send)
        try:
            await self.app(scope, upload.receive, upload.send)
        except ClientDisconnect:
            if not upload.has_left:
                raise
        finally:
            if upload.is_accepted:
                before, self._tokens[which] = self._tokens.get(which, b""), upload.token
                await _away(take_back, before)
            else:
                await _away(upload.discard)

    async def _delete(
        self, which: tuple[str, ...], scope: Scope, receive: Receive, send: Send
    ) -> None:
        answer = _Answer(send)
        await self.app(scope, receive, answer.send)
        if answer.is_success:
            await _away(take_back, self._tokens.pop(which, b""))

    def _form(self, scope: Scope) -> MultipartFile:
        headers = Headers(scope=scope)
        return MultipartFile(
            parse_options_header(headers["content-type"])[1][b"boundary"],
            Store(self._root()).open_part,
            self._most_bytes(),
            _stated_bytes(headers) or 0,
        )


class _Answer:
    """Passes an answer on, and notes whether it is a success."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_success = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_success = 200 <= message["status"] < 300
        await self._send(message)


class _Upload(_Answer):
    """One upload. token: what stands for its file, b"" before it came whole or where it has none;
    has_left: the browser went away before the body was whole."""

    def __init__(
        self, new_form: Callable[[], MultipartFile], receive: Receive, send: Send
    ) -> None:
        super().__init__(send)
        self._new_form = new_form
        self._form: MultipartFile | None = None
        self._receive = receive
        self._was_asked = False
        self.token = b""
        self.has_left = False

    @property
    def is_accepted(self) -> bool:
        return self.is_success and bool(self.token)

    async def receive(self) -> Message:
        """The whole body in one message, read when it is first asked for; then what the server has."""
        if self._was_asked:
            return await self._receive()
        self._was_asked = True
        try:
            self._form = self._new_form()
            await self._read(self._form)
        except BodyTooLargeError as error:  # answered like Streamlit's own refusals
            raise HTTPException(413, "File too large") from error
        except BodyMalformedError as error:
            raise HTTPException(400, str(error)) from error
        if self.has_left:
            return {"type": "http.disconnect"}
        found = self._form.found
        if found is not None:
            self.token = hand_over(found)
        body = self._form.with_content(self.token)
        return {"type": "http.request", "body": body, "more_body": False}

    async def _read(self, form: MultipartFile) -> None:
        """Feed the form to its end, in a thread: other sessions are served meanwhile, and the next piece
        comes while one is written."""
        waiting, is_whole = bytearray(), False
        writing: asyncio.Future[None] | None = None
        while not is_whole and not self.has_left:
            message = await self._receive()
            self.has_left = message["type"] == "http.disconnect"
            waiting += message.get("body", b"")
            is_whole = not message.get("more_body", False)
            if is_whole or len(waiting) >= PIECE_BYTES:
                if writing is not None:
                    await writing
                writing = asyncio.ensure_future(asyncio.to_thread(form.feed, bytes(waiting)))
                waiting.clear()
        if writing is not None:
            await writing
        await asyncio.to_thread(form.close)

    def discard(self) -> None:
        """Leave nothing of it."""
        take_back(self.token)
        if self._form is not None:
            self._form.discard()


def _stated_bytes(headers: Headers) -> int | None:
    stated = headers.get("content-length", "")
    return int(stated) if stated.isdecimal() and len(stated) < 20 else None


async def _away(work: Callable[..., object], *args: bytes) -> None:
    """Do it in a thread, to the end even if the request is cancelled meanwhile."""
    await asyncio.shield(asyncio.to_thread(work, *args))
