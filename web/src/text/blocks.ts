/**
 * Text of an answer as a list of blocks, parsed as it streams. Pure.
 *
 * Law: a block is settled once whole lines show that another has begun after it; text to come can
 * change only what comes after it. So a push parses the last block again (and, while its first line
 * is not whole, the one before it). Settled blocks keep their identity, and so do the items and rows
 * of an open one whose source stayed the same.
 *
 * Understood: code, fenced or indented, headings, rules, quotes, lists and tasks, tables, formulas, where the
 * labels of links lead, and paragraphs; inside them what inline.ts understands. Everything else, HTML above all,
 * stays the text it is. A label may be defined after it was used: so what is a link by its label is known only
 * where it is shown, and no settled block changes.
 */

import { parseInline, type Inline } from "./inline";
import type { Definitions, SafeLink } from "./links";
import {
  alignsOf,
  cellsOf,
  closesFence,
  definitionOf,
  dedent,
  eachLine,
  endsMath,
  fenceOf,
  headingOf,
  indentOf,
  isBlank,
  isIndentedCode,
  isRule,
  listMarkOf,
  mathOf,
  mayBegin,
  quotedText,
  taskOf,
  underlineOf,
  withoutIndent,
  CODE_INDENT,
  type Align,
  type Line,
  type ListMark,
} from "./lines";

export type { Inline } from "./inline";

export interface Row {
  readonly source: string;
  readonly cells: readonly (readonly Inline[])[];
}

export interface Item {
  readonly source: string;
  /** Of a task; null for an item that is none. */
  readonly checked: boolean | null;
  readonly blocks: readonly Block[];
}

export type Block =
  | { readonly kind: "paragraph"; readonly inline: readonly Inline[] }
  | { readonly kind: "heading"; readonly level: number; readonly inline: readonly Inline[] }
  | { readonly kind: "code"; readonly language: string; readonly text: string; readonly closed: boolean }
  | { readonly kind: "math"; readonly tex: string }
  | { readonly kind: "rule" }
  | { readonly kind: "definition"; readonly key: string; readonly link: SafeLink }
  | { readonly kind: "quote"; readonly blocks: readonly Block[] }
  | { readonly kind: "list"; readonly ordered: boolean; readonly start: number; readonly items: readonly Item[] }
  | { readonly kind: "table"; readonly aligns: readonly Align[]; readonly head: Row; readonly rows: readonly Row[] };

type Kind = Block["kind"];

/** Quotes and lists inside each other; deeper ones are text. */
const MOST_DEPTH = 3;
/** A line so many columns right of an item's mark belongs to the item. */
const NESTED = 2;

const CHUNK = 24;

export class BlockStream {
  /** Settled blocks, so many in each: what shows them needs to look at none of them again. */
  chunks: readonly (readonly Block[])[] = [];
  /** The blocks after those, settled or not. */
  last: readonly Block[] = [];
  /** Where labels lead; the first word on one holds. */
  definitions: Definitions = new Map();

  #settled: Block[] = [];
  #tail = "";
  readonly #known = new Map<string, SafeLink>();
  /** There may be other definitions than last time. */
  #unsure = false;
  /** What the tail was parsed into last time. */
  #built: Built[] = [];

  get blocks(): readonly Block[] {
    return [...this.chunks.flat(), ...this.last];
  }

