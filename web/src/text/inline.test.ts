import { describe, expect, it } from "vitest";
import { parseInline, type Inline } from "./inline";
import { yards } from "./yardstick";

/** Nodes as a person might write them down. */
function shown(inline: readonly Inline[]): string {
  return inline
    .map((span) => {
      if (span.kind === "text") return span.text;
      if (span.kind === "code") return `<code ${span.text}>`;
      if (span.kind === "math") return `<${span.display ? "display" : "math"} ${span.tex}>`;
      if (span.kind === "tag") return `<${span.tag}: ${shown(span.inline)}>`;
      if (span.kind === "reference") return `${span.open}{${span.key}} ${shown(span.inline)}${span.close}`;
      if (span.kind !== "link") return `<${span.kind} ${shown(span.inline)}>`;
      return `<${span.href} ${shown(span.inline)}${span.beside && ` (${span.beside})`}>`;
    })
    .join("");
}

const parsed = (source: string): string => shown(parseInline(source));

describe("marks", () => {
  it.each([
    ["a `b` **c** `d **e", "a <code b> <strong c> `d **e"],
    ["*a* _b_ __c__", "<emphasis a> <emphasis b> <strong c>"],
    ["***both*** and **a *b***", "<strong <emphasis both>> and <strong a <emphasis b>>"],
    ["*a **b** c*", "<emphasis a <strong b> c>"],
    ["**S**mart, **强调：**后文", "<strong S>mart, <strong 强调：>后文"],
    ["2*3*4, 2**3**4, snake_case_name, a * b * c, ** d **", "2*3*4, 2**3**4, snake_case_name, a * b * c, ** d **"],
    ["**never closed, **closed**", "**never closed, <strong closed>"],
    ["*a **b* c**", "<emphasis a **b> c**"],
    ["``a ` b`` and ```never", "<code a ` b> and ```never"],
    ["`**a**` ` ``x`` `", "<code **a**> <code ``x``>"],
    ["\\*a\\* \\`b\\` \\# \\n C:\\dir", "*a* `b` # \\n C:\\dir"],
    ["~~a **b**~~ ~c~ ~~~d~~~ ~~e", "<deleted a <strong b>> ~c~ ~~~d~~~ ~~e"],
    ["不~~要~~吧", "不<deleted 要>吧"],
    ["****", "****"],
  ])("%s", (source, expected) => expect(parsed(source)).toBe(expected));
});

describe("math", () => {
  it.each([
    ["\\(a_b*c\\) and *d*", "<math a_b*c> and <emphasis d>"],
    ["$$x$$, \\[ y \\]", "<math x>, <display y>"],
    ["*a \\(b*c\\) d*", "<emphasis a <math b*c> d>"],
    ["$5 and $6, \\(never, $$never", "$5 and $6, \\(never, $$never"],
    ["\\[x](https://a.example)", "[x](<https://a.example/ https://a.example>)"],
    ["`$$a$$` \\(\\)", "<code $$a$$> \\(\\)"],
  ])("%s", (source, expected) => expect(parsed(source)).toBe(expected));
});

describe("elements and character references", () => {
  it.each([
    ["H<sub>2</sub>O, x<SUP>**2**</SUP>", "H<sub: 2>O, x<sup: <strong 2>>"],
    ["a<br>b<br/>c<BR />d", "a\nb\nc\nd"],
    ["<kbd>Ctrl</kbd>+<kbd>C", "<kbd: Ctrl>+<kbd>C"],
    ["<sub onclick=x>a</sub> </sup> <sub", "<sub onclick=x>a</sub> </sup> <sub"],
    ["a &lt;b&gt; &amp;amp; &#42;c&#x2a; &nope; `&lt;`", "a <b> &amp; *c* &nope; <code &lt;>"],
    ["&#0;&#xd800;&#x110000;", "\ufffd\ufffd\ufffd"],
  ])("%s", (source, expected) => expect(parsed(source)).toBe(expected));
});

