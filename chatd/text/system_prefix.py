"""The ids that every conversation with one system prompt begins with."""

from itertools import takewhile

from chatd.text.chat_template import ChatMessage, ChatTemplate
from chatd.text.tokenizer import Tokenizer


def system_prefix(system: str, tokenizer: Tokenizer, template: ChatTemplate) -> list[int]:
    """What the prompts of two different first messages have in common."""

    def ids(first: str) -> list[int]:
        messages = [ChatMessage("system", system), ChatMessage("user", first)]
        return tokenizer.encode_prompt(template.render(messages, add_generation_prompt=True))

    one, other = ids("1"), ids("?")
    common = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return [mine for mine, _ in common]
