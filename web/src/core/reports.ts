/** Reports made ready to be drawn. Pure. Days are UTC days as the server writes them, `2026-11-29`. */

import type { ReportRow, ReportTotal } from "../wire/pages";

const DAY_MS = 86_400_000;

export const RANGES = [7, 30, 90, null] as const;
/** Days up to today; null: all there are. */
export type Range = (typeof RANGES)[number];

export function today(now: Date): string {
  return now.toISOString().slice(0, 10);
}

/** The first day of a range. */
export function sinceOf(range: Range, now: Date): string | null {
  return range === null ? null : addDays(today(now), 1 - range);
}

export function addDays(day: string, days: number): string {
  return new Date(Date.parse(`${day}T00:00:00Z`) + days * DAY_MS).toISOString().slice(0, 10);
}

/** Every day of a range in order, with its row if there is one in that currency. `rows` come newest first. */
export function daysOf(rows: readonly ReportRow[], range: Range, currency: string, now: Date): { day: string; row: ReportRow | null }[] {
  const own = rows.filter((row) => row.currency === currency);
  const byDay = new Map(own.map((row) => [row.day, row]));
  const last = today(now);
  const first = sinceOf(range, now) ?? own.at(-1)?.day ?? last;
  const found: { day: string; row: ReportRow | null }[] = [];
  for (let day = first; day <= last; day = addDays(day, 1)) found.push({ day, row: byDay.get(day) ?? null });
  return found;
}

/** The total of the currency in which most turns were billed. */
export function mainTotal(totals: readonly ReportTotal[]): ReportTotal | null {
  return totals.reduce<ReportTotal | null>((most, each) => (most === null || each.turns > most.turns ? each : most), null);
}

/** How far a price's slider goes, and its steps: to four times the price, or to `most` where that is nothing. Units. */
export function sliderOf(nano: number, most = 10): { price: number; max: number; step: number } {
  const price = nano / 1e9;
  const max = price === 0 ? most : price * 4;
  return { price, max, step: max / 80 };
}
