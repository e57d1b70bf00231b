/** Roughly how many tokens a text has, for what the server has not counted yet. Pure. */

// Byte-pair vocabularies cut English into pieces of about four characters, code into three; of CJK
// scripts one character makes about one token, of all others about two characters do.
const WIDE = /[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uff00-\uffef]/g;
const OTHER = /[^\x00-\x7f]/g;
const WORD = /[A-Za-z]+|\d{1,3}|[^A-Za-z\d\s]|\s{2,}|\n/g;
const LETTERS_A_TOKEN = 6;

export function estimateTokens(text: string): number {
  const wide = text.match(WIDE)?.length ?? 0;
  const other = (text.match(OTHER)?.length ?? 0) - wide;
  let ascii = 0;
  for (const [piece] of text.replace(OTHER, " ").matchAll(WORD)) {
    ascii += piece.trim() === "" ? 1 : Math.ceil(piece.length / LETTERS_A_TOKEN);
  }
  return Math.ceil(wide + other / 2 + ascii);
}
