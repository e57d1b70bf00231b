/** What a server that loads is at, in the language of the page. The server says it in English. */

import { t } from "./strings.svelte";

const NUMBER = /\d+/g;

/** Kinds of work are known by the server's words with `#` for each number. What is not known is shown as it was said. */
export function loadingStep(what: string): string {
  return t.loadingSteps[what.replace(NUMBER, "#")]?.(what, ...(what.match(NUMBER) ?? [])) ?? what;
}
