"""`python -m sluice_client` is `sluice`."""

import sys

from sluice_client.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
