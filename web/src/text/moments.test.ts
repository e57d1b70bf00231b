import { expect, it } from "vitest";
import { clock, dayOf, shortUtcDay, utcDay } from "./moments";

it("says days in the words of a language, and years only where they are needed", () => {
  const now = new Date(2026, 10, 29);
  expect(dayOf(new Date(2026, 2, 1, 12).toISOString(), now, "en")).toBe("Mar 1");
  expect(dayOf(new Date(2025, 2, 1, 12).toISOString(), now, "en")).toBe("Mar 1, 2025");
  expect(dayOf(new Date(2026, 2, 1, 12).toISOString(), now, "zh-CN")).toBe("3月1日");
});

it("keeps days of reports what they are, wherever one is", () => {
  expect(utcDay("2026-11-01", "en")).toBe("Nov 1, 2026");
  expect(utcDay("2026-11-01", "zh-CN")).toBe("2026年11月1日");
  expect(shortUtcDay("2026-12-31", "en")).toBe("Dec 31");
  expect(clock(new Date(2026, 1, 1, 9, 5, 7).getTime(), "en")).toMatch(/9:05:07/);
});
