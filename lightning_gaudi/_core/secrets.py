"""Hides passwords, tokens and signatures in what is shown: reports are sent to others."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from .untrusted import printable

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
"""What tokens of known services look like, whatever they are called."""

_USER = re.compile(r"((?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,30}://)[^\s/?#'\"<>]{0,2000}@", re.I)
_SLASHED_USER = re.compile(
    r"((?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,30}://)[^\s/?#:'\"<>]{1,500}:(?!\d+/)[^\s'\"<>@]{0,500}@",
    re.IGNORECASE,
)
"""As above, of a password with a slash in it, which should have been written as %2F."""
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
"""Options of launchers behind which stands NAME=value, or NAME and value."""
_LISTING = ("--export", "--envlist", "--env", "-e")
_PASSWORD = ("-p", "--password", "-u", "--user")


def hide_secrets(text: str) -> str:
    """Returns a text without passwords in addresses, signed queries, tokens and their like."""
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
    """Returns whether what has such a name is not to be shown."""
    return _SECRET_NAME.search(name) is not None


def shown_command(words: Sequence[str]) -> str:
    """Returns a command line as it is typed, in one printable line; see `hide_words`."""
    return printable(" ".join(_quoted(word) for word in hide_words(words)), max_chars=10_000)


def hide_words(words: Sequence[str]) -> list[str]:
    """Returns the words of a command line without secrets, and without values of variables.

    What a launcher hands to processes, as in `-x NAME=value` or `--export=NAME=value`, is hidden
    whatever its name is.
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
