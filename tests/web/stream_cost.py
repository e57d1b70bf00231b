"""What a long stream costs the browser: ``python -m tests.web.stream_cost`` prints it for 10,000 tokens.

Script time is Chromium's own count (ScriptDuration of its performance metrics). From a delta's arrival to
its paint is taken within the page: from the WebSocket's message to the first task after the frame.
"""

import asyncio
import gzip
import json
import re
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, CDPSession, Page, expect, sync_playwright

from chatd.resources import web_dir
from tests.support.chat_lab import until
from tests.web.conftest import CHROMIUM, first_load
from tests.web.page_server import PageServer, replying

TOKENS, TOKENS_PER_S, CHARS_PER_TOKEN = 10_000, 100, 4

SECTION = """### Part {n}

Paragraph {n} has **strong words**, `code`, a [link](https://docs.example/{n}) and *emphasis*, and goes on for
two lines so that it is as long as paragraphs are.

- item one of list {n}
- item two, with \\(x_{n}^2\\)
  - an inner item
- item three

```python
def part_{n}(values: list[int]) -> int:
    return sum(value * {n} for value in values)  # {n}
```

| column | value |
| --- | ---: |
| part | {n} |
| next | {m} |

"""

ASKED, BEGUN = re.compile("sent|queued|prefill"), "streaming"
UNTIL_ENDED = """new Promise((done) => {
    const answer = document.querySelector("article.answer");
    const look = () => answer.dataset.state === "incomplete" && done();
    new MutationObserver(look).observe(answer, { attributes: true });
    look();
})"""
"""What a test usually waits with looks at the whole page ten times a second: that would be measured too."""

WATCH = """
window.chatdLongTasks = [];
window.chatdDelays = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.chatdLongTasks.push(entry.duration);
}).observe({ type: "longtask", buffered: true });
const Native = window.WebSocket;
window.WebSocket = class extends Native {
  constructor(...given) {
    super(...given);
    this.addEventListener("message", ({ data }) => {
      if (!data.includes("output_text.delta")) return;
      const arrived = performance.now();
      requestAnimationFrame(() => {
        const { port1, port2 } = new MessageChannel();
        port1.onmessage = () => window.chatdDelays.push(performance.now() - arrived);
        port2.postMessage(0);
      });
    });
  }
};
"""


@dataclass(frozen=True)
class Cost:
    """Of the stretch that was measured. Shares are of one core."""

    tokens: int
    seconds: float
    script_share: float
    layout_share: float
    all_tasks_share: float
    longest_task_ms: float
    deltas: int
    delta_to_paint_p50_ms: float
    delta_to_paint_p95_ms: float
    first_load_gzip_bytes: int


def long_text(chars: int) -> str:
    """Markdown of all kinds, exactly so long."""
    parts = (SECTION.format(n=n, m=n + 1) for n in range(1, chars // 200))
    return "".join(parts)[:chars]


def measure(browser: Browser, data_dir: Path, *, paced_tokens: int) -> Cost:
    """The last ``paced_tokens`` of the answer come at their pace, all before them at once."""
    data_dir.mkdir(exist_ok=True)
    text = long_text(TOKENS * CHARS_PER_TOKEN)
    tokens = [text[at : at + CHARS_PER_TOKEN] for at in range(0, len(text), CHARS_PER_TOKEN)]
    at_once, paced = tokens[:-paced_tokens], tokens[-paced_tokens:]
    with PageServer(data_dir, replying(str), by_hand=True) as server:
        page = browser.new_context(viewport={"width": 1280, "height": 860}).new_page()
        page.add_init_script(WATCH)
        page.goto(server.url)
        page.locator("#message").fill("Write a long text.")
        page.locator("form button[type=submit]").click()
        answer = page.locator("article.answer")
        server.wait_for(_say_at_once(server, at_once))
        expect(answer).to_have_attribute("data-state", BEGUN if at_once else ASKED)
        _wait_still(page)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        before = _metrics(session)
        began = time.monotonic()
        page.evaluate("window.chatdDelays.length = window.chatdLongTasks.length = 0")
        server.wait_for(_say_paced(server, paced), 60 + 2 * paced_tokens / TOKENS_PER_S)
        page.evaluate(UNTIL_ENDED)
        seconds = time.monotonic() - began
        after = _metrics(session)
        seen: dict[str, Any] = page.evaluate("({long: chatdLongTasks, delays: chatdDelays})")
        shown = answer.locator(".prose").evaluate("element => element.textContent")
        page.context.close()
    assert f"part_{text.count('### Part') - 1}" in shown
    return _cost(paced_tokens, seconds, before, after, seen)


async def _say_at_once(server: PageServer, tokens: list[str]) -> None:
    hand = server.lab.hand
    await until(lambda: bool(hand.submitted))
    hand.say(next(iter(hand.submitted)), *tokens)


async def _say_paced(server: PageServer, tokens: list[str]) -> None:
    hand, loop = server.lab.hand, asyncio.get_running_loop()
    rid = next(iter(hand.submitted))
    due = loop.time()
    for token in tokens:
        due += 1 / TOKENS_PER_S
        await asyncio.sleep(max(0.0, due - loop.time()))
        hand.say(rid, token)
    hand.finish(rid)


def _wait_still(page: Page) -> None:
    """Until what came at once is shown whole, colours and formulas too: nothing changes for half a second."""
    page.evaluate(
        """new Promise((done) => {
            let timer = setTimeout(done, 500);
            new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(done, 500); })
                .observe(document.body, { subtree: true, childList: true, characterData: true });
        })"""
    )


def _metrics(session: CDPSession) -> dict[str, float]:
    found = session.send("Performance.getMetrics")["metrics"]
    return {metric["name"]: metric["value"] for metric in found}


def _cost(
    tokens: int, seconds: float, before: dict[str, float], after: dict[str, float], seen: dict[str, Any]
) -> Cost:
    def share(*names: str) -> float:
        return round(sum(after[name] - before[name] for name in names) / seconds, 4)

    delays = sorted(seen["delays"])
    return Cost(
        tokens=tokens,
        seconds=round(seconds, 2),
        script_share=share("ScriptDuration"),
        layout_share=share("LayoutDuration", "RecalcStyleDuration"),
        all_tasks_share=share("TaskDuration"),
        longest_task_ms=max([0.0, *seen["long"]]),
        deltas=len(delays),
        delta_to_paint_p50_ms=round(delays[len(delays) // 2], 1),
        delta_to_paint_p95_ms=round(delays[len(delays) * 95 // 100], 1),
        first_load_gzip_bytes=sum(len(gzip.compress(path.read_bytes(), 9)) for path in first_load(web_dir())),
    )


def main(paced_tokens: int) -> None:
    program = next(filter(None, map(shutil.which, CHROMIUM)))
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as data:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        print(json.dumps(asdict(measure(browser, Path(data), paced_tokens=paced_tokens)), indent=2))
        browser.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TOKENS)
