import { describe, expect, it } from "vitest";
import { BlockStream, parseBlocks, type Block, type Inline } from "./blocks";
import { resolved } from "./inline";
import { yards } from "./yardstick";

const SAMPLE = [
  "Intro with `code` and **strong text**, and a lone * or ` mark.",
  "second line",
  "",
  "",
  "# Title with `x`",
  "right below",
  "```python title",
  "def f():",
  "",
  "    return '```'",
  "```",
  "after **never closed",
  "~~~",
  "# no heading in here",
  "```",
  "~~~",
  "####### seven",
  "- one **bold",
  "  still one",
  "  - two",
  "    lazy",
  "  - three",
  "",
  "    apart",
  "* four",
  "***",
  "***strong* rest**",
  "10. ten",
  "    > quoted [a](https://a.example)",
  "    > - in it",
  "11. eleven",
  "  - bullet",
  "",
  "after",
  "| not | yet |",
  "| a | b | c |",
  "|:--|:-:|--:|",
  "| 1 | `2` \\| x |",
  "|---|",
  "out | of it",
  "",
  "no bar",
  "> quote",
  ">>> no quote",
  "text",
  "```x``` is within",
  "1986. was good",
  "- - - x",
  "",
  "- [ ] open",
  "- [x] done ~~gone~~",
  "so $$a$$ and \\(b",
  "\\[",
  "x",
  "- y",
  "\\]",
  "$$ z $$",
  "$$",
  "no end",
  "",
  "two lines",
  "under one",
  "=====",
  "small",
  "---",
  "",
  "    indented",
  "",
  "      more",
  "  ## closed ##  ",
  "see [it][Ref], [ref] and [ref][], not [other][]\\",
  "[no]: https://definition.example",
  "",
  "[REF]: <https://ref.example> 'Title'",
  "[ref]: https://second.example",
  ">close",
  "- a",
  "-",
  "- b",
  "",
  "H<sub>2</sub>O &amp; more<br>here",
  "",
  "```js",
  "never closed",
].join("\n");

