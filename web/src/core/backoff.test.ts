import { expect, it } from "vitest";
import { retryDelay } from "./backoff";

it("starts soon, doubles, and never waits longer than 5 s", () => {
  expect([0, 1, 2].map((attempt) => retryDelay(attempt, 0))).toEqual([125, 250, 500]);
  expect(retryDelay(3, 0.999)).toBeLessThan(2000);
  expect(retryDelay(1000, 0.999)).toBeLessThanOrEqual(5000);
});
