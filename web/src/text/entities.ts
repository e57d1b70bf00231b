/** Character references in text, as HTML has them; those that models write. Pure. */

const NAMED: Readonly<Record<string, string>> = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", reg: "®", trade: "™", hellip: "…",
  mdash: "—", ndash: "–", lsquo: "‘", rsquo: "’", ldquo: "“", rdquo: "”", laquo: "«", raquo: "»", bull: "•",
  middot: "·", deg: "°", plusmn: "±", times: "×", divide: "÷", le: "≤", ge: "≥", ne: "≠", larr: "←", rarr: "→",
  uarr: "↑", darr: "↓", infin: "∞", euro: "€", pound: "£", yen: "¥", cent: "¢", sect: "§", para: "¶", micro: "µ",
};

const REFERENCE = /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-z]{2,6}));/g;

function character(code: number): string {
  const isText = code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
  return isText ? String.fromCodePoint(code) : "\ufffd";
}

/** What is no reference, or an unknown one, stays as it is. */
export function decoded(text: string): string {
  if (!text.includes("&")) return text;
  return text.replace(REFERENCE, (whole, decimal?: string, hex?: string, name?: string) => {
    if (decimal !== undefined) return character(Number(decimal));
    if (hex !== undefined) return character(Number.parseInt(hex, 16));
    return Object.hasOwn(NAMED, name ?? "") ? (NAMED[name ?? ""] ?? whole) : whole;
  });
}
