"""What pydantic says about a document, in the words of its reader."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from fedloop_core.strict import Misfit, Place, Strict

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = ["PATTERNS", "Mistake", "mistakes_of"]

_TAGS = ("kind", "algorithm", "rule")

PATTERNS: Mapping[str, str] = {
    r"^[A-Za-z][A-Za-z0-9_\-]*$": "must begin with a letter and hold letters, digits, '_' and '-' only",
    r"^[a-z][a-z0-9\-]{0,62}$": "must begin with a small letter and hold up to 63 small letters, digits and '-'",
    r"^[a-z0-9][a-z0-9\-]{0,62}$": "must hold up to 63 small letters, digits and '-', and no '-' first",
    r"^[a-z][a-z0-9\-]{0,62}(@[0-9a-f]{64})?$": "must be a task's name, or its name, '@' and the digest of its document",
    r"^([01][0-9]|2[0-3]):[0-5][0-9]$": "must be a time of day between 00:00 and 23:59",
    r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$": "must be written as module:factory",
    r"^[0-9a-f]{64}$": "must be a key: 64 digits and small letters from a to f",
}
"""Each pattern of our documents in words."""


@dataclass(frozen=True)
class Mistake:
    """One mistake: the keys and positions that lead to it, and a sentence that names it."""

    place: Place
    text: str


def mistakes_of(errors: Sequence[ErrorDetails], document: Mapping[str, object], model: type[Strict]) -> list[Mistake]:
    """Every mistake behind pydantic's errors about ``document``, read as a ``model``."""
    found: list[Mistake] = []
    for error in errors:
        cause = error.get("ctx", {}).get("error")
        if isinstance(cause, Misfit):
            found.extend(Mistake(place, f"{text}.") for place, text in cause.problems)
        elif not _follows_from_another(error):
            mistake = _mistake(error, document, model)
            found.append(Mistake(mistake.place, mistake.text.replace("?.", "?")))
    return found


def _follows_from_another(error: ErrorDetails) -> bool:
    """An array counts as too short when its elements have mistakes: those are told, and enough."""
    return error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"]


def _mistake(error: ErrorDetails, document: Mapping[str, object], model: type[Strict]) -> Mistake:
    place = _in_document(error["loc"], document)
    match error["type"]:
        case "missing" if place and isinstance(place[-1], int):
            return Mistake(place[:-1], f"{_name(place[:-1], document)} has too few values.")
        case "extra_forbidden":
            return Mistake(place, f"{_name(place, document)} is not a known key{_known(error['loc'], model)}.")
        case "union_tag_invalid":
            tag = str(error["ctx"]["discriminator"]).strip("'")
            choices = _unquoted(error["ctx"]["expected_tags"])
            text = (
                f"must be {_one_of(choices)}, not {_shown(error['ctx']['tag'])}{_closest(error['ctx']['tag'], choices)}"
            )
            return Mistake((*place, tag), f"{_name((*place, tag), document)} {text}.")
        case "union_tag_not_found":
            tag = str(error["ctx"]["discriminator"]).strip("'")
            return Mistake(place, f"{_name((*place, tag), document)} is missing.")
        case kind:
            rewrite = _WORDS.get(kind, _unforeseen)
            return Mistake(place, f"{_name(place, document)} {rewrite(error)}.")


def _in_document(loc: Sequence[str | int], document: Mapping[str, object]) -> Place:
    """Pydantic's path without the tags of unions, which stand in it as if they were keys."""
    node: object = document
    place: list[str | int] = []
    tag_is_due = False
    for part in loc:
        if tag_is_due and _is_table(node) and any(node.get(tag) == part for tag in _TAGS):
            tag_is_due = False
            continue
        place.append(part)
        if _is_table(node):
            node = node.get(str(part))
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
        else:
            node = None
        tag_is_due = True
    return tuple(place)


def _is_table(node: object) -> TypeGuard[dict[str, object]]:
    return isinstance(node, dict)


