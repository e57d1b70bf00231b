"""Where each token came from, what to expect, how full the context is: all of it the server's own numbers."""

import json
import re

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from tests.web.chat_page import ChatPage
from tests.web.conftest import OpenPage
from tests.web.page_server import PageServer

pytestmark = pytest.mark.browser


def test_the_x_ray_says_where_each_token_came_from_and_why(chat: ChatPage) -> None:
    chat.ask("first")
    chat.ask("second")
    response = chat.messages()[-1]["responses"][0]
    xray, usage = response["xray"], response["usage"]
    chat.press("Where the prompt's tokens came from")
    panel = chat.answer.get_by_role("region", name="Where the prompt's tokens came from")
    for kind, bucket in (("gpu", "gpu_hit"), ("disk", "disk_hit"), ("computed", "computed")):
        expect(panel.locator(f"[data-source={kind}] strong")).to_have_text(f"{usage[bucket]:,}")
    assert xray["cause"] == "new_text"
    first = xray["first_computed"] + 1
    place = f"The first computed token is number {first:,} of {usage['prompt_tokens']:,}. It is new text."
    expect(panel.locator("[data-cause]")).to_contain_text(place)
    expect(panel.get_by_text("The reuse was predicted exactly.")).to_be_visible()
    row = panel.get_by_role("row", name="Reused tokens").get_by_role("cell")
    expect(row).to_have_text([f"{usage['gpu_hit']:,}"] * 2)
    chat.press("Where the prompt's tokens came from")
    expect(panel).to_have_count(0)
    chat.page.reload()
    chat.press("Where the prompt's tokens came from")
    expect(panel.locator("[data-cause]")).to_contain_text(place)


def test_an_edit_says_which_message_was_edited(chat: ChatPage) -> None:
    chat.ask("one")
    chat.ask("two")
    chat.composer.press("ArrowUp")
    chat.page.get_by_label("Edit your message").fill("three")
    chat.page.keyboard.press("Enter")
    chat.wait_ended()
    xray = chat.messages()[-1]["responses"][0]["xray"]
    chat.press("Where the prompt's tokens came from")
    if xray["cause"] == "edited":
        expect(chat.answer.locator("[data-cause]")).to_contain_text(f"It is message {xray['message'] + 1}.")
    expect(chat.answer.locator("[data-xray]")).to_have_attribute("data-xray", xray["cause"])


def test_what_to_expect_is_told_while_typing_and_comes_true(chat: ChatPage) -> None:
    chat.ask("first")
    expect(chat.page.get_by_role("list", name="What to expect")).to_have_count(0)
    chat.composer.press_sequentially("second", delay=5)
    expected = chat.page.get_by_role("list", name="What to expect")
    expect(expected).to_be_visible()
    prompt = expected.locator("[data-expected=prompt]")
    share = expected.locator("[data-expected=reuse]")
    expect(expected.locator("[data-expected=ttft]")).to_contain_text("to first token")
    expect(expected.locator("[data-expected=cost]")).to_contain_text("¥0.0")
    said, reused = prompt.inner_text(), share.inner_text()
    chat.send_button.click()
    expect(expected).to_have_count(0)
    chat.wait_ended()
    usage = chat.messages()[-1]["responses"][0]["usage"]
    assert said == f"{usage['prompt_tokens']} prompt"
    assert reused == f"{100 * usage['gpu_hit'] // usage['prompt_tokens']}% reused"


def test_one_question_a_pause_not_one_a_key(server: PageServer, open_page: OpenPage) -> None:
    asked: list[str] = []

    def before(page: Page) -> None:
        def connect(route: WebSocketRoute) -> None:
            upstream = route.connect_to_server()

            def forward(frame: str | bytes) -> None:
                event = json.loads(frame)
                if event["type"] == "cache.estimate":
                    asked.append(event["input"])
                upstream.send(frame)

            route.on_message(forward)

        page.route_web_socket("**/ws", connect)

    chat = open_page(server.url, before=before)
    expect(chat.page.get_by_label("Connected")).to_be_visible()
    chat.composer.press_sequentially("twelve words", delay=1)
    expect(chat.page.get_by_role("list", name="What to expect")).to_be_visible()
    assert asked[-1] == "twelve words"
    assert len(asked) < 6


def test_the_gauge_shows_the_context_and_warns_before_it_is_full(chat: ChatPage) -> None:
    gauge = chat.page.locator("[data-gauge]")
    expect(gauge).to_have_count(0)
    chat.ask("short")
    usage = chat.messages()[-1]["responses"][0]["usage"]
    expect(gauge).to_have_attribute("aria-label", f"{usage['total_tokens']} of 4,096 tokens of context")
    warning = chat.page.locator("[data-warning]")
    expect(warning).to_have_count(0)
    chat.composer.fill("x" * 3600)
    expect(warning).to_contain_text(re.compile(r"Only \d+ tokens are left for the answer"))
    chat.composer.fill("x" * 5000)
    expect(warning).to_contain_text("This no longer fits the model's context.")
    expect(gauge).to_have_attribute("data-gauge", "100")
    chat.composer.fill("")
    expect(warning).to_have_count(0)


def test_turns_that_would_be_left_out_are_announced(chat: ChatPage) -> None:
    chat.ask("a" * 1500)
    chat.page.evaluate("""name => localStorage.setItem(name, '{"truncation": "auto"}')""", "chatd:/:params")
    chat.page.reload()
    chat.composer.fill("b" * 1500)
    expect(chat.page.locator("[data-warning]")).to_contain_text("The oldest turn would be left out.")


def test_what_comes_back_from_disk_is_shown(server: PageServer, open_page: OpenPage) -> None:
    def before(page: Page) -> None:
        def connect(route: WebSocketRoute) -> None:
            upstream = route.connect_to_server()

            def forward(frame: str | bytes) -> None:
                event = json.loads(frame)
                if event["type"] == "response.prefill":  # as a server with a disk tier says it before
                    common = {"type": "response.restoring", "response_id": event["response_id"]}
                    route.send(json.dumps({**common, "done": 640, "total": 1280}))
                elif event["type"] not in ("response.queued", "response.output_text.delta"):
                    route.send(frame)

            upstream.on_message(forward)

        page.route_web_socket("**/ws", connect)

    chat = open_page(server.url, before=before)
    server.pace.allow(1)
    chat.send("from the disk")
    expect(chat.answer.get_by_text("Bringing 640 of 1,280 tokens back from disk")).to_be_visible()
    expect(chat.answer).to_have_attribute("data-state", "restoring")
    server.pace.free()
