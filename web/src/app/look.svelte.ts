/**
 * Theme, language and whether the list is shown: of this browser, for every chatd under this origin.
 *
 * public/look.js has put the stored choice on the root element before the first paint; changes go there too.
 */

import type { KeyValueStore } from "../core/outbox";
import { en, type Strings } from "../text/en";
import { speak } from "../text/strings.svelte";

export const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

/** What the languages call themselves. */
export const LANGUAGES = { en: "English", "zh-CN": "简体中文" } as const;
export type Language = keyof typeof LANGUAGES;

const NAME = "chatd:look";

interface Stored {
  theme?: Theme;
  language?: Language;
  sidebar?: boolean;
}

export class Look {
  theme = $state<Theme>("system");
  /** Null follows the browser. */
  language = $state<Language | null>(null);
  sidebar = $state(true);

  constructor(private readonly storage: KeyValueStore) {
    const stored = parsed(storage.getItem(NAME));
    if (stored.theme && THEMES.includes(stored.theme)) this.theme = stored.theme;
    if (stored.language && stored.language in LANGUAGES) this.language = stored.language;
    this.sidebar = stored.sidebar !== false;
  }

  setTheme(theme: Theme): void {
    this.theme = theme;
    if (theme === "system") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = theme;
    this.#save();
  }

  async setLanguage(language: Language | null): Promise<void> {
    this.language = language;
    this.#save();
    await this.speak();
  }

  setSidebar(shown: boolean): void {
    this.sidebar = shown;
    if (shown) delete document.documentElement.dataset["sidebar"];
    else document.documentElement.dataset["sidebar"] = "closed";
    this.#save();
  }

  /** Fetches the words of the language that is chosen, and shows them. */
  async speak(): Promise<void> {
    const wanted = this.language ?? (/^zh\b/i.test(navigator.language) ? "zh-CN" : "en");
    const strings = await WORDS[wanted]();
    speak(strings);
    document.documentElement.lang = strings.locale;
  }

  #save(): void {
    const stored: Stored = { theme: this.theme, sidebar: this.sidebar };
    if (this.language) stored.language = this.language;
    this.storage.setItem(NAME, JSON.stringify(stored));
  }
}

const WORDS: Record<Language, () => Promise<Strings>> = {
  en: () => Promise.resolve(en),
  "zh-CN": () => import("../text/zh").then(({ zh }) => zh),
};

function parsed(stored: string | null): Stored {
  try {
    const value: unknown = JSON.parse(stored ?? "{}");
    return typeof value === "object" && value !== null ? value : {};
  } catch {
    return {};
  }
}
