"""Six long prompts: files to edit, logs to summarize, chats. The same on every machine.

They are put together from the parts in long_prompts.toml. Sentences and methods come again as in files and logs that
people keep: with other names and numbers, and a sentence only after all the others had their turn.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random

from specdec_onnx.tui.bench.prompts import Prompt

PARTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def long_prompts() -> list[Prompt]:
    """Two prompts of each kind, of about 2,000 to 6,000 tokens, the shorter ones first."""
    return [_edit(1, 8), _document(2, 17), _class_chat(3, 8), _edit(4, 17), _document(5, 34), _log_chat(6, 5)]


def log(seed: int) -> Iterator[str]:
    """The paragraphs of a station's log, one a day, without end."""
    random, sentences = Random(seed), _in_rounds(PARTS["log"], seed)
    day = 0
    while True:
        day += 1
        text = " ".join(_filled(each, random) for each in islice(sentences, random.randrange(3, 8)))
        yield f"Day {day}, {WEEKDAYS[day % 7]}. {text}"


def _in_rounds(items: Sequence[str], seed: int) -> Iterator[str]:
    """The items in random order, again and again; none comes back before all others had their turn."""
    random, order = Random(seed), list(items)
    while True:
        random.shuffle(order)
        yield from order


def _filled(sentence: str, random: Random) -> str:
    words = {name: random.choice(choices) for name, choices in PARTS["words"].items()}
    capitals = {name.title(): words[name][0].upper() + words[name][1:] for name in ("who", "other")}
    time = f"{random.randrange(4, 23)}:{random.randrange(60):02}"
    return sentence.format(
        **words, **capitals, time=time, n=random.randrange(2, 90), m=random.randrange(3, 60)
    )


def _class(line: str, random: Random) -> str:
    """The source of a class whose name and fields are in `line`."""
    name, fields = line.split(":", 1)
    lines = [f"@dataclass(frozen=True)\nclass {name}(Record):"]
    lines.append(f'    """One {name.lower()} as a row of the table `{name.lower()}s`."""\n')
    pairs = [field.split(":") for field in fields.split()]
    lines += [f"    {field}: {kind}" for field, kind in pairs]
    left = {kind: list(templates) for kind, templates in PARTS["methods"].items()}
    for field, kind in pairs:
        template = left[kind].pop(random.randrange(len(left[kind])))
        method = template.format(f=field, c=name, l=name.lower(), n=random.randrange(3, 60))
        lines.append("\n" + "\n".join(f"    {each}" for each in method.split("\n")))
    return "\n".join(lines)


def _classes(seed: int, count: int) -> list[tuple[str, str]]:
    """Names and sources of classes."""
    random, lines = Random(seed), PARTS["classes"].strip().split("\n")
    random.shuffle(lines)
    return [(line.split(":")[0], _class(line, random)) for line in lines[:count]]


def _edit(seed: int, count: int) -> Prompt:
    classes = _classes(seed, count)
    source = "\n\n\n".join([PARTS["head"].rstrip(), *(text for _, text in classes)])
    name = classes[count // 2][0]
    change = f'Add a field `note: str = ""` after the other fields of the class `{name}`.'
    task = f"{change} Print this class again as a whole, with its methods, and nothing else of the file."
    return Prompt("long edit", (f"This is our file records.py:\n\n```python\n{source}\n```\n\n{task}",))


def _document(seed: int, days: int) -> Prompt:
    text = "\n\n".join(islice(log(seed), days))
    task = "Summarize this log for somebody who takes over the station: what works, what does not, and what to watch."
    return Prompt("long summary", (f"{task}\n\n{text}",))


def _class_chat(seed: int, turns: int) -> Prompt:
    """A user shows classes one by one, and then asks for tests."""
    classes = _classes(seed, turns)
    before: list[tuple[str, str]] = []
    for name, source in classes:
        fields = ", ".join(f"`{field}`" for field in re.findall(r"^    (\w+): ", source, re.MULTILINE))
        methods = re.findall(r"^    def (\w+)", source, re.MULTILINE)
        reply = f"`{name}` is a frozen dataclass with the fields {fields}.\n\n"
        reply += "\n".join(f"- `{method}` {_remark(method)}" for method in methods)
        before.append(("user", f"What do you think of this class?\n\n```python\n{source}\n```"))
        before.append(("assistant", reply))
    task = f"Write tests with pytest for the class `{classes[1][0]}` from above."
    return Prompt("long chat", (task,), tuple(before))


def _remark(method: str) -> str:
    """What the assistant of the chat says about a method."""
    remarks: dict[str, str] = PARTS["remarks"]
    return next((said for start, said in remarks.items() if method.startswith(start)), "is fine as it is.")


def _log_chat(seed: int, weeks: int) -> Prompt:
    """A user pastes a log week by week, the assistant keeps a list, and at the end both ends are compared."""
    days, pick = log(seed), Random(seed)
    before: list[tuple[str, str]] = []
    for week in range(1, weeks + 1):
        paragraphs = list(islice(days, 7))
        noted = [pick.choice(paragraph.split(". ", 1)[1].split(". ")).rstrip(".") for paragraph in paragraphs]
        asked = f"Here is week {week} of the log. List one thing a day.\n\n" + "\n\n".join(paragraphs)
        listed = "\n".join(f"{number}. {each}." for number, each in enumerate(noted, 1))
        before.append(("user", asked))
        before.append(("assistant", f"Week {week}, one line for each day:\n\n{listed}"))
    task = f"Compare the first week with week {weeks}: what was mended, what broke, and who was busiest? Quote the log."
    return Prompt("long chat", (task,), tuple(before))
