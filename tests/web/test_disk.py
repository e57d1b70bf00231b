"""After a restart the real disk tier has what was said: figures tell it, and what is open is warmed."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from tests.web.chat_page import ChatPage
from tests.web.conftest import OpenPage
from tests.web.serving import Serving

pytestmark = [pytest.mark.browser, pytest.mark.timeout(90)]

LONG = "a fact that is worth keeping, " * 12


class Hints:
    """The page's `conversation.warm`; they reach the server only if it is told to let them."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.pass_on = False

    def watch(self, page: Page) -> None:
        page.route_web_socket("**/ws", self._connect)

    def _connect(self, route: WebSocketRoute) -> None:
        upstream = route.connect_to_server()

        def forward(frame: str | bytes) -> None:
            event = json.loads(frame)
            if event["type"] == "conversation.warm":
                self.sent.append(event["conversation_id"])
                if not self.pass_on:
                    return
            upstream.send(frame)

        route.on_message(forward)


@pytest.fixture
def serving(data_dir: Path) -> Iterator[Serving]:
    server = Serving.of_toy(data_dir)
    server.start()
    yield server
    server.end(signal.SIGTERM)


def usage_of(chat: ChatPage) -> dict[str, Any]:
    usage: dict[str, Any] = chat.messages()[-1]["responses"][0]["usage"]
    return usage


def restored_bytes(chat: ChatPage) -> int:
    restored: int = chat.api("status")["engine"]["counters"]["restored_bytes"]
    return restored


def test_what_the_disk_kept_is_told_and_what_is_open_is_warmed(serving: Serving, open_page: OpenPage) -> None:
    hints = Hints()
    chat = open_page(serving.url, before=hints.watch)
    chat.ask(f"say:Warm. {LONG}")
    warmed = chat.conversation_id
    chat.page.goto(chat.url)
    chat.ask(f"say:Cold. {LONG}")
    cold = chat.conversation_id
    assert hints.sent == []
    serving.restart(signal.SIGTERM)
    expect(chat.trouble).to_have_count(0)
    expect(chat.page.get_by_label("Connected")).to_be_visible()
    chat.ask("say:And on.")
    usage = usage_of(chat)
    assert usage["gpu_hit"] == 0
    assert usage["disk_hit"] >= 256
    share = 100 * usage["disk_hit"] // usage["prompt_tokens"]
    assert chat.figure("reused") == f"{usage['disk_hit']} reused ({share}%)"
    bar = chat.answer.locator("li.prompt rect.disk")
    expect(bar).to_have_attribute("width", str(usage["disk_hit"]))
    chat.press("Where the prompt's tokens came from")
    expect(chat.answer.locator("[data-source=disk] strong")).to_have_text(f"{usage['disk_hit']}")

    hints.pass_on, restored = True, restored_bytes(chat)
    chat.page.goto(f"{chat.url}#/c/{warmed}")
    while restored_bytes(chat) == restored:  # the time-out is the limit
        pass
    expect(chat.answers).to_have_count(1)
    chat.composer.press_sequentially("say:On.")
    assert hints.sent == [cold, cold, warmed, warmed]  # each on show, and at the first key
    chat.send_button.click()
    expect(chat.answers).to_have_count(2)
    chat.wait_ended()
    usage = usage_of(chat)
    assert (usage["disk_hit"], usage["gpu_hit"] >= 256) == (0, True)
    expect(chat.answer.locator("li.prompt rect.gpu")).to_have_attribute("width", str(usage["gpu_hit"]))
