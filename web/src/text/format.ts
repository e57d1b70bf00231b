/** Numbers for people. Pure; each function takes its locale, so that tests and languages choose it. */

const formats = new Map<string, Intl.NumberFormat>();

function numberFormat(locale: string, options: Intl.NumberFormatOptions): Intl.NumberFormat {
  const name = locale + JSON.stringify(options);
  let format = formats.get(name);
  if (!format) formats.set(name, (format = new Intl.NumberFormat(locale, options)));
  return format;
}

export function count(value: number, locale: string): string {
  return numberFormat(locale, { maximumFractionDigits: 0 }).format(value);
}

/**
 * `part` of `whole` in percent, cut downwards: 100 % is said only of all, and 0 % only of none.
 * An empty whole has a share of 0.
 */
export function share(part: number, whole: number, locale: string): string {
  const format = numberFormat(locale, { style: "percent", maximumFractionDigits: 0 });
  if (whole <= 0 || part <= 0) return format.format(0);
  const percent = Math.floor((part * 100) / whole);
  return percent === 0 ? `<${format.format(0.01)}` : format.format(percent / 100);
}

/** Milliseconds below a second, else seconds with two or three figures, from a minute on minutes too. */
export function duration(ms: number, locale: string): string {
  const unit = (value: number, name: string, digits: number): string =>
    numberFormat(locale, {
      style: "unit",
      unit: name,
      unitDisplay: "short",
      maximumFractionDigits: digits,
    }).format(value);
  if (ms < 999.5) return unit(ms, "millisecond", ms < 9.95 ? 1 : 0);
  const seconds = ms / 1000;
  if (seconds < 59.95) return unit(seconds, "second", seconds < 9.995 ? 2 : 1);
  const whole = Math.round(seconds);
  return `${unit(Math.floor(whole / 60), "minute", 0)} ${unit(whole % 60, "second", 0)}`;
}

/** Tokens a second: one decimal below 100. */
export function rate(perSecond: number, locale: string): string {
  return numberFormat(locale, { maximumFractionDigits: perSecond < 99.95 ? 1 : 0 }).format(perSecond);
}

const UNITS = ["byte", "kilobyte", "megabyte", "gigabyte", "terabyte"];

/** Bytes in the largest unit of which there is one: thousands, as disks are sold. */
export function bytes(value: number, locale: string): string {
  const power = value < 1000 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log10(value) / 3));
  const scaled = value / 1000 ** power;
  return numberFormat(locale, {
    style: "unit",
    unit: UNITS[power],
    unitDisplay: "short",
    maximumFractionDigits: power > 0 && scaled < 99.95 ? 1 : 0,
  }).format(scaled);
}

const GIB_HOUR = 2 ** 30 * 3600;

/** Bytes times seconds in GiB-hours, with three figures of what there is. */
export function gibHours(byteSeconds: number, locale: string): string {
  return numberFormat(locale, { maximumSignificantDigits: 3 }).format(byteSeconds / GIB_HOUR);
}

/** A server's message as a sentence: servers begin small, and end without a full stop. */
export function sentence(message: string): string {
  const text = message.trim();
  if (text === "") return "";
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?:]$/.test(begun) ? begun : `${begun}.`;
}

const NANO_DIGITS = 9;

/**
 * Integer nano-units as money, with three figures of what there is: 0.0000421 is not 0.00, and
 * 12.3456 is 12.35. Nothing below a nano-unit is ever shown.
 */
export function money(nano: number, currency: string, locale: string): string {
  return moneyWith(nano, currency, locale, fractionDigits(nano));
}

/** All nine decimals, for those who add up. */
export function exactMoney(nano: number, currency: string, locale: string): string {
  return moneyWith(nano, currency, locale, NANO_DIGITS);
}

function moneyWith(nano: number, currency: string, locale: string, digits: number): string {
  return numberFormat(locale, {
    style: "currency",
    currency,
    currencyDisplay: "narrowSymbol",
    minimumFractionDigits: Math.min(2, digits),
    maximumFractionDigits: digits,
  }).format(nano / 1e9);
}

function fractionDigits(nano: number): number {
  const size = Math.abs(nano);
  if (size === 0 || size >= 1e9) return 2;
  const leading = Math.floor(Math.log10(size)) - NANO_DIGITS; // -1 for 0.1..., -9 for one nano-unit
  return Math.min(NANO_DIGITS, 2 - leading);
}
