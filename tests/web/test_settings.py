"""Theme, language, system prompts, how answers are sampled, and the keys."""

import json
from typing import Any

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from tests.web.chat_page import ChatPage
from tests.web.conftest import OpenPage
from tests.web.page_server import PageServer

pytestmark = pytest.mark.browser

FIRST_PAINT = """
const seen = window.chatdSeen = [];
new MutationObserver(() => {
  if (document.body) seen.push(getComputedStyle(document.body).backgroundColor);
}).observe(document, { subtree: true, childList: true });
"""


def settings(chat: ChatPage) -> None:
    chat.page.get_by_role("button", name="Settings").click()
    expect(chat.page.get_by_role("dialog", name="Settings")).to_be_visible()


def background(chat: ChatPage) -> Any:
    return chat.page.evaluate("getComputedStyle(document.body).backgroundColor")


LIGHT, DARK = "rgb(255, 255, 255)", "rgb(23, 23, 22)"


def test_the_theme_is_chosen_and_never_flashes(server: PageServer, open_page: OpenPage) -> None:
    chat = open_page(server.url, color_scheme="light", before=lambda page: page.add_init_script(FIRST_PAINT))
    assert background(chat) == LIGHT
    settings(chat)
    chat.page.get_by_role("radio", name="Dark").check()
    assert background(chat) == DARK
    chat.page.reload()
    expect(chat.composer).to_be_visible()
    assert set(chat.page.evaluate("chatdSeen")) <= {DARK, "rgba(0, 0, 0, 0)"}
    settings(chat)
    chat.page.get_by_role("radio", name="As the system").check()
    assert background(chat) == LIGHT
    chat.page.emulate_media(color_scheme="dark")
    assert background(chat) == DARK


def test_the_language_is_the_browsers_until_one_is_chosen(server: PageServer, open_page: OpenPage) -> None:
    chat = open_page(server.url, locale="zh-CN")
    page = chat.page
    expect(page.get_by_label("消息", exact=True)).to_have_attribute("placeholder", "输入消息")
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
    page.get_by_role("button", name="设置").click()
    page.get_by_role("combobox", name="语言").select_option("English")
    expect(page.get_by_role("dialog", name="Settings")).to_be_visible()
    expect(page.locator("html")).to_have_attribute("lang", "en")
    page.reload()
    expect(chat.composer).to_have_attribute("placeholder", "Write a message")


def test_an_answer_in_chinese_is_figured_in_chinese(server: PageServer, open_page: OpenPage) -> None:
    chat = open_page(server.url, locale="zh-CN")
    chat.page.get_by_label("消息", exact=True).fill("你好")
    chat.page.keyboard.press("Enter")
    answer = chat.page.get_by_role("article", name="回答")
    expect(answer).to_have_attribute("data-state", "completed")
    expect(answer.get_by_role("list", name="本次回答的数据")).to_contain_text("提示")
    answer.get_by_role("button", name="提示词元的来源").click()
    expect(answer.locator("[data-cause]")).to_contain_text("首个重新计算的词元是第 1 个")


class Asked:
    """The params of each answer that was asked for."""

    def __init__(self) -> None:
        self.params: list[dict[str, Any]] = []

    def watch(self, page: Page) -> None:
        page.route_web_socket("**/ws", self._connect)

    def _connect(self, route: WebSocketRoute) -> None:
        upstream = route.connect_to_server()

        def forward(frame: str | bytes) -> None:
            event = json.loads(frame)
            if event["type"] == "response.create":
                self.params.append(event.get("params", {}))
            upstream.send(frame)

        route.on_message(forward)


def test_how_answers_are_sampled_is_kept_and_reset(server: PageServer, open_page: OpenPage) -> None:
    asked = Asked()
    chat = open_page(server.url, before=asked.watch)
    page = chat.page
    settings(chat)
    reset = page.get_by_role("button", name="Reset to the server's defaults")
    expect(reset).to_be_disabled()
    expect(page.get_by_label("Top p")).to_have_attribute("placeholder", "server's default: 1")
    expect(page.get_by_label("Temperature")).to_have_attribute("placeholder", "server's default: 1")
    page.get_by_label("Temperature").fill("0.25")
    page.get_by_label("Longest answer").fill("2.5")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Stop at").fill("END\n\nTHE END")
    page.get_by_label("Leave out the oldest turns").check()
    expect(page.get_by_text("A whole number.")).to_be_visible()
    expect(page.get_by_label("Longest answer")).to_have_attribute("aria-invalid", "true")
    page.keyboard.press("Escape")
    page.reload()
    chat.ask("with settings")
    params = {"temperature": 0.25, "seed": 7, "stop": ["END", "THE END"], "truncation": "auto"}
    settings(chat)
    expect(page.get_by_label("Temperature")).to_have_value("0.25")
    reset.click()
    expect(page.get_by_label("Temperature")).to_have_value("")
    page.get_by_role("button", name="Close", exact=True).click()
    chat.ask("without")
    assert asked.params == [params, {}]


def test_another_tab_shows_a_changed_system_prompt_at_once(chat: ChatPage, open_page: OpenPage) -> None:
    chat.ask("hello")
    other = open_page(chat.page.url, beside=chat)
    expect(other.answers).to_have_count(1)
    for told in ("Rhyme.", "Be brief."):
        settings(chat)
        chat.page.get_by_role("textbox", name="System prompt").fill(told)
        chat.page.get_by_role("button", name="Use from the next answer on").click()
        if told == "Rhyme.":
            other.page.get_by_text("System prompt").click()
        expect(other.page.get_by_text(told)).to_be_visible()


