"""Send, stream, stop, continue, regenerate, edit: the main paths, and the figures under each answer."""

import pytest
from playwright.sync_api import expect

from chatd.ids import ConversationId
from chatd.server.state import LOCAL
from tests.web.chat_page import ChatPage
from tests.web.page_server import PageServer

pytestmark = pytest.mark.browser


def test_an_answer_streams_in_and_ends_with_its_figures(server: PageServer, chat: ChatPage) -> None:
    server.pace.allow(8)
    chat.send("hello there")
    expect(chat.answer_text).to_have_text("You said")
    expect(chat.answer).to_have_attribute("data-state", "streaming")
    expect(chat.status).to_have_text("The answer has started.")
    server.pace.free()
    chat.wait_ended()
    expect(chat.answer_text).to_have_text("You said: hello there")
    expect(chat.status).to_have_text("The answer is complete.")
    expect(chat.sidebar.get_by_role("link", name="hello there")).to_have_attribute("aria-current", "page")
    assert chat.page.title() == "hello there · chatd"


def test_the_figures_are_the_servers(chat: ChatPage) -> None:
    chat.ask("first")
    chat.ask("second")
    usage = chat.messages()[-1]["responses"][0]["usage"]
    reused = usage["gpu_hit"]
    assert reused > 0
    assert chat.figure("prompt") == f"{usage['prompt_tokens']} prompt"
    assert chat.figure("reused") == f"{reused} reused ({100 * reused // usage['prompt_tokens']}%)"
    assert chat.figure("output") == f"{usage['output_tokens']} out"
    assert chat.figure("ttft").endswith("to first token")
    assert chat.figure("rate").endswith("tok/s")
    assert chat.figure("cost").startswith("¥0.0")
    assert chat.figure("saved").startswith("saved ¥0.0")
    assert chat.figure("reused", chat.answers.first) == "0 reused (0%)"


@pytest.mark.parametrize("by", ["button", "key"])
def test_stop_and_continue(server: PageServer, chat: ChatPage, by: str) -> None:
    server.pace.allow(6)
    chat.send("a long story")
    expect(chat.answer_text).to_have_text("You sa")
    if by == "button":
        chat.stop_button.click()
    else:
        chat.page.keyboard.press("Escape")
    expect(chat.answer.get_by_text("Stopping")).to_be_visible()
    server.wait_for_a_stop()
    server.pace.free()
    chat.wait_ended("cancelled")
    expect(chat.answer.get_by_text("Stopped.")).to_be_visible()
    expect(chat.answer_text).not_to_have_text("You said: a long story")
    chat.press("Continue")
    chat.wait_ended()
    expect(chat.answer_text).to_have_text("You said: a long story")
    assert len(chat.messages()) == 2
    expect(chat.answer.get_by_role("list", name="Figures of this answer")).to_have_count(2)


def test_regenerate_makes_a_version(chat: ChatPage) -> None:
    chat.ask("again and again")
    chat.press("Answer again")
    expect(chat.answer.get_by_label("Version 2 of 2")).to_be_visible()
    chat.wait_ended()
    chat.press("Previous version")
    expect(chat.answer.get_by_label("Version 1 of 2")).to_be_visible()
    expect(chat.status).to_have_text("Showing version 1 of 2.")
    assert [message["role"] for message in chat.messages()] == ["user", "assistant", "assistant"]


def test_the_chosen_version_is_shown_after_a_reload_and_gone_on_from(chat: ChatPage) -> None:
    chat.ask("first")
    chat.press("Answer again")
    expect(chat.answer.get_by_label("Version 2 of 2")).to_be_visible()
    chat.wait_ended()
    chat.press("Previous version")
    chat.page.reload()
    expect(chat.answer.get_by_label("Version 1 of 2")).to_be_visible()
    chat.ask("second")
    chat.page.reload()
    expect(chat.answer_text).to_have_text("You said: second")
    expect(chat.answers.first.get_by_label("Version 1 of 2")).to_be_visible()
    messages = chat.messages()
    assert messages[3]["parent_id"] == messages[1]["id"]


