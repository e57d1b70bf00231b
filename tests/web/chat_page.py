"""The page as a test sees it, and the watch over what must never happen in it."""

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import ConsoleMessage, Dialog, Locator, Page, Request, expect

NETWORK_NOISE = ("Failed to load resource", "WebSocket connection to")
"""What the browser itself writes to the console when a connection is lost or a server is not ready."""


@dataclass
class Troubles:
    """Errors, policy violations, dialogs and requests to other hosts. `check` fails if there were any."""

    host: str
    found: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.found.append(f"error: {error}"))
        page.on("dialog", self._dialog)
        page.on("request", self._request)

    def check(self) -> None:
        assert self.found == []

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(NETWORK_NOISE):
            self.found.append(f"console: {message.text}")

    def _dialog(self, dialog: Dialog) -> None:
        self.found.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Request) -> None:
        if urlsplit(request.url).netloc != self.host:
            self.found.append(f"request: {request.url}")


class ChatPage:
    """What a person can see and do."""

    def __init__(self, page: Page, url: str, troubles: Troubles) -> None:
        self.page = page
        self.url = url
        self.troubles = troubles
        self.composer = page.get_by_label("Message", exact=True)
        self.send_button = page.get_by_role("button", name="Send", exact=True)
        self.stop_button = page.get_by_role("button", name="Stop", exact=True)
        self.answers = page.get_by_role("article", name="Answer", exact=True)
        self.questions = page.get_by_role("article", name="You", exact=True)
        self.sidebar = page.get_by_role("navigation", name="Conversations")
        self.status = page.get_by_role("status")
        self.trouble = page.locator("[data-trouble]")

    @property
    def answer(self) -> Locator:
        """The last one."""
        return self.answers.last

    @property
    def answer_text(self) -> Locator:
        return self.answer.locator(".prose")

    @property
    def conversation_id(self) -> str:
        return urlsplit(self.page.url).fragment.removeprefix("/c/")

    def send(self, text: str) -> None:
        self.composer.fill(text)
        self.send_button.click()

    def ask(self, text: str) -> None:
        """Send and wait for the ending."""
        before = self.answers.count()
        self.send(text)
        expect(self.answers).to_have_count(before + 1)
        self.wait_ended()

    def wait_ended(self, how: str = "completed") -> None:
        expect(self.answer).to_have_attribute("data-state", how)

    def press(self, name: str) -> None:
        """The button of the last answer with this name."""
        self.answer.get_by_role("button", name=name, exact=True).click()

    def figure(self, name: str, answer: Locator | None = None) -> str:
        return (answer or self.answer).locator(f"[data-figure={name}]").last.inner_text()

    def api(self, path: str) -> Any:
        """JSON of the native HTTP interface."""
        response = self.page.request.get(f"{self.url}api/v1/{path}")
        assert response.ok, response.text()
        return response.json()

    def messages(self) -> list[dict[str, Any]]:
        """This conversation's messages as the server has them."""
        found: list[dict[str, Any]] = self.api(f"conversations/{self.conversation_id}")["messages"]
        return found
