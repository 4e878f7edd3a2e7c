"""Everything that can stop a model import, each with a stable code and a one-line message. No Django here."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class ModelImportError(Exception):
    """The import did not happen and left nothing behind. The message says what to do."""

    code = "model_import_failed"


class RegistryUnreachable(ModelImportError):
    code = "registry_unreachable"


class ChecksumMismatch(ModelImportError):
    code = "checksum_mismatch"


class NoDiskSpace(ModelImportError):
    code = "no_disk_space"


class StoreNotWritable(ModelImportError):
    code = "store_not_writable"


class ModelRejected(ModelImportError):
    """The files are not a model this engine runs, or not in a safe format."""

    code = "model_rejected"


@contextmanager
def disk_errors(store: Path) -> Iterator[None]:
    """Turns the operating system's refusals to write below `store` into one clear line."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoDiskSpace(f"no space left below {store}: free some, then run this again") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            place = Path(str(error.filename))
            if place != store and store not in place.parents and place not in store.parents:
                raise ModelRejected(f"cannot read {place} ({error.strerror})") from error
            raise StoreNotWritable(
                f"cannot write below {store} ({error.strerror}): set SLUICE_WEIGHTS to another folder"
            ) from error
        raise
