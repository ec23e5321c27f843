"""Reads and shows what others may have written: texts, names, JSON, numbers and compiled files.

Such text may move a terminal's cursor, names may lead out of their folder, and numbers may be of
another type than expected. Secrets are hidden before something is shown.

This module imports nothing of ours: the simulator uses it, and recipes, which are copied into
projects.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import shlex
import stat
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode's categories of characters that a terminal obeys, reorders or does not show."""

_MAX_DEPTH = 100
"""How deep dicts and lists may lie in each other; no file of ours has more than ten levels."""


def printable(text: object, *, max_chars: int = 2000, lines: bool = False) -> str:
    """Returns a text in which nothing moves the cursor, begins a line or hides what follows.

    Args:
        text: The text, or an object whose `str` is shown.
        max_chars: How many characters are kept; the number of the others is told.
        lines: Whether line breaks and tabs are kept, as for a stack.
    """
    shown = str(text)
    rest, shown = len(shown) - max_chars, shown[:max_chars]
    kept = "\n\t" if lines else ""
    shown = "".join(
        each if each in kept or unicodedata.category(each) not in _INVISIBLE else _escaped(each)
        for each in shown
    )
    return f"{shown}... ({rest} characters more)" if rest > 0 else shown


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def path_inside(folder: Path, name: object) -> Path:
    """Returns the path of a name that stands in a file of this folder, if it stays in the folder.

    Args:
        folder: The folder that the name must not leave; it may itself be a symbolic link.
        name: A relative path with `/` between its parts.

    Raises:
        ValueError: It is not such a name, or it or a symbolic link leads out of the folder.
    """
    if not isinstance(name, str) or not name or "\0" in name or len(name) > 4096:
        raise ValueError(f"{printable(repr(name), max_chars=200)} is not the name of a file.")
    parts = PurePosixPath(name)
    path = folder / parts
    try:
        leaves = parts.is_absolute() or ".." in parts.parts or not parts.parts
        leaves = leaves or not path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # a link to itself, a name too long, no text
        leaves = True
    if leaves:
        shown = printable(repr(name), max_chars=200)
        raise ValueError(f"{shown} is not a file within {printable(folder)}.")
    return path


