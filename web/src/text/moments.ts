/** Days and times for people. Pure. */

const formats = new Map<string, Intl.DateTimeFormat>();

function dateFormat(locale: string, options: Intl.DateTimeFormatOptions): Intl.DateTimeFormat {
  const name = locale + JSON.stringify(options);
  let format = formats.get(name);
  if (!format) formats.set(name, (format = new Intl.DateTimeFormat(locale, options)));
  return format;
}

/** The local day of a time (RFC 3339), with the year only if it is not that of `now`. */
export function dayOf(at: string, now: Date, locale: string): string {
  const when = new Date(at);
  const year = when.getFullYear() === now.getFullYear() ? {} : ({ year: "numeric" } as const);
  return dateFormat(locale, { month: "short", day: "numeric", ...year }).format(when);
}

/** A day in UTC, as reports have it (`2026-11-29`). */
export function utcDay(day: string, locale: string): string {
  return dateFormat(locale, { dateStyle: "medium", timeZone: "UTC" }).format(new Date(`${day}T00:00:00Z`));
}

/** The same, as short as an axis wants it. */
export function shortUtcDay(day: string, locale: string): string {
  return dateFormat(locale, { month: "short", day: "numeric", timeZone: "UTC" }).format(new Date(`${day}T00:00:00Z`));
}

/** The time of day, to the second. */
export function clock(at: number, locale: string): string {
  return dateFormat(locale, { timeStyle: "medium" }).format(at);
}
