"""The rows (path, type) of a document's schema, read off its structs."""

from __future__ import annotations

from typing import Any

import msgspec.inspect as inspect

_PLAIN = {
    inspect.StrType: "string",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.BoolType: "boolean",
}


def rows(document: type[Any]) -> list[tuple[str, str]]:
    """Every field of the document by its path, with its type in words."""
    found: list[tuple[str, str]] = []
    _walk(inspect.type_info(document), "", found)
    return found


def _walk(kind: Any, path: str, found: list[tuple[str, str]]) -> None:
    if isinstance(kind, inspect.StructType):
        for field in kind.fields:
            place = f"{path}.{field.encode_name}" if path else field.encode_name
            found.append((place, words(field.type)))
            _walk(field.type, place, found)
    elif isinstance(kind, inspect.ListType):
        _walk(kind.item_type, f"{path}[]", found)


def words(kind: Any) -> str:
    """A type in the words of the documentation."""
    if type(kind) in _PLAIN:
        return _PLAIN[type(kind)]
    if isinstance(kind, inspect.LiteralType):
        return " or ".join(f"`{value}`" for value in kind.values)
    if isinstance(kind, inspect.ListType):
        return f"array of {words(kind.item_type)}"
    if isinstance(kind, inspect.DictType):
        return f"object of {words(kind.value_type)}"
    if isinstance(kind, inspect.UnionType):
        found = {words(each): None for each in kind.types if not isinstance(each, inspect.NoneType)}
        if "number" in found:
            found.pop("integer", None)
        nullable = any(isinstance(each, inspect.NoneType) for each in kind.types)
        return " or ".join([*found, *(["null"] if nullable else [])])
    assert isinstance(kind, inspect.StructType), kind
    return "object"
