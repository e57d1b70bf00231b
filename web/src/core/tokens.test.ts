import { expect, it } from "vitest";
import { estimateTokens } from "./tokens";

// SmolLM2 makes 10, 13, 19 and 25 tokens of the first four. It knows little Chinese: vocabularies that do
// make one token of one or two characters.
it.each([
  ["", 0, 0],
  ["The quick brown fox jumps over the lazy dog.", 8, 12],
  ["def add(a, b):\n    return a + b\n", 11, 17],
  ['{"name": "chatd", "version": [1, 2, 3]}', 17, 23],
  ["| Tier | Tokens |\n| --- | ---: |\n| Memory | 1,204 |\n", 21, 28],
  ["今天天气很好，我们去公园吧。", 8, 16],
])("%j has between %i and %i", (text, low, high) => {
  expect(estimateTokens(text)).toBeGreaterThanOrEqual(low);
  expect(estimateTokens(text)).toBeLessThanOrEqual(high);
});
