"""Values, texts and files as nobody should have written them.

All of it is drawn from a `random.Random`: a seeded one gives the same again, one of hypothesis's is
made smaller where a parser fails.
"""

from __future__ import annotations

import copy
import io
import itertools
import json
import pickletools
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

_NUMBERS = (
    *(0, 1, -1, 2, 7, 255, 65536, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64),
    *(-(2**63), 10**30, 10**400, 0.5, -1.5, 1e-320, 1e308, float("inf"), float("-inf")),
    float("nan"),
)
_TEXTS = (
    *(
        "",
        " ",
        "a",
        "0",
        "-1",
        "1e9",
        "nan",
        "inf",
        "on",
        "true",
        "null",
        "None",
        "auto",
        "١٢",
        "²",
    ),
    *(
        ".",
        "..",
        "../../outside",
        "/etc/hostname",
        "a/b",
        "a\\b",
        "~",
        "$HOME",
        "{}",
        "%s%n",
        "[1]",
    ),
    *("\0", "a\0b", "\x1b[2J\x1b]0;x\x07", "\n", "a\nb", "\r", "\u202e", "\ud800", "\ufeff"),
    *("x" * 300, "9" * 5000, "é" * 2000, "builtins.eval", "__class__"),
)


def number(random: Random) -> int | float:
    """A number that few expect."""
    return random.choice(_NUMBERS)


def text(random: Random) -> str:
    """A text that few expect."""
    return random.choice(_TEXTS)


def value(random: Random, depth: int = 2) -> Any:
    """A value as JSON has them, of any type."""
    kind = random.randrange(9 if depth else 6)
    if kind < 1:
        return None
    if kind < 2:
        return random.random() < 0.5
    if kind < 4:
        return number(random)
    if kind < 6:
        return text(random)
    if kind < 7:
        return [value(random, depth - 1) for _ in range(random.randrange(4))]
    if kind < 8:
        return {text(random): value(random, depth - 1) for _ in range(random.randrange(4))}
    return _deep(random.choice((3, 60)), random.random() < 0.5)


def _deep(depth: int, is_dict: bool) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = {"a": found} if is_dict else [found]
    return found


def document(random: Random, seed: Any) -> Any:
    """A document of dicts and lists of which something is another than in `seed`."""
    found = _copied(seed)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        found = _changed(random, found)
    return found


def _copied(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _copied(each) for key, each in found.items()}
    return [_copied(each) for each in found] if isinstance(found, list) else found


def _changed(random: Random, found: Any) -> Any:
    places = list(_places(found, 0))
    if not places or random.random() < 0.02:
        return value(random)
    owner, key = random.choice(places)
    how = random.randrange(8)
    if how < 4:
        owner[key] = value(random)
    elif how == 4:
        del owner[key]
    elif how == 5 and isinstance(owner, dict):
        owner[text(random)] = owner.pop(key)
    elif how == 6:
        other, name = random.choice(places)
        if (name in other if isinstance(other, dict) else name < len(other)) and _is_small(
            other[name]
        ):
            owner[key] = _copied(other[name])
    elif isinstance(owner, list):
        owner += owner[: random.choice((1, 1, 3))]
    else:
        owner[text(random)] = value(random)
    return found


def _is_small(found: Any) -> bool:
    return not isinstance(found, dict | list) or all(
        not isinstance(each, dict | list)
        for each in (found.values() if isinstance(found, dict) else found)
    )


def _places(found: Any, depth: int) -> Iterator[tuple[Any, Any]]:
    """Each value of a document as what holds it and its key; as far as it is not very deep."""
    if depth > 20 or not isinstance(found, dict | list):
        return
    for key in list(found) if isinstance(found, dict) else range(len(found)):
        yield found, key
        yield from _places(found[key], depth + 1)


def json_text(random: Random, seed: Any) -> bytes:
    """The JSON of a changed document; sometimes no JSON, too deep, or with a key twice."""
    how = random.randrange(20)
    if how == 0:
        return damaged_text(random, _dumped(seed))
    if how == 1:
        return b"[" * random.choice((100, 5000, 100_000))
    if how == 2:
        return b'{"a":' * random.choice((100, 5000, 100_000))
    found = _dumped(document(random, seed))
    if how == 3:
        return damaged_text(random, found)
    if how == 4:  # the same key once more, with another value
        again = _dumped(value(random, 1))
        return re.sub(
            rb'("[^"\\]*"): ', lambda m: m[1] + b": " + again + b", " + m[0], found, count=1
        )
    if how == 5 and (numbers := list(re.finditer(rb"\d+", found))):  # deep, and well formed
        each = random.choice(numbers)
        return found[: each.start()] + b"[" * 3000 + b"]" * 3000 + found[each.end() :]
    return found