def _name(place: Place, document: Mapping[str, object]) -> str:
    """A place for people: dotted keys, and a feature by its own name where it has one."""
    if not place:
        return "the document"
    if place[0] == "features" and len(place) > 1 and isinstance(place[1], int):
        features = document.get("features")
        feature = features[place[1]] if isinstance(features, list) and place[1] < len(features) else None
        name = feature.get("name") if _is_table(feature) else None
        who = f"feature {name!r}" if isinstance(name, str) else f"feature {place[1] + 1}"
        return f"{who}: {_dotted(place[2:])}" if len(place) > 2 else who
    return _dotted(place)


def _dotted(place: Place) -> str:
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _known(loc: Sequence[str | int], model: type[Strict]) -> str:
    """The closest known key beside an unknown one, or all of them."""
    schema = model.model_json_schema()
    node: dict[str, Any] = schema
    for part in loc[:-1]:
        node = _resolved(node, schema)
        tags = node.get("discriminator", {}).get("mapping", {})
        if part in tags:
            node = {"$ref": tags[part]}
        elif isinstance(part, int):
            node = node.get("items", {})
        else:
            node = node.get("properties", {}).get(part, {})
    keys = sorted(_resolved(node, schema).get("properties", {}))
    closest = _closest(loc[-1], keys)
    return closest or (f"; known here: {', '.join(keys)}" if keys else "")


def _resolved(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    reference = node.get("$ref")
    return schema["$defs"][reference.rsplit("/", 1)[-1]] if isinstance(reference, str) else node


def _closest(word: object, choices: Sequence[str]) -> str:
    close = difflib.get_close_matches(str(word), choices, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _unquoted(choices: object) -> list[str]:
    return re.findall(r"'([^']*)'", str(choices))


def _one_of(choices: Sequence[str]) -> str:
    quoted = [repr(choice) for choice in choices]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def _shown(value: object) -> str:
    """A value as its author wrote it, shortened; tables and arrays by their kind."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return f"{value:g}" if isinstance(value, float) else str(value)[:40]
        case str():
            return f"the text {value[:40]!r}"
        case list():
            return "an array"
        case dict():
            return "a table"
        case _:
            return str(value)[:40]


def _not(wanted: str) -> Callable[[ErrorDetails], str]:
    return lambda error: f"must be {wanted}, not {_shown(error['input'])}"


def _bound(words: str, key: str) -> Callable[[ErrorDetails], str]:
    return lambda error: f"must be {words} {_shown(error['ctx'][key])}, not {_shown(error['input'])}"


def _unforeseen(error: ErrorDetails) -> str:
    return f"is not right: {error['msg']}"


def _literal(error: ErrorDetails) -> str:
    choices = _unquoted(error["ctx"]["expected"]) or [str(error["ctx"]["expected"])]
    expected = _one_of(choices) if "'" in str(error["ctx"]["expected"]) else choices[0]
    return f"must be {expected}, not {_shown(error['input'])}{_closest(error['input'], choices)}"


def _pattern(error: ErrorDetails) -> str:
    pattern = str(error["ctx"]["pattern"])
    return f"{PATTERNS.get(pattern, f'must fit {pattern}')}, not {str(error['input'])[:40]!r}"


_WORDS: Mapping[str, Callable[[ErrorDetails], str]] = {
    "missing": lambda _: "is missing",
    "value_error": lambda error: str(error["ctx"]["error"]),
    "greater_than": _bound("above", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than": _bound("below", "lt"),
    "less_than_equal": _bound("at most", "le"),
    "finite_number": _not("a finite number"),
    "int_type": _not("a whole number"),
    "int_from_float": _not("a whole number"),
    "float_type": _not("a number"),
    "string_type": _not("text in quotes"),
    "bool_type": _not("true or false"),
    "tuple_type": _not("an array"),
    "model_type": _not("a table"),
    "model_attributes_type": _not("a table"),
    "dict_type": _not("a table"),
    "literal_error": _literal,
    "string_pattern_mismatch": _pattern,
    "string_too_short": lambda error: f"must have at least {error['ctx']['min_length']} characters",
    "string_too_long": lambda error: f"may have at most {error['ctx']['max_length']} characters",
    "too_short": lambda error: f"needs at least {error['ctx']['min_length']} values",
    "too_long": lambda error: f"may have at most {error['ctx']['max_length']} values",
}
