"""Chat templates: what they may use, whom they are put right for, and one error for all that fails in them."""

import time
from pathlib import Path

import pytest
from support.chat_templates import DEAF_TO_SYSTEM, WITHOUT_SYSTEM
from support.folders import write_json, write_model_folder

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder, open_model
from specdec_onnx.runtime.text import template
from specdec_onnx.runtime.text.template import Message, render

ASKED: list[Message] = [{"role": "user", "content": "hi"}]
SYSTEM: Message = {"role": "system", "content": "Be brief."}


def model_with(folder: Path, source: str, **settings: object) -> ModelFolder:
    write_json(write_model_folder(folder) / "tokenizer_config.json", settings)
    (folder / "chat_template.jinja").write_text(source, encoding="utf-8", newline="")
    return open_model(folder)


def written(folder: Path, source: str, messages: list[Message] | None = None) -> str:
    return render(model_with(folder, source), messages or ASKED)


def test_generation_tags_change_nothing(tmp_path: Path) -> None:
    source = "a {% generation %}{{ messages[0].content }}{% endgeneration %}\n b{%- generation -%} c {%- endgeneration %}"
    assert written(tmp_path, source) == "a hi bc"


def test_tojson_is_that_of_transformers(tmp_path: Path) -> None:
    source = "{{ {'b': messages[0].content, 'a': 1} | tojson }} {{ 'é' | tojson(ensure_ascii=true) }}"
    said = written(tmp_path, source, [{"role": "user", "content": "é<b>&'"}])
    assert said == '{"b": "é<b>&\'", "a": 1} "\\u00e9"'
    source = "{{ {'b': 1, 'a': [1]} | tojson(sort_keys=true, separators=(',', ':'), indent=1) }}"
    assert written(tmp_path, source) == '{\n "a":[\n  1\n ],\n "b":1\n}'


def test_what_is_not_given_is_none_or_undefined(tmp_path: Path) -> None:
    source = "{{ tools is not none }} {{ documents is none }} {{ bos_token is defined }} {{ eos_token }}"
    model = model_with(tmp_path, source, eos_token={"content": "<|im_end|>"}, bos_token=None)
    assert render(model, ASKED) == "False True False <|im_end|>"


def test_the_mark_that_editors_put_before_utf_8_is_not_part_of_a_template(tmp_path: Path) -> None:
    assert written(tmp_path, "\ufeff{{ messages[0].content }}") == "hi"


FAILING = {
    "a sum of text and number": ("{{ messages[0].content + 1 }}", "TypeError"),
    "division by zero": ("{{ 1 / 0 }}", "ZeroDivisionError"),
    "endless recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "brackets without end": ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "RecursionError"),
    "a power too large": ("{{ 9 ** (9 ** 9) }}", "too large"),
    "a text too long": ("{{ 'a' * 99999999 }}", "too large"),
    "a loop without end": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "did not end",
    ),
    "output without end": (
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "without end",
    ),
    "an unknown filter": ("{{ messages | shuffled }}", "shuffled"),
    "broken syntax": ("{% if %}", "expression"),
    "a file": ("{% include 'other.jinja' %}", "loader"),
    "a change of the messages": ("{{ messages.append(1) }}", "unsafe"),
    "a way out of the sandbox": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "no refusal but an odd one": ("{{ raise_exception(1) }}", "1"),
}


TOO_LARGE = [
    "'a'.ljust(10**10)",
    "'a' | center(10**10)",
    "'1'.zfill(10**10)",
    "'{:>9999999999}'.format(1)",
    "'{:>{}}'.format(1, '9999999999')",
    "'%9999999999d' | format(1)",
    "'%9999999999d' % 1",
    "'%*d' % (10**9, 1)",
    "('a' * 1000000).replace('a', 'b' * 100000)",
    "('a' * 1000000) | replace('a', 'b' * 100000)",
    "range(99999) | join('b' * 1000000)",
    "('b' * 1000000).join('a' * 1000000)",
    "('\t' * 100000).expandtabs(1000000)",
    "('a' * 1000000).translate({97: 'b' * 100000})",
    "('a ' * 500000) | wordwrap(1, wrapstring='x' * 10000)",
    "('\n' * 1000000) | indent(10000)",
    "range(10) | batch(10**9, 'x') | list",
    "range(10) | slice(10**9) | list",
    "messages | tojson(indent=10**9)",
    "(range(99999) | list * 50) | sort",
    "lipsum(n=10**7)",
    "strftime_now('%9999999d')",
]
GROWING = ["ns.x ~ ns.x", "ns.x + ns.x", "[ns.x, ns.x]", "(ns.x, ns.x)", "{1: ns.x, 2: ns.x}", "ns.n * ns.n"]


