/** What to tell of a request that failed, in the language of the page where the kind of failure is known. */

import type { WireError } from "../wire/events";
import { sentence } from "./format";
import { t } from "./strings.svelte";

export function told({ code, message }: Pick<WireError, "code" | "message">): string {
  if (code === "unreachable") return t.unreachable;
  return t.failures[code]?.(sentence(message)) ?? sentence(message);
}
