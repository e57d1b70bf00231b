import { expect, it } from "vitest";
import { estimateTokens } from "./tokens";

// Counted with the tokenizer of SmolLM2 where it is about Latin scripts, with Qwen's for Chinese.
it.each([
  ["", 0, 0],
  ["The quick brown fox jumps over the lazy dog.", 8, 12],
  ["def add(a, b):\n    return a + b\n", 11, 17],
  ["今天天气很好，我们去公园吧。", 8, 16],
])("%j has between %i and %i", (text, low, high) => {
  expect(estimateTokens(text)).toBeGreaterThanOrEqual(low);
  expect(estimateTokens(text)).toBeLessThanOrEqual(high);
});
