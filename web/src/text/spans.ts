/** Where the blocks of a text lie, found in one pass over its lines. Pure. */

import type { Kind } from "./block_types";
import {
  alignsOf,
  cellsOf,
  CODE_INDENT,
  closesFence,
  definitionOf,
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
  underlineOf,
  type Line,
  type ListMark,
} from "./lines";

/** Quotes and lists inside each other; deeper ones are text. */
const MOST_DEPTH = 3;
/** A line so many columns right of an item's mark belongs to the item. */
const NESTED = 2;

export interface Span {
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
export function split(text: string, depth: number): { spans: Span[]; whole: number } {
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
export function siblingMark(line: string, last: ListMark): ListMark | null {
  const mark = listMarkOf(line) ?? listMarkOf(`${line} `); // within a list, an item may be empty
  return mark && mark.ordered === last.ordered && mark.indent < last.indent + NESTED ? mark : null;
}