def parse_json(data: bytes | str) -> Any:
    """Returns the value of a text in JSON.

    Raises:
        ValueError: It is not JSON, is nested too deeply, or has a number that is not finite.
    """
    try:
        found = json.loads(data, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("It is nested too deeply.") from None
    except ValueError as error:
        raise ValueError(f"It is no JSON: {printable(error, max_chars=200)}") from error
    check_depth(found)
    return found


def check_depth(value: object) -> None:
    """Refuses a value so deeply nested that a function which calls itself for each level may fail.

    Since Python 3.12 `json` reads more levels than a function may call itself.

    Args:
        value: The dicts and lists of a file; in YAML one may be referred to from several places.

    Raises:
        ValueError: It is nested too deeply.
    """
    level = [value]
    for _ in range(_MAX_DEPTH):
        inner = {id(each): each for found in level for each in _contents(found)}
        level = list(inner.values())
        if not level:
            return
    raise ValueError("It is nested too deeply.")


def _contents(found: object) -> Iterable[object]:
    if isinstance(found, dict):
        return found.values()
    return found if isinstance(found, list) else ()


def _finite(text: str) -> float:
    found = float(text)
    if found in (float("inf"), float("-inf")):
        _refuse(text)
    return found


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{printable(text, max_chars=50)} is not a finite number.")


_MAX_DIGITS = 18


def read_integer(
    name: str,
    default: int | None = None,
    *,
    at_least: int = 0,
    environment: Mapping[str, str] = os.environ,
) -> int:
    """Returns the whole number that a variable of the environment holds.

    Args:
        name: The variable.
        default: The number if the variable is not set, or is empty.
        at_least: The smallest number that it may hold.
        environment: The variables that are looked at.

    Raises:
        ValueError: It holds something else, or it holds nothing and there is no default.
    """
    text = environment.get(name, "").strip()
    if not text and default is not None:
        return default
    if re.fullmatch(rf"-?[0-9]{{1,{_MAX_DIGITS}}}", text) and int(text) >= at_least:
        return int(text)
    shown = printable(repr(text), max_chars=100) if text else "not set"
    raise ValueError(
        f"{name}={shown}, but should be a whole number of at least {at_least}. Whatever starts the "
        "processes sets it; unset it if that is not the case, or correct it."
    )


def make_folder(folder: Path) -> Path:
    """Makes a folder and those above it, to which no other user may write, whatever the umask.

    Raises:
        OSError: It cannot be made; NotADirectoryError if there is a file above it.
    """
    for each in (*reversed(folder.parents), folder):
        if not each.exists():
            each.mkdir(0o755, exist_ok=True)  # another process may make it at the same time
    return folder


def why_untrusted(path: Path) -> str | None:
    """Returns why somebody else may have written a file; None if nobody else can have.

    Nobody else can if this user or root owns it and no other may write to it, and if the same holds
    for every folder above it: whoever may write to a folder may put another file there.

    Afterwards load from the real path, `path.resolve()`: no other user can replace a part of it,
    since the parts are looked at from the root down.

    - Folders like /tmp, in which all may write but remove only what is theirs, are trusted.
    - Writing by the group root is trusted. A container may run as any user of that group, and the
      folders that an image is built with are then open to it.
    - So is writing by a group that has this user's name and no other member.

    Args:
        path: A file or a folder that is there.
    """
    real = path.resolve()
    for each in (*reversed(real.parents), real):
        try:
            found = each.lstat()
        except OSError as error:
            return f"{each} cannot be looked at: {error.strerror or error}"
        if reason := _why(each, found, is_above=each != real):
            return reason
    return None


def trusted(path: Path, error: type[Exception], folder_variable: str) -> Path:
    """Returns the real path of a file or folder that only this user or root may have written.

    Args:
        path: A compiled library, or the folder that it is to lie in.
        error: The class of the exception that is raised.
        folder_variable: The variable of the environment that names another folder.

    Raises:
        Exception: Of class `error`: another user may have written it, and code that he compiled
            would run with this user's rights.
    """
    if reason := why_untrusted(path):
        raise error(
            f"{path} is not loaded, since another user may have written it: {reason}. Set "
            f"{folder_variable} to a folder of your own, or have its owner be you or root and its "
            "group and others not write to it (chmod go-w)."
        )
    return path.resolve()


def _why(path: Path, found: os.stat_result, *, is_above: bool) -> str | None:
    if stat.S_ISLNK(found.st_mode):
        return f"{path} has just become a symbolic link"
    if found.st_uid not in (os.geteuid(), 0) and not (is_above and _may_be_root(found.st_uid)):
        return f"{path} belongs to {_user(found.st_uid)}, not to {_user(os.geteuid())} or root"
    mode = stat.filemode(found.st_mode)
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX and is_above:
        return None
    if found.st_mode & stat.S_IWOTH:
        return f"every user may write to {path} ({mode})"
    if found.st_mode & stat.S_IWGRP and found.st_gid != 0 and not _is_private(found.st_gid):
        return f"every user of {_group(found.st_gid)} may write to {path} ({mode})"
    return None


def _may_be_root(uid: int) -> bool:
    """Returns whether an owner may be root, also if this process's user namespace does not map it.

    In a container that runs without root's help, the folders above a home look like that.
    """
    with contextlib.suppress(OSError, ValueError):
        mapped = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
        has_root = any(int(host) == 0 for _, host, _ in mapped)
        return not has_root and uid == int(Path("/proc/sys/kernel/overflowuid").read_text())
    return False


def _is_private(gid: int) -> bool:
    """Returns whether a group has this user's name and no other member, as many systems make."""
    import grp

    with contextlib.suppress(KeyError):
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
        is_own = user.pw_gid == gid and group.gr_name == user.pw_name
        return is_own and {*group.gr_mem} <= {user.pw_name}
    return False


def _user(uid: int) -> str:
    with contextlib.suppress(KeyError):
        return f"the user {pwd.getpwuid(uid).pw_name} ({uid})"
    return f"the user {uid}"


def _group(gid: int) -> str:
    import grp

    with contextlib.suppress(KeyError):
        return f"the group {grp.getgrgid(gid).gr_name} ({gid})"
    return f"the group {gid}"


HIDDEN = "<not shown>"

_NAME = (
    r"TOKEN(?![A-Z]*IZ|S(?![A-Z])|S?_(?:PER|ID|TYPE|COUNT|LIMIT))|SECRET|PASSW|PASSPHRASE|CREDENTIAL"
    r"|(?:^|[^A-Z])(?:PWD|PASS|PAT|SAS|SIG|DSN|KEY|APIKEY|ACCESSKEY|AUTH|COOKIE)(?![A-Z])"
    r"|AUTHORIZATION|SIGNATURE|(?:PRIVATE|API|ACCOUNT|ACCESS|SHARED)_?KEY|CONNECTION_?STRING|WEBHOOK"
)
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
"""Names of variables, options and fields that are secrets; not `tokenizer`, `num_tokens`."""

_SECRET_VALUE = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    r"hf_[A-Za-z0-9]{12,}|api_org_[A-Za-z0-9]{12,}|(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}"
    r"|gh[pousr]_[A-Za-z0-9]{12,}|github_pat_\w{12,}|glpat-[\w-]{12,}|xox[a-z]-[\w-]{8,}"
    r"|wandb_v1_\w{16,}|[0-9a-f]{40}(?![0-9A-Za-z_-])"
    r"|sk-[\w-]{16,}|AIza[\w-]{20,}|ya29\.[\w-]+|nvapi-[\w-]{16,}|npm_[A-Za-z0-9]{20,}"
    r"|pypi-[\w-]{20,}|dop_v1_\w{20,}|eyJ[\w-]{8,4000}\.[\w-]+(?:\.[\w-]*)?"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]*(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?)"
)
"""Matches tokens of known services by what they look like, whatever name they stand behind."""