def test_a_system_prompt_begins_a_chat_and_is_changed_in_it(chat: ChatPage) -> None:
    """Warned that all is computed again, which the next answer's figures then say."""
    page = chat.page
    chat.composer.fill("already written")
    settings(chat)
    page.get_by_role("button", name="Concise").click()
    prompt = page.get_by_role("textbox", name="System prompt")
    expect(prompt).to_have_value("Answer in as few words as the question allows. No preamble, no summary.")
    expect(page.get_by_text("A change holds from the next answer on.")).to_have_count(0)
    page.get_by_role("button", name="Use this prompt").click()
    expect(page.get_by_text("System prompt")).to_be_visible()
    expect(chat.composer).to_have_value("already written")
    chat.send_button.click()
    chat.wait_ended()
    assert [message["role"] for message in chat.messages()] == ["system", "user", "assistant"]
    first = chat.conversation_id
    usage = chat.messages()[-1]["responses"][0]["usage"]
    settings(chat)
    prompt.fill("Rhyme.")
    warning = f"that answer reads all {usage['prompt_tokens'] + usage['output_tokens']} tokens again."
    expect(page.get_by_text(warning)).to_be_visible()
    page.get_by_role("button", name="Use from the next answer on").click()
    page.get_by_text("System prompt").click()
    expect(page.get_by_text("Rhyme.")).to_be_visible()
    chat.ask("and now")
    assert [message["role"] for message in chat.messages()] == ["system", *["user", "assistant"] * 2]
    assert chat.messages()[0]["text"] == "Rhyme."
    assert int(chat.figure("reused").split()[0]) <= len("|system\n")
    chat.press("Where the prompt's tokens came from")
    expect(chat.answer.locator("[data-cause]")).to_contain_text("the system prompt, was changed")
    assert chat.conversation_id == first
    settings(chat)
    prompt.fill("Answer at length.")
    page.get_by_role("button", name="New chat with this prompt").click()
    expect(chat.questions).to_have_count(0)
    page.get_by_text("System prompt").click()
    expect(page.get_by_text("Answer at length.")).to_be_visible()
    assert chat.conversation_id != first
    assert len(chat.api("conversations")["conversations"]) == 2


def test_changing_the_prompt_before_anything_was_said_leaves_no_empty_chat(chat: ChatPage) -> None:
    for name in ("Concise", "Tutor"):
        settings(chat)
        chat.page.get_by_role("button", name=name).click()
        chat.page.get_by_role("button", name="Use this prompt").click()
        expect(chat.page.get_by_text("System prompt")).to_be_visible()
    expect(chat.sidebar.get_by_role("listitem")).to_have_count(1)
    assert len(chat.api("conversations")["conversations"]) == 1


def test_presets_are_saved_and_deleted(chat: ChatPage) -> None:
    page = chat.page
    settings(chat)
    page.get_by_role("textbox", name="System prompt").fill("Speak like a pirate.")
    page.get_by_role("button", name="Save as a preset").click()
    page.get_by_label("Name of the preset").fill("Pirate")
    page.get_by_label("Name of the preset").press("Enter")
    page.reload()
    settings(chat)
    page.get_by_role("button", name="Pirate", exact=True).click()
    expect(page.get_by_role("textbox", name="System prompt")).to_have_value("Speak like a pirate.")
    page.get_by_role("button", name="Delete the preset “Pirate”").click()
    expect(page.get_by_role("button", name="Pirate", exact=True)).to_have_count(0)


def test_the_keys(server: PageServer, chat: ChatPage) -> None:
    page = chat.page
    chat.ask("first")
    first = chat.conversation_id
    chat.composer.press("ArrowUp")
    editor = page.get_by_label("Edit your message")
    expect(editor).to_be_focused()
    editor.fill("changed")
    editor.press("Enter")
    expect(chat.answer_text).to_have_text("You said: changed")
    chat.wait_ended()
    chat.composer.press("ArrowLeft")
    expect(chat.answer_text).to_have_text("You said: first")
    chat.composer.press("ArrowRight")
    expect(chat.answer_text).to_have_text("You said: changed")
    chat.composer.fill("words")
    chat.composer.press("ArrowLeft")  # moves within them
    expect(chat.answer_text).to_have_text("You said: changed")
    chat.composer.press("?")
    expect(chat.composer).to_have_value("word?s")
    chat.composer.fill("")

    page.keyboard.press("Control+Shift+O")
    expect(chat.questions).to_have_count(0)
    assert chat.conversation_id != first
    page.keyboard.press("Control+B")
    expect(chat.sidebar).not_to_be_visible()
    page.reload()
    expect(page.get_by_label("Connected")).to_be_visible()
    expect(chat.sidebar).not_to_be_visible()
    page.keyboard.press("Control+K")
    expect(page.get_by_role("combobox", name="Search in all chats")).to_be_focused()
    page.keyboard.type("nothing like it")
    expect(page.get_by_text("Nothing was found.")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Control+B")
    expect(chat.sidebar.get_by_role("listitem")).to_have_count(1)

    page.get_by_role("heading", level=1).click()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_escape_closes_a_dialog_and_does_not_stop_the_answer_behind_it(
    server: PageServer, chat: ChatPage
) -> None:
    server.pace.allow(3)
    chat.send("a long one")
    expect(chat.answer_text).to_have_text("You")
    settings(chat)
    chat.page.keyboard.press("Escape")
    expect(chat.page.get_by_role("dialog")).to_have_count(0)
    server.pace.free()
    chat.wait_ended()
    expect(chat.page.get_by_role("button", name="Settings")).to_be_focused()
