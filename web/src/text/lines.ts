/**
 * What a single line of Markdown can be. Pure.
 *
 * Every test here takes time linear in its line, whatever stands in it: no pattern has two ways to
 * match the same characters.
 */

import { labelKey, safeLink, type SafeLink } from "./links";

export interface Line {
  readonly text: string;
  readonly from: number;
  readonly to: number;
}

/** Calls `take` with each line in turn. */
export function eachLine(source: string, take: (line: Line) => void): void {
  for (let from = 0; from <= source.length; ) {
    const newline = source.indexOf("\n", from);
    const to = newline < 0 ? source.length : newline;
    take({ text: source.slice(from, to), from, to });
    from = to + 1;
  }
}

export const isBlank = (line: string): boolean => line.trim() === "";

const FIRST_MARK = /^(?: {4}| {0,3}\t|[ \t]*[-`~#>*+_$\\\d[])/;

/** Whether anything but a paragraph can begin here: most lines are done with this one look. */
export const mayBegin = (line: string): boolean => FIRST_MARK.test(line);

// The look-aheads fix where a run of marks ends: without them a long run costs quadratic time.
const FENCE = /^ {0,3}(`{3,}(?!`)|~{3,}(?!~))([^]*)$/;

/** The mark that a closing line must repeat, and what stands after it. */
export function fenceOf(line: string): { fence: string; info: string } | null {
  const [, fence = "", info = ""] = FENCE.exec(line) ?? [];
  if (fence === "" || (fence.startsWith("`") && info.includes("`"))) return null; // ```x``` is code within a line
  return { fence, info };
}

export function closesFence(line: string, fence: string): boolean {
  const mark = line.trim();
  return mark.length >= fence.length && mark === fence.charAt(0).repeat(mark.length);
}

const MATH = /^ {0,3}(\$\$|\\\[)/;

/** What ends the formula that begins here; null where none does, or where text follows it on this line. */
export function mathOf(line: string): { begin: string; end: string } | null {
  const [whole = "", begin = ""] = MATH.exec(line) ?? [];
  if (begin === "") return null;
  const end = begin === "$$" ? "$$" : "\\]";
  const at = line.indexOf(end, whole.length);
  return at < 0 || isBlank(line.slice(at + end.length)) ? { begin, end } : null;
}

export const endsMath = (line: string, end: string): boolean => line.trimEnd().endsWith(end);

const HEADING = /^ {0,3}(#{1,6})(?!#)[ \t]+([^]*)$/;

export function headingOf(line: string): { level: number; text: string } | null {
  const found = HEADING.exec(line);
  return found && { level: (found[1] ?? "").length, text: withoutClosing((found[2] ?? "").trimEnd()) };
}

/** Without the marks that may close a heading too: `## Title ##`. */
function withoutClosing(text: string): string {
  let end = text.length;
  while (text.charAt(end - 1) === "#") end -= 1;
  if (end === text.length || (end > 0 && !/[ \t]/.test(text.charAt(end - 1)))) return text;
  return text.slice(0, end).trimEnd();
}

const UNDERLINE = /^ {0,3}(?:(=)=+|--+)[ \t\r]*$/;

/**
 * The level of the heading that this line makes of the paragraph above it. One mark is not enough: a list that
 * streams in begins like that.
 */
export function underlineOf(line: string): 1 | 2 | null {
  const found = UNDERLINE.exec(line);
  return found && (found[1] ? 1 : 2);
}

const MOST_LABEL = 200;
const DEFINITION = new RegExp(String.raw`^ {0,3}\[([^[\]^][^[\]]{0,${MOST_LABEL}})\]:[ \t]*(\S+)[ \t]*([^]*)$`);
const TITLE = /^(?:"[^"]*"|'[^']*'|\([^()]*\)|)\s*$/;

/** `[label]: https://address "title"`: where links with this label lead. Null for an address that is not allowed. */
export function definitionOf(line: string): { key: string; link: SafeLink } | null {
  const [, label = "", address = "", title = ""] = DEFINITION.exec(line) ?? [];
  const link = TITLE.test(title) ? safeLink(address.replace(/^<([^<>]*)>$/, "$1")) : null;
  return link && !isBlank(label) ? { key: labelKey(label), link } : null;
}

/** Three or more of one of these marks and nothing else. */
export function isRule(line: string): boolean {
  let mark = "";
  let marks = 0;
  for (const char of line) {
    if (char === " " || char === "\t" || char === "\r") continue;
    if (mark === "" && (char === "-" || char === "*" || char === "_")) mark = char;
    if (char !== mark) return false;
    marks += 1;
  }
  return marks >= 3;
}

const QUOTE = /^ {0,3}>(?!>>|=)[ \t]?/;

/** The line without its quote mark; null without one. `>>> x` is no quote: it is what an interpreter prints; nor is `>= 3`. */
export function quotedText(line: string): string | null {
  const found = QUOTE.exec(line);
  return found && line.slice(found[0].length);
}

const TAB = 4;

function columnsOf(space: string): number {
  let columns = 0;
  for (const char of space) columns += char === "\t" ? TAB : 1;
  return columns;
}

const leadingSpace = (line: string): string => /^[ \t]*/.exec(line)?.[0] ?? "";

export const indentOf = (line: string): number => columnsOf(leadingSpace(line));

/** Columns before code without a fence. */
export const CODE_INDENT = 4;

/** Code without a fence. What has a list's mark is a list, however far to the right: models write those. */
export const isIndentedCode = (line: string): boolean => indentOf(line) >= CODE_INDENT && !listMarkOf(line);

export const withoutIndent = (line: string): string => dedent(line, CODE_INDENT);

/** The line moved left by so many columns, as far as there is space. */
export function dedent(line: string, columns: number): string {
  const space = leadingSpace(line);
  return " ".repeat(Math.max(0, columnsOf(space) - columns)) + line.slice(space.length);
}

export interface ListMark {
  readonly ordered: boolean;
  readonly start: number;
  /** Columns before the mark, and before the item's text. */
  readonly indent: number;
  readonly content: number;
  readonly text: string;
}

const TASK = /^\[([ xX])\][ \t]+/;

/** Whether a task is done, and its text; null for an item that is none. */
export function taskOf(text: string): { checked: boolean; text: string } | null {
  const found = TASK.exec(text);
  return found && { checked: found[1] !== " ", text: text.slice(found[0].length) };
}

const LIST_MARK = /^([ \t]*)([-*+]|(\d{1,9})[.)])([ \t]+)/;
const MOST_GAP = 4;

/** A list item begins here. A mark with nothing behind it, not even a space, is text. */
export function listMarkOf(line: string): ListMark | null {
  const found = mayBegin(line) ? LIST_MARK.exec(line) : null;
  if (!found || isRule(line)) return null;
  const [whole, space = "", mark = "", digits, gap = ""] = found;
  const indent = columnsOf(space);
  const usedGap = gap.length > MOST_GAP ? 1 : gap.length;
  return {
    ordered: digits !== undefined,
    start: Number(digits ?? 1),
    indent,
    content: indent + mark.length + usedGap,
    text: line.slice(whole.length - gap.length + usedGap),
  };
}

/** Cells of a table's row, trimmed. A bar after a backslash separates nothing. */
export function cellsOf(line: string): string[] {
  const row = line.trim();
  const cells: string[] = [];
  let cell = "";
  for (let at = row.startsWith("|") ? 1 : 0; at < row.length; at += 1) {
    const char = row.charAt(at);
    if (char === "\\" && row.charAt(at + 1) === "|") {
      cell += "|";
      at += 1;
    } else if (char === "|") {
      cells.push(cell.trim());
      cell = "";
    } else cell += char;
  }
  if (!row.endsWith("|") || row.endsWith("\\|")) cells.push(cell.trim());
  return cells;
}

export type Align = "start" | "center" | "end";

/** How the columns are aligned, if this is the line under a table's head. */
export function alignsOf(line: string): Align[] | null {
  if (!line.includes("|") || !/^[-|: \t\r]+$/.test(line)) return null;
  const cells = cellsOf(line);
  if (cells.length === 0 || !cells.every((cell) => /^:?-+:?$/.test(cell))) return null;
  return cells.map((cell) => (!cell.endsWith(":") ? "start" : cell.startsWith(":") ? "center" : "end"));
}
