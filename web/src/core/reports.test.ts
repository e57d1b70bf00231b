import { expect, it } from "vitest";
import type { ReportRow, ReportTotal } from "../wire/pages";
import { addDays, daysOf, mainTotal, sinceOf, sliderOf, today } from "./reports";

const NOW = new Date("2026-03-01T00:30:00Z");
const row = (day: string, currency = "CNY"): ReportRow => ({ day, currency, turns: 1 }) as ReportRow;

it("counts days in UTC, over months and leap days", () => {
  expect(today(NOW)).toBe("2026-03-01");
  expect(addDays("2026-02-28", 1)).toBe("2026-03-01");
  expect(addDays("2028-03-01", -1)).toBe("2028-02-29");
  expect([sinceOf(7, NOW), sinceOf(null, NOW)]).toEqual(["2026-02-23", null]);
});

it("has every day of a range, with or without turns", () => {
  const found = daysOf([row("2026-03-01"), row("2026-02-27"), row("2026-02-26", "USD")], 7, "CNY", NOW);
  expect(found.map(({ day }) => day.slice(5))).toEqual(["02-23", "02-24", "02-25", "02-26", "02-27", "02-28", "03-01"]);
  expect(found.filter(({ row: there }) => there).map(({ day }) => day)).toEqual(["2026-02-27", "2026-03-01"]);
});

it("begins with the first turn where all are wanted", () => {
  expect(daysOf([row("2026-03-01"), row("2026-02-27")], null, "CNY", NOW).length).toBe(3);
  expect(daysOf([], null, "CNY", NOW).map(({ day }) => day)).toEqual(["2026-03-01"]);
});

it("takes the currency of most turns", () => {
  const totals = [{ currency: "CNY", turns: 2 }, { currency: "USD", turns: 5 }] as ReportTotal[];
  expect(mainTotal(totals)?.currency).toBe("USD");
  expect(mainTotal([])).toBeNull();
});

it("has sliders on whose steps the price itself is", () => {
  for (const nano of [1e9, 1e8, 2e9, 123_456_789]) {
    const { price, max, step } = sliderOf(nano);
    expect(max / price).toBeCloseTo(4);
    expect(price / step).toBeCloseTo(20);
  }
  expect(sliderOf(0)).toEqual({ price: 0, max: 10, step: 0.125 });
});
