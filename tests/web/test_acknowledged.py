"""The page tells the server what it has painted, and the ledger keeps that beside what was sent."""

import time
from typing import Any

from playwright.sync_api import expect

from tests.web.chat_page import ChatPage
from tests.web.page_server import PATIENCE_S


def test_a_painted_answer_is_acknowledged_whole(chat: ChatPage) -> None:
    chat.ask("hello")
    ((response_id, output_tokens),) = (
        (one["response_id"], one["usage"]["output_tokens"])
        for message in chat.messages()
        for one in message["responses"]
    )
    chat.press("Where the prompt's tokens came from")
    deadline = time.monotonic() + PATIENCE_S
    seen: dict[str, Any] = {}
    while seen.get("acknowledged_tokens") != output_tokens:
        assert time.monotonic() < deadline, seen
        chat.page.wait_for_timeout(50)
        seen = chat.api(f"responses/{response_id}")
    assert seen["sent_tokens"] == output_tokens > 0
    for name in ("sent", "acknowledged"):
        figure = chat.answer.locator(f"[data-xray] [data-figure={name}]")
        expect(figure).to_have_attribute("data-value", str(output_tokens))
