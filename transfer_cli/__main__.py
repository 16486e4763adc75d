"""`python -m transfer_cli` is `transfer`."""

import sys

from transfer_cli.cli import main

if __name__ == "__main__":
    sys.exit(main())
