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

TEXT: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 60}
COUNT: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 1000}
DAY: dict[str, Any] = {"type": "string", "format": "date"}
FLAG: dict[str, Any] = {"type": "boolean"}


def one_of(*values: Any) -> dict[str, Any]:
    """Any of these values."""
    return {"enum": list(values)}


def call(name: str, required: list[str] | None = None, **arguments: Any) -> dict[str, Any]:
    """A call of one tool."""
    return closed(name={"const": name}, arguments=closed(required, **arguments))


QUESTIONS: dict[str, Any] = {
    "Describe a user of a web shop.": closed(name=TEXT, age=COUNT, email={"type": "string", "format": "email"}),
    "Describe a book that you like.": closed(title=TEXT, author=TEXT, year={"type": "integer", "minimum": 1400, "maximum": 2030}),
    "Where is the Eiffel Tower?": closed(place=closed(city=TEXT, country=TEXT, position=closed(latitude={"type": "number", "minimum": -90, "maximum": 90}, longitude={"type": "number", "minimum": -180, "maximum": 180}))),
    "Is water wet? Answer with a reason.": closed(answer=FLAG, reason=TEXT),
    "Name three primary colours.": listed(one_of("red", "green", "blue", "yellow", "cyan"), 3, 3),
    "List two cities of Italy with their population.": listed(closed(city=TEXT, population={"type": "integer", "minimum": 1}), 2, 2),
    "How do you feel about rain: classify the mood of 'I love it'.": closed(mood=one_of("positive", "neutral", "negative"), confidence={"type": "number", "minimum": 0, "maximum": 1}),
    "Write a shopping list for pancakes.": closed(items=listed(closed(name=TEXT, amount={"type": "number", "exclusiveMinimum": 0}, unit=one_of("g", "ml", "piece")), 2, 5)),
    "Give a circle or a square.": {"anyOf": [closed(shape={"const": "circle"}, radius=COUNT), closed(shape={"const": "square"}, side=COUNT)]},
    "What is the capital of Atlantis? It may be unknown.": closed(capital={"anyOf": [TEXT, {"type": "null"}]}, known=FLAG),
    "Configure a web server.": closed(host=TEXT, port={"type": "integer", "minimum": 1, "maximum": 65535}, tls=FLAG, log=one_of("debug", "info", "error")),
    "Write a commit message for a fixed typo.": closed(kind=one_of("fix", "feat", "docs"), scope={"type": ["string", "null"], "maxLength": 20}, summary=TEXT),
    "Plan a meeting about the budget on 3 May 2024.": closed(["title", "date"], title=TEXT, date=DAY, attendees=listed(TEXT, 0, 3)),
    "Make a 2 by 2 identity matrix.": listed(listed(one_of(0, 1), 2, 2), 2, 2),
    "Give a point as x, y and a label.": {"type": "array", "prefixItems": [COUNT, COUNT, TEXT], "items": False, "minItems": 3},
    "Give two points of a line.": {"$defs": {"point": closed(x=COUNT, y=COUNT)}, **closed(start={"$ref": "#/$defs/point"}, end={"$ref": "#/$defs/point"})},
    "Write a tiny tree with one child.": {"$defs": {"leaf": closed(value=COUNT), "tree": closed(value=COUNT, children=listed({"$ref": "#/$defs/leaf"}, 1, 2))}, "$ref": "#/$defs/tree"},
    "Give a spare part's number.": closed(part={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}, stock=COUNT),
    "Invoice for two chairs at 40 euros.": closed(number={"type": "string", "pattern": "^INV-[0-9]{3}$"}, lines=listed(closed(what=TEXT, count=COUNT, price={"type": "number"}), 1, 2), currency=one_of("EUR", "USD")),
    "Pick an even digit above 3.": {"allOf": [{"type": "integer", "minimum": 4}, {"maximum": 8}]},
    "Say yes or no.": one_of("yes", "no"),
    "Translate 'good morning' into French and German.": closed(french=TEXT, german=TEXT),
    "Call a tool: what is the weather in Oslo for 3 days?": call("get_weather", ["city"], city=TEXT, days={"type": "integer", "minimum": 1, "maximum": 7}, unit=one_of("celsius", "fahrenheit")),
    "Call a tool: find all Python files with a main function.": call("search_files", pattern=TEXT, paths=listed(TEXT, 1, 2), case_sensitive=FLAG),
    "Call a tool: replace foo by bar in main.py.": call("edit_file", path=TEXT, edits=listed(closed(old_text=TEXT, new_text=TEXT), 1, 2), dry_run=FLAG),
    "Call a tool: run the tests.": call("run_command", command=TEXT, timeout_seconds={"type": "integer", "minimum": 1, "maximum": 600}, background=FLAG),
    "Call a tool: send Ann a mail about lunch.": call("send_email", ["to", "subject", "body"], to=listed({"type": "string", "format": "email"}, 1, 2), subject=TEXT, body={"type": "string", "maxLength": 120}, priority=one_of("low", "normal", "high")),
    "Call a tool: open an issue about a crash.": call("create_issue", title=TEXT, labels=listed(one_of("bug", "feature", "question"), 1, 2), assignee={"anyOf": [TEXT, {"type": "null"}]}),
    "Call a tool: book a table for four on 24 December 2024 at seven.": call("book_table", guests={"type": "integer", "minimum": 1, "maximum": 12}, date=DAY, time={"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"}, outside=FLAG),
    "Call a tool: query all customers in Rome, newest first.": {"anyOf": [call("query", table=TEXT, where=listed(closed(column=TEXT, operator=one_of("=", "<", ">"), value={"anyOf": [TEXT, {"type": "number"}]}), 1, 2), descending=FLAG), call("refuse", why=TEXT)]},
}  # fmt: skip
"""Thirty questions, and the schemas of their answers, of the sizes that programs and tools have."""
