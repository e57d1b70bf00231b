"""Chat templates: messages in, a prompt out that says which characters are the template's own."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from chatd.errors import InvalidRequest, TemplateError
from chatd.text.tokenizer import Span

FALLBACK_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""For a model without a template. Its control strings mean something to models trained on ChatML."""

_BASE_UNITS = 300_000
_UNITS_PER_MESSAGE = 2_000


class ChatMessage(NamedTuple):
    role: str
    text: str


class ChatTemplate:
    """A model's chat template, tried once in a child process and then rendered here within a budget.

    ``now`` is what a template's ``strftime_now`` reads.
    """

    def __init__(
        self, source: str, *, bos: str, eos: str, now: Callable[[], datetime] = datetime.now
    ) -> None:
        """Raises `TemplateError` for a template that is unsafe, too slow or broken; takes about 0.2 s."""
        from chatd.text.sandbox import Sandbox
        from chatd.text.template_vet import vet

        vet(source, bos=bos, eos=eos)
        self._sandbox = Sandbox(source, now=now)
        self._bos, self._eos = bos, eos

    def render(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool) -> list[Span]:
        """The prompt. What is not certainly the template's own is untrusted.

        Raises `InvalidRequest` if the template refuses these messages and `TemplateError` if it fails.
        """
        from chatd.text.sandbox import TemplateFailure, TemplateRefusal, render_variables

        units = _BASE_UNITS + _UNITS_PER_MESSAGE * len(messages) + sum(len(one.text) for one in messages)
        dicts = [{"role": one.role, "content": one.text} for one in messages]
        variables = render_variables(dicts, self._bos, self._eos, add_generation_prompt)
        try:
            return [Span(*part) for part in self._sandbox.render(variables, units)]
        except TemplateRefusal as refusal:
            raise InvalidRequest(f"the model's chat template refuses: {refusal}", param="messages") from None
        except TemplateFailure as failure:
            raise TemplateError(f"the model's chat template cannot render this: {failure}") from None
