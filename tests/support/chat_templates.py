"""Chat templates written for the tests, with the constructs that published ones are made of."""

from dataclasses import dataclass

_TURNS = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\\n' + SAID + '<|im_end|>\\n' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def _turns(said: str) -> str:
    return _TURNS.replace("SAID", said)


@dataclass(frozen=True)
class Kind:
    """A template that writes the same control tokens whatever is said: `each` a message and `more` around them."""

    source: str
    each: int = 2
    more: int = 1


KINDS = {
    "as it is": Kind(_turns("message['content']")),
    "trimmed": Kind(_turns("message['content'] | trim")),
    "stripped and cased": Kind(_turns("message.content.strip('x \\n').upper() | lower")),
    "words removed": Kind(_turns("message.content.replace('/quiet', '') | replace('aa', '')")),
    "sliced": Kind(_turns("(message.content[:4] ~ message.content[4:][::-1][::-1])")),
    "split in two": Kind(
        _turns("(message.content.split('</think>')[-1].lstrip('\\n') + message.content.partition('x')[0])")
    ),
    "every character": Kind(_turns("(message.content | list | join)")),
    "joined": Kind(_turns("['', message.content, ''] | join('\\n')")),
    "formatted": Kind(_turns("'{}-{}'.format(message.role, message.content) + '(%s)' % message.content")),
    "lines apart": Kind(_turns("'\\n\\n\\n' + message.content")),
    "as JSON": Kind(_turns("(message | tojson) + (message.content | tojson(indent=2, ensure_ascii=True))")),
    "joined letters": Kind(_turns("message.content.split('x') | join('')")),
    "cut with the turn": Kind(
        "{%- macro turn(role, text) -%}{{- '<|im_start|>' ~ role ~ '\\n' -}}{%- generation -%}"
        "{{- text -}}{%- endgeneration -%}<|im_end|>\n{% endmacro -%}"
        "{%- set ns = namespace(all='') -%}"
        "{%- for message in messages -%}{%- set ns.all = ns.all + turn(message.role, message.content) -%}"
        "{%- endfor -%}{{- ns.all.split('\\n\\n') | join('\\n\\n') | trim -}}"
        "{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}"
    ),
    "asked about": Kind(
        "{{ bos_token }}{% for message in messages %}{% set text = message.content %}"
        "{% if '</think>' in text and text.startswith('<think>') %}{% set text = text.split('</think>')[1] %}{% endif %}"
        "{% if text == '<|im_end|>' %}{% continue %}{% endif %}"
        "{% if loop.index0 > 40 %}{% break %}{% endif %}"
        "{% set shown %}{{ text }}{% if text is string and text | length > 3 %}!{% endif %}{% endset %}"
        "<|im_start|>{{ message['role'] }}\n{{ shown }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        more=2,
    ),
    "other marks": Kind(
        "{% for message in messages %}{% if message['role'] == 'assistant' %}<｜Assistant｜>{{ message['content'] }}"
        "<|im_end|>{% else %}<｜User｜>{{ message.content | indent(2) }}{{ eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
    ),
}
"""By what they do with a message's content."""

WITHOUT_SYSTEM = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role here') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('the roles have to take turns') }}{% endif %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<|im_start|>' + role + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>model\\n' }}{% endif %}"
)

DEAF_TO_SYSTEM = (
    "{% for message in messages %}{% if message.role == 'user' %}Q: {{ message.content }}\n"
    "{% elif message.role == 'assistant' %}A: {{ message.content }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}A: {% endif %}"
)

RICH = {
    "tools and documents": (
        "{%- if tools is not none %}tools:{{ tools | tojson }}\n{% endif %}"
        "{%- if documents %}documents{% endif %}"
        "{%- if tools is defined and tools is none %}no tools, {% endif %}"
        "{%- if documents is defined and documents is none %}no documents, {% endif %}"
        "{%- if enable_thinking is defined and enable_thinking is false %}quiet{% endif %}"
        "{%- for m in messages %}[{{ m.role }}]{{ m.content }}\n{%- endfor %}"
        "{{- ' assistant' if add_generation_prompt else ' end' }}"
    ),
    "special tokens": (
        "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token }}|{{ bos_token is defined }}"
        "{{ eos_token is defined }}{{ unk_token is none }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    ),
    "date": "{{ strftime_now('%Y-%m') }}{% if strftime_now is defined %} known{% endif %}{{ messages[0].content }}",
    "json": (
        "{% for m in messages %}{{ m | tojson }} {{ m.content | tojson(indent=2) }} {{ {'b': 1, 'a': m.content} | tojson }}"
        "{{ {'b': 1, 'a': [m.role, none, 1.5, true]} | tojson(sort_keys=true, separators=(',', ':')) }}"
        "{{ m.content | tojson(ensure_ascii=true) }}{{ m.content | tojson(false, 1) }}{% endfor %}"
    ),
    "white space": (
        "\n{% for m in messages %}\n    {% if m.role == 'user' %}\n  U {{ m.content }}\n    {%- else -%}\n"
        "  {{- m.content -}}  \n    {% endif %}\n{% endfor %}\n\n{%+ if add_generation_prompt %} go {% endif +%}\n"
    ),
    "loops": (
        "{% set ns = namespace(last=-1, said=[]) %}{% for m in messages[::-1] %}{% if m.role == 'user' %}"
        "{% set ns.last = messages | length - 1 - loop.index0 %}{% break %}{% endif %}{% endfor %}{{ ns.last }}"
        "{% for m in messages if m.role != 'tool' %}{% if loop.index == 2 %}{% continue %}{% endif %}"
        "{{ loop.index }}/{{ loop.length }}{{ loop.previtem.role if loop.previtem is defined }}{{ m.content[:9] }}"
        "{{ '' if loop.last else ', ' }}{% else %}nobody{% endfor %}"
    ),
    "macros": (
        "{% macro shown(text, mark='*') %}{{ mark }}{{ text }}{{ mark }}{{ caller() if caller }}{% endmacro %}"
        "{% for m in messages %}{{ shown(m.content) }}{% call shown(m.content, mark='_') %}inside{% endcall %}{% endfor %}"
    ),
    "texts": (
        "{% for m in messages %}{{ m.content.split('\\n')[0].rstrip('.').title() }}{{ m.content | upper | replace('A', 'b') }}"
        "{{ m['content'][-3:] * 2 }}{{ m.content.startswith(('A', 'what')) }}{{ 'e' in m.content }}{{ m.content.find('e') }}"
        "{{ '%s:%5d' % (m.content, 7) }}{{ '{0:>8}|{x}'.format(m.role, x=m.content) }}{{ m.content.splitlines() }}"
        "{{ m.content | first }}{{ m.content | length }}{{ m.content.count('a') }}{{ m.content | wordwrap(5) }}"
        "{{ m.content | default('none', true) }}{{ m.content is mapping }}{{ m.content is iterable }}"
        "{{ (m.content | int) + 1 }}{{ m.content < 'b' }}{{ [m.content, 'z'] | sort | join('-') }}{{ m.content | indent }}"
        "{% endfor %}{{ messages | map(attribute='content') | join('~') }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
    ),
    "generation": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{% set x = m.content %}{{ x }}<|im_end|>\n"
        "{% endgeneration %}{% else %}{%- generation -%} {{ m.content }} {%- endgeneration -%}\n{% endif %}{% endfor %}{{ x }}"
    ),
}
"""Compared with transformers."""
