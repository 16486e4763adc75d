"""`python -m transfer_cli` is `transfer`."""

import sys

if sys.platform == "win32":  # whose Python knows no file locks and few signals
    sys.stderr.write("transfer: Windows is not supported; use WSL, where it runs as on Linux\n")
    sys.exit(2)

from transfer_cli.cli import main

if __name__ == "__main__":
    sys.exit(main())