describe("links", () => {
  it.each([
    ["[docs](https://a.example/b)", "<https://a.example/b docs (a.example)>"],
    ["[**bold** `c`](http://a.example)", "<http://a.example/ <strong bold> <code c> (a.example)>"],
    ["**[a](https://a.example)**", "<strong <https://a.example/ a (a.example)>>"],
    ["[mail](mailto:me@a.example)", "<mailto:me@a.example mail (me@a.example)>"],
    ["[wiki](https://a.example/B_(c) \"title\")", "<https://a.example/B_(c) wiki (a.example)>"],
    ["see https://a.example/x_y_z.", "see <https://a.example/x_y_z https://a.example/x_y_z>."],
    ["(**https://a.example**)", "(<strong <https://a.example/ https://a.example>>)"],
    ["<https://a.example>，https://a.example。后", "<https://a.example/ https://a.example>，<https://a.example/ https://a.example>。后"],
    ["![alt](https://a.example/pixel.gif)", "<https://a.example/pixel.gif alt (a.example)>"],
    ["[](https://a.example)", "<https://a.example/ https://a.example/>"],
    ["[a 'b'](https://a.example 'T')", "<https://a.example/ a 'b' (a.example)>"],
    ["www.a.example/b, notwww.a.example", "<http://www.a.example/b www.a.example/b>, notwww.a.example"],
    ["<https://a.example/b?c> <mailto:me@a.example>", "<https://a.example/b?c https://a.example/b?c> <mailto:me@a.example mailto:me@a.example>"],
    ["a<https://a.example>, <https://bank@a.example>", "a<https://a.example>, <https://bank@a.example>"],
    ["[a [b](https://a.example) c](https://b.example)", "[a <https://a.example/ b (a.example)> c](<https://b.example/ https://b.example>)"],
    ["*a [b* c](https://a.example)", "<emphasis a [b> c](<https://a.example/ https://a.example>)"],
    ["[a] (b) [c]( [d", "[{a} a] (b) [c]( [d"],
  ])("%s", (source, expected) => expect(parsed(source)).toBe(expected));

  it.each([
    ["[a *b*][C  d], [E][] and [f]", "[{c d} a <emphasis b>][C  d], [{e} E][] and [{f} f]"],
    ["![g][h] **[i]**", "![{h} g][h] <strong [{i} i]>"],
    ["[j](k)[l] [^m] [n [o] p] []", "[j](k)[{l} l] [^m] [n [{o} o] p] [{} ]"],
    ["[q [r] s](https://a.example)", "<https://a.example/ q [r] s (a.example)>"],
    ["*[t*] `[u]` \\[v]", "<emphasis [t>] <code [u]> [v]"],
  ])("may be labels that are defined elsewhere: %s", (source, expected) => expect(parsed(source)).toBe(expected));

  it("reads a break after a backslash", () => expect(parsed("a\\\nb\\")).toBe("a\nb\\"));

  it.each([
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java\tscript:alert(1))",
    "[x](data:text/html,<script>)",
    "[x](vbscript:x)",
    "[x](file:///etc/passwd)",
    "[x](//evil.example)",
    "[x](/local)",
    "[x](ftp://a.example)",
    "https://bank.example@evil.example/",
    "https://",
    `[x](https:evil.example)`,
    '<a href="javascript:alert(1)">x</a> <img src=x onerror=alert(1)>',
  ])("stays text: %s", (source) => expect(parseInline(source)).toEqual([{ kind: "text", text: source }]));

  it.each([
    ["[https://bank.example](https://evil.example/)", "https://bank.example", "evil.example"],
    ["[bank.example](https://evil.example/bank.example)", "bank.example", "evil.example"],
    ["[https://аррӏе.com](https://аррӏе.com)", "https://аррӏе.com", "xn--80ak6aa92e.com"],
    ["[me@a.example](mailto:you@evil.example?bcc=x@y.example)", "me@a.example", "you@evil.example?bcc=x@y.example"],
    ["[\u200b](https://evil.example)", "\u200b", "evil.example"],
  ])("says where a link leads that pretends: %s", (source, label, target) => {
    const [link] = parseInline(source);
    expect(link).toMatchObject({ kind: "link", beside: target, inline: [{ kind: "text", text: label }] });
  });
});

/** Of reading 100 kB once; a parser that goes back needs thousands. */
const MOST_YARDS = 300;
const KB100 = 100_000;
const long = (piece: string): string => piece.repeat(Math.ceil(KB100 / piece.length)).slice(0, KB100);

it.each([
  "**",
  "*a ",
  "**a ",
  "a** ",
  "*a **b ",
  "_a_",
  "***a*",
  "`",
  "` ``  ``` ",
  "\\`",
  "[",
  "![",
  "]",
  "[a](",
  "[](a",
  "](a",
  "[a](https://a ",
  '[a](http://a "',
  "[a](http://a)",
  "[*a](http://a)*",
  "[a](((",
  "http://",
  "http://a.b ",
  "http://a!!!!!!!!",
  "<a href=",
  "<sub>",
  "<sub></sub>",
  "</sub>",
  "$$",
  "$$a$$",
  "\\(",
  "\\[a\\]",
  "~~",
  "~~a ",
  "&amp;",
  "&#1;",
  " ",
  "[a][",
  "[a][b]",
  "[a]",
  "[]",
  "][",
  "<https://a",
  "<mailto:",
  "www.",
  "www.a ",
  "\\\n",
  "[a](https://a '",
])("takes time in proportion to 100 kB of %j", (piece) => {
  const text = long(piece);
  for (const hostile of [text, `[a](http://a${text}`, Array.from({ length: 440 }, (_, at) => "`".repeat(at)).join(" ")]) {
    expect(yards(() => parseInline(hostile), MOST_YARDS)).toBeLessThan(MOST_YARDS);
  }
});

it("never nests deeper than its kinds of marks", () => {
  const depthOf = (inline: readonly Inline[]): number =>
    Math.max(0, ...inline.map((span) => ("inline" in span ? 1 + depthOf(span.inline) : 0)));
  const text = "**a *b __c _d [e ".repeat(5000) + "](http://a)_ __ * ** x** y* ".repeat(5000);
  expect(depthOf(parseInline(text))).toBeLessThanOrEqual(6);
});

interface Usage {
  user: number; // microseconds
  system: number;
}

declare const process: { cpuUsage(since?: Usage): Usage };
