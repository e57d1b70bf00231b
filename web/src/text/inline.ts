/**
 * The text within a block: `code`, **strong**, *emphasis*, ~~deleted~~, links, math and a few HTML
 * elements that take no attributes. Pure.
 *
 * One pass from left to right, in linear time: a mark is first written down as the text it is; where
 * its counterpart comes, all that was written since is put into one node. Each mark can be open only
 * once (the nearest counts), so nothing nests deeper than there are kinds of marks, and one link.
 * A mark without its counterpart stays text; so does all other HTML.
 *
 * By hand because model text must never freeze the page: on 100 kB made for it, marked 18 takes 10 s for
 * ticks and 12 s for `_a_`, this 50 ms at most (inline.test.ts).
 */

import { decoded } from "./entities";
import { besideLabel, labelKey, safeLink, type Definitions, type SafeLink } from "./links";

/** Elements that models write without attributes, for what Markdown has no mark. */
export const TAGS = ["sub", "sup", "kbd", "mark", "u", "s", "ins", "del", "b", "i", "em", "strong", "small"] as const;
export type Tag = (typeof TAGS)[number];

export type Inline =
  | { readonly kind: "text"; readonly text: string }
  | { readonly kind: "code"; readonly text: string }
  | { readonly kind: "strong"; readonly inline: readonly Inline[] }
  | { readonly kind: "emphasis"; readonly inline: readonly Inline[] }
  | { readonly kind: "deleted"; readonly inline: readonly Inline[] }
  | { readonly kind: "tag"; readonly tag: Tag; readonly inline: readonly Inline[] }
  | { readonly kind: "math"; readonly tex: string; readonly display: boolean }
  /** A link if its label is defined anywhere in the text, else the text `open`, `inline`, `close`. */
  | { readonly kind: "reference"; readonly key: string; readonly open: string; readonly inline: readonly Inline[]; readonly close: string }
  | { readonly kind: "link"; readonly href: string; readonly beside: string; readonly inline: readonly Inline[] };

export function parseInline(source: string): readonly Inline[] {
  if (source !== "" && !ANY_MARK.test(source)) return [{ kind: "text", text: decoded(source) }];
  return new Parser(source).parse();
}

/** A mark that may find its counterpart: where it stands in what was written. */
interface Open {
  readonly mark: string;
  readonly at: number;
}

/** A `[` or `![`, and where the source goes on after it. */
interface Bracket extends Open {
  readonly from: number;
}

