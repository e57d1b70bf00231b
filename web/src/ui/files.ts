/** Files that a person drops, pastes or picks, read as text. */

import { fileName, type TextFile } from "../core/attachments";

/** A frame may have 1 MiB; JSON and the rest of the message need some of it. */
export const MOST_BYTES = 512 * 1024;

export type Reading = { file: TextFile } | { refused: string; because: "binary" | "large" };

export async function readText(file: File): Promise<Reading> {
  const name = fileName(file.name);
  if (file.size > MOST_BYTES) return { refused: name, because: "large" };
  const text = decoded(new Uint8Array(await file.arrayBuffer()));
  return text === null ? { refused: name, because: "binary" } : { file: { name, text } };
}

/** UTF-8, UTF-16 with its mark, else GB 18030, which Chinese systems still write; null for what is no text. */
export function decoded(bytes: Uint8Array): string | null {
  const [first, second] = bytes;
  if (first === 0xff && second === 0xfe) return attempt("utf-16le", bytes);
  if (first === 0xfe && second === 0xff) return attempt("utf-16be", bytes);
  if (bytes.includes(0)) return null;
  return attempt("utf-8", bytes) ?? attempt("gb18030", bytes);
}

const CONTROLS = /[\u0000-\u0008\u000e-\u001a\u001c-\u001f]/;

function attempt(encoding: string, bytes: Uint8Array): string | null {
  try {
    const text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
    return CONTROLS.test(text) ? null : text.replaceAll("\r\n", "\n");
  } catch {
    return null;
  }
}
