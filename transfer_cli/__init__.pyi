from transfer_cli.api import finetune as finetune
from transfer_cli.api import load as load
from transfer_cli.api import pretrain as pretrain
from transfer_cli.api import results as results

__version__: str