// Addresses in plain text are ASCII: what follows them in other scripts is none of theirs.
const MARK = new RegExp(
  String.raw`\\(?:[^a-zA-Z0-9\s]|\n)|\$\$|${"`"}+|\*+|_+|~+|!?\[|\]|<\/?(?:${TAGS.join("|")}|br\s?\/?)>|<(?:https?:\/\/|mailto:)[^\s<>]+>|(?:https?:\/\/|www\.)[^\s<>"${"`"}[\]{}|\\^\u0080-\uffff]+`,
  "gi",
);
const ANY_MARK = /[\\`*_~[\]<]|\$\$|https?:|www\./i;
/** What a backslash before it makes text. */
const ESCAPABLE = /[!-/:-@[-`{-~]/;
/** Between these is math; a single `$` is not: prices have those. */
const MATH_END: Readonly<Record<string, string>> = { "$$": "$$", "\\(": "\\)", "\\[": "\\]" };
const DESTINATION = /\(\s*<?((?:[^\s()<>]|\([^\s()<>]*\))*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/y;
/** The label after a link's text; it bounds what is looked at. */
const LABEL = /\[([^[\]\n]{0,200})\]/y;
const MOST_LABEL = 200;
const AFTER_ADDRESS = new Set(".,;:!?*_~'");

class Parser {
  #out: Inline[] = [];
  #open: Open[] = [];
  #brackets: Bracket[] = [];
  #ticks: Map<number, number[]> | null = null;
  readonly #mathEnds = new Map<string, number[]>();

  constructor(private readonly source: string) {}

  parse(): readonly Inline[] {
    let from = 0;
    MARK.lastIndex = 0;
    for (let found = MARK.exec(this.source); found; found = MARK.exec(this.source)) {
      this.#write(this.source.slice(from, found.index));
      from = this.#take(found[0], found.index);
      MARK.lastIndex = from;
    }
    this.#write(this.source.slice(from));
    return merged(this.#out);
  }

  /** Handles what stands at `at`; returns where to go on. */
  #take(mark: string, at: number): number {
    const after = at + mark.length;
    const mathEnd = MATH_END[mark];
    if (mathEnd !== undefined) {
      const end = this.#math(mark, mathEnd, after);
      if (end !== null) return end;
    }
    switch (mark.charAt(0)) {
      case "\\":
        this.#write((mark === "\\\n" || ESCAPABLE.test(mark.charAt(1)) && mark !== "\\(" && mark !== "\\)") ? mark.slice(1) : mark);
        return after;
      case "$":
        this.#write(mark);
        return after;
      case "<":
        if (mark.includes(":")) return this.#address(mark.slice(1, -1), at, after);
        this.#tag(mark);
        return after;
      case "`":
        return this.#code(mark, after);
      case "*":
      case "_":
      case "~":
        this.#emphasis(mark, at);
        return after;
      case "!":
      case "[":
        this.#brackets.push({ mark, at: this.#out.length, from: after });
        this.#write(mark);
        return after;
      case "]":
        return this.#closeBracket(after);
      default:
        return this.#address(withoutPunctuation(mark), at);
    }
  }

  #write(text: string): void {
    if (text !== "") this.#out.push({ kind: "text", text: decoded(text) });
  }

  /** The formula whose text begins at `from`: where to go on after it. Null if it has no end. */
  #math(opener: string, closer: string, from: number): number | null {
    const end = this.#mathEnd(closer, from);
    const tex = end === null ? "" : this.source.slice(from, end).trim();
    if (end === null || tex === "") return null;
    this.#out.push({ kind: "math", tex, display: opener === "\\[" });
    return end + closer.length;
  }

  /** All ends of one kind are found once, and each is passed once. */
  #mathEnd(closer: string, from: number): number | null {
    let ends = this.#mathEnds.get(closer);
    if (!ends) this.#mathEnds.set(closer, (ends = positionsOf(this.source, closer).reverse()));
    while ((ends.at(-1) ?? from) < from) ends.pop();
    return ends.at(-1) ?? null;
  }

  #tag(mark: string): void {
    const name = mark.replace(/[</>\s]/g, "").toLowerCase();
    if (name === "br") return this.#write("\n");
    if (!mark.startsWith("</")) return this.#begin(`<${name}>`);
    const open = this.#open.filter((each) => each.mark === `<${name}>`).at(-1);
    if (open) this.#wrap(open);
    else this.#write(mark);
  }

  #code(ticks: string, after: number): number {
    const end = this.#nextTicks(ticks.length, after);
    if (end === null) {
      this.#write(ticks);
      return after;
    }
    const text = this.source.slice(after, end);
    const isPadded = text.startsWith(" ") && text.endsWith(" ") && text.trim() !== "";
    this.#out.push({ kind: "code", text: isPadded ? text.slice(1, -1) : text });
    return end + ticks.length;
  }

  /** Where the next run of exactly so many ticks begins. All runs are found once, and each is passed once. */
  #nextTicks(length: number, from: number): number | null {
    this.#ticks ??= ticksOf(this.source);
    const runs = this.#ticks.get(length) ?? [];
    while ((runs.at(-1) ?? from) < from) runs.pop(); // the nearest is last
    return runs.at(-1) ?? null;
  }

  #emphasis(run: string, at: number): void {
    const before = this.source.charAt(at - 1);
    const next = this.source.charAt(at + run.length);
    if (run.startsWith("~") && run.length !== 2) return this.#write(run);
    let left = run.length;
    for (;;) {
      const open = isSpace(before) ? null : this.#closable(run.charAt(0), left, isWord(next));
      if (!open) break;
      this.#wrap(open);
      left -= open.mark.length;
    }
    const rest = run.slice(0, left);
    if (left > 3 || isSpace(next) || isWord(before)) this.#write(rest);
    else for (const mark of [rest.slice(0, left & 2), rest.slice(left & 2)]) this.#begin(mark);
  }

  /** The nearest open mark that so many `char`s can close; within a word only ** closes. */
  #closable(char: string, left: number, inWord: boolean): Open | null {
    const fits = ({ mark }: Open): boolean =>
      mark.startsWith(char) && mark.length <= left && (!inWord || mark === "**" || mark === "~~");
    return this.#open.filter(fits).at(-1) ?? null;
  }

  #begin(mark: string): void {
    if (mark === "") return;
    this.#open = this.#open.filter((open) => open.mark !== mark);
    this.#open.push({ mark, at: this.#out.length });
    this.#write(mark);
  }

  #wrap({ mark, at }: Open): void {
    const inline = merged(this.#out.splice(at + 1));
    this.#out[at] = wrapped(mark, inline);
    this.#open = this.#open.filter((open) => open.at < at);
    while ((this.#brackets.at(-1)?.at ?? -1) > at) this.#brackets.pop();
  }

  /** After a `]`: a link, if a `[` was open and an allowed address follows. Links do not nest. */
  #closeBracket(after: number): number {
    const bracket = this.#brackets.pop();
    DESTINATION.lastIndex = after;
    const found = bracket && DESTINATION.exec(this.source);
    const link = found ? safeLink(found[1] ?? "") : null;
    if (!bracket || !found || !link) return this.#closeReference(bracket, after);
    const label = merged(this.#out.splice(bracket.at + 1).flatMap(unlinked));
    this.#out[bracket.at] = linkNode(link, label);
    this.#open = this.#open.filter((open) => open.at < bracket.at);
    this.#brackets = [];
    return after + found[0].length;
  }

  /** `[text][label]`, `[label][]` or `[label]`. With a mark open in the text, or an address that is none behind it, it is text. */
  #closeReference(bracket: Bracket | undefined, after: number): number {
    const length = bracket ? after - 1 - bracket.from : 0;
    const isOpen = bracket && length <= MOST_LABEL && this.source.charAt(after) !== "(" && !this.#open.some(({ at }) => at > bracket.at);
    const text = isOpen ? this.source.slice(bracket.from, after - 1) : "";
    if (!isOpen || text.includes("[") || text.startsWith("^")) {
      this.#write("]");
      return after;
    }
    LABEL.lastIndex = after;
    const [close = "", label = ""] = LABEL.exec(this.source) ?? [];
    const key = labelKey(label.trim() === "" ? text : label);
    const inline = merged(this.#out.splice(bracket.at + 1).flatMap(unlinked));
    this.#out[bracket.at] = { kind: "reference", key, open: bracket.mark, inline, close: `]${close}` };
    return after + close.length;
  }

  /** `address` stands at `at`; returns where to go on. */
  #address(address: string, at: number, after = at + address.length): number {
    const isOwn = !isWord(this.source.charAt(at - 1));
    const link = isOwn ? safeLink(/^www\./i.test(address) ? `http://${address}` : address) : null;
    if (link) this.#out.push(linkNode(link, [{ kind: "text", text: address }]));
    else this.#write(this.source.slice(at, after));
    return after;
  }
}

