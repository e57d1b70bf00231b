import { expect, it } from "vitest";
import { decoded } from "./entities";

it.each([
  ["a &lt; b &amp;&amp; c", "a < b && c"],
  ["&#8364; &#x1F600;", "€ 😀"],
  ["&amp;lt;", "&lt;"],
  ["&constructor; &toString; & &; &#; &#x;", "&constructor; &toString; & &; &#; &#x;"],
])("%s", (text, expected) => expect(decoded(text)).toBe(expected));
