"""One YAML node -> one object, checked, with errors that name the config key.

A node names its class with `_target_`; the other keys are the constructor's arguments. Before the
class is called, it must be trusted (`trust`), its arguments must exist and be complete, and their
types must fit the annotations. Hydra's `instantiate` is not used: it calls whatever is importable.
"""

import dataclasses
import importlib
import inspect
import keyword
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue

from transfer_cli.errors import ConfigError, did_you_mean, raised_as

T = TypeVar("T")

TRUSTED = (
    "transfer_cli.adaptation", "transfer_cli.analysis", "transfer_cli.data", "transfer_cli.model",
    "transfer_cli.objectives", "transfer_cli.optim", "transfer_cli.tasks", "torch.optim",
)  # fmt: skip
"""Packages whose classes a config may name. `trust` adds those of the command line.

These hold the parts of a model and a run, and analyses, which do nothing when they are made. Others
of our own open, shorten or remove files: a config that comes from a stranger must not make one of
these.
"""

TARGET = "_target_"

_plugins: set[str] = set()

_KIND_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    types.NoneType: "null",
    Path: "a path",
}


def trust(packages: Iterable[str]) -> None:
    """Allow configs to name classes of these packages, for the rest of the process.

    Only the command line may decide this, never a YAML file: a config can come from anywhere.
    """
    _plugins.update(packages)


def import_plugins(packages: Iterable[str]) -> None:
    """Import the packages given with --plugin; importing one may register parts."""
    for package in packages:
        _import(package, f"--plugin {package}")


def build(
    node: Mapping[str, Any] | None,
    key: str,
    kind: type[T] | Callable[..., T] | types.UnionType,
    **extra: Any,
) -> T:
    """Return the object that `node` describes.

    Args:
        node: A mapping with `_target_`, or without one when `kind` is a dataclass.
        kind: The class that the object must be an instance of, or several joined by `|`.
        extra: Further arguments of the constructor that no config can give, such as parameters.
    """
    filled = resolved_node(node, key)
    if not isinstance(filled, Mapping):
        raise ConfigError(f"{key}: expected {_noun(kind)}, got {_repr(filled)}")
    instance: T = _construct(filled, key, kind, extra)
    return instance


def class_of(node: Mapping[str, Any], key: str) -> type:
    """Return the class that a node names, if it is trusted; nothing is built."""
    return _find_class(node.get(TARGET), key)


def argument_types(target: str, key: str) -> dict[str, Any]:
    """Return the types of what the class of this name takes, as far as they can be read."""
    return _annotations(_find_class(target, key))


def check_options(node: Any, key: str) -> None:
    """Refuse options that the classes in a config, at any depth, do not have. Nothing is built."""
    written = OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else node
    if not isinstance(written, Mapping):
        return
    options = [str(name) for name in written if name != TARGET]
    if TARGET in written:
        _refuse_unknown(options, _find_class(written[TARGET], key), key)
    for name in options:
        check_options(written[name], f"{key}.{name}")


def resolved_node(node: Any, key: str) -> Any:
    """Return `node` with interpolations filled in, as dicts, lists and plain values."""
    if not OmegaConf.is_config(node):
        return node
    try:
        return OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        missing = str(error.full_key or key)
        raise ConfigError(f"{missing}: needs a value. Add {missing}=VALUE") from error
    except InterpolationResolutionError as error:
        first = str(error).partition("\n")[0]
        raise ConfigError(f"{error.full_key or key}: {first}") from error


def _construct(node: Mapping[str, Any], key: str, kind: Any, extra: Mapping[str, Any]) -> Any:
    maker = _class_of_node(node, key, kind)
    arguments = {name: value for name, value in node.items() if name != TARGET}
    _check_names(arguments, maker, key, extra)
    annotations = _annotations(maker)
    arguments = {
        name: convert(value, annotations.get(name, Any), f"{key}.{name}")
        for name, value in arguments.items()
    }
    # Ours raise the first alone; those of torch any of them.
    with raised_as(ConfigError, f"{key}: ", ValueError, TypeError, LookupError, ArithmeticError):
        return maker(**arguments, **extra)


# --- the class ---------------------------------------------------------------------------------


def _class_of_node(node: Mapping[str, Any], key: str, kind: Any) -> type:
    """Return the class that `node` names, or `kind` itself where it names none."""
    if TARGET in node:
        maker = _find_class(node[TARGET], key)
    elif dataclasses.is_dataclass(kind) and isinstance(kind, type):
        maker = kind
    else:
        options = ", ".join(map(str, node)) or "nothing"
        raise ConfigError(f"{key}: expected {_noun(kind)}, which needs a {TARGET}; found {options}")
    if not _is_subclass(maker, kind):
        raise ConfigError(f"{key}: expected {_noun(kind)}, but {_name(maker)} makes {_noun(maker)}")
    if inspect.isabstract(maker):
        raise ConfigError(f"{key}: {_name(maker)} is abstract; name one of its subclasses")
    return maker