function wrapped(mark: string, inline: readonly Inline[]): Inline {
  if (mark.startsWith("<")) return { kind: "tag", tag: mark.slice(1, -1) as Tag, inline };
  if (mark === "~~") return { kind: "deleted", inline };
  return { kind: mark.length === 2 ? "strong" : "emphasis", inline };
}

function positionsOf(source: string, mark: string): number[] {
  const found: number[] = [];
  for (let at = source.indexOf(mark); at >= 0; at = source.indexOf(mark, at + mark.length)) found.push(at);
  return found;
}

const isSpace = (char: string): boolean => char === "" || /\s/.test(char);
/** Within words and sums (2*3*4, snake_case) marks are text. Scripts without spaces are not meant. */
const isWord = (char: string): boolean => /[A-Za-z0-9]/.test(char);

/** Runs of ticks by their length, the last one first. */
function ticksOf(source: string): Map<number, number[]> {
  const runs = new Map<number, number[]>();
  for (const { 0: run, index } of source.matchAll(/`+/g)) {
    const known = runs.get(run.length);
    if (known) known.push(index);
    else runs.set(run.length, [index]);
  }
  for (const positions of runs.values()) positions.reverse();
  return runs;
}

function withoutPunctuation(address: string): string {
  const hasBracket = address.includes("(");
  let end = address.length;
  while (AFTER_ADDRESS.has(address.charAt(end - 1)) || (!hasBracket && address.charAt(end - 1) === ")")) end -= 1;
  return address.slice(0, end);
}

function linkNode(link: SafeLink, label: readonly Inline[]): Inline & { kind: "link" } {
  const words = textOf(label);
  const inline: readonly Inline[] = words.trim() === "" ? [{ kind: "text", text: link.href }] : label;
  return { kind: "link", href: link.href, beside: besideLabel(textOf(inline), link), inline };
}

const textOf = (inline: readonly Inline[]): string =>
  inline
    .map((span) => {
      if (span.kind === "reference") return span.open + textOf(span.inline) + span.close;
      return "inline" in span ? textOf(span.inline) : span.kind === "math" ? span.tex : span.text;
    })
    .join("");

/** The link that a reference is, if its label is defined. */
export function resolved(reference: Inline & { kind: "reference" }, definitions: Definitions): (Inline & { kind: "link" }) | null {
  const link = definitions.get(reference.key);
  return link ? linkNode(link, reference.inline) : null;
}

function unlinked(span: Inline): readonly Inline[] {
  if (!("inline" in span)) return [span];
  const inline = span.inline.flatMap(unlinked);
  if (span.kind === "reference") return [{ kind: "text", text: span.open }, ...inline, { kind: "text", text: span.close }];
  return span.kind === "link" ? inline : [{ ...span, inline }];
}

function merged(spans: readonly Inline[]): readonly Inline[] {
  const out: Inline[] = [];
  for (const span of spans) {
    const last = out.at(-1);
    if (span.kind === "text" && last?.kind === "text") out[out.length - 1] = { kind: "text", text: last.text + span.text };
    else out.push(span);
  }
  return out;
}
