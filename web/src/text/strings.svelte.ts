/** The words of the language that is chosen: `t.send` in a component follows the choice. */

import { en, type Strings } from "./en";

export type { Strings } from "./en";

let words = $state.raw<Strings>(en);

export const t: Strings = new Proxy(en, { get: (_, name) => words[name as keyof Strings] });

export function speak(strings: Strings): void {
  words = strings;
}
