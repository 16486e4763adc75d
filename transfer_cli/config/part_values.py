"""Values of parts, held against the source of their classes before torch is imported.

A class checks itself when it is made (`config.build`), and most import torch, which takes seconds.
What is plain in its source is read from there, and said in the same words: annotations of plain
types and choices, and checks such as `at_least("rank", self.rank, 1)` or `if not 0 <= self.dropout
< 1: raise ...`.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, reduce
from pathlib import Path
from types import GenericAlias
from typing import Any, Literal

import transfer_cli
from transfer_cli.config.build import TARGET, convert
from transfer_cli.errors import (
    ConfigError,
    above_zero,
    at_least,
    between,
    check_share,
    one_of,
    raised_as,
)

_CHECKS: dict[str, Callable[..., None]] = {
    check.__name__: check for check in (above_zero, at_least, between, check_share, one_of)
}
_PLAIN = {kind.__name__: kind for kind in (int, float, bool, str)}
_COMPARES: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
}

_Class = tuple[str, ast.ClassDef]
"""A class and the module in which it is written."""


def check_values(node: Any, key: str = "") -> None:
    """Refuse values that the classes named in a config, at any depth, say they do not take."""
    if not isinstance(node, Mapping):
        return
    lineage = tuple(_lineage(str(node.get(TARGET, ""))))
    for name, value in node.items():
        place = f"{key}.{name}" if key else str(name)
        annotation = next(filter(None, (_annotation(*kind, str(name)) for kind in lineage)), None)
        if annotation is not None and not _is_rule(place, value) and not isinstance(value, Mapping):
            value = convert(value, annotation[0], place)
            with raised_as(ConfigError, f"{key}: " if key else ""):
                _check_argument(lineage, str(name), value)
        check_values(value, place)


def _is_rule(place: str, value: Any) -> bool:
    """Return whether a rule stands in place of a number, see `base_lr` and `SizedByText`."""
    return place == "optimizer.lr" or (
        place == "tokenizer.size" and re.fullmatch(r"auto(:\d+)?", str(value)) is not None
    )


# --- the class ---------------------------------------------------------------------------------


@cache
def _top_level_names(module: str) -> Mapping[str, ast.stmt]:
    """Return what is written at the top of a module of ours, by its names."""
    file = Path(transfer_cli.__file__).parents[1] / f"{module.replace('.', '/')}.py"
    if not module.startswith("transfer_cli.") or not file.is_file():
        return {}
    names: dict[str, ast.stmt] = {}
    for line in ast.parse(file.read_text(encoding="utf-8")).body:
        match line:
            case ast.ClassDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
                names[name] = line
            case ast.ImportFrom():
                names |= {alias.asname or alias.name: line for alias in line.names}
    return names


def _definition(module: str, name: str) -> tuple[str, ast.stmt | None]:
    """Return where a name is defined, and how; None: in no module of ours."""
    line = _top_level_names(module).get(name)
    if isinstance(line, ast.ImportFrom):
        return _definition(line.module or "", name)
    return module, line


def _lineage(target: str) -> Iterator[_Class]:
    """Yield a class that a config names, then those that it extends."""
    module, _, name = target.rpartition(".")
    module, line = _definition(module, name)
    if isinstance(line, ast.ClassDef):
        yield module, line
        for base in line.bases:
            if isinstance(base, ast.Name):
                where, above = _definition(module, base.id)
                yield from _lineage(f"{where}.{base.id}") if above is not None else ()


def _annotation(module: str, kind: ast.ClassDef, name: str) -> tuple[Any] | None:
    """Return the type of an argument of a class in a tuple, where it is plain."""
    for line in kind.body:
        match line:
            case ast.AnnAssign(target=ast.Name(id=field)) if field == name:
                return _plain_type(module, line.annotation)
            case ast.FunctionDef(name="__init__", args=args):
                for argument in (*args.args, *args.kwonlyargs):
                    if argument.arg == name and argument.annotation is not None:
                        return _plain_type(module, argument.annotation)
    return None


def _plain_type(module: str, annotation: ast.expr) -> tuple[Any] | None:
    """Return what an annotation of plain types and choices means, in a tuple; None: another."""
    match annotation:
        case ast.Constant(value=None):
            return (None,)
        case ast.Name(id=name) if name in _PLAIN:
            return (_PLAIN[name],)
        case ast.Subscript(value=ast.Name(id="Mapping")):
            return (Mapping,)
        case ast.Name(id=name):
            where, line = _definition(module, name)
            return _plain_type(where, line.value) if isinstance(line, ast.Assign) else None
        case ast.BinOp(op=ast.BitOr()):
            sides = [_plain_type(module, side) for side in (annotation.left, annotation.right)]
            known = [side[0] for side in sides if side is not None]
            return (reduce(operator.or_, known),) if len(known) == 2 else None
        case ast.Subscript(value=ast.Name(id="Literal")):
            return (Literal[ast.literal_eval(annotation.slice)],)
        case ast.Subscript(
            value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[item, ast.Constant(value=e)])
        ) if e is ...:
            inner = _plain_type(module, item)
            return (GenericAlias(tuple, (inner[0], ...)),) if inner is not None else None
    return None


# --- its checks --------------------------------------------------------------------------------


def _check_argument(lineage: tuple[_Class, ...], name: str, value: Any) -> None:
    """Raise ValueError as the constructors of a class and of those that it extends would."""
    for _, kind in lineage:
        makers, extends = _constructors(kind)
        for maker in makers:
            for line in maker.body:
                _run_check(line, name, value)
        if makers and not extends:
            return


@cache
def _constructors(kind: ast.ClassDef) -> tuple[list[ast.FunctionDef], bool]:
    """Return the constructors of a class, and whether they call those that it extends."""
    makers = [
        line
        for line in kind.body
        if isinstance(line, ast.FunctionDef) and line.name in ("__init__", "__post_init__")
    ]
    names = (node for maker in makers for node in ast.walk(maker) if isinstance(node, ast.Name))
    return makers, any(node.id == "super" for node in names)


def _run_check(line: ast.stmt, name: str, value: Any) -> None:
    """Do what a line of a constructor does with an argument, where it is a check."""
    arguments = (name, f"self.{name}")
    match line:
        case ast.Expr(value=ast.Call(func=ast.Name(id=check), args=[label, of, *more])):
            bounds = [bound.value for bound in more if isinstance(bound, ast.Constant)]
            is_plain = isinstance(label, ast.Constant) and len(bounds) == len(more)
            if is_plain and check in _CHECKS and ast.unparse(of) in arguments:
                _CHECKS[check](ast.literal_eval(label), value, *bounds)
        case ast.If(test=ast.Compare(left=of, ops=[ast.IsNot()]), body=body):
            for inner in body if ast.unparse(of) in arguments and value is not None else ():
                _run_check(inner, name, value)
        case ast.If(test=ast.UnaryOp(op=ast.Not(), operand=ast.Compare() as test), body=[error]):
            if not _is_between(test, arguments, value):
                raise ValueError(_error_message(error, value))


def _is_between(test: ast.Compare, arguments: tuple[str, str], value: Any) -> bool:
    """Return whether a value is between two numbers; True where something else is compared."""
    match test:
        case ast.Compare(
            left=ast.Constant(low), ops=[first, last], comparators=[of, ast.Constant(high)]
        ) if ast.unparse(of) in arguments:
            is_above, is_below = _COMPARES[type(first)], _COMPARES[type(last)]
            return bool(is_above(low, value) and is_below(value, high))
    return True


def _error_message(error: ast.stmt, value: Any) -> str:
    """Return the message of an error that names the value."""
    match error:
        case ast.Raise(exc=ast.Call(args=[ast.JoinedStr(parts)])):
            texts = (part.value if isinstance(part, ast.Constant) else value for part in parts)
            return "".join(map(str, texts))
    return f"got {value}"
