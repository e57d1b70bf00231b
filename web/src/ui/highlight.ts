/**
 * Colours for code: highlight.js, fetched when the first code block needs it.
 *
 * Its HTML is the only HTML there is in this page. It goes through DOMPurify, which lets nothing pass but
 * spans with classes, and which the page's Trusted Types policy allows alone to parse any.
 */

type Colour = (code: string) => DocumentFragment;

let fetched: Promise<(language: string) => Colour | null> | undefined;

/** What colours code in this language; null for one that is not known, or where nothing could be fetched. */
export async function highlighted(language: string): Promise<Colour | null> {
  fetched ??= load();
  try {
    return (await fetched)(language);
  } catch {
    fetched = undefined; // the connection was lost: the next block tries again
    return null;
  }
}

async function load(): Promise<(language: string) => Colour | null> {
  const [{ default: hljs }, { default: purify }] = await Promise.all([import("highlight.js/lib/common"), import("dompurify")]);
  return (name) => {
    const language = name.toLowerCase();
    if (!hljs.getLanguage(language)) return null;
    return (code) =>
      purify.sanitize(hljs.highlight(code, { language, ignoreIllegals: true }).value, {
        ALLOWED_TAGS: ["span"],
        ALLOWED_ATTR: ["class"],
        ALLOW_DATA_ATTR: false,
        ALLOW_ARIA_ATTR: false,
        RETURN_DOM_FRAGMENT: true,
      });
  };
}
