"""Who may have written a file that is about to run, such as a compiled library in a cache.

A file is trusted if this user or root owns it and nobody else may write to it, and if the same
holds for every folder above it: whoever may write to a folder may put another file there.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from pathlib import Path


def make_folder(folder: Path) -> Path:
    """Makes a folder and those above it, to which no other user may write, whatever the umask.

    Raises:
        OSError: It cannot be made; NotADirectoryError where a file is above it.
    """
    for each in (*reversed(folder.parents), folder):
        if not each.exists():
            each.mkdir(0o755, exist_ok=True)  # another process may be as far
    return folder


def why_untrusted(path: Path) -> str | None:
    """Returns why somebody else may have written a file; None if nobody else can have.

    What may be loaded afterwards is the real path, `path.resolve()`: no other user can put
    anything in the place of a part of it, since the parts are looked at from the root down.

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
    """Returns the real path of what this user or root has put there and nobody else may change.

    Args:
        path: A compiled library, or the folder that it is to lie in.
        error: What is raised.
        folder_variable: The variable of the environment that names another folder.

    Raises:
        Exception: `error`: another user may have; what he compiled would run with this user's
            rights.
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
    """Returns whether an owner may be root, whom this process's user namespace has no number for.

    In a container that runs without root's help the folders above a home look like that.
    """
    with contextlib.suppress(OSError, ValueError):
        mapped = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
        has_root = any(int(host) == 0 for _, host, _ in mapped)
        return not has_root and uid == int(Path("/proc/sys/kernel/overflowuid").read_text())
    return False


def _is_private(gid: int) -> bool:
    """Whether a group has this user's name and no other member, as many systems make them."""
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