  push(text: string): void {
    this.#tail += text;
    const { spans, whole } = split(this.#tail, 0);
    this.#built = this.#parsed(spans);
    const settled = this.#built.slice(0, Math.max(0, whole - 1));
    for (const { block } of settled) this.#settle(block);
    this.#built = this.#built.slice(settled.length);
    this.last = [...this.#settled, ...this.#built.map(({ block }) => block)];
    this.#tail = this.#tail.slice(spans[settled.length]?.from ?? 0);
    this.#define();
  }

  /** What settled blocks define is known for good; the others may change their mind. */
  #define(): void {
    const open = this.#built.map(({ block }) => block).filter((block) => block.kind === "definition");
    if (open.length === 0 && !this.#unsure) return;
    this.#unsure = open.length > 0;
    const definitions = new Map(open.reverse().map(({ key, link }) => [key, link]));
    for (const [key, link] of this.#known) definitions.set(key, link);
    this.definitions = definitions;
  }

  #learn(key: string, link: SafeLink): void {
    this.#unsure = true;
    if (!this.#known.has(key)) this.#known.set(key, link);
  }

  #settle(block: Block): void {
    this.#settled.push(block);
    if (block.kind === "definition") this.#learn(block.key, block.link);
    if (this.#settled.length < CHUNK) return;
    this.chunks = [...this.chunks, this.#settled];
    this.#settled = [];
  }

  #parsed(spans: readonly Span[]): Built[] {
    return spans.map(({ kind, from, to }, at) => {
      const source = this.#tail.slice(from, to);
      const before = this.#built[at];
      if (before?.source === source && before.kind === kind) return before;
      return { kind, source, block: build(kind, source, 0, before?.block) };
    });
  }
}

interface Built {
  /** What it was split as: a formula without an end is shown as a paragraph. */
  readonly kind: Kind;
  readonly source: string;
  readonly block: Block;
}

export function parseBlocks(text: string): readonly Block[] {
  const stream = new BlockStream();
  stream.push(text);
  return stream.blocks;
}

// --- where blocks lie ---------------------------------------------------------------------------

interface Span {
  readonly kind: Kind;
  readonly from: number;
  readonly to: number;
}

interface OpenBlock {
  kind: Kind;
  from: number;
  to: number;
  /** Its last line, and where the line before that ended. */
  last: Line;
  beforeLast: number;
  /** What ends it: of code a fence, of a formula its closing mark. */
  fence: string;
  /** Of a list: the mark of its last item, and whether a blank line came last. */
  mark: ListMark | null;
  gap: boolean;
}

/** Where the blocks of `text` lie, in order; `whole` of them had begun before its last line. Blank lines between blocks belong to none. */
function split(text: string, depth: number): { spans: Span[]; whole: number } {
  const splitter = new Splitter(depth);
  let whole = 0;
  eachLine(text, (line) => {
    whole = splitter.begun;
    splitter.take(line);
  });
  return { spans: splitter.end(), whole };
}

class Splitter {
  #spans: Span[] = [];
  #open: OpenBlock | null = null;

  constructor(private readonly depth: number) {}

  get begun(): number {
    return this.#spans.length + (this.#open ? 1 : 0);
  }

  take(line: Line): void {
    if (this.#open && this.#goesOn(this.#open, line)) return;
    this.end();
    if (!isBlank(line.text)) this.#begin(line);
  }

  end(): Span[] {
    if (this.#open) this.#spans.push({ kind: this.#open.kind, from: this.#open.from, to: this.#open.to });
    this.#open = null;
    return this.#spans;
  }

  #begin(line: Line): void {
    const kind = isIndentedCode(line.text) ? "code" : this.#kindOf(line.text);
    const fence = kind === "code" ? (fenceOf(line.text)?.fence ?? "") : kind === "math" ? (mathOf(line.text)?.end ?? "") : "";
    const mark = kind === "list" ? listMarkOf(line.text) : null;
    const { from, to } = line;
    this.#open = { kind, from, to, last: line, beforeLast: from, fence, mark, gap: false };
    if (kind === "heading" || kind === "rule" || kind === "definition" || (kind === "math" && isWholeMath(line.text, fence))) this.end();
  }

  /** Whether the line belongs to the open block; if so, it is taken into it. */
  #goesOn(open: OpenBlock, line: Line): boolean {
    if (open.kind === "code" && open.fence !== "") {
      extend(open, line);
      if (closesFence(line.text, open.fence)) this.end();
      return true;
    }
    if (open.kind === "math" && !isBlank(line.text)) {
      extend(open, line);
      if (endsMath(line.text, open.fence)) this.end();
      return true;
    }
    if (isBlank(line.text)) {
      open.gap = true;
      return open.kind === "list" || open.kind === "code";
    }
    if (open.kind === "paragraph" && isTableHead(open.last.text, line.text)) {
      this.#beginTable(open, line);
      return true;
    }
    if (open.kind === "paragraph" && underlineOf(line.text) && !open.last.text.includes("|")) {
      extend(open, line);
      open.kind = "heading";
      this.end();
      return true;
    }
    const belongs = this.#belongs(open, line.text);
    if (belongs) extend(open, line);
    return belongs;
  }

  #belongs(open: OpenBlock, line: string): boolean {
    if (open.kind === "quote") return quotedText(line) !== null;
    if (open.kind === "code") return indentOf(line) >= CODE_INDENT;
    if (open.kind === "table") return line.includes("|") && !this.#interrupts(line);
    if (open.kind === "paragraph") return !this.#interrupts(line);
    if (!open.mark) return false;
    const mark = siblingMark(line, open.mark);
    if (mark) open.mark = mark;
    return mark !== null || indentOf(line) >= open.mark.indent + NESTED || (!open.gap && !this.#interrupts(line));
  }

  /** The paragraph's last line was a table's head. */
  #beginTable(open: OpenBlock, line: Line): void {
    const head = open.last;
    if (head.from > open.from) {
      open.to = open.beforeLast;
      this.end();
    }
    this.#open = { ...open, kind: "table", from: head.from, to: line.to, last: line };
  }

  #kindOf(line: string): Kind {
    if (!mayBegin(line)) return "paragraph";
    if (fenceOf(line)) return "code";
    if (this.depth === 0 && definitionOf(line)) return "definition";
    if (headingOf(line)) return "heading";
    if (mathOf(line)) return "math";
    if (isRule(line)) return "rule";
    if (this.depth >= MOST_DEPTH) return "paragraph";
    if (quotedText(line) !== null) return "quote";
    return listMarkOf(line) ? "list" : "paragraph";
  }

  /** Whether a block begins here although a paragraph is open. "1986. was good" begins no list then. */
  #interrupts(line: string): boolean {
    const kind = this.#kindOf(line);
    if (kind !== "list") return kind !== "paragraph" && kind !== "definition";
    const mark = listMarkOf(line);
    return mark !== null && mark.start === 1 && !isBlank(mark.text);
  }
}