@pytest.mark.parametrize("expression", TOO_LARGE)
def test_what_would_take_all_memory_is_refused_before_it_does(expression: str, tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(SpecdecError, match="failed") as caught:
        written(tmp_path, "{{ (" + expression + ") | length }}")
    assert caught.value.why and time.monotonic() - begun < 5


@pytest.mark.parametrize("step", GROWING)
def test_what_doubles_in_a_loop_is_stopped(step: str, tmp_path: Path) -> None:
    kept = "n" if "n * n" in step.replace("ns.", "") else "x"
    source = (
        "{% set ns = namespace(x='ab', n=3) %}{% for i in range(60) %}{% set ns."
        + kept + " = " + step + " %}{% endfor %}{{ ns." + kept + " }}"
    )  # fmt: skip
    begun = time.monotonic()
    with pytest.raises(SpecdecError, match="failed"):
        written(tmp_path, source)
    assert time.monotonic() - begun < 9


def test_long_messages_pass_through_what_templates_do(tmp_path: Path) -> None:
    source = (
        "{% for m in messages %}{{ m.content.split('</think>')[-1].replace('x', 'yz') | trim }}"
        "{{ m.content | tojson | length }}{{ m.content.startswith(m.content) }}{{ '%s %s' | format(m.content, m.content) | length }}"
        "{{ m.content | replace('12', '3') | length }}{{ (m.content ~ m.content + '!') | length }}{% endfor %}"
    )
    text = "x 0123456789 " * 30_000
    said = written(tmp_path, source, [{"role": "user", "content": text}])
    assert said.startswith("yz 0123456789") and said.endswith(f"{2 * len(text) + 1}")


@pytest.mark.parametrize("name", FAILING)
def test_a_template_that_fails_is_one_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template, "SECONDS", 0.5)
    source, reason = FAILING[name]
    with pytest.raises(SpecdecError, match="the chat template of m failed") as caught:
        written(tmp_path / "m", source, [SYSTEM, *ASKED])
    assert reason in caught.value.why and "Said" not in caught.value.why


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    with pytest.raises(SpecdecError, match="no chat template"):
        render(open_model(write_model_folder(tmp_path)), ASKED)


def test_a_system_message_goes_to_the_user_where_the_template_refuses_it(tmp_path: Path) -> None:
    said = written(tmp_path, WITHOUT_SYSTEM, [SYSTEM, *ASKED, {"role": "assistant", "content": "a"}, *ASKED])
    assert said.count("Be brief.") == 1
    assert said.startswith("<|im_start|>user\nBe brief.\n\nhi<|im_end|>\n<|im_start|>model\na<|im_end|>\n")


def test_a_system_message_goes_to_the_user_where_the_template_drops_it(tmp_path: Path) -> None:
    assert written(tmp_path, DEAF_TO_SYSTEM, [SYSTEM, *ASKED]) == "Q: Be brief.\n\nhi\nA: "


def test_a_system_message_that_a_template_reads_in_its_own_way_stays(tmp_path: Path) -> None:
    source = "{% for m in messages %}{% if m.role == 'system' %}{{ m.content | upper }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    assert written(tmp_path, source, [SYSTEM, *ASKED]) == "BE BRIEF.hi"
    source = "{% for m in messages if m.content | trim %}[{{ m.content }}]{% endfor %}"
    assert written(tmp_path, source, [{"role": "system", "content": " "}, *ASKED]) == "[hi]"


def test_neighbours_of_one_role_are_joined_where_roles_have_to_take_turns(tmp_path: Path) -> None:
    talk = [SYSTEM, *ASKED, {"role": "user", "content": "are you there?"}]
    said = written(tmp_path, WITHOUT_SYSTEM, talk)
    assert said == "<|im_start|>user\nBe brief.\n\nhi\n\nare you there?<|im_end|>\n<|im_start|>model\n"


def test_what_cannot_be_put_right_is_refused_in_the_templates_words(tmp_path: Path) -> None:
    with pytest.raises(SpecdecError) as caught:
        written(tmp_path, WITHOUT_SYSTEM, [SYSTEM])
    assert caught.value.why == "no system role here"
    assert "alternat" not in str(caught.value)


def test_every_way_of_writing_a_prompt_sees_one_moment(tmp_path: Path) -> None:
    source = DEAF_TO_SYSTEM + "{{ strftime_now('%f') }}"
    assert written(tmp_path, source, [SYSTEM, *ASKED]).startswith("Q: Be brief.\n\nhi\nA: ")
