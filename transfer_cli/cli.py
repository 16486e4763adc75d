"""Picks the command, has Hydra compose its config, turns errors into exit codes.

Nothing here imports torch, and nothing imports Hydra before a command needs it: `transfer --help`
answers at once.
"""

import contextlib
import errno
import gc
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import transfer_cli
from transfer_cli import terminal
from transfer_cli.config import commands
from transfer_cli.config.commands import Command
from transfer_cli.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_OUR_FAULT,
    EXIT_USER,
    ConfigError,
    PeerError,
    StoppedError,
    SweepError,
    TransferError,
    did_you_mean,
)
from transfer_cli.safe_files import escaped, in_one_line, printable
from transfer_cli.terminal import Line, Page

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from transfer_cli.config.flags import Request
    from transfer_cli.metrics import Metric
    from transfer_cli.runs.sweep import SweepJob
    from transfer_cli.sweeps.jobs import Jobs

log = logging.getLogger(__name__)

_DISK_ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ELOOP,
    errno.ENAMETOOLONG,
)  # fmt: skip

_BACKBONE = "transfer_cli.model.backbone.BackboneShape"
"""What configs call the class of `model.shape`, which can be made without torch."""


def main(argv: list[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = "transfer"
    debug = "--debug" in words or os.environ.get("TRANSFER_DEBUG") == "1"
    if words[:1] == ["--debug"]:
        words = words[1:]
    if words and words[0] in commands.ALL:
        name = f"transfer {words[0]}"
    with terminal.replace_closed_streams() as check_stdout, _console_log():
        try:
            check_stdout()
            code = _dispatch(words)
            terminal.write_out()
        except BrokenPipeError:  # the reader of our output has seen enough
            return EXIT_DONE
        except (KeyboardInterrupt, Exception) as error:
            if "--job" in words[:-1] and not isinstance(error, PeerError):
                # Tells its sweep why this job failed or was stopped.
                with contextlib.suppress(OSError):
                    file = Path(words[words.index("--job") + 1])
                    file.write_text(_error_line(error), encoding="utf-8")
            return _fail(name, error, debug=debug)
        return code


def _dispatch(words: list[str]) -> int:
    if not words:
        terminal.print_err(commands.overview())
        return EXIT_USER
    first, rest = words[0], words[1:]
    if first in ("--help", "-h", "help"):
        if rest and rest[0] != "all" and not rest[0].startswith("-"):
            _dispatch([*rest, "--help"])
        else:
            terminal.print_out(commands.overview())
    elif first == "--version":
        terminal.print_out(Line(f"transfer {transfer_cli.__version__}"))
    elif first in ("--shell-completion", "-sc"):
        _print_completions(rest)
    elif first in commands.SUBCOMMANDS:
        _run_subcommand(first, commands.SUBCOMMANDS[first], rest)
    elif first in commands.ALL:
        _run(first, commands.ALL[first], rest)
    else:
        from transfer_cli.config.suggest import suggest_command

        close = suggest_command(first) or did_you_mean(first, commands.ALL)
        close = close if close.endswith("?") or not close else f"{close}."
        raise ConfigError(f"there is no command {first!r}.{close} See transfer --help")
    return EXIT_DONE


def _run_subcommand(name: str, known: Mapping[str, Command], words: list[str]) -> None:
    """Run `plan COMMAND ...` or `lr-find COMMAND ...`, which take the overrides of COMMAND."""
    first, rest = (words[0] if words else ""), words[1:]
    if _asks_help([first]):
        terminal.print_out(commands.help_page(name))
    elif first in known:
        from transfer_cli.config import flags

        if name == "lr-find" and flags.parse_request(rest).multirun:
            raise ConfigError("-m: lr-find tests one run at a time; leave -m and sweep= out")
        import tempfile

        # A sweep of these leaves nothing behind.
        with tempfile.TemporaryDirectory() as folder:
            _run(first, known[first], [*rest, f"hydra.sweep.dir={folder}"])
    else:
        close = did_you_mean(first, known)
        forms = " or ".join(f"transfer {name} {command}" for command in known)
        raise ConfigError(f"no command is named.{close} Type {forms}, then its overrides")


def _run(name: str, command: Command, words: list[str]) -> None:
    if command.composes:
        _run_composed(name, command, words)
    elif _asks_help(words):
        terminal.print_out(commands.help_page(name))
    else:
        _command_function(command)(words)


def _asks_help(words: list[str]) -> bool:
    return any(word in ("--help", "-h", "--help=all") for word in words)


def _command_function(command: Command) -> Callable[[Any], Any]:
    module, _, name = command.function.rpartition(".")
    function: Callable[[Any], Any] = getattr(_import_module(module), name)
    return function


def _import_module(module: str) -> ModuleType:
    """Import a module, with all that it imports, and look for no garbage meanwhile.

    Torch and Ignite make a million objects that stay. Python would search among them again and
    again, which takes a tenth of the whole start, and later in the middle of a training step.
    """
    if module in sys.modules or not gc.isenabled() or terminal.is_silent():  # a user's process
        return importlib.import_module(module)
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()


# --- commands that take overrides --------------------------------------------------------------


def _run_composed(name: str, command: Command, words: list[str]) -> None:
    from transfer_cli.commands.paths import check_paths
    from transfer_cli.config import flags
    from transfer_cli.config.key_files import for_hydra, with_key_files
    from transfer_cli.config.variables import check_variables

    check_variables(os.environ)
    if name == "pretrain":
        # Read by torch when it first takes memory: it then asks Linux for pages of 2 MiB, and a
        # step, which takes and gives back hundreds of MiB, is not held up by thousands of small
        # ones. Where lengths vary from step to step, such blocks leave gaps: twice the memory.
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    request = for_hydra(with_key_files(name, command, flags.parse_request(words, name)), command)
    if not (request.asks_help or request.shows):
        flags.refuse_lists(request.overrides, name)
        check_paths(request.overrides, name, multirun=request.multirun)
    _trust_plugins(request)
    _import_module("transfer_cli.config.compose")  # and Hydra with it
    from transfer_cli.config import bounded_yaml, compose, help_text

    if request.config_dir is not None:
        bounded_yaml.check_file_sizes(request.config_dir)
    if request.asks_help:
        terminal.print_out(help_text.command_help(name, command, request))
        return

    if request.multirun and _torchrun_rank() is not None:
        raise ConfigError(
            "-m: torchrun starts one run; for a sweep of such runs type transfer itself, with "
            "devices=N -m"
        )

    if request.shows:
        terminal.print_out(compose.config_page(name, request))
    elif request.multirun:
        sweep(name, command, request)
    else:
        composition = compose.compose(name, request)
        with composition.typed.as_current():
            perform(name, command, request, composition.config)


def _declared_metrics(config: "DictConfig") -> "tuple[Metric, ...]":
    _import_module("transfer_cli.assembly.losses")
    from transfer_cli.assembly.losses import build_objectives
    from transfer_cli.objectives.base import declared_metrics

    losses = build_objectives(config.objective, config.losses, config.streams)
    return declared_metrics({name: loss.objective for name, loss in losses.items()})


def _check_drawable(config: "DictConfig", command: str) -> None:
    """Refuse a config as its run would; what else is to be said of it, its run says."""
    _import_module("transfer_cli.assembly.blueprint")
    from transfer_cli.assembly.drawing import draw_blueprint
    from transfer_cli.assembly.origins import Origins

    with terminal.silence_logging():
        draw_blueprint(config, command, (), Origins(), device="meta")


def perform(name: str, command: Command, request: "Request", config: "DictConfig") -> Any:
    """Check a config and do the work of its command, or have the processes that it starts do it.

    Returns:
        What the command returns; None where other processes work.
    """
    from omegaconf import OmegaConf

    from transfer_cli.config.build import TARGET, build, import_plugins, resolved_node
    from transfer_cli.config.check import check_config
    from transfer_cli.config.decided import with_values
    from transfer_cli.config.models import check_init_from
    from transfer_cli.model.shape import BackboneShape
    from transfer_cli.runs.environment import computing_threads

    check_config(config, name)
    if name == "finetune" and config.resume is None:
        check_init_from(config.init_from, config.init)
    model = resolved_node(config.get("model"), "model")
    if model is not None and model.get(TARGET) == _BACKBONE and config.init_from is None:
        node = model | {TARGET: f"{BackboneShape.__module__}.BackboneShape"}
        shape = build(node, "model", BackboneShape)
        if model.get("embeddings") is not None and config.resume is None:
            from transfer_cli.data.word_vectors import WordVectors

            WordVectors.open(Path(model["embeddings"])).check_size(shape.embedding_size)
    if command.scales:
        _import_module("transfer_cli.training.workers")
        from transfer_cli.config.command_line import CommandLine
        from transfer_cli.training import workers

        config = with_values(config, {"devices": workers.requested_processes(config)})
        if workers.starts_workers(config.devices):
            folder = config.run.dir if command.makes_runs else None
            typed = workers.worker_overrides(CommandLine.current().overrides, folder)
            words = [name, *request.flags, *typed]
            workers.start_workers(words, config.devices, config.get("restarts", 0))
            return None
    config = with_values(config, _best_runs(config))
    work = _command_function(command)
    import_plugins(request.plugins)  # what they register is there before any work begins
    with computing_threads(config.get("threads")):
        # A run's is stored, and compared by a resume; the others are plain values.
        return work(config if "loop" in config else OmegaConf.to_object(config))


def _best_runs(config: Mapping[str, Any]) -> dict[str, Any]:
    from transfer_cli.reports.collect import resolve_run

    runs: dict[str, Any] = {}
    for key in ("run", "init_from", "models"):
        named = config.get(key)
        if isinstance(named, str):
            runs[key] = resolve_run(named, key)
        elif isinstance(named, Sequence):
            runs[key] = [resolve_run(x, key) if isinstance(x, str) else x for x in named]
    return runs


def _trust_plugins(request: "Request") -> None:
    """Let configs name classes of the packages given with --plugin, also from this folder."""
    if not request.plugins:
        return
    from transfer_cli.config.build import trust
    from transfer_cli.config.flags import check_plugins

    check_plugins(request.plugins)
    trust(request.plugins)


def _report_failure(job: "SweepJob", error: Exception | None) -> str:
    reason = job.reason or ""
    if error is not None:
        if cause_and_cure(error)[0] is None and not terminal.is_silent():
            _print_traceback(error)
        reason = _error_line(error)
    terminal.print_err(terminal.error(f"job {job.number} failed", reason))
    return reason


def sweep(name: str, command: Command, request: "Request") -> Path:
    """Run the jobs of a sweep, and print the outcome of each, also after Ctrl-C.

    Returns:
        The folder of the sweep.
    """
    from transfer_cli.config.command_line import CommandLine
    from transfer_cli.sweeps.jobs import Jobs
    from transfer_cli.sweeps.multirun import chosen_folder, run_sweep

    task = partial(perform, name, command, request)
    typed = CommandLine(config_dir=request.config_dir, plugins=request.plugins)
    jobs = Jobs(
        name, task, request, _report_failure, _declared_metrics, _check_drawable,
        makes_runs=command.makes_runs,
    )  # fmt: skip
    with chosen_folder(jobs) as folder, typed.as_current():
        try:
            run_sweep(jobs, folder)
        except (KeyboardInterrupt, StoppedError):
            if jobs.done:
                _print_outcomes(jobs, folder)
            raise
        _print_outcomes(jobs, folder)
    if jobs.stopped is not None:
        raise jobs.stopped
    _raise_if_failed(jobs, folder)
    return folder


def _print_outcomes(jobs: "Jobs", folder: Path) -> None:
    from transfer_cli.sweeps.jobs import shared_overrides

    if jobs.makes_runs or not jobs.done:
        jobs.read_outcomes(folder)
    common = shared_overrides([job.words for job in jobs.done])
    lines = [Line(f"sweep {jobs.sweep_dir}")]
    for job in sorted(jobs.done, key=lambda job: job.number):
        ending = job.reason or job.outcome
        if not ending.startswith(job.outcome):
            ending = f"{job.outcome}: {ending}"
        words = " ".join(word for word in job.words if word not in common) or "(as it is)"
        lines.append(Line(f"  {job.number}  {words}  {ending}"))
    for text, numbers in jobs.warned.items():
        if len(numbers) > 1:
            about = printable(text.partition(":")[0])
            lines.append(
                Line(f"  {len(numbers)} jobs had the warning of job {numbers[0]}: {about}")
            )
    if jobs.makes_runs and jobs.sweep_dir is not None:
        from transfer_cli.reports.collect import best_run_lines

        lines += map(Line, best_run_lines(jobs.sweep_dir))
    terminal.print_out(Page(*lines))


def _raise_if_failed(jobs: "Jobs", folder: Path) -> None:
    from transfer_cli.runs.sweep import JobState

    outcomes = [job.outcome for job in jobs.done]
    if failed := outcomes.count(JobState.FAILED):
        where = f"; see {folder}" if jobs.makes_runs else ""
        raise SweepError(f"{failed} of {len(outcomes)} jobs failed{where}")
    if stopped := outcomes.count(JobState.STOPPED):
        raise StoppedError(
            f"{stopped} of {len(outcomes)} jobs were stopped; go on with the same command and "
            "resume=auto"
        )


# --- completion --------------------------------------------------------------------------------


def _print_completions(words: list[str]) -> None:
    """Answer the completion script, which hands us the line in COMP_LINE."""
    from transfer_cli.config.completion import SCRIPTS, completions

    action, _, shell = (words[0] if words else "").partition("=")
    if action != "query" or shell not in SCRIPTS:
        raise ConfigError(f"expected query=SHELL, SHELL one of {', '.join(SCRIPTS)}")
    for word, text in completions(os.environ.get("COMP_LINE", "")).items():
        # Bash has no place for what a word means.
        shown = f"\t{in_one_line(text)}" if text and shell != "bash" else ""
        sys.stdout.write(f"{word}{shown}\n")


def print_completion_script(words: list[str]) -> None:
    """Print what the shell that `words` names has to evaluate."""
    from transfer_cli.config.completion import SCRIPTS

    if len(words) != 1 or words[0] not in SCRIPTS:
        raise ConfigError(f"name one shell of {', '.join(SCRIPTS)}")
    terminal.write_out(SCRIPTS[words[0]])


# --- what goes wrong ---------------------------------------------------------------------------


def _fail(name: str, error: BaseException, *, debug: bool) -> int:
    line, code = cause_and_cure(error)
    if isinstance(error, PeerError) and not debug:
        return code
    with contextlib.suppress(OSError):  # nobody can be told
        if line is None or debug:
            _print_traceback(error)
        if line is not None:
            terminal.print_err(terminal.error(name, line))
    return code


def cause_and_cure(error: BaseException) -> tuple[str | None, int]:
    """Return cause and cure of what a user can fix (else None), and the exit code."""
    if isinstance(error, TransferError):
        return printable(str(error)), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        # A run that was training says where it stopped and how to resume it.
        return printable(str(error)) or "interrupted", EXIT_INTERRUPTED
    if _is_out_of_memory(error):
        return (
            "out of memory. Lower loop.micro_batch (the same result in smaller portions) or "
            "loop.batch, where nothing is trained batch, or take a smaller model",
            EXIT_USER,
        )
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        place = f"{error.filename}: " if error.filename else ""
        return printable(f"{place}{error.strerror}"), EXIT_USER
    if isinstance(error, RuntimeError) and "determine home directory" in str(error):
        return "a path begins with ~ and the name of nobody on this machine", EXIT_USER
    return None, EXIT_OUR_FAULT


def _is_out_of_memory(error: BaseException) -> bool:
    # By name, because torch must not be imported to look at an error of something else.
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"OutOfMemoryError", "MemoryError"}:
        return True
    signs = ("can't allocate memory", "Storage size calculation overflowed")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def _error_line(error: BaseException) -> str:
    return cause_and_cure(error)[0] or f"{type(error).__name__}: {error}"


def _torchrun_rank() -> int | None:
    """Return the number that torchrun gave this process; None without it."""
    number = os.environ.get("RANK", "")
    return int(number) if number.isdecimal() and "WORLD_SIZE" in os.environ else None


# --- the terminal ------------------------------------------------------------------------------


def _print_traceback(error: BaseException) -> None:
    sys.stderr.write(escaped("".join(traceback.format_exception(error))))
    sys.stderr.flush()


class _Format(logging.Formatter):
    """The message alone; warnings and errors say what they are."""

    def format(self, record: logging.LogRecord) -> str:
        text = in_one_line(record.getMessage())
        if record.levelno >= logging.WARNING:
            word = f"{record.levelname.lower()}:"
            return f"{terminal.paint(word, 'warning', sys.stderr)} {text}"
        return text


@contextlib.contextmanager
def _console_log() -> Iterator[None]:
    """Send what the package logs to standard error while a command runs; once, if nested."""
    ours = logging.getLogger("transfer_cli")
    if any(isinstance(handler.formatter, _Format) for handler in ours.handlers):
        yield
        return
    handler = logging.StreamHandler()
    if _torchrun_rank():
        handler.setLevel(logging.CRITICAL)  # the first process speaks for all
    handler.setFormatter(_Format("%(message)s"))
    level = ours.level
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.setLevel(level)