def test_an_edit_that_is_refused_comes_back_to_its_editor(chat: ChatPage) -> None:
    chat.ask("short")
    chat.ask("line\n\n" * 30 + "end")  # the question is far above the end
    chat.composer.fill("meanwhile")
    chat.questions.first.hover()
    chat.questions.first.get_by_role("button", name="Edit", exact=True).click()
    editor = chat.page.get_by_label("Edit your message")
    editor.fill("far too long " * 400)
    chat.page.keyboard.press("Enter")
    expect(chat.page.get_by_text("tokens", exact=False).first).to_be_visible()
    expect(editor).to_have_value("far too long " * 400)
    expect(editor).to_be_in_viewport()
    expect(chat.composer).to_have_value("meanwhile")
    editor.press("Escape")
    expect(chat.answers.first.locator(".prose")).to_have_text("You said: short")
    assert len(chat.messages()) == 4


def test_an_edit_makes_a_branch_and_both_stay(chat: ChatPage) -> None:
    chat.ask("what is one")
    chat.ask("and two")
    first = chat.questions.first
    first.hover()
    first.get_by_role("button", name="Edit", exact=True).click()
    chat.page.get_by_label("Edit your message").fill("what is ten")
    chat.page.keyboard.press("Enter")
    expect(chat.answers).to_have_count(1)
    expect(chat.answer_text).to_have_text("You said: what is ten")
    chat.wait_ended()
    chat.ask("and eleven")

    first.get_by_role("button", name="Previous version").click()
    expect(chat.questions).to_have_count(2)
    expect(chat.answer_text).to_have_text("You said: and two")
    first.get_by_role("button", name="Next version").click()
    expect(chat.answer_text).to_have_text("You said: and eleven")


def test_a_cancelled_edit_changes_nothing(chat: ChatPage) -> None:
    chat.ask("stay")
    chat.questions.last.hover()
    chat.questions.last.get_by_role("button", name="Edit", exact=True).click()
    chat.page.get_by_label("Edit your message").fill("go")
    chat.page.keyboard.press("Escape")
    expect(chat.questions.last).to_contain_text("stay")
    assert len(chat.messages()) == 2


def test_two_conversations_generate_at_once(server: PageServer, chat: ChatPage) -> None:
    server.pace.allow(3)
    chat.send("number one")
    expect(chat.answer_text).to_have_text("You")
    chat.sidebar.get_by_role("link", name="New chat").click()
    chat.send("number two")
    expect(chat.sidebar.get_by_role("img", name="Answering")).to_have_count(2)
    server.pace.free()
    expect(chat.answer_text).to_have_text("You said: number two")
    expect(chat.sidebar.get_by_role("img", name="Answering")).to_have_count(0)
    chat.sidebar.get_by_role("link", name="number one").click()
    expect(chat.answer_text).to_have_text("You said: number one")


def test_a_request_that_is_refused_comes_back_to_the_composer(chat: ChatPage) -> None:
    chat.ask("short")
    chat.send("far too long " * 400)
    expect(chat.page.get_by_text("tokens", exact=False).first).to_be_visible()
    expect(chat.composer).to_have_value("far too long " * 400)
    expect(chat.questions).to_have_count(1)
    assert len(chat.messages()) == 2


def test_an_answer_says_how_many_turns_the_model_did_not_see(server: PageServer, chat: ChatPage) -> None:
    chat.ask("first " + "x" * 1500)
    note = chat.answer.locator("[data-note=dropped]")
    expect(note).to_have_count(0)
    at = ConversationId(chat.conversation_id)
    params = {"truncation": "auto"}
    server.wait_for(server.lab.ask("y" * 1500, ns=LOCAL, conversation_id=at, params=params))
    expect(chat.answers).to_have_count(2)
    expect(note).to_contain_text("The oldest turn of this conversation no longer fit")