_USER = re.compile(r"((?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,30}://)[^\s/?#'\"<>]{0,2000}@", re.I)
_SLASHED_USER = re.compile(
    r"((?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,30}://)[^\s/?#:'\"<>]{1,500}:(?!\d+/)[^\s'\"<>@]{0,500}@",
    re.IGNORECASE,
)
"""Matches as above if the password has a slash, which should have been written as %2F."""
_BARE_USER = re.compile(r"(?<![\w/.@:-])[\w.%+-]{1,200}:[^\s@/:'\"]{1,500}@(?=[\w\[])")
_QUERY = re.compile(r"([?&;#])([\w.%-]{1,200})=([^&;#\s'\"<>]+)")
_SIGNED = re.compile(
    r"(?:X-(?:Amz|Goog|Oss|Cos)-(?:Signature|Credential|Security-Token)|AWSAccessKeyId|"
    r"GoogleAccessId|OSSAccessKeyId|sig|code|policy|key-pair-id|skoid|sktid|st)$",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"(?<![\w-])((?:proxy-)?authorization|cookie|set-cookie|[\w-]{0,60}-(?:token|key|secret))"
    r"(['\"]?\s*:\s*)(?:(?:bearer|basic|token|digest|negotiate)\s+)?(?!<not shown>)[^\s'\",;]+",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9+/._~-]{8,}=*", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(?<![?&;#\w.-])(['\"]?)([A-Za-z_-][\w.-]{0,200})\1(\s{0,9}[=]\s*|['\"]?:\s+(?=['\"]))"
    r"(\"[^\"]*\"|'[^']*'|[^\s'\",;&]+)"
)

