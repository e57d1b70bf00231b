/** What is in a block: from its source to what is shown. Pure. */

import type { Block, Item, Kind, Row } from "./block_types";
import { parseInline } from "./inline";
import {
  alignsOf,
  cellsOf,
  closesFence,
  dedent,
  definitionOf,
  fenceOf,
  headingOf,
  isBlank,
  listMarkOf,
  mathOf,
  mayBegin,
  quotedText,
  taskOf,
  underlineOf,
  withoutIndent,
  type ListMark,
} from "./lines";
import { siblingMark, split } from "./spans";

/** `before` is what stood here until now: what did not change of it is taken over. */
export function build(kind: Kind, source: string, depth: number, before?: Block): Block {
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
