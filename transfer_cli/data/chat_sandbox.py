"""Renders conversations by a chat template, as a process of its own: `chat_template` starts it.

A template is a program of whoever published a model. Jinja's sandbox keeps it from Python; the
process bounds its time and memory, and opens no file once it has begun.

It reads lines of JSON: the template with what belongs to it, then conversations, each of which it
answers with a line. The environment is that of transformers, whose templates these are.
"""

import json
import math
import resource
import sys
from datetime import datetime
from functools import cache
from typing import Any

from jinja2 import (
    TemplateError,
    debug,  # noqa: F401 - it is imported when something goes wrong, and could not be read then
    nodes,
)
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MAX_BYTES = 2**30
"""Of memory, libraries included."""

MAX_CHARACTERS = 2**24
"""Of a conversation, rendered."""


class _Generation(Extension):
    """The tag that marks what the model says."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's interface

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the body with marks around it."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Macro) -> str:
        marks = str(self.environment.globals["marks"])
        return f"{marks[0]}{caller()}{marks[1]}"


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: Any, **options: Any) -> str:
    known = {"indent", "separators", "sort_keys", "ensure_ascii"}
    chosen = {name: option for name, option in options.items() if name in known}
    return json.dumps(value, **{"ensure_ascii": False, **chosen})


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    # Local time, as transformers has it.
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _render(template: Any, values: dict[str, Any]) -> str:
    parts, size = [], 0
    for part in template.generate(values):
        parts.append(part)
        size += len(part)
        if size > MAX_CHARACTERS:
            raise TemplateError(f"it writes more than {MAX_CHARACTERS:,} characters")
    return "".join(parts)


def _main() -> None:
    first = json.loads(sys.stdin.readline())
    environment = _environment()
    environment.globals["marks"] = first["marks"]
    environment.from_string("{{ 'a' }}")  # what that imports could not be opened later
    compiled = cache(environment.from_string)
    _limit(resource.RLIMIT_AS, _MAX_BYTES)
    _limit(resource.RLIMIT_NOFILE, 3)  # what is open stays so
    for line in sys.stdin:
        spent = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, math.ceil(spent.ru_utime + spent.ru_stime) + first["seconds"])
        try:
            values = {**first["tokens"], **json.loads(line)}
            answer = {"text": _render(compiled(first["source"]), values)}
        except MemoryError:
            answer = {"error": f"it takes more than {_MAX_BYTES // 2**20} MiB of memory"}
        except Exception as error:
            answer = {"error": str(error) or type(error).__name__}
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


def _limit(kind: int, most: int) -> None:
    _, allowed = resource.getrlimit(kind)
    less = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
    resource.setrlimit(kind, (less, allowed))


if __name__ == "__main__":
    _main()