def _dumped(found: Any) -> bytes:
    return json.dumps(found).encode()


_PIECES = (
    *(b"\0", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\r", b"\n", b"\r\n", b"\t", b'"', b"'", b","),
    *(b"{", b"}", b"[", b"]", b":", b"#", b"-", b"&a", b"*a", b"!!python/name:os.system ", b"<<: "),
    *(
        b"\x1b[31m",
        b"\xc3",
        b"\xed\xa0\x80",
        b"1e999",
        b"9" * 5000,
        b"0x",
        b"-0",
        b"nan",
        b"\\u0000",
    ),
)


def damaged_text(random: Random, seed: bytes) -> bytes:
    """A text with pieces put in, taken out, repeated, and numbers exchanged."""
    found = seed
    for _ in range(random.choice((1, 1, 2, 5))):
        how, at = random.randrange(7), random.randrange(len(found) + 1)
        if how == 0:
            found = found[:at] + random.choice(_PIECES) + found[at:]
        elif how == 1:
            found = found[:at] + found[at + random.choice((1, 1, 4, 30)) :]
        elif how == 2:
            found = found[:at]
        elif how == 3:
            part = found[at : at + random.choice((1, 10, 100))]
            found = found[:at] + part * random.choice((2, 3, 50)) + found[at + len(part) :]
        elif how == 4:
            numbers = list(re.finditer(rb"-?\d+", found))
            if numbers:
                each = random.choice(numbers)
                wild = str(number(random)).encode()
                found = found[: each.start()] + wild + found[each.end() :]
        elif how == 5:
            words = list(re.finditer(rb"[\w.]+", found))
            if words:
                each = random.choice(words)
                wild = text(random).encode("utf-8", "surrogatepass")
                found = found[: each.start()] + wild + found[each.end() :]
        else:
            lines = found.splitlines(keepends=True)
            random.shuffle(lines)
            found = b"".join(lines)
        found = found[: len(seed) + 6000]
    return found


_WORDS = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    2**40,
    2**63,
    2**64 - 1,
)


def damaged_bytes(random: Random, seed: bytes) -> bytes:
    """A binary file with bits flipped, numbers exchanged, parts moved, its end or more cut off."""
    found = bytearray(seed)
    for _ in range(random.choice((1, 1, 1, 2, 8))):
        at = random.randrange(len(found) + 1) if found else 0
        how = random.randrange(8)
        if how < 3 and at < len(found):
            found[at] ^= 1 << random.randrange(8)
        elif how == 3 and at < len(found):
            found[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, 0x50, 0x4B))
        elif how == 4:
            size = random.choice((1, 2, 4, 8))
            mask = 2 ** (8 * size) - 1
            found[at : at + size] = (random.choice(_WORDS) & mask).to_bytes(size, "little")
        elif how == 5:
            del found[at : random.choice((at + 1, at + 4, at + 64, len(found)))]
        elif how == 6:
            start = random.randrange(len(found) + 1)
            found[at:at] = found[start : start + random.choice((1, 4, 22, 64, 500))]
        else:
            found[at:at] = random.choice(_PIECES)
    return bytes(found)


_OPCODES = (
    b"012.()]}tlduaesbRcNIJKMhjqrQPoi"
    b"\x80\x81\x82\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8f\x90\x91\x92\x93\x94"
)


def damaged_pickle(random: Random, seed: bytes) -> bytes:
    """A pickle with opcodes removed, repeated, exchanged and put in."""
    if random.random() < 0.15:
        return damaged_bytes(random, seed)
    ends = [position for _, _, position in pickletools.genops(seed)] + [len(seed)]
    parts = [seed[a:b] for a, b in itertools.pairwise(ends)]
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(parts))
        how = random.randrange(6)
        if how == 0:
            del parts[at]
        elif how == 1:
            parts.insert(at, random.choice(parts))
        elif how == 2:
            other = random.randrange(len(parts))
            parts[at], parts[other] = parts[other], parts[at]
        elif how == 3:
            parts[at] = _pickled_value(random)
        elif how == 4:
            parts.insert(at, bytes([random.choice(_OPCODES)]) + bytes([random.randrange(4)]))
        else:
            parts[at] = damaged_bytes(random, parts[at])
        if not parts:
            return b""
    return b"".join(parts)


