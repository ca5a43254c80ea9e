"""JSON text to values and back, fast. What msgspec refuses is left to the standard library, so that NaN and numbers out
of range are read as ever; texts that UTF-8 can't hold, with half of a surrogate pair in them, are refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec

_read = msgspec.json.Decoder().decode
_write = msgspec.json.Encoder().encode
_write_sorted = msgspec.json.Encoder(order="sorted").encode
_write_spaced = json.JSONEncoder(ensure_ascii=False).encode


def loads(text: str) -> Any:
    """As `json.loads`. Raises ValueError and RecursionError."""
    try:
        return _read(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return encodable(json.loads(text))


def load_line(raw: bytes) -> Any:
    """A line of a file. Raises ValueError, UnicodeDecodeError among them, and RecursionError."""
    try:
        return _read(raw)
    except (msgspec.MsgspecError, RecursionError):
        return encodable(json.loads(raw.decode("utf-8")))


def encodable(value: Any) -> Any:
    """The value. Raises ValueError when a text in it can't be written as UTF-8."""
    try:
        _write(value)
    except UnicodeEncodeError as error:
        raise ValueError(f"half of a surrogate pair, \\u{ord(error.object[error.start]):x}, in a text") from error
    return value


def dumps(value: Any) -> str:
    """As `json.dumps`, with a space behind commas and colons; ASCII escapes only where UTF-8 has no other way."""
    text = _write_spaced(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return json.dumps(value)
    return text


def compact(value: Any) -> str:
    """The shortest JSON of texts, in lists and objects."""
    return _write(value).decode()


def canonical(value: Any) -> bytes:
    """JSON with sorted keys, the same for equal values: to be hashed, not to be read again (NaN is null in it)."""
    return _write_sorted(value)
