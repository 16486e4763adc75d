"""Which packages a wheel holds: all that are found, and `conf/` as `transfer_cli.conf`."""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["transfer_cli", "transfer_cli.*"]), "transfer_cli.conf"])