def _pickled_value(random: Random) -> bytes:
    """An opcode that puts a value in the place of another."""
    how = random.randrange(5)
    if how == 0:
        whole = int(random.choice([each for each in _NUMBERS if isinstance(each, int)]))
        content = whole.to_bytes(whole.bit_length() // 8 + 1, "little", signed=True)
        return b"\x8a" + bytes([len(content)]) + content if len(content) < 256 else b"K\0"
    if how == 1:
        content = text(random).encode("utf-8", "surrogatepass")
        return b"X" + struct.pack("<I", len(content)) + content
    if how == 2:
        return b"G" + struct.pack(">d", float(random.choice((0.0, float("inf"), float("nan")))))
    return random.choice((b"N", b"]", b"}", b")", b"\x88", b"\x8f", b"(", b"K\0", b"C\0"))


def damaged_zip(
    random: Random, seed: bytes, within: Callable[[Random, str, bytes], bytes] | None = None
) -> bytes:
    """An archive whose records, directory, sizes, names and comment do not agree.

    Args:
        random: What is drawn from.
        seed: A good archive.
        within: Damages the content of a record of a name.
    """
    if random.random() < 0.4:
        return damaged_bytes(random, seed)
    with zipfile.ZipFile(io.BytesIO(seed)) as archive:
        records = [[info.filename, archive.read(info)] for info in archive.infolist()]
        comment = archive.comment
    at = random.randrange(len(records))
    name, content = records[at]
    how = random.randrange(6)
    if how < 2:
        records[at][1] = (within or _binary)(random, name, content)
    elif how == 2:
        records[at][0] = random.choice(
            (f"{text(random)}", f"{name}x", f"a/{name}", "archive/version")
        )
    elif how == 3:
        records.insert(random.randrange(len(records) + 1), [name, damaged_bytes(random, content)])
    elif how == 4:
        del records[at]
    elif random.random() < 0.5:
        comment = random.choice((b"", b"x", damaged_bytes(random, comment)))
    return _zipped(random, records, comment[:65535])


def _binary(random: Random, name: str, content: bytes) -> bytes:
    return damaged_bytes(random, content)


def _zipped(random: Random, records: list[list[Any]], comment: bytes) -> bytes:
    """Written by hand, with one number of one header wrong every other time."""
    out, directory = bytearray(), bytearray()
    wrong = random.randrange(len(records)) if records and random.random() < 0.6 else -1
    for index, (name, content) in enumerate(records):
        encoded = name.encode("utf-8", "surrogatepass")[:60000]
        crc = zlib.crc32(content)
        fields = [20, 0, 0, 0, 0, crc, len(content), len(content)]
        extra, offset = b"", len(out)
        central = list(fields)
        if index == wrong:
            spoiled = random.choice((fields, central))
            place = random.randrange(len(spoiled))
            spoiled[place] = random.choice(_WORDS) & (0xFFFFFFFF if place > 4 else 0xFFFF)
            if random.random() < 0.4:
                # A zip64 field with sizes of its own.
                size = random.choice((0, 8, 16, 24, 28, 65535))
                extra = struct.pack("<HHQQQ", 1, size, random.choice(_WORDS), len(content), offset)
                central[6] = central[7] = random.choice((len(content), 0xFFFFFFFF))
            offset = random.choice((offset, offset, 0, offset + 1, 0xFFFFFFFF))
        padding = struct.pack("<HH", 0x4246, 0)
        out += b"PK\x03\x04" + struct.pack("<HHHHHIII", *fields)
        out += struct.pack("<HH", len(encoded), len(padding)) + encoded + padding + content
        directory += b"PK\x01\x02\x14\x00" + struct.pack("<HHHHHIII", *central)
        directory += struct.pack("<HHHHHII", len(encoded), len(extra), 0, 0, 0, 0, offset)
        directory += encoded + extra
    start, count = len(out), len(records)
    out += directory * random.choice((1, 1, 1, 1, 2))
    end = [0, 0, count, count, len(directory), start, len(comment)]
    if random.random() < 0.2:
        place = random.randrange(len(end))
        end[place] = random.choice(_WORDS) & (0xFFFFFFFF if place in (4, 5) else 0xFFFF)
    out += b"PK\x05\x06" + struct.pack("<HHHHIIH", *end) + comment
    return bytes(out)


def environment(random: Random, seed: dict[str, str]) -> dict[str, str]:
    """Variables with other values, or fewer of them; none with NUL, which the system refuses."""
    found = copy.copy(seed)
    for name in random.sample(sorted(seed), random.randrange(1, min(3, len(seed)) + 1)):
        if random.random() < 0.15:
            del found[name]
        elif random.random() < 0.5:
            found[name] = str(random.choice((text(random), number(random))))
        else:
            damaged = damaged_text(random, seed[name].encode())
            found[name] = damaged.decode("utf-8", "surrogateescape")
    usable = {name: each.replace("\0", "") for name, each in found.items()}
    return {
        n: e.encode("utf-8", "replace").decode() if _is_odd(e) else e for n, e in usable.items()
    }


def _is_odd(found: str) -> bool:
    try:
        found.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return True
    return False
