import { describe, expect, it } from "vitest";
import { BlockStream, parseBlocks, type Block } from "./blocks";

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
  "```js",
  "never closed",
].join("\n");

describe("parseBlocks", () => {
  it("finds paragraphs, headings and fences", () => {
    const kinds = parseBlocks(SAMPLE).map((block) => block.kind);
    expect(kinds).toEqual(["paragraph", "heading", "paragraph", "code", "paragraph", "code", "paragraph", "code"]);
  });

  it("keeps the text of a fence as it is, without its marks", () => {
    const code = parseBlocks(SAMPLE).filter((block) => block.kind === "code");
    expect(code).toEqual([
      { kind: "code", language: "python", text: "def f():\n\n    return '```'" },
      { kind: "code", language: "", text: "# no heading in here\n```" },
      { kind: "code", language: "js", text: "never closed" },
    ]);
  });

  it("marks code and strong, and leaves unclosed marks as text", () => {
    expect(parseBlocks("a `b` **c** `d **e")).toEqual([
      {
        kind: "paragraph",
        inline: [
          { kind: "text", text: "a " },
          { kind: "code", text: "b" },
          { kind: "text", text: " " },
          { kind: "strong", text: "c" },
          { kind: "text", text: " `d **e" },
        ],
      },
    ]);
  });

  it("never interprets markup", () => {
    const payload = '<img src=x onerror="alert(1)"> <script>alert(2)</script> [x](javascript:alert(3))';
    expect(parseBlocks(payload)).toEqual([{ kind: "paragraph", inline: [{ kind: "text", text: payload }] }]);
  });

  it.each(["", "\n", "\n \n\t\n"])("has no block in %j", (blank) => {
    expect(parseBlocks(blank)).toEqual([]);
  });

  it.each(["**".repeat(50_000), "`".repeat(100_000), "` ** ".repeat(20_000), "```\n".repeat(25_000), "# \n".repeat(30_000), "~".repeat(100_000) + "`", "`".repeat(99_999) + " `"])(
    "takes less than 50 ms for 100 kB of marks (case %#)",
    (text) => {
      const once = (): number => {
        const began = performance.now();
        parseBlocks(text);
        return performance.now() - began;
      };
      expect(Math.min(...Array.from({ length: 8 }, once))).toBeLessThan(50); // the rest is the machine's
    },
  );
});

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
        expect(stream.blocks[index]).toBe(before[index]);
      }
      before = stream.blocks;
    }
  });
});
