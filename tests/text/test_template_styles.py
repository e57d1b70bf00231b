"""The idioms of real templates render as in plain Jinja, and only what they wrote is trusted."""

import json
from typing import Any

import pytest
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from chatd.text.chat_template import ChatMessage, ChatTemplate

STYLES = {
    "headers, date, trim": """
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif message.tool_calls | length != 1 %}
        {{- raise_exception("one tool call at a time") }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}""",
    "last query, reasoning": """
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string
           and not message.content.startswith('<tool>') %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n') %}
            {%- set reasoning = reasoning.split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or reasoning) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') }}
            {{- '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}""",
    "instructions in brackets": """
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if message == user_messages[-1] and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- endif %}
{%- endfor %}""",
    "macros and joins": """
{%- macro show(content) -%}
    {%- if content is string -%}{{ content }}
    {%- elif content is mapping -%}{{ content | tojson }}{%- endif -%}
{%- endmacro -%}
{%- set names = {'user': 'Human', 'assistant': 'Bot'} -%}
{%- for m in messages if m.role != 'system' -%}
<|{{ names.get(m.role, m.role | capitalize) }}|>{{ show(m.content) | trim }}
{{- ['<', loop.index | string, '/', loop.length, '>'] | join }}
{%- if loop.last %}!{% endif %}
{% endfor %}
{%- set parts = messages | map(attribute='role') | unique | join(', ') %}{{ parts }}{{ m is defined }}
{%- for key, value in {'b': 1, 'a': 2} | dictsort %}{{ key ~ value }}{% endfor %}""",
}
THOUGHT = "<think>\nhm\n</think>\n\nHello "
TALKS = (
    [("user", "Hi")],
    [("system", " Be <brief>. "), ("user", "Hi\n"), ("assistant", THOUGHT), ("user", "<|eot_id|>")],
    [("user", "a"), ("assistant", "b"), ("user", "  c  "), ("assistant", "<think>x</think>y")],
)


def plainly(source: str, messages: list[ChatMessage]) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.add_extension(loopcontrols)
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    variables: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True}
    dicts = [{"role": one.role, "content": one.text} for one in messages]
    return environment.from_string(source).render(messages=dicts, tools=None, documents=None, **variables)


WRITTEN = {
    "headers, date, trim": "<|eot_id|>",
    "last query, reasoning": "<|im_end|>",
    "instructions in brackets": "[INST]",
    "macros and joins": "<|Human|>",
}


@pytest.mark.parametrize("style", STYLES)
def test_as_plain_jinja_with_only_content_untrusted(style: str) -> None:
    template = ChatTemplate(STYLES[style], bos="<s>", eos="</s>")
    for talk in TALKS:
        messages = [ChatMessage(role, text) for role, text in talk]
        spans = template.render(messages, add_generation_prompt=True)
        text = "".join(span.text for span in spans)
        assert text == plainly(STYLES[style], messages)
        trusted = "".join(span.text for span in spans if span.trusted)
        assert not any(word in trusted for word in ("brief", "Hello", "Hi", "hm"))
        in_content = sum(content.count(WRITTEN[style]) for _, content in talk)
        assert trusted.count(WRITTEN[style]) == text.count(WRITTEN[style]) - in_content > 0
