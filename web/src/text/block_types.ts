/** The blocks that a text is made of. */

import type { Inline } from "./inline";
import type { Align } from "./lines";
import type { SafeLink } from "./links";

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

export type Kind = Block["kind"];
