#!/usr/bin/env python
"""Django's command line, with `platform/` as the second source root, for the stack that `make up` runs."""

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def main() -> None:
    sys.path.insert(1, str(ROOT / "platform"))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from django.core.management import execute_from_command_line
    from django.db.utils import OperationalError, ProgrammingError

    from config.environment import MissingSetting
    from devservices.local_environment import NoLocalStack, local_environment

    try:
        local = local_environment(sys.argv[1:], os.environ)
    except NoLocalStack as missing:
        sys.exit(str(missing))
    os.environ.update(local.variables)
    try:
        execute_from_command_line(sys.argv)
    except (OperationalError, MissingSetting) as error:
        unset = re.search(r"sluice-db-([a-z]+)-is-not-set", str(error))
        if "--traceback" in sys.argv or (isinstance(error, OperationalError) and unset is None):
            raise
        reason = f"SLUICE_DB_{unset[1].upper()} is not set; see docs/operations.md" if unset else str(error)
        sys.exit(local.missing or reason)
    except ProgrammingError as error:
        if "--traceback" in sys.argv or "permission denied for table django_migrations" not in str(error):
            raise
        sys.exit("only the schema's owner may do this: add `--database owner`")


if __name__ == "__main__":
    main()