describe("parseBlocks", () => {
  it("finds paragraphs, headings and fences", () => {
    const kinds = parseBlocks(SAMPLE).map((block) => block.kind);
    expect(kinds.slice(0, 7)).toEqual(["paragraph", "heading", "paragraph", "code", "paragraph", "code", "paragraph"]);
    expect(kinds.slice(7)).toEqual(
      [
        ...["list", "rule", "paragraph", "list", "paragraph", "table", "paragraph", "quote", "paragraph", "list"],
        ...["math", "math", "paragraph", "heading", "heading", "code", "heading", "paragraph", "definition"],
        ...["definition", "quote", "list", "paragraph", "code"],
      ],
    );
  });

  it("keeps the text of a fence as it is, without its marks", () => {
    const code = parseBlocks(SAMPLE).filter((block) => block.kind === "code");
    expect(code).toEqual([
      { kind: "code", language: "python", text: "def f():\n\n    return '```'", closed: true },
      { kind: "code", language: "", text: "# no heading in here\n```", closed: true },
      { kind: "code", language: "", text: "indented\n\n  more", closed: false },
      { kind: "code", language: "js", text: "never closed", closed: false },
    ]);
  });

  it("nests lists, and keeps a number that does not begin at one", () => {
    expect(outline(parseBlocks("- a\n  - b\n  - c\n\n    d\n- e\nlazy"))).toBe("ul[p(a) ul[p(b)|p(c) p(d)]|p(e\nlazy)]");
    expect(outline(parseBlocks("3. a\n  - b\n\n   ```\n   c\n   ```\n4. d"))).toBe("ol3[p(a) ul[p(b)] code(c)|p(d)]");
    expect(outline(parseBlocks("1) a\n\t* b\n\t\t+ c\n2) d"))).toBe("ol1[p(a) ul[p(b) ul[p(c)]]|p(d)]");
    expect(outline(parseBlocks("- a\n\nb\n1. c"))).toBe("ul[p(a)] p(b) ol1[p(c)]");
    expect(outline(parseBlocks("- a\n# b\n- c\n***\n1. d\n- e"))).toBe("ul[p(a)] h(b) ul[p(c)] hr ol1[p(d)] ul[p(e)]");
  });

  it("reads quotes, rules and tables", () => {
    expect(outline(parseBlocks("> a\n>\n> > b\n> 1. c\nd"))).toBe("quote[p(a) quote[p(b)] ol1[p(c)]] p(d)");
    expect(outline(parseBlocks("---\n* * *\n___\n--\n- -"))).toBe("hr hr hr p(--) ul[p(-)]");
    expect(outline(parseBlocks("a\n|b|c|\n|-|:-:|\n|1|\n|2|3|4|\n\n|d|\n|-|-|"))).toBe(
      "p(a) table[b,c|1|2,3] p(|d|\n|-|-|)",
    );
  });

  it.each([
    ["A\nB\n==\nc", "h(A\nB) p(c)"],
    ["A\n---", "h(A)"],
    ["A\n-\n= x\n--x", "p(A\n-\n= x\n--x)"],
    ["a | b\n---", "p(a | b) hr"],
    ["- a\n---\n> b\n===", "ul[p(a)] hr quote[p(b)] p(===)"],
    ["> A\n> ===\n> b", "quote[h(A) p(b)]"],
    ["# A ##\n## B#\n ### C ### \n#D\n## ##", "h(A) h(B#) h(C) p(#D) h()"],
  ])("reads headings in %j", (source, expected) => expect(outline(parseBlocks(source))).toBe(expected));

  it.each([
    ["    a\n\n\n      b\n  c", "code(a\n\n\n  b) p(  c)"],
    ["\ta", "code(a)"],
    ["a\n    b", "p(a\n    b)"],
    ["    - a", "ul[p(a)]"],
    ["- a\n\n      b", "ul[p(a) code(b)]"],
    ["1. a\n\n   b\n\n       c", "ol1[p(a) p(b) code(c)]"],
    ["    ```\n    a", "code(```\na)"],
  ])("reads indented code in %j", (source, expected) => expect(outline(parseBlocks(source))).toBe(expected));

  it.each([
    ["[A b]: https://a.example", "def(a b)"],
    ["[a]: https://a.example \"T\"\n[b]:<mailto:me@b.example>\nc", "def(a) def(b) p(c)"],
    ["[a]: javascript:alert(1)\n\n[b]: https://b.example and more", "p([a]: javascript:alert(1)) p([b]: https://b.example and more)"],
    ["a\n[b]: https://b.example", "p(a\n[b]: https://b.example)"],
    ["[^1]: https://a.example\n- [b]: https://b.example", "p([^1]: https://a.example) ul[p([b]: https://b.example)]"],
  ])("knows where labels lead in %j", (source, expected) => expect(outline(parseBlocks(source))).toBe(expected));

  it("reads what people write otherwise: empty items, quotes without a space", () => {
    expect(outline(parseBlocks("- a\n-\n- b\n\n1. c\n2.\n   d"))).toBe("ul[p(a)||p(b)] ol1[p(c)|p(d)]");
    expect(outline(parseBlocks(">a\n>>b\n\n>= 3"))).toBe("quote[p(a) quote[p(b)]] p(>= 3)");
  });

  it("knows tasks from other items", () => {
    const [list] = parseBlocks("- [ ] a\n- [x] b\n- [y] c\n- [X]d");
    expect(list?.kind === "list" && list.items.map(({ checked }) => checked)).toEqual([false, true, null, null]);
    expect(outline(parseBlocks("- [ ] a\n  - [x] b"))).toBe("ul[p(a) ul[p(b)]]");
  });

  it.each([
    ["$$\nx^2\n$$", "math(x^2)"],
    ["  \\[ a\n- b \\]\nafter", "math(a\n- b) p(after)"],
    ["so\n$$a$$\nand", "p(so) math(a) p(and)"],
    ["$$a$$ is it", "p(a is it)"],
    ["$$\na\n\nb\n$$", "p($$\na) p(b) p($$)"],
    ["$$", "p($$)"],
    ["$$$$", "p($$$$)"],
    ["it costs $5 and $6", "p(it costs $5 and $6)"],
    ["1. a\n   \\[\n   b\n   \\]", "ol1[p(a) math(b)]"],
    ["```\n$$\nx\n$$\n```", "code($$\nx\n$$)"],
  ])("finds the formulas in %j", (source, expected) => expect(outline(parseBlocks(source))).toBe(expected));

  it("never interprets markup", () => {
    const payload = '<img src=x onerror="alert(1)"> <script>alert(2)</script> [x](javascript:alert(3))';
    expect(parseBlocks(payload)).toEqual([{ kind: "paragraph", inline: [{ kind: "text", text: payload }] }]);
  });

  it.each(["", "\n", "\n \n\t\n"])("has no block in %j", (blank) => {
    expect(parseBlocks(blank)).toEqual([]);
  });

  it.each([
    "**",
    "`",
    "` ** ",
    "```\n",
    "# \n",
    "- ",
    "- a\n",
    "- - - - - - - - a\n",
    "-\n",
    "> ",
    "> > > > a\n",
    "1. ",
    "1. a\n  - b\n    > c\n",
    "* * ",
    "---\n",
    "|",
    "|-",
    "|a|\n|-|\n",
    "a|b\n",
    "\\|",
    " ",
    "\t",
    " \n",
    "  - a\n",
    "<b>",
    "<sub></sub>",
    "$$",
    "$$a\n",
    "\\[\n",
    "\\(",
    "- [ ] a\n",
    "&amp;",
    "~~",
    "a\n==\n",
    "a\n--",
    "    a\n\n",
    "[a]: https://a\n",
    "[a]: ",
    "[a]:\t\t",
    "[a]: x '",
    "# a #",
    "# #",
    " ## ",
    "=",
  ])("takes time in proportion to 100 kB of %j", (piece) => {
    const text = long(piece);
    for (const hostile of [text, `- a\n${text}x`, `|a|b|\n|-|-|\n${text}`, `|${long("a|")}\n|${long("-|")}\n${text}`.slice(0, KB100)]) {
      expect(yards(() => parseBlocks(hostile), MOST_YARDS)).toBeLessThan(MOST_YARDS);
    }
  });

  it("does not make up cells: a long head over many short rows stays as small as its text", () => {
    const [table] = parseBlocks(`|${"a|".repeat(10_000)}\n|${"-|".repeat(10_000)}\n${"|\n".repeat(10_000)}`);
    expect(table?.kind === "table" && table.rows.flatMap(({ cells }) => cells).length).toBeLessThanOrEqual(10_000);
  });
});