_NAMING = ("-x", "-e", "--env", "-env", "-genv", "--genv", "--build-arg", "--setenv")
"""Options of launchers that are followed by NAME=value, or by NAME and value."""
_LISTING = ("--export", "--envlist", "--env", "-e")
_PASSWORD = ("-p", "--password", "-u", "--user")


def hide_secrets(text: str) -> str:
    """Returns a text without passwords in addresses, signed queries, tokens and the like."""
    text = _SECRET_VALUE.sub(HIDDEN, text)
    text = _USER.sub(rf"\1{HIDDEN}@", text)
    text = _SLASHED_USER.sub(rf"\1{HIDDEN}@", text)
    text = _BARE_USER.sub(f"{HIDDEN}@", text)
    text = _QUERY.sub(_query, text)
    text = _HEADER.sub(rf"\1\2{HIDDEN}", text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    return _ASSIGNED.sub(_assigned, text)


def shown(message: object) -> str:
    """Returns a message for a terminal: printable, in its own lines, and without secrets."""
    return printable(hide_secrets(str(message)), max_chars=100_000, lines=True)


def is_secret(name: str) -> bool:
    """Returns whether the value of such a name must not be shown."""
    return _SECRET_NAME.search(name) is not None


def shown_command(words: Sequence[str]) -> str:
    """Returns a command line as it is typed, in one printable line; see `hide_words`."""
    return printable(" ".join(_quoted(word) for word in hide_words(words)), max_chars=10_000)


def hide_words(words: Sequence[str]) -> list[str]:
    """Returns the words of a command line without secrets, and without values of variables.

    Values that a launcher hands to processes, as in `-x NAME=value` or `--export=NAME=value`, are
    hidden whatever their names are.
    """
    return list(_hidden(words))


def _hidden(words: Sequence[str]) -> Iterator[str]:
    """Yields the words; those that are secrets are replaced."""
    before = ["", ""]
    for word in words:
        yield _hidden_word(word, *before)
        before = [before[1], word]


def _hidden_word(word: str, earlier: str, option: str) -> str:
    name, equals, _ = word.partition("=")
    if option in _NAMING and equals:
        return f"{name}={HIDDEN}"
    if earlier in ("-env", "-genv", "--genv") and not option.startswith("-"):
        return HIDDEN
    if name in _LISTING and equals:
        return f"{name}={_listed(word[len(name) + 1 :])}"
    if option in _LISTING:
        return _listed(word)
    if option.startswith("-") and "=" not in option and not word.startswith("-"):
        is_password = option in _PASSWORD and (":" in word or earlier.endswith("sshpass"))
        if is_password or is_secret(option):
            return HIDDEN
    if option.endswith("sshpass") and word.startswith("-p") and len(word) > 2:
        return f"-p{HIDDEN}"
    return hide_secrets(word)


def _listed(text: str) -> str:
    """Returns the names in NAME=value,NAME; a value may have commas of its own."""
    return re.sub(r"([A-Za-z_]\w*)=.*?(?=,[A-Za-z_]\w*(?:[=,]|$)|$)", rf"\1={HIDDEN}", text)


def _quoted(word: str) -> str:
    return word if HIDDEN in word else shlex.quote(word)


def _query(found: re.Match[str]) -> str:
    mark, name, _ = found.groups()
    if _SIGNED.match(name) or is_secret(name.replace("-", "_")):
        return f"{mark}{name}={HIDDEN}"
    return found[0]


def _assigned(found: re.Match[str]) -> str:
    quote, name, equals, value = found.groups()
    if not is_secret(name.replace("-", "_")) or HIDDEN.startswith(value):
        return found[0]
    return f"{quote}{name}{quote}{equals}{HIDDEN}"
