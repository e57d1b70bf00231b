"""Every view of the page, and how to get there: for screenshots and for the accessibility check."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Browser, FilePayload, Page, WebSocketRoute, expect

from chatd.server.state import LOCAL
from tests.web.history import fill_history
from tests.web.page_server import PageServer, replying

CONTEXT, PAGES = 16_384, 2048
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
DESKTOP = {"viewport": {"width": 1280, "height": 860}}

RICH = r"""## Where the time goes

A **KV cache** keeps what the model has already read. Without it, every turn reads the whole \
conversation again; with it, only *new* text is computed. The cost of a turn of $$n$$ tokens after \
\(m\) cached ones falls from \(O((n+m)^2)\) to

\[
T(n, m) = n \cdot c_{\text{linear}} + \sum_{i=1}^{n} (m + i) \cdot c_{\text{attention}}
\]

1. Look up the longest prefix that was computed before
   - in memory first,
   - then on disk, if loading is faster than computing
2. Compute the rest, ~~token by token~~ in chunks

| Tier | Tokens | Time to first token |
| :--- | ---: | ---: |
| Memory | 1,204 | 55 ms |
| Disk | 8,192 | 210 ms |
| Nothing | 0 | 1,499 ms |

```python
def longest_prefix(tree: RadixTree, ids: list[int]) -> int:
    '''How many of the ids were computed before.'''
    node, length = tree.root, 0
    while (child := node.children.get(ids[length])) is not None:
        length += len(child.ids)  # whole pages only
        node = child
    return length
```

> The cheapest token is the one that is never computed twice.

