/** The frames of `chatd.v1` and the answers of the native HTTP interface, as the page uses them. */

export interface Usage {
  prompt_tokens: number;
  gpu_hit: number;
  disk_hit: number;
  computed: number;
  output_tokens: number;
  total_tokens: number;
}

/** Milliseconds and tokens a second; null where unknown. */
export interface Timings {
  queue_ms: number | null;
  ttft_ms: number | null;
  tpot_ms: number | null;
  tokens_per_s: number | null;
  total_ms: number | null;
}

export const CAUSES = [
  ...["last_token", "cache_off", "damaged", "read_failed", "recompute_cheaper", "no_pages", "model_changed", "tier_off"],
  ...["below_block", "restarted", "evicted", "truncated", "template_rewrote", "edited", "new_text"],
] as const;

export interface Source {
  source: "gpu" | "disk" | "computed";
  start: number;
  end: number;
}

/** What the disk tier did for a prompt; milliseconds. `found` tokens it had beyond those in memory. */
export interface DiskLook {
  outcome: "off" | "nothing" | "loaded" | "cheaper" | "damaged" | "failed" | "no_pages";
  found: number;
  load_ms: number;
  compute_ms: number;
  restore_ms: number;
  choice: "load" | "compute" | null;
}

export interface Predicted {
  gpu_hit: number;
  disk_hit: number;
  computed: number;
  ttft_ms: number;
  /** The tokens came from where they were expected to. */
  exact: boolean;
  ttft_error: number | null;
}

/** Where each token of a prompt came from, and why the `first_computed` one was a miss. */
export interface Xray {
  /** One of `CAUSES`, or one that this page does not know yet. */
  cause: string;
  message: number | null;
  first_computed: number;
  history_len: number;
  sources: Source[];
  disk: DiskLook;
  predicted: Predicted | null;
}

/** Integer nano-units (1e-9) of `currency`. */
export interface Cost {
  currency: string;
  total_nano: number;
  without_cache_nano: number;
  saved_nano: number;
  prompt_nano: number;
  output_nano: number;
  price_version: string;
}

export type FinishReason = "end" | "stop" | "length" | "cancelled" | "failed";

export interface WireError {
  code: string;
  message: string;
  retryable: boolean;
}

/** How an answer is sampled and ended, by OpenAI's names; what is not named is as the server has it. */
export interface Params {
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  max_tokens?: number;
  repetition_penalty?: number;
  presence_penalty?: number;
  frequency_penalty?: number;
  seed?: number;
  stop?: string[];
  truncation?: "disabled" | "auto";
}

/** What is asked for when an answer is created: one of four kinds. */
export type CreateRequest = (
  | { input: string; conversation_id?: string; parent_id?: string }
  | { edit: string; input: string }
  | { regenerate: string }
  | { continue: string }
) & { params?: Params };

export type ClientEvent =
  | { type: "session.hello" }
  | ({ type: "response.create"; idempotency_key: string } & CreateRequest)
  | ({ type: "cache.estimate"; idempotency_key: string } & CreateRequest)
  | { type: "conversation.warm"; conversation_id: string }
  | { type: "response.cancel"; response_id: string }
  | { type: "response.subscribe"; response_id: string; after_seq: number }
  | { type: "response.ack"; response_id: string; seq: number }
  | { type: "ping" };

export interface SessionCreated {
  type: "session.created";
  session_id: string;
  /** Null, like `context_length`, while the model loads. */
  model: string | null;
  context_length: number | null;
  version: string;
  heartbeat_s: number;
  currency: string;
  /** Of answers for which none is asked; null while the model loads. */
  temperature: number | null;
}

export interface ResponseCreated {
  type: "response.created";
  response_id: string;
  idempotency_key: string;
  conversation_id: string;
  user_message_id: string | null;
  message_id: string;
  /** So many of the oldest turns were left out of the prompt. */
  dropped_turns: number;
  /** Why ids of earlier turns could not be reused; "" if they were. */
  miss: string;
}

export interface ResponseQueued {
  type: "response.queued";
  response_id: string;
  position: number;
}

export interface ResponseRestoring {
  type: "response.restoring";
  response_id: string;
  done: number;
  total: number;
}