def _find_class(target: Any, key: str) -> type:
    """Import the class that `target` names, if it is trusted by name and by place of definition."""
    parts = target.split(".") if isinstance(target, str) else []
    names = [part for part in parts if part.isidentifier() and not keyword.iskeyword(part)]
    if len(parts) < 2 or names != parts:
        raise ConfigError(f"{key}.{TARGET}: expected package.module.Class, got {_repr(target)}")
    check_trusted(target, key)
    module_name, _, name = target.rpartition(".")
    module = _import(module_name, key)
    member = getattr(module, name, None)
    if member is None:
        public = [word for word in vars(module) if not word.startswith("_")]
        raise ConfigError(f"{key}: {module_name} has no {name!r}.{did_you_mean(name, public)}")
    if not isinstance(member, type):
        raise ConfigError(f"{key}: {target} is not a class")
    # A trusted module may import untrusted things; what counts is where the class was written.
    check_trusted(_name(member), key)
    return member


def _import(module_name: str, key: str) -> types.ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if not f"{module_name}.".startswith(f"{missing}."):
            raise ConfigError(
                f"{key}: {module_name} needs the package {missing!r}, which is not installed"
            ) from error
        raise ConfigError(f"{key}: there is no module {missing!r}{_siblings(missing)}") from error


def _siblings(module_name: str) -> str:
    """Return ". Did you mean ...?" with the module beside it that has the closest name."""
    package, _, name = module_name.rpartition(".")
    try:
        places = getattr(importlib.import_module(package), "__path__", []) if package else []
    except ImportError:
        return ""
    names = [file.stem for place in places for file in Path(place).glob("*.py")]
    close = did_you_mean(name, names)
    return f".{close}" if close else ""


def check_trusted(path: str, key: str) -> None:
    """Refuse a class of a package that no config may name."""
    if path.startswith(tuple(f"{package}." for package in (*TRUSTED, *_plugins))):
        return
    package = path.partition(".")[0]
    if package == __name__.partition(".")[0]:
        known = ", ".join(name for name in TRUSTED if name.startswith(package))
        raise ConfigError(f"{key}: {path} is nothing that a config may build; that is in {known}")
    raise ConfigError(
        f"{key}: {path} is not trusted. Name your package with --plugin to trust it"
        f" (--plugin {package})"
    )


def _name(maker: type) -> str:
    return f"{maker.__module__}.{maker.__qualname__}"


# --- its arguments -----------------------------------------------------------------------------


def _options(maker: type) -> dict[str, inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(maker).parameters
    return {name: parameter for name, parameter in parameters.items() if parameter.kind in kinds}


def _check_names(
    arguments: Mapping[str, Any], maker: type, key: str, extra: Mapping[str, Any]
) -> None:
    """Refuse arguments that the constructor does not have, and a lack of those that it needs."""
    for name in arguments:
        if name in extra:
            raise ConfigError(f"{key}.{name}: is filled in when the run starts; leave it out")
    _refuse_unknown(arguments, maker, key, hidden=extra)
    missing = [
        name
        for name, parameter in _options(maker).items()
        if name not in {**arguments, **extra} and parameter.default is inspect.Parameter.empty
    ]
    missing += [name for name, value in arguments.items() if value == "???"]
    if missing:
        names = " and ".join(repr(name) for name in sorted(missing))
        cure = " ".join(f"{key}.{name}=VALUE" for name in sorted(missing))
        raise ConfigError(f"{key}: {maker.__name__} needs {names}. Add {cure}")


def _refuse_unknown(
    arguments: Iterable[str], maker: type, key: str, hidden: Collection[str] = ()
) -> None:
    """Refuse arguments that the constructor does not have; name the others, but for `hidden`."""
    known = _options(maker)
    parameters = inspect.signature(maker).parameters.values()
    takes_any = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters)
    for name in arguments:
        if name not in known and not (takes_any and str(name).isidentifier()):
            shown = sorted(known.keys() - set(hidden))
            listed = f" It has {', '.join(shown)}." if shown else " It has none."
            hint = did_you_mean(str(name), shown) or listed
            raise ConfigError(f"{key}.{name}: {maker.__name__} has no option {name!r}.{hint}")


def _annotations(maker: type) -> dict[str, Any]:
    """Return the types of the constructor's parameters, as far as they can be read."""
    try:
        # Mypy fears that a subclass's __init__ differs; it is this very class's that is called.
        hints = typing.get_type_hints(maker.__init__)  # type: ignore[misc]
    except (NameError, TypeError, AttributeError):
        # A name that exists for the type checker only: the constructor has to look for itself.
        return {}
    return {
        name: hint.type if isinstance(hint, dataclasses.InitVar) else hint
        for name, hint in hints.items()
    }


def convert(value: Any, hint: Any, key: str) -> Any:
    """Return `value` as `hint` wants it, or raise a ConfigError."""
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _convert_union(value, get_args(hint), key)
    if origin is Literal:
        return _convert_literal(value, get_args(hint), key)
    if isinstance(value, Mapping) and TARGET in value:
        return _construct(value, key, origin or hint, {})
    if hint in (Any, object) or isinstance(hint, TypeVar):
        if not isinstance(value, Mapping | list):
            return value
        hint = dict if isinstance(value, Mapping) else list  # nodes in it are built as well
    container = origin if isinstance(origin, type) else hint
    if is_container(container):
        return _convert_container(value, container, get_args(hint), key)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(value, Mapping):
        return _construct(value, key, hint, {})
    return _convert_plain(value, hint, key)