- [x] Reuse the prefix
- [ ] Press <kbd>Esc</kbd> to stop, see [the paper](https://papers.example/radix) for more
"""

RICH_ZH = r"""## 时间花在哪里

**KV 缓存**保存模型已经读过的内容。没有它，每一轮都要重新读取整个对话；有了它，只需计算*新*的文本。 \
在 \(m\) 个已缓存词元之后处理 \(n\) 个词元的代价为

$$
T(n, m) = n \cdot c + \sum_{i=1}^{n} (m + i) \cdot a
$$

1. 查找以前计算过的最长前缀
   - 先查内存，
   - 再查磁盘（若加载比计算更快）
2. 分块计算其余部分

| 层级 | 词元数 | 首个词元时间 |
| :--- | ---: | ---: |
| 内存 | 1,204 | 55 毫秒 |
| 磁盘 | 8,192 | 210 毫秒 |

```python
def longest_prefix(tree, ids):
    return tree.match(ids)  # 只匹配整页
```

> 最便宜的词元，是从不重复计算的那一个。
"""


@dataclass(frozen=True)
class Variant:
    """One way to see a view. ``options`` are the browser profile's."""

    name: str
    theme: str
    language: str
    is_phone: bool = False

    @property
    def options(self) -> dict[str, Any]:
        form = PHONE if self.is_phone else DESKTOP
        return {**form, "color_scheme": self.theme, "locale": self.language, "reduced_motion": "reduce"}

    @property
    def is_chinese(self) -> bool:
        return self.language == "zh-CN"


VARIANTS = [
    Variant("desktop-light", "light", "en"),
    Variant("desktop-dark", "dark", "en"),
    Variant("phone-light", "light", "en", is_phone=True),
    Variant("phone-dark", "dark", "en", is_phone=True),
    Variant("desktop-light-zh", "light", "zh-CN"),
    Variant("phone-dark-zh", "dark", "zh-CN", is_phone=True),
]

TITLES = {
    False: ["Planning the spring garden", "Regular expressions for dates", "A letter to the landlord"],
    True: ["春季花园规划", "用正则表达式匹配日期", "写给房东的一封信"],
}
QUESTIONS = {False: "How does a KV cache save time?", True: "KV 缓存如何节省时间？"}
FOLLOW_UPS = {
    False: "Why is the second turn cheaper than the first?",
    True: "为什么第二轮比第一轮便宜？",
}


SHARED = "Here is a long page of notes that several questions begin with. " * 12
QUESTIONS_OF_MANY = {
    False: [f"{SHARED}\n\nWhat is it about?", f"{SHARED}\n\nWho wrote it?", "Something else entirely?"],
    True: [f"{SHARED}\n\n这是关于什么的？", f"{SHARED}\n\n是谁写的？", "完全不同的问题？"],
}


class Visit:
    """A page in one variant, with a conversation behind it."""

    def __init__(self, server: PageServer, page: Page, variant: Variant) -> None:
        self.server, self.page, self.variant = server, page, variant
        self.composer = page.locator("#message")
        self.answer = page.locator("article.answer").last

    def open(self, route: str = "#/") -> None:
        self.page.goto("about:blank")
        self.page.goto(self.server.url + route)
        expect(self.page.locator(".dot.ready")).to_have_count(1)

    def ask(self, text: str) -> None:
        self.composer.fill(text)
        self.page.locator("form button[type=submit]").click()

    def wait_ended(self, how: str = "completed") -> None:
        expect(self.answer).to_have_attribute("data-state", how)

    def settle(self) -> None:
        """Until what is fetched late is shown too, and painted."""
        self.page.evaluate("document.fonts.ready")
        self.page.evaluate("Promise.all(document.getAnimations().map((one) => one.finished))")
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def press_in_sidebar(self, place: str) -> None:
        """A button at the foot of the list of conversations, which phones hide."""
        if self.variant.is_phone:
            self.page.locator("header .menu").click()
        self.page.locator(place).click()


View = Callable[[Visit], None]

ALL_ARRIVED = """() => {
  const figure = (name) => document.querySelector(`[data-figure=${name}]`)?.dataset.value;
  return figure("sent") > 0 && figure("sent") === figure("acknowledged");
}"""


def empty(visit: Visit) -> None:
    visit.open()


def conversation(visit: Visit) -> None:
    visit.open()
    visit.ask(QUESTIONS[visit.variant.is_chinese])
    visit.wait_ended()
    expect(visit.answer.locator(".katex").first).to_be_visible()
    expect(visit.answer.locator(".hljs-keyword").first).to_be_visible()


def figures(visit: Visit) -> None:
    """A second turn, its X-ray open."""
    conversation(visit)
    visit.ask(FOLLOW_UPS[visit.variant.is_chinese])
    visit.wait_ended()
    visit.answer.locator(".cover").click()
    expect(visit.answer.locator("[data-xray]")).to_be_visible()
    visit.page.wait_for_function(ALL_ARRIVED)
    visit.answer.locator("[data-xray]").scroll_into_view_if_needed()


def expectation(visit: Visit) -> None:
    conversation(visit)
    visit.page.locator("input[type=file]").set_input_files(
        FilePayload(name="notes.md", mimeType="text/markdown", buffer=b"# Notes\n\n" + b"- remember\n" * 40)
    )
    visit.composer.fill(FOLLOW_UPS[visit.variant.is_chinese])
    expect(visit.page.locator("[data-expected=ttft]")).to_be_visible()


def streaming(visit: Visit) -> None:
    visit.open()
    visit.server.pace.allow(420)
    visit.ask(QUESTIONS[visit.variant.is_chinese])
    expect(visit.answer).to_have_attribute("data-state", "streaming")
    expect(visit.answer.locator(".prose")).to_contain_text(re.compile("already|缓存"))


def stopped(visit: Visit) -> None:
    streaming(visit)
    visit.page.locator("form button.round").click()
    visit.server.wait_for_a_stop()
    visit.server.pace.free()
    visit.wait_ended("cancelled")


def waiting(visit: Visit) -> None:
    visit.open()
    visit.server.pace.allow(0)
    unread = f"{visit.variant.name} word " * 100  # by any earlier visit
    visit.ask(f"{QUESTIONS[visit.variant.is_chinese]} {unread}")
    expect(visit.answer.locator(".wait .bar")).to_be_visible()


def versions(visit: Visit) -> None:
    """A second answer, and the editor of the question open."""
    conversation(visit)
    visit.answer.locator(".actions button").last.click()
    expect(visit.answer.locator(".versions")).to_be_visible()
    visit.wait_ended()
    visit.composer.press("ArrowUp")
    expect(visit.page.locator("article textarea")).to_be_focused()


def sidebar(visit: Visit) -> None:
    visit.open()
    if visit.variant.is_phone:
        visit.page.locator("header .menu").click()
        expect(visit.page.locator("aside")).to_be_visible()
    else:
        visit.page.locator("aside .hide").click()
        expect(visit.page.locator("aside")).not_to_be_visible()


def settings(visit: Visit) -> None:
    visit.open()
    visit.press_in_sidebar("aside .foot button >> nth=0")
    expect(visit.page.locator("dialog")).to_be_visible()


def settings_below(visit: Visit) -> None:
    conversation(visit)
    visit.press_in_sidebar("aside .foot button >> nth=0")
    visit.page.locator("dialog .chip").nth(1).click()
    field = visit.page.locator("dialog input[type=number]").first
    field.fill("7")
    field.blur()
    visit.page.locator("dialog .warning").scroll_into_view_if_needed()
    field.scroll_into_view_if_needed()


def shortcuts(visit: Visit) -> None:
    visit.open()
    visit.press_in_sidebar("aside .foot button >> nth=1")
    expect(visit.page.locator("dialog dl")).to_be_visible()


def missing(visit: Visit) -> None:
    visit.open("#/c/nowhere")
    expect(visit.page.locator(".note")).to_be_visible()


def notices(visit: Visit) -> None:
    """One that can be undone and one of an error."""
    conversation(visit)
    visit.page.locator("input[type=file]").set_input_files(
        FilePayload(name="photo.png", mimeType="image/png", buffer=b"\x89PNG\r\n\x1a\n\x00\x00")
    )
    expect(visit.page.locator(".notice")).to_be_visible()


def full(visit: Visit) -> None:
    conversation(visit)
    visit.composer.fill("x" * 20_000)
    expect(visit.page.locator("[data-warning]")).to_be_visible()


def offline(visit: Visit) -> None:
    conversation(visit)
    visit.page.evaluate("navigator.serviceWorker.ready")
    visit.page.context.set_offline(True)
    visit.server.cut_connections()
    visit.page.reload()
    expect(visit.page.locator("[data-trouble=bad]")).to_be_visible()
    expect(visit.answer).to_be_visible()


def broken(visit: Visit) -> None:
    """The server failed while it was writing."""

    def connect(route: WebSocketRoute) -> None:
        upstream = route.connect_to_server()

        def forward(frame: str | bytes) -> None:
            event = json.loads(frame)
            if event["type"] == "response.completed":
                message = "the engine stopped while it was writing this answer"
                error = {"code": "engine_failure", "message": message, "retryable": True}
                event |= {"type": "response.failed", "finish_reason": "failed", "error": error}
            route.send(json.dumps(event))

        upstream.on_message(forward)

    visit.page.route_web_socket("**/ws", connect)
    visit.open()
    visit.ask(QUESTIONS[visit.variant.is_chinese])
    visit.wait_ended("failed")


def loading(visit: Visit) -> None:
    """The model is not there yet; a message waits for it."""
    ready = {"status": "loading", "progress": 0.43, "what": "layer 13 of 30"}
    visit.page.route("**/readyz", lambda route: route.fulfill(status=503, json=ready))
    visit.page.route_web_socket("**/ws", lambda _: None)
    visit.page.goto(visit.server.url)
    expect(visit.page.get_by_role("progressbar")).to_be_visible()
    visit.ask(QUESTIONS[visit.variant.is_chinese])
    expect(visit.answer.locator(".wait")).to_be_visible()


def login(visit: Visit) -> None:
    """With a key that was refused."""
    error = {"error": {"code": "unauthorized", "message": "a key is wanted", "retryable": False}}
    visit.page.route(
        re.compile("api/v1/(session|login)"), lambda route: route.fulfill(status=401, json=error)
    )
    visit.page.goto(visit.server.url)
    visit.page.locator("#key").fill("chatd-nonsense")
    visit.page.locator("form button").click()
    expect(visit.page.get_by_role("alert")).not_to_be_empty()


def search(visit: Visit) -> None:
    visit.open()
    visit.page.keyboard.press("Control+k")
    visit.page.get_by_role("combobox").fill("霜" if visit.variant.is_chinese else "frost")
    expect(visit.page.get_by_role("option").nth(1)).to_be_visible()
    expect(visit.page.locator("mark").first).to_be_visible()


def search_nothing(visit: Visit) -> None:
    visit.open()
    visit.page.keyboard.press("Control+k")
    visit.page.get_by_role("combobox").fill("zebra")
    expect(visit.page.locator("dialog [role=status]")).not_to_be_empty()


def history(visit: Visit) -> None:
    """The list with a pinned conversation, and one that the pointer is on."""
    visit.open()
    if visit.variant.is_phone:
        visit.page.locator("header .menu").click()
    row = visit.page.locator("aside li:has(a)").nth(3)
    row.hover()
    row.locator("button").first.click()
    expect(visit.page.locator("aside h2").first).to_have_text(re.compile("Pinned|置顶"))
    visit.page.locator("aside li:has(a)").nth(4).hover()


def settings_data(visit: Visit) -> None:
    conversation(visit)
    visit.press_in_sidebar("aside .foot button >> nth=0")
    visit.page.locator("dialog a[download]").last.scroll_into_view_if_needed()


def reports(visit: Visit) -> None:
    visit.open("#/reports")
    expect(visit.page.locator("figure canvas")).to_have_count(4)
    expect(visit.page.locator("tbody tr").first).to_be_visible()


def reports_below(visit: Visit) -> None:
    reports(visit)
    visit.page.locator("tbody tr").nth(3).scroll_into_view_if_needed()
    visit.page.locator(".page").evaluate("page => page.scrollBy(0, 400)")


def reports_what_if(visit: Visit) -> None:
    reports(visit)
    visit.page.locator("summary").click()
    visit.page.locator("input[type=range]").first.fill("3")
    expect(visit.page.locator("[data-card=cost]")).to_contain_text(re.compile("billed|计费"))


def cache(visit: Visit) -> None:
    """Two chats with one prompt, and one by itself."""
    visit.open()
    for text in QUESTIONS_OF_MANY[visit.variant.is_chinese]:
        visit.open()
        visit.ask(text)
        visit.wait_ended()
    visit.open("#/cache")
    expect(visit.page.locator("[data-stretch]").first).to_be_visible()
    expect(visit.page.locator("figure canvas")).to_be_visible()


def cache_below(visit: Visit) -> None:
    cache(visit)
    visit.page.locator("[data-chat] .icon-button").first.click()
    expect(visit.page.locator(".pins li").first).to_be_visible()
    visit.page.locator(".head .button").click()
    visit.page.locator(".pins").scroll_into_view_if_needed()


VIEWS: dict[str, View] = {
    view.__name__: view
    for view in (
        *(empty, conversation, figures, expectation, streaming, stopped, waiting, versions),
        *(sidebar, settings, settings_below, shortcuts, missing, notices, full, offline),
        *(broken, loading, login),
        *(search, search_nothing, history, settings_data, reports, reports_below, reports_what_if),
        *(cache, cache_below),
    )
}


RICH, RICH_ZH = RICH.replace(" \\\n", " "), RICH_ZH.replace(" \\\n", "")


def reply(question: str) -> str:
    return RICH_ZH if any("\u4e00" <= letter <= "\u9fff" for letter in question) else RICH


WITH_HISTORY = ("search", "search_nothing", "history", "reports", "reports_below", "reports_what_if")
"""Views that need weeks of use."""


def rich_server(data_dir: Any, view: str = "", variant: Variant = VARIANTS[0]) -> PageServer:
    """One that has something to show."""
    if view in WITH_HISTORY:
        fill_history(data_dir, chinese=variant.is_chinese)
    return PageServer(data_dir, replying(reply, PAGES), context_length=CONTEXT)


def prepare(server: PageServer, languages: Sequence[bool] = (False, True)) -> None:
    """Conversations for the list; in Chinese for True."""
    for title in [title for is_chinese in languages for title in TITLES[is_chinese]]:
        server.wait_for(server.lab.store.create_conversation(LOCAL, title, ""))


def visit_in(browser: Browser, server: PageServer, variant: Variant) -> Visit:
    page = browser.new_context(**variant.options).new_page()
    return Visit(server, page, variant)