/** Of reading 100 kB once; a parser that goes back needs thousands. */
const MOST_YARDS = 300;
const KB100 = 100_000;
const long = (piece: string): string => piece.repeat(Math.ceil(KB100 / piece.length)).slice(0, KB100);

/** Blocks as one line. */
function outline(blocks: readonly Block[]): string {
  return blocks.map(outlineOne).join(" ");
}

function outlineOne(block: Block): string {
  switch (block.kind) {
    case "rule":
      return "hr";
    case "code":
      return `code(${block.text})`;
    case "quote":
      return `quote[${outline(block.blocks)}]`;
    case "list":
      return `${block.ordered ? `ol${block.start}` : "ul"}[${block.items.map((item) => outline(item.blocks)).join("|")}]`;
    case "table":
      return `table[${[block.head, ...block.rows].map((row) => row.cells.map(words).join(",")).join("|")}]`;
    case "math":
      return `math(${block.tex})`;
    case "definition":
      return `def(${block.key})`;
    default:
      return `${block.kind === "heading" ? "h" : "p"}(${words(block.inline)})`;
  }
}

const words = (inline: readonly Inline[]): string =>
  inline
    .map((span) => {
      if (span.kind === "reference") return span.open + words(span.inline) + span.close;
      return "inline" in span ? words(span.inline) : span.kind === "math" ? span.tex : span.text;
    })
    .join("");

describe("BlockStream", () => {
  it("ends the same wherever the text was cut in two", () => {
    const whole = parseBlocks(SAMPLE);
    for (let cut = 0; cut <= SAMPLE.length; cut += 1) {
      const stream = new BlockStream();
      stream.push(SAMPLE.slice(0, cut));
      stream.push(SAMPLE.slice(cut));
      expect(stream.blocks).toEqual(whole);
    }
  });

  it("shows at every character what a parse of the text so far shows, and keeps settled blocks", () => {
    const stream = new BlockStream();
    let before: readonly Block[] = [];
    for (let length = 1; length <= SAMPLE.length; length += 1) {
      stream.push(SAMPLE.charAt(length - 1));
      expect(stream.blocks).toEqual(parseBlocks(SAMPLE.slice(0, length)));
      for (let index = 0; index < stream.blocks.length - 1 && index < before.length - 1; index += 1) {
        expect(stream.blocks[index], `${length}: ${SAMPLE.slice(0, length).slice(-40)}`).toBe(before[index]);
      }
      before = stream.blocks;
    }
  });

  it("knows labels by what was said of them first, from the moment it was said", () => {
    const stream = new BlockStream();
    stream.push("[a][x]\n\n");
    const before = stream.definitions;
    stream.push("text\n");
    expect(stream.definitions).toBe(before);
    stream.push("\n[x]: https://one.example\n[X]: https://two.example\n\nmore\n\n[y]: https://y.example");
    expect([...stream.definitions].map(([key, { href }]) => `${key} ${href}`).sort()).toEqual([
      "x https://one.example/",
      "y https://y.example/",
    ]);
    const [first] = stream.blocks;
    if (first?.kind !== "paragraph" || first.inline[0]?.kind !== "reference") throw new Error("no reference");
    expect(resolved(first.inline[0], stream.definitions)).toMatchObject({ href: "https://one.example/", beside: "one.example" });
    expect(resolved(first.inline[0], before)).toBe(null);
  });

  it("keeps the items and rows of an open block that did not change", () => {
    const stream = new BlockStream();
    stream.push("- a\n- b\n- c");
    const [before] = stream.blocks;
    stream.push("d\n- e");
    const [after] = stream.blocks;
    if (before?.kind !== "list" || after?.kind !== "list") throw new Error("no list");
    expect(after.items.map((item, at) => item === before.items[at])).toEqual([true, true, false, false]);
    stream.push("\n\n|a|b|\n|-|-|\n|1|2|\n|3");
    const known = stream.blocks[1];
    stream.push("3|4|\n|5|6|");
    const now = stream.blocks[1];
    if (known?.kind !== "table" || now?.kind !== "table") throw new Error("no table");
    expect(now.rows.map((row, at) => row === known.rows[at])).toEqual([true, false, false]);
  });
});

interface Usage {
  user: number; // microseconds
  system: number;
}

declare const process: { cpuUsage(since?: Usage): Usage };
