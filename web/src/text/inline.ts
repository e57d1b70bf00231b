/**
 * The text within a block: `code`, **strong**, *emphasis* and links. Pure.
 *
 * One pass from left to right, in linear time: a mark is first written down as the text it is; where
 * its counterpart comes, all that was written since is put into one node. Each of the four marks
 * can be open only once (the nearest counts), so nothing nests deeper than they and one link.
 * A mark without its counterpart stays text; so does all that looks like HTML.
 */

import { besideLabel, safeLink, type SafeLink } from "./links";

export type Inline =
  | { readonly kind: "text"; readonly text: string }
  | { readonly kind: "code"; readonly text: string }
  | { readonly kind: "strong"; readonly inline: readonly Inline[] }
  | { readonly kind: "emphasis"; readonly inline: readonly Inline[] }
  | { readonly kind: "link"; readonly href: string; readonly beside: string; readonly inline: readonly Inline[] };

export function parseInline(source: string): readonly Inline[] {
  if (source !== "" && !ANY_MARK.test(source)) return [{ kind: "text", text: source }];
  return new Parser(source).parse();
}

/** A mark that may find its counterpart: where it stands in what was written. */
interface Open {
  readonly mark: string;
  readonly at: number;
}

// Addresses in plain text are ASCII: what follows them in other scripts is none of theirs.
const MARK = /\\[*_`[\]]|`+|\*+|_+|!?\[|\]|https?:\/\/[^\s<>"`[\]{}|\\^\u0080-\uffff]+/g;
const ANY_MARK = /[\\`*_[\]]|https?:/;
const DESTINATION = /\(\s*<?((?:[^\s()<>]|\([^\s()<>]*\))*)>?(?:\s+"[^"]*")?\s*\)/y;
const AFTER_ADDRESS = new Set(".,;:!?*_~'");

class Parser {
  #out: Inline[] = [];
  #open: Open[] = [];
  #brackets: Open[] = [];
  #ticks: Map<number, number[]> | null = null;

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
    switch (mark.charAt(0)) {
      case "\\":
        this.#write(mark.slice(1));
        return after;
      case "`":
        return this.#code(mark, after);
      case "*":
      case "_":
        this.#emphasis(mark, at);
        return after;
      case "!":
      case "[":
        this.#brackets.push({ mark, at: this.#out.length });
        this.#write(mark);
        return after;
      case "]":
        return this.#closeBracket(after);
      default:
        return this.#address(mark, at);
    }
  }

  #write(text: string): void {
    if (text !== "") this.#out.push({ kind: "text", text });
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
      mark.startsWith(char) && mark.length <= left && (!inWord || mark === "**");
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
    this.#out[at] = { kind: mark.length === 2 ? "strong" : "emphasis", inline };
    this.#open = this.#open.filter((open) => open.at < at);
    while ((this.#brackets.at(-1)?.at ?? -1) > at) this.#brackets.pop();
  }

  /** After a `]`: a link, if a `[` was open and an allowed address follows. Links do not nest. */
  #closeBracket(after: number): number {
    const bracket = this.#brackets.pop();
    DESTINATION.lastIndex = after;
    const found = bracket && DESTINATION.exec(this.source);
    const link = found ? safeLink(found[1] ?? "") : null;
    if (!bracket || !found || !link) {
      this.#write("]");
      return after;
    }
    const label = merged(this.#out.splice(bracket.at + 1).flatMap(unlinked));
    this.#out[bracket.at] = linkNode(link, label);
    this.#open = this.#open.filter((open) => open.at < bracket.at);
    this.#brackets = [];
    return after + found[0].length;
  }

  #address(found: string, at: number): number {
    const address = withoutPunctuation(found);
    const link = isWord(this.source.charAt(at - 1)) ? null : safeLink(address);
    if (link) this.#out.push(linkNode(link, [{ kind: "text", text: address }]));
    else this.#write(address);
    return at + address.length;
  }
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

function linkNode(link: SafeLink, label: readonly Inline[]): Inline {
  const words = textOf(label);
  const inline: readonly Inline[] = words.trim() === "" ? [{ kind: "text", text: link.href }] : label;
  return { kind: "link", href: link.href, beside: besideLabel(textOf(inline), link), inline };
}

const textOf = (inline: readonly Inline[]): string =>
  inline.map((span) => ("text" in span ? span.text : textOf(span.inline))).join("");

function unlinked(span: Inline): readonly Inline[] {
  if ("text" in span) return [span];
  const inline = span.inline.flatMap(unlinked);
  return span.kind === "link" ? inline : [{ kind: span.kind, inline }];
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