function extend(open: OpenBlock, line: Line): void {
  open.beforeLast = open.to;
  open.to = line.to;
  open.last = line;
  open.gap = false;
}

const isWholeMath = (line: string, end: string): boolean => endsMath(line, end) && line.trim().length > 2 * end.length;

const isTableHead = (head: string, line: string): boolean =>
  head.includes("|") && alignsOf(line)?.length === cellsOf(head).length;

/** The mark of the list's next item, if this line begins one. */
function siblingMark(line: string, last: ListMark): ListMark | null {
  const mark = listMarkOf(line) ?? listMarkOf(`${line} `); // within a list, an item may be empty
  return mark && mark.ordered === last.ordered && mark.indent < last.indent + NESTED ? mark : null;
}

// --- what is in them ----------------------------------------------------------------------------

/** `before` is what stood here until now: what did not change of it is taken over. */
function build(kind: Kind, source: string, depth: number, before?: Block): Block {
  switch (kind) {
    case "code":
      return buildCode(source.split("\n"));
    case "heading":
      return buildHeading(source);
    case "rule":
      return { kind };
    case "definition": {
      const defined = definitionOf(source);
      return defined ? { kind, ...defined } : build("paragraph", source, depth);
    }
    case "quote": {
      const lines = source.split("\n").map((line) => quotedText(line) ?? line);
      return { kind, blocks: nested(lines, depth) };
    }
    case "list":
      return buildList(source.split("\n"), depth, before?.kind === "list" ? before.items : []);
    case "table":
      return buildTable(source.split("\n"), before?.kind === "table" ? before.rows : []);
    case "math":
      return buildMath(source);
    case "paragraph":
      return { kind, inline: parseInline(source) };
  }
}

function nested(lines: readonly string[], depth: number): readonly Block[] {
  const [only = ""] = lines;
  if (lines.length === 1 && !mayBegin(only)) return isBlank(only) ? [] : [build("paragraph", only, depth)]; // mostly
  const source = lines.join("\n");
  return split(source, depth + 1).spans.map(({ kind, from, to }) => build(kind, source.slice(from, to), depth + 1));
}

/** Marked at its beginning, or a paragraph with a line below it. */
function buildHeading(source: string): Block {
  const end = source.lastIndexOf("\n");
  const level = end < 0 ? null : underlineOf(source.slice(end + 1));
  const heading = level === null ? headingOf(source) : { level, text: source.slice(0, end) };
  return { kind: "heading", level: heading?.level ?? 1, inline: parseInline(heading?.text ?? source) };
}

function buildCode(lines: readonly string[]): Block {
  const { fence, info } = fenceOf(lines[0] ?? "") ?? { fence: "", info: "" };
  if (fence === "") return { kind: "code", language: "", text: lines.map(withoutIndent).join("\n"), closed: false };
  const closed = lines.length > 1 && closesFence(lines.at(-1) ?? "", fence);
  const text = lines.slice(1, closed ? -1 : undefined).join("\n");
  return { kind: "code", language: info.trim().split(/\s/, 1)[0] ?? "", text, closed };
}

/** A formula that a blank line came before the end of is none. */
function buildMath(source: string): Block {
  const { begin, end } = mathOf(source.split("\n", 1)[0] ?? "") ?? { begin: "", end: "" };
  const text = source.trim();
  const tex = text.slice(begin.length, -end.length).trim();
  const isWhole = text.endsWith(end) && text.length > begin.length + end.length;
  return isWhole && tex !== "" ? { kind: "math", tex } : { kind: "paragraph", inline: parseInline(source) };
}

function buildList(lines: readonly string[], depth: number, before: readonly Item[]): Block {
  const items: string[][] = [];
  let first: ListMark | null = null;
  let last: ListMark | null = null;
  for (const line of lines) {
    const mark: ListMark | null = last ? siblingMark(line, last) : listMarkOf(line);
    if (mark) {
      last = mark;
      first ??= mark;
      items.push([mark.text]);
    } else items.at(-1)?.push(dedent(line, last?.content ?? 0));
  }
  const { ordered, start } = first ?? { ordered: false, start: 1 };
  return { kind: "list", ordered, start, items: items.map((item, at) => buildItem(item, depth, before[at])) };
}

function buildItem(lines: readonly string[], depth: number, before: Item | undefined): Item {
  const source = lines.join("\n");
  if (before?.source === source) return before;
  const task = taskOf(lines[0] ?? "");
  const blocks = nested(task ? [task.text, ...lines.slice(1)] : lines, depth);
  return { source, checked: task?.checked ?? null, blocks };
}

/** A row has at most as many cells as the head; missing ones are not made up, for a row is short and a head may be long. */
function buildTable([head = "", under = "", ...rows]: readonly string[], before: readonly Row[]): Block {
  const aligns = alignsOf(under) ?? [];
  const row = (source: string, at: number): Row => {
    const known = before[at];
    if (known?.source === source) return known;
    return { source, cells: cellsOf(source).slice(0, aligns.length).map(parseInline) };
  };
  return { kind: "table", aligns, head: row(head, -1), rows: rows.map(row) };
}
