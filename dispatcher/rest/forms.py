"""Reads the fields of forms: multipart/form-data."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiohttp import BodyPartReader, web

from dispatcher.rest.requests import Refusal

MAX_FIELDS = 20
MAX_TEXT_BYTES = 100_000
_CHUNK_BYTES = 2**18


async def parts(request: web.Request) -> AsyncIterator[BodyPartReader]:
    """Yields the fields of a form. Raises Refusal for another body."""
    if not request.content_type.startswith("multipart/"):
        raise Refusal(400, "the body is not a form with a file: send multipart/form-data")
    count = 0
    try:
        async for part in await request.multipart():
            count += 1
            if count > MAX_FIELDS or not isinstance(part, BodyPartReader):
                raise Refusal(400, f"the form has more than {MAX_FIELDS} fields, or a nested form")
            yield part
    except ValueError as error:
        raise Refusal(400, f"the form cannot be read: {error}") from None


async def chunks(part: BodyPartReader) -> AsyncIterator[bytes]:
    """Raises Refusal for a field that cannot be read."""
    try:
        while chunk := await part.read_chunk(_CHUNK_BYTES):
            yield chunk
    except ValueError as error:
        raise Refusal(400, f"the field {part.name} cannot be read: {error}") from None


async def text(part: BodyPartReader) -> str:
    """Returns the text of a field. Raises Refusal if it is too long, or not UTF-8."""
    content = b""
    async for chunk in chunks(part):
        content += chunk
        if len(content) > MAX_TEXT_BYTES:
            raise Refusal(413, f"the field {part.name} has more than {MAX_TEXT_BYTES:,} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Refusal(400, f"the field {part.name} is not UTF-8") from None
