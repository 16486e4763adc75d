"""The configs. In a wheel this folder is the package `transfer_cli.conf`."""
