"""The main job as a person meets it: `chatd serve`, SmolLM2, a browser; and a server that dies on the way."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from tests.web.conftest import OpenPage
from tests.web.serving import Serving

pytestmark = [pytest.mark.browser, pytest.mark.model, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[Serving]:
    server = Serving.of_model(tmp_path_factory.mktemp("data"), model_path)
    server.start()
    yield server
    server.end(signal.SIGTERM)


def greedy(page: Page) -> None:
    """Answers of this page are the most likely ones, and end soon."""

    def connect(route: WebSocketRoute) -> None:
        server = route.connect_to_server()

        def forward(frame: str | bytes) -> None:
            event = json.loads(frame)
            if event["type"] == "response.create":
                event["params"] = {"temperature": 0, "max_tokens": 48}
            server.send(json.dumps(event))

        route.on_message(forward)

    page.route_web_socket("**/ws", connect)


def test_a_second_turn_reuses_the_first(serving: Serving, open_page: OpenPage) -> None:
    chat = open_page(serving.url, before=greedy)
    chat.ask("What is the capital of France? Answer briefly.")
    expect(chat.answer_text).to_contain_text("Paris")
    first = chat.messages()[-1]["responses"][0]["usage"]
    chat.ask("And of Italy?")
    second = chat.messages()[-1]["responses"][0]["usage"]
    assert second["gpu_hit"] >= first["prompt_tokens"]
    assert chat.figure("reused").startswith(f"{second['gpu_hit']} reused")
    assert chat.figure("saved").startswith("saved ¥")


def test_a_server_killed_in_mid_stream_loses_nothing_that_was_shown(
    serving: Serving, open_page: OpenPage
) -> None:
    chat = open_page(serving.url)
    chat.send("Write a long story about a lighthouse keeper and his cat.")
    expect(chat.answer).to_have_attribute("data-state", "streaming")
    shown = chat.answer_text.inner_text()
    serving.end(signal.SIGKILL)
    expect(chat.trouble).to_contain_text("Reconnecting")
    shown = max(shown, chat.answer_text.inner_text(), key=len)
    chat.composer.fill("written while it was away")
    serving.start()
    chat.wait_ended("failed")
    assert chat.answer_text.inner_text().startswith(shown)
    expect(chat.trouble).to_have_count(0)
    chat.send_button.click()
    expect(chat.questions).to_have_count(2)
    expect(chat.answer).to_have_attribute("data-state", "streaming", timeout=60_000)  # it reads all again
    chat.stop_button.click()
    chat.wait_ended("cancelled")
