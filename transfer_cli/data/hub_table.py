"""Labelled tables of the Hugging Face hub by name."""

from dataclasses import dataclass, field

from transfer_cli.data.tasks import Table
from transfer_cli.runs.directory import HUB


@dataclass(kw_only=True)
class HubTable(Table):
    """A data set of the hub whose rows have one label; see `data.tasks.Table`, `data.hub_client`.

    Args:
        name: `owner/name`.
        config: Which of its tables; None: the only one, or `default`.
        split: The name of the split to train on.
        validation: That of the split to validate on; without it a share of the training rows is
            held out.
        test: That of the test split; without it there is none.
    """

    name: str
    config: str | None = None
    split: str = "train"
    train: str = field(init=False)

    def __post_init__(self) -> None:
        if self.name.count("/") != 1:
            raise ValueError(f"name is {self.name!r}, expected owner/name")
        place = f"{HUB}{self.name}/{self.config}" if self.config else f"{HUB}{self.name}"
        self.train = f"{place}/{self.split}"
        self.validation = self.validation and f"{place}/{self.validation}"
        self.test = self.test and f"{place}/{self.test}"
        super().__post_init__()
