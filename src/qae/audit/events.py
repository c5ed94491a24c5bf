"""Scalars out of two binary logs, without the programs that wrote them: TensorBoard's events and wandb's offline runs.

Both are framed records of protocol buffers. Only the handful of fields that hold scalars is decoded.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK = 32768


def tensorboard_scalars(path: Path) -> Iterator[tuple[int, str, float]]:
    """(step, tag, value) of every scalar in an events.out.tfevents file; ends quietly where the file is cut short.

    Args:
        path: the event file.

    Yields:
        Scalars in file order, of SummaryWriter's plain values and TF2's scalar tensors.
    """
    data = path.read_bytes()
    at = 0
    # a record: length (8 bytes), its checksum (4), the event, its checksum (4)
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        start, at = at + 12, at + 16 + length
        if start + length > len(data):
            return
        event = _fields(data[start : start + length])
        step = next((value for number, value in event if number == 2), 0)
        for summary in (value for number, value in event if number == 5):
            for item in (value for number, value in _fields(summary) if number == 1):
                found = dict(_fields(item))
                value = _simple_value(found)
                if value is not None and isinstance(found.get(1), bytes):
                    yield int(step), found[1].decode("utf-8", "replace"), value


def _simple_value(item: dict[int, Any]) -> float | None:
    if isinstance(item.get(2), float):
        return item[2]
    if not isinstance(item.get(8), bytes):
        return None
    tensor = dict(_fields(item[8]))
    if tensor.get(1) != 1:  # DT_FLOAT
        return None
    raw = tensor.get(4) or tensor.get(5)
    if isinstance(raw, float):
        return raw
    return struct.unpack("<f", raw)[0] if isinstance(raw, bytes) and len(raw) == 4 else None


def wandb_history(path: Path) -> Iterator[dict[str, Any]]:
    """One dict a logged step of an offline run (run-*.wandb); ends quietly where the file is cut short.

    Args:
        path: the file.

    Yields:
        Values by name, with wandb's own "_step" among them.
    """
    for record in _leveldb_records(path.read_bytes()):
        for number, history in _fields(record):
            if number != 2:
                continue
            line: dict[str, Any] = {}
            for kind, item in _fields(history):
                if kind == 1:
                    names = [value.decode() for n, value in _fields(item) if n in (1, 2) and value]
                    values = [value for n, value in _fields(item) if n == 16]
                    if names and values:
                        line["/".join(names)] = json.loads(values[-1])
                elif kind == 2:
                    line.setdefault("_step", next((v for n, v in _fields(item) if n == 1), 0))
            if line:
                yield line


def _leveldb_records(data: bytes) -> Iterator[bytes]:
    """Records of LevelDB's log format: blocks of 32 KiB, records split into first, middle and last parts."""
    at, parts = 7, b""  # wandb writes a header of 7 bytes first
    while at + 7 <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        part = data[at + 7 : at + 7 + length]
        at += 7 + length
        if len(part) < length:
            return
        parts = part if kind in (1, 2) else parts + part
        if kind in (1, 4):
            yield parts


def _fields(message: bytes) -> list[tuple[int, Any]]:
    """(number, value) of a protocol buffer's fields; a message that is cut short gives what is whole."""
    found: list[tuple[int, Any]] = []
    at = 0
    try:
        while at < len(message):
            key, at = _varint(message, at)
            number, kind = key >> 3, key & 7
            if kind == 0:
                value, at = _varint(message, at)
            elif kind == 1:
                (value,), at = struct.unpack_from("<d", message, at), at + 8
            elif kind == 5:
                (value,), at = struct.unpack_from("<f", message, at), at + 4
            elif kind == 2:
                length, at = _varint(message, at)
                value, at = message[at : at + length], at + length
            else:
                return found
            found.append((number, value))
    except (IndexError, struct.error):
        pass
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
