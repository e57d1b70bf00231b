/** What may be asked of an answer, and within which bounds. Pure. */

import type { Params } from "../wire/events";

export interface Bounds {
  readonly low: number;
  readonly high: number;
  readonly step: number;
  readonly whole: boolean;
  /** What the server does without it; null where that is its own setting, or no number. */
  readonly usual: number | null;
}

const MOST = 2 ** 31 - 1;

export const NUMBER_PARAMS = {
  temperature: { low: 0, high: 2, step: 0.05, whole: false, usual: null },
  max_tokens: { low: 1, high: MOST, step: 1, whole: true, usual: null },
  top_p: { low: 0, high: 1, step: 0.01, whole: false, usual: 1 },
  top_k: { low: 0, high: MOST, step: 1, whole: true, usual: 0 },
  min_p: { low: 0, high: 1, step: 0.01, whole: false, usual: 0 },
  repetition_penalty: { low: 0.1, high: 10, step: 0.05, whole: false, usual: 1 },
  presence_penalty: { low: -2, high: 2, step: 0.1, whole: false, usual: 0 },
  frequency_penalty: { low: -2, high: 2, step: 0.1, whole: false, usual: 0 },
  seed: { low: 0, high: Number.MAX_SAFE_INTEGER, step: 1, whole: true, usual: null },
} as const satisfies Partial<Record<keyof Params, Bounds>>;

export type NumberParam = keyof typeof NUMBER_PARAMS;
export const NUMBER_PARAM_NAMES = Object.keys(NUMBER_PARAMS) as NumberParam[];

export type Fault = "range" | "whole";

export function faultOf(name: NumberParam, value: number): Fault | null {
  const { low, high, whole } = NUMBER_PARAMS[name];
  if (!Number.isFinite(value) || value < low || value > high) return "range";
  return whole && !Number.isInteger(value) ? "whole" : null;
}

const MOST_STOPS = 16;
const LONGEST_STOP = 256;

/** One a line; no more and none longer than the server takes. */
export function stopsOf(text: string): string[] {
  const lines = text.split("\n").filter((line) => line !== "" && line.length <= LONGEST_STOP);
  return [...new Set(lines)].slice(0, MOST_STOPS);
}

/** What an older page or a stranger stored, as far as it can be sent. */
export function parsedParams(stored: unknown): Params {
  if (typeof stored !== "object" || stored === null) return {};
  const given = stored as Record<string, unknown>;
  const params: Params = {};
  for (const name of NUMBER_PARAM_NAMES) {
    const value = given[name];
    if (typeof value === "number" && faultOf(name, value) === null) params[name] = value;
  }
  const stops = given["stop"];
  if (Array.isArray(stops)) {
    const texts = stopsOf(stops.filter((stop) => typeof stop === "string").join("\n"));
    if (texts.length > 0) params.stop = texts;
  }
  if (given["truncation"] === "auto") params.truncation = "auto";
  return params;
}
