"""Thirty JSON schemas of the kinds that tools and the public test suite use, each small enough for a tiny model."""

from typing import Any

WORD: dict[str, Any] = {"type": "string", "maxLength": 6, "pattern": "^[a-z]*$"}
SMALL: dict[str, Any] = {"type": "integer", "minimum": -9, "maximum": 99}


def closed(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    """An object with these properties and no others."""
    required = list(properties) if required is None else required
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def listed(items: Any, least: int = 0, most: int = 3) -> dict[str, Any]:
    """An array of `least` to `most` of these."""
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


SCHEMAS: dict[str, Any] = {
    "const": {"const": {"a": [1, None, "x"]}},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "enum of strings": {"enum": ["red", "green", "blue"]},
    "enum of everything": {"enum": [None, True, 7, -0.5, "seven", [7], {"n": 7}]},
    "integer in bounds": {"type": "integer", "minimum": 10, "maximum": 31},
    "integer with open bounds": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 5},
    "several types": {"type": ["boolean", "null"]},
    "word": WORD,
    "string of a length": {"type": "string", "minLength": 2, "maxLength": 4},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "date": {"type": "string", "format": "date"},
    "uuid": {"type": "string", "format": "uuid"},
    "time": {"type": "string", "format": "ipv4"},
    "array": listed(SMALL),
    "array of a length": listed({"enum": ["x", "y"]}, 2, 2),
    "tuple": {
        "type": "array",
        "prefixItems": [WORD, SMALL, {"type": "boolean"}],
        "items": False,
        "minItems": 3,
    },
    "matrix": listed(listed(SMALL, 2, 2), 2, 2),
    "object": closed(name=WORD, age=SMALL),
    "optional properties": closed(["id"], id=SMALL, note=WORD, done={"type": "boolean"}),
    "nested objects": closed(user=closed(address=closed(city=WORD, zip={"type": "string", "pattern": "^[0-9]{5}$"}))),
    "array of objects": listed(closed(item=WORD, count=SMALL), 1, 2),
    "map": {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 0},
    "anyOf of types": {"anyOf": [SMALL, {"type": "null"}, closed(error=WORD)]},
    "anyOf of objects": {"anyOf": [closed(kind={"const": "circle"}, r=SMALL), closed(kind={"const": "square"}, a=SMALL)]},
    "definitions": {"$defs": {"point": closed(x=SMALL, y=SMALL)}, **closed(a={"$ref": "#/$defs/point"}, b={"$ref": "#/$defs/point"})},
    "allOf": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 8}]},
    "weather tool": closed(
        name={"const": "get_weather"},
        arguments=closed(["city", "unit"], city=WORD, unit={"enum": ["celsius", "fahrenheit"]}, days={"type": "integer", "minimum": 1, "maximum": 7}),
    ),
    "search tool": closed(
        name={"const": "search_files"},
        arguments=closed(pattern=WORD, paths=listed(WORD, 1, 2), case_sensitive={"type": "boolean"}),
    ),
    "calendar tool": closed(
        ["title", "start"],
        title=WORD,
        start={"type": "string", "format": "date"},
        attendees=listed(closed(name=WORD, optional={"type": ["boolean", "null"]}), 0, 1),
    ),
}  # fmt: skip
