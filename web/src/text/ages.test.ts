import { expect, it } from "vitest";
import { ageOf } from "./ages";

it("counts calendar days, not spans of 24 hours", () => {
  const now = new Date(2026, 2, 10, 0, 30);
  expect(ageOf(new Date(2026, 2, 10, 0, 1), now)).toBe("today");
  expect(ageOf(new Date(2026, 2, 11, 0, 1), now)).toBe("today"); // a clock that runs ahead
  expect(ageOf(new Date(2026, 2, 9, 23, 59), now)).toBe("yesterday");
  expect(ageOf(new Date(2026, 2, 3), now)).toBe("week");
  expect(ageOf(new Date(2026, 2, 2, 23), now)).toBe("older");
});
