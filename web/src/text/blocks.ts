/**
 * Text of an answer as a list of blocks, parsed as it streams. Pure.
 *
 * Law: a block is settled once another has begun after it; text to come can change the last block
 * only. So a push parses the last block again and nothing else, and settled blocks keep their identity.
 *
 * Understood: code fences, headings, and paragraphs with `code` and **strong** inside. Everything
 * else stays the text it is.
 */

export type Inline = { readonly kind: "text" | "code" | "strong"; readonly text: string };

export type Block =
  | { readonly kind: "paragraph"; readonly inline: readonly Inline[] }
  | { readonly kind: "heading"; readonly level: number; readonly inline: readonly Inline[] }
  | { readonly kind: "code"; readonly language: string; readonly text: string };

export class BlockStream {
  #settled: Block[] = [];
  #tail = "";
  blocks: readonly Block[] = [];

  push(text: string): void {
    this.#tail += text;
    const spans = split(this.#tail);
    const last = spans.pop();
    if (!last) return;
    for (const span of spans) this.#settled.push(build(this.#tail.slice(span.from, span.to)));
    this.blocks = [...this.#settled, build(this.#tail.slice(last.from, last.to))];
    this.#tail = this.#tail.slice(last.from);
  }
}

export function parseBlocks(text: string): readonly Block[] {
  const stream = new BlockStream();
  stream.push(text);
  return stream.blocks;
}

// The look-aheads fix where a run of marks ends: without them a long run costs quadratic time.
const FENCE = /^ {0,3}(`{3,}(?!`)|~{3,}(?!~))([^]*)$/;
const HEADING = /^(#{1,6}) (.*)$/;

interface Span {
  readonly from: number;
  readonly to: number;
}

/** Where the blocks of `text` lie, in order. Blank lines between blocks belong to none. */
function split(text: string): Span[] {
  const spans: Span[] = [];
  let open: { from: number; to: number; fence: string | null } | null = null;
  const close = (): void => {
    if (open) spans.push({ from: open.from, to: open.to });
    open = null;
  };
  for (const { line, from, to } of linesOf(text)) {
    if (open?.fence) {
      open.to = to;
      if (closes(line, open.fence)) close();
      continue;
    }
    const fence = opening(line)?.fence ?? null;
    const heading = HEADING.test(line);
    const blank = line.trim() === "";
    if (fence !== null || heading || blank) close();
    if (blank) continue;
    if (open) open.to = to;
    else open = { from, to, fence };
    if (heading) close();
  }
  close();
  return spans;
}

function* linesOf(text: string): Generator<Span & { line: string }> {
  for (let from = 0; from <= text.length; ) {
    const newline = text.indexOf("\n", from);
    const to = newline < 0 ? text.length : newline;
    yield { line: text.slice(from, to), from, to };
    from = to + 1;
  }
}

function opening(line: string): { fence: string; info: string } | null {
  const [, fence = "", info = ""] = FENCE.exec(line) ?? [];
  if (fence === "" || (fence.startsWith("`") && info.includes("`"))) return null; // ```x``` is code within a line
  return { fence, info };
}

function closes(line: string, fence: string): boolean {
  const mark = line.trim();
  return mark.length >= fence.length && mark === fence.charAt(0).repeat(mark.length);
}

function build(source: string): Block {
  const lines = source.split("\n");
  const first = lines[0] ?? "";
  const begun = opening(first);
  if (begun) {
    const closed = lines.length > 1 && closes(lines[lines.length - 1] ?? "", begun.fence);
    const text = lines.slice(1, closed ? -1 : undefined).join("\n");
    return { kind: "code", language: begun.info.trim().split(/\s/, 1)[0] ?? "", text };
  }
  const heading = HEADING.exec(first);
  if (heading) return { kind: "heading", level: (heading[1] ?? "#").length, inline: parseInline(heading[2] ?? "") };
  return { kind: "paragraph", inline: parseInline(source) };
}

/** One pass from left to right; a mark that is never closed stays text. */
function parseInline(source: string): Inline[] {
  const inline: Inline[] = [];
  let plainFrom = 0;
  const cut = (from: number, to: number, kind: "code" | "strong", width: number): void => {
    if (from > plainFrom) inline.push({ kind: "text", text: source.slice(plainFrom, from) });
    inline.push({ kind, text: source.slice(from + width, to) });
    plainFrom = to + width;
  };
  const unclosed = new Set<string>();
  for (let at = 0; at < source.length; at += 1) {
    const mark = source.startsWith("**", at) ? "**" : source[at] === "`" ? "`" : "";
    if (mark === "" || unclosed.has(mark)) continue;
    const end = source.indexOf(mark, at + mark.length);
    if (end < 0) unclosed.add(mark);
    else if (end > at + mark.length) {
      cut(at, end, mark === "`" ? "code" : "strong", mark.length);
      at = plainFrom - 1;
    } else at = end + mark.length - 1;
  }
  if (plainFrom < source.length) inline.push({ kind: "text", text: source.slice(plainFrom) });
  return inline;
}
