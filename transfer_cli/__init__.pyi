from transfer_cli.api import finetune as finetune
from transfer_cli.api import load as load
from transfer_cli.api import pretrain as pretrain
from transfer_cli.api import report as report
from transfer_cli.api import sweep as sweep

__version__: str
