"""The families that are read and written."""

from transfer_cli.interop.bert import Bert, Electra, Roberta
from transfer_cli.interop.distilbert import DistilBert
from transfer_cli.interop.family import Family
from transfer_cli.interop.gpt2 import Gpt2

FAMILIES: tuple[Family, ...] = (Roberta(), Bert(), DistilBert(), Electra(), Gpt2())
"""An export takes the first that fits; so whoever asks for more comes first."""
