/** What the places beside the chat ask of the server: search, files, reports, the cache. */

import { ApiError, call, failure, pageUrl, request } from "./http";

// --- search ---------------------------------------------------------------------------------------

/** A stretch of a snippet; `hit`: it is what was looked for. */
export interface Stretch {
  text: string;
  hit: boolean;
}

/** A title (`message_id` and `role` null) or a message. */
export interface Hit {
  conversation_id: string;
  title: string;
  message_id: string | null;
  role: "user" | "assistant" | null;
  at: string;
  snippet: Stretch[];
}

export interface HitPage {
  hits: Hit[];
  /** The `before` of the next page. */
  next: string | null;
}

export function search(query: string, before: string | null): Promise<HitPage> {
  const params = new URLSearchParams({ q: query, limit: "30" });
  if (before !== null) params.set("before", before);
  return call("GET", `api/v1/search?${params}`);
}

// --- files ----------------------------------------------------------------------------------------

export interface Imported {
  added: number;
  known: number;
  messages: number;
  /** What could not be read, each with its place and what is wrong there. */
  left_out: string[];
}

export async function importFile(file: File): Promise<Imported> {
  let response: Response;
  try {
    response = await fetch(pageUrl("api/v1/import"), { method: "POST", body: file });
  } catch (cause) {
    throw new ApiError("unreachable", String(cause), true, 0);
  }
  if (!response.ok) throw await failure(response);
  return (await response.json()) as Imported;
}

/** Addresses of files that the server makes. */
export const files = {
  all: (): string => pageUrl("api/v1/export").href,
  one: (id: string, format: "json" | "markdown", last: string | null): string => {
    const params = new URLSearchParams({ format, ...(last === null ? {} : { last }) });
    return pageUrl(`api/v1/conversations/${encodeURIComponent(id)}/export?${params}`).href;
  },
  kept: ({ since, prices }: ReportQuery): string => {
    return pageUrl(`api/v1/reports/storage?${paramsOf({ since, session: null, prices })}&format=csv`).href;
  },
  report: (kind: ReportKind, query: ReportQuery): string => {
    return pageUrl(`api/v1/reports/${kind}?${paramsOf(query)}&format=csv`).href;
  },
};

// --- reports --------------------------------------------------------------------------------------

export const REPORT_KINDS = ["sessions", "days", "models", "keys"] as const;
export type ReportKind = (typeof REPORT_KINDS)[number];
export const PRICES = ["computed", "gpu_hit", "disk_hit", "output", "storage"] as const;
export type PriceName = (typeof PRICES)[number];

/** Which turns, and at which prices: those that are not named are as they were billed. */
export interface ReportQuery {
  since: string | null;
  session: string | null;
  /** Units of the currency for a million tokens; for a GiB-hour of `storage`. */
  prices: Partial<Record<PriceName, number>>;
}

/** Money in nano-units; null where it has no price. Milliseconds null where nothing was measured. */
export interface Figures {
  currency: string;
  turns: number;
  prompt_tokens: number;
  gpu_hit: number;
  disk_hit: number;
  computed: number;
  output_tokens: number;
  hit_rate: number;
  ttft_hit_p50_ms: number | null;
  ttft_miss_p50_ms: number | null;
  saved_s: number | null;
  cost_nano: number | null;
  without_cache_nano: number | null;
  saved_nano: number | null;
}

export interface ReportRow extends Figures {
  session_id?: string;
  title?: string;
  day?: string;
  model?: string;
  namespace?: string;
  key_id?: string;
  last_at?: string;
}

export interface ReportTotal extends Figures {
  sessions: number | null;
}

export interface Report {
  rows: ReportRow[];
  totals: ReportTotal[];
  next: string | null;
}

/** All turns of this number in their sessions together. */
export interface TurnRow {
  number: number;
  turns: number;
  prompt_tokens: number;
  gpu_hit: number;
  disk_hit: number;
  computed: number;
  hit_rate: number;
}

/** What KV that was kept comes to. `tier`: "disk", or "pinned" in memory. */
export interface KeptSum {
  tier: string;
  byte_seconds: number;
  currency: string;
  cost_nano: number | null;
}

/** Nano-units for a million tokens; for a GiB-hour of `storage`. */
export type PriceBook = Record<PriceName, number | null> & { version: string; currency: string };

export function getReport(kind: ReportKind, query: ReportQuery, limit: number, after: string | null): Promise<Report> {
  const cursor = after === null ? "" : `&after=${encodeURIComponent(after)}`;
  return call("GET", `api/v1/reports/${kind}?${paramsOf(query)}&limit=${limit}${cursor}`);
}

export function getTurns({ since, session }: ReportQuery): Promise<{ rows: TurnRow[] }> {
  return call("GET", `api/v1/reports/turns?${paramsOf({ since, session, prices: {} })}`);
}

/** Of all turns: what is kept is kept for whoever comes. */
export function getKept({ since, prices }: ReportQuery): Promise<{ totals: KeptSum[] }> {
  return call("GET", `api/v1/reports/storage?${paramsOf({ since, session: null, prices })}`);
}

export function getPrices(): Promise<PriceBook> {
  return call("GET", "api/v1/reports/prices");
}

function paramsOf({ since, session, prices }: ReportQuery): URLSearchParams {
  const params = new URLSearchParams();
  if (since !== null) params.set("since", since);
  if (session !== null) params.set("session", session);
  for (const [name, price] of Object.entries(prices)) params.append("what_if", `${name}=${price}`);
  return params;
}

// --- the cache ------------------------------------------------------------------------------------

export interface Counters {
  evicted_pages: number;
  spilled_blocks: number;
  restored_blocks: number;
  dropped_blocks: number;
  prompt_tokens: number;
  gpu_hit: number;
  disk_hit: number;
}

export interface DiskLevel {
  blocks: number;
  nbytes: number;
  quota_bytes: number;
  suspended: string;
  fault: string;
}

export interface PinView {
  name: string;
  what: string;
  tokens: number;
}

export interface CacheFigures {
  all_accounts: boolean;
  counters: Counters;
  state: { free_pages: number; evictable_pages: number; total_pages: number; spill_queue: number };
  disk: DiskLevel | null;
  pins: PinView[];
}

/** A stretch of KV; `parent` indexes the list (-1: it begins at the beginning). `stored` tokens are on disk too. */
export interface CacheStretch {
  parent: number;
  start: number;
  tokens: number;
  pages: number;
  locks: number;
  stored: number;
  head: string;
}

export interface CachedConversation {
  id: string;
  title: string;
  tokens: number;
  in_memory: number;
  on_disk: number;
  stretches: number[];
}

export interface CacheTree {
  stretches: CacheStretch[];
  conversations: CachedConversation[];
}

const CACHE = "api/v1/operator/cache";

export const cache = {
  figures: (): Promise<CacheFigures> => call("GET", CACHE),
  tree: (): Promise<CacheTree> => call("GET", `${CACHE}/tree`),
  clear: (disk: boolean): Promise<{ tokens: number; blocks: number }> => call("POST", `${CACHE}/clear`, { disk }),
  warm: (id: string): Promise<{ tokens: number }> => call("POST", `${CACHE}/warm`, { conversation_id: id }),
  pin: (id: string): Promise<PinView> => call("POST", `${CACHE}/pins`, { conversation_id: id }),
  unpin: async (name: string): Promise<void> => {
    const response = await request("DELETE", `${CACHE}/pins/${encodeURIComponent(name)}`);
    if (!response.ok && response.status !== 404) throw await failure(response);
  },
};
