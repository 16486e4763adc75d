"""Which packages a wheel holds, and what an index shows of it.

The packages are all that are found, and `conf/` as `transfer_cli.conf`. The page is README.md from
what the tool is on; what stands before is about a clone. No address of the other pages is known
that an index could link, so a link is its text.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup


def page(readme: str) -> str:
    """Return a README as the page of an index."""
    title, _, rest = readme.partition("\n")
    text = f"{title}\n\n{rest[rest.index('**transfer** ') :]}"
    text = re.sub(r"!\[[^]]*\]\((?!https:)[^)]*\)\n*", "", text)  # pictures
    text = re.sub(r" \(\[[^]]*\]\((?!https:)[^)]*\)\)", "", text)  # asides that are a link alone
    return re.sub(r"\[([^]]*)\]\((?!https:)[^)]*\)", r"\1", text)


setup(
    packages=[*find_packages(include=["transfer_cli", "transfer_cli.*"]), "transfer_cli.conf"],
    long_description=page(Path(__file__).with_name("README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
