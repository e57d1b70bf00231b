import { describe, expect, it } from "vitest";
import { CAUSES } from "../wire/events";
import { en } from "./en";
import { zh } from "./zh";

/** Every path to a word, with what stands there. */
function words(value: unknown, path = ""): Map<string, unknown> {
  if (typeof value !== "object" || value === null) return new Map([[path, value]]);
  return new Map(Object.entries(value).flatMap(([name, each]) => [...words(each, `${path}.${name}`)]));
}

const sources = import.meta.glob<string>(["../**/*.svelte", "../**/*.ts", "!../**/*.test.ts", "!./en.ts", "!./zh.ts"], {
  query: "?raw",
  import: "default",
  eager: true,
});

describe("languages", () => {
  it("have every word that English has, and no other", () => {
    expect([...words(zh).keys()].sort()).toEqual([...words(en).keys()].sort());
  });

  it("leave nothing empty, and nothing in English that is a sentence", () => {
    for (const [path, word] of words(zh)) {
      expect(word, path).not.toBe("");
      const same = word === words(en).get(path) && typeof word === "string";
      expect(same && /\s\w+\s/.test(word), path).toBe(false);
    }
  });

  it("say why a token was a miss, for every cause there is", () => {
    for (const each of [en, zh]) expect(Object.keys(each.causes).sort()).toEqual([...CAUSES].sort());
  });

  it("have no word that nothing shows", () => {
    const all = Object.values(sources).join("\n");
    const unused = Object.keys(en).filter((name) => !new RegExp(`\\bt\\.${name}\\b`).test(all));
    expect(unused).toEqual([]);
  });
});

it("no component says anything that is not translated", () => {
  for (const [path, source] of Object.entries(sources)) {
    if (!path.endsWith(".svelte")) continue;
    const markup = source.replace(/<script[^]*?<\/script>|<style[^]*?<\/style>|<!--[^]*?-->/g, "");
    expect(markup.match(/(?:aria-label|title|placeholder|alt)="[^"{]*[A-Za-z]{2}[^"{]*"/g) ?? [], path).toEqual([]);
    const texts = markup
      .replace(/\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}/g, "")
      .split(/<[^>]*(?:=>[^>]*)*>/)
      .filter((text) => /\p{L}{2}/u.test(text.replace(/&\w+;/g, "")));
    expect(texts, path).toEqual([]);
  }
});