export interface ResponsePrefill {
  type: "response.prefill";
  response_id: string;
  total: number;
  gpu_hit: number;
  disk_hit: number;
  computed: number;
  done: number;
}

/** `delta` joins the pieces `from_seq..seq`. */
export interface TextDelta {
  type: "response.output_text.delta";
  response_id: string;
  from_seq: number;
  seq: number;
  delta: string;
}

export interface ResponseEnded {
  type: "response.completed" | "response.incomplete" | "response.cancelled" | "response.failed";
  response_id: string;
  conversation_id: string;
  message_id: string;
  finish_reason: FinishReason;
  last_seq: number;
  usage: Usage;
  timings: Timings;
  cost: Cost;
  xray?: Xray;
  error?: WireError;
}

export interface ConversationUpdated {
  type: "conversation.updated";
  conversation_id: string;
  title: string;
  tip_id: string | null;
  updated_at: string;
  pinned: boolean;
  system_changed: boolean;
}

/** What would become of a prompt now. `cost` is the prompt's alone. */
export interface CacheEstimated {
  type: "cache.estimated";
  idempotency_key: string;
  prompt_tokens: number;
  gpu_hit: number;
  disk_hit: number;
  computed: number;
  queue_ms: number;
  restore_ms: number;
  compute_ms: number;
  ttft_ms: number;
  cost: { currency: string; prompt_nano: number; without_cache_nano: number; price_version: string };
  context_left: number;
  max_tokens: number;
  dropped_turns: number;
  xray: Xray;
}

export interface ErrorEvent extends WireError {
  type: "error";
  idempotency_key?: string;
  response_id?: string;
  conversation_id?: string;
}

/** Events about one running answer. */
export type AnswerEvent = ResponseQueued | ResponseRestoring | ResponsePrefill | TextDelta | ResponseEnded;

export type ServerEvent =
  | SessionCreated
  | ResponseCreated
  | AnswerEvent
  | ConversationUpdated
  | CacheEstimated
  | { type: "server.draining"; deadline_s: number }
  | { type: "pong" }
  | ErrorEvent;

const ANSWER_EVENTS: ReadonlySet<string> = new Set([
  "response.queued",
  "response.restoring",
  "response.prefill",
  "response.output_text.delta",
  "response.completed",
  "response.incomplete",
  "response.cancelled",
  "response.failed",
]);

export function isAnswerEvent(event: ServerEvent): event is AnswerEvent {
  return ANSWER_EVENTS.has(event.type);
}

/** The event in a frame; null for what is not an event. Types unknown to this page pass and are ignored later. */
export function parseEvent(frame: unknown): ServerEvent | null {
  if (typeof frame !== "string") return null;
  let value: unknown;
  try {
    value = JSON.parse(frame);
  } catch {
    return null;
  }
  if (typeof value !== "object" || value === null || !("type" in value)) return null;
  return typeof value.type === "string" ? (value as ServerEvent) : null;
}

export type ResponseStatus = "open" | "completed" | "incomplete" | "cancelled" | "failed";

/** One response as history shows it. Its numbers are final once it is not open. */
export interface ResponseSummary {
  response_id: string;
  status: ResponseStatus;
  finish_reason: FinishReason | null;
  usage: Usage;
  timings: Timings;
  cost: Cost;
  xray: Xray | null;
  error: WireError | null;
  dropped_turns: number;
}

export type Role = "system" | "user" | "assistant";

/** While `status` is "streaming", `text` is what the message held before the open response. */
export interface MessageView {
  id: string;
  parent_id: string | null;
  role: Role;
  text: string;
  status: string;
  created_at: string;
  responses: ResponseSummary[];
}

export interface ConversationHead {
  id: string;
  title: string;
  created_at: string;
  updated_at: string;
  tip_id: string | null;
  pinned: boolean;
}

export interface ConversationView extends ConversationHead {
  messages: MessageView[];
}

export interface ConversationPage {
  conversations: ConversationHead[];
  next: string | null;
}

export interface Readiness {
  status: "loading" | "ready" | "stalled" | "draining";
  progress: number;
  what: string;
}
