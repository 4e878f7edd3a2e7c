"""Folders of the local servers: who may reach them, and the short ones that hold sockets."""

import hashlib
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

SOCKET_PATH_LIMIT_BYTES = 107  # sun_path of unix(7) is 108 bytes with its terminator


class FolderError(Exception):
    """A folder cannot be used; the message is one line and says what to do."""


class SpawnOptions(TypedDict, total=False):
    """Keyword arguments of `subprocess.Popen` that change the child's user."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True, slots=True)
class RunUser:
    """The account a server runs as. PostgreSQL refuses to run as root."""

    uid: int
    gid: int

    @property
    def is_self(self) -> bool:
        return self.uid == os.geteuid()

    @property
    def spawn_options(self) -> SpawnOptions:
        if self.is_self:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def run_user(existing_data: Path | None = None) -> RunUser:
    """Ourselves; for root the owner of existing data, else `nobody`."""
    if os.geteuid() != 0:
        return RunUser(os.geteuid(), os.getegid())
    if existing_data is not None and existing_data.exists():
        owner = existing_data.stat()
        if owner.st_uid != 0:
            return RunUser(owner.st_uid, owner.st_gid)
    nobody = pwd.getpwnam("nobody")
    return RunUser(nobody.pw_uid, nobody.pw_gid)


def allows(path: Path, user: RunUser, wanted: int) -> bool:
    """Whether the mode bits of `path` give `user` all of `wanted` (os.R_OK, os.W_OK, os.X_OK)."""
    status = path.stat()
    shift = 6 if status.st_uid == user.uid else 3 if status.st_gid == user.gid else 0
    return (stat.S_IMODE(status.st_mode) >> shift) & wanted == wanted


def reachable(path: Path, user: RunUser) -> bool:
    """Whether `user` may pass through every folder above `path` (an existing one)."""
    return all(allows(parent, user, os.X_OK) for parent in path.resolve().parents)


def state_hash(state: Path) -> str:
    """Eight characters that tell the state folders of one machine apart."""
    return hashlib.sha256(os.fsencode(state.resolve())).hexdigest()[:8]


def own_folder(path: Path, user: RunUser) -> Path:
    """`path` as a folder that only `user` can enter; refuses one that somebody else put there."""
    try:
        path.mkdir(mode=0o700, parents=True)
        if not user.is_self:
            os.chown(path, user.uid, user.gid)
    except FileExistsError:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise FolderError(f"{path} is in the way: it is not a folder; remove it") from None
        if status.st_uid not in {user.uid, os.geteuid()}:
            raise FolderError(f"{path} belongs to user {status.st_uid}; remove it") from None
        if not user.is_self and status.st_uid != user.uid:
            os.chown(path, user.uid, user.gid)  # we were stopped between mkdir and chown
        path.chmod(0o700)
    return path


def run_folder(state: Path, user: RunUser | None = None) -> Path:
    """A short private folder for sockets, the same one for the same state folder and user."""
    user = user or RunUser(os.geteuid(), os.getegid())
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
    if user.is_self and runtime.is_dir() and runtime.stat().st_uid == user.uid and len(str(runtime)) < 60:
        return own_folder(runtime / f"sluice-{state_hash(state)}", user)
    return own_folder(Path("/tmp") / f"sluice-{user.uid}-{state_hash(state)}", user)  # noqa: S108


def socket_path(folder: Path, name: str) -> Path:
    """`folder/name`, refused when the kernel could not bind it."""
    path = folder / name
    if len(os.fsencode(path)) > SOCKET_PATH_LIMIT_BYTES:
        raise FolderError(f"socket path longer than {SOCKET_PATH_LIMIT_BYTES} bytes: {path}")
    return path


def write_private(path: Path, text: str, user: RunUser | None = None) -> None:
    """Replace `path` in one step by a file of mode 0600 holding `text`."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if user is not None and not user.is_self:
            os.fchown(file.fileno(), user.uid, user.gid)
        os.fsync(file.fileno())
    partial.replace(path)
