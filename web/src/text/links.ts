/** Which addresses an answer may link to, and what must be said of them. Pure. */

export interface SafeLink {
  readonly href: string;
  /** Where it really leads: the host (in ASCII), or the mail's addresses. */
  readonly target: string;
}

/** Where the labels of `[text][label]` lead, as `[label]: address` says. */
export type Definitions = ReadonlyMap<string, SafeLink>;

/** Labels are the same whatever their case and spaces. */
export const labelKey = (label: string): string => label.trim().replace(/\s+/g, " ").toLowerCase();

const ALLOWED = /^(?:https?:\/\/|mailto:)/i;
const LONGEST = 2048;

/** Null for what is no link: another scheme, no valid address, or a name before the host (`https://bank@other`). */
export function safeLink(address: string): SafeLink | null {
  if (address.length > LONGEST || !ALLOWED.test(address) || !URL.canParse(address)) return null;
  const url = new URL(address);
  if (url.username !== "" || url.password !== "") return null;
  if (url.protocol === "mailto:") return { href: url.href, target: url.href.slice("mailto:".length) };
  return { href: url.href, target: url.host };
}

/** What to show beside a link with this label, so that no label can pretend to lead elsewhere: "" if it says so itself. */
export function besideLabel(label: string, { href, target }: SafeLink): string {
  const said = label.trim().toLowerCase();
  const bare = href.toLowerCase().replace(/^(?:https?:\/\/|mailto:)/, "");
  const truths = [href.toLowerCase(), bare, target.toLowerCase()];
  return truths.some((truth) => said === truth || `${said}/` === truth) ? "" : target;
}