def is_container(kind: Any) -> bool:
    """Return whether a type is a list, a mapping or the like, and no text."""
    if not isinstance(kind, type) or kind in (str, bytes):
        return False
    return kind.__module__ in ("builtins", "collections.abc") and issubclass(kind, Iterable)


def _convert_union(value: Any, choices: tuple[Any, ...], key: str) -> Any:
    if value is None and types.NoneType in choices:
        return None
    choices = tuple(choice for choice in choices if choice is not types.NoneType)
    if len(choices) == 1:
        return convert(value, choices[0], key)
    kind: Any = Union[choices]  # noqa: UP007 - of a list
    if isinstance(value, Mapping) and TARGET in value:
        return _construct(value, key, kind, {})
    # An int stays an int in `float | int`, whichever comes first.
    for choice in sorted(choices, key=lambda choice: choice is not type(value)):
        try:
            return convert(value, choice, key)
        except ConfigError:
            continue
    words = [
        word for choice in choices if get_origin(choice) is Literal for word in get_args(choice)
    ]
    close = did_you_mean(value, words) if isinstance(value, str) else ""
    raise ConfigError(f"{key}: expected {_noun(kind)}, got {_repr(value)}.{close}".rstrip("."))


def _convert_literal(value: Any, choices: tuple[Any, ...], key: str) -> Any:
    for choice in choices:
        if choice == value and type(choice) is type(value):
            return choice
    close = did_you_mean(value, map(str, choices)) if isinstance(value, str) else ""
    listed = ", ".join(map(str, choices))
    raise ConfigError(f"{key}: expected one of {listed}; got {_repr(value)}.{close}".rstrip("."))


def _convert_container(value: Any, container: type, items: tuple[Any, ...], key: str) -> Any:
    if issubclass(container, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key}: expected a mapping, got {_repr(value)}")
        item = items[1] if items else Any
        return {name: convert(element, item, f"{key}.{name}") for name, element in value.items()}
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{key}: expected a list, got {_repr(value)}. Write {key}=[...]")
    if issubclass(container, tuple) and items and items[-1] is not Ellipsis:
        if len(items) != len(value):
            raise ConfigError(
                f"{key}: expected a list of {len(items)} values, got {len(value)}: {_repr(value)}"
            )
        item_type = items
    else:
        item_type = (items[0] if items else Any,) * len(value)
    converted = [
        convert(element, item, f"{key}.{place}")
        for place, (element, item) in enumerate(zip(value, item_type, strict=True))
    ]
    is_concrete = container in (tuple, set, frozenset)
    # Mypy cannot see that `is_concrete` rules out abstract containers, which take no argument.
    return container(converted) if is_concrete else converted  # type: ignore[call-arg]


def _convert_plain(value: Any, hint: Any, key: str) -> Any:
    # bool is a subclass of int, but `batch: true` is a mistake.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if hint is float and is_number:
        try:
            return float(value)
        except OverflowError as error:
            raise ConfigError(f"{key}: is too large for a number") from error
    if hint is Path and isinstance(value, str):
        return Path(value)
    if _is_instance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    cure = f". Write {int(value)}" if hint is int and is_number and value % 1 == 0 else ""
    if hint is str and is_number:
        cure = f""". If it is a length, say of what, for example '{key}={value} steps'"""
    raise ConfigError(f"{key}: expected {_noun(hint)}, got {_repr(value)}{cure}")


# --- kinds -------------------------------------------------------------------------------------


def _is_protocol(kind: Any) -> bool:
    return getattr(kind, "_is_protocol", False)


def _is_subclass(maker: type, kind: Any) -> bool:
    """Return whether an instance of `maker` can be of a kind. Nothing is made to find that out."""
    if get_origin(kind) in (Union, types.UnionType):
        return any(_is_subclass(maker, choice) for choice in get_args(kind))
    if _is_protocol(kind):
        methods = [name for name, member in vars(kind).items() if inspect.isfunction(member)]
        required = [name for name in methods if name == "__call__" or not name.startswith("_")]
        return all(any(name in vars(base) for base in maker.__mro__) for name in required)
    kind = get_origin(kind) or kind
    return issubclass(maker, kind) if isinstance(kind, type) and kind is not Any else True


def _is_instance(value: Any, kind: Any) -> bool:
    if _is_protocol(kind) or get_origin(kind) is Callable:
        return callable(value)
    try:
        return isinstance(value, kind)
    except TypeError:  # a kind that has no instances, such as `type[Module]`
        return True


def _noun(kind: Any) -> str:
    """Return the name of `kind` with its article: "an Objective"."""
    if kind in _KIND_NAMES:
        return _KIND_NAMES[kind]
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_noun(part) for part in get_args(kind) if part is not types.NoneType)
    name = str(getattr(kind, "__name__", kind))
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


def _repr(value: Any) -> str:
    """Return `value` as people write it in YAML, cut where it is long."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    longest = 80
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
