/** The native HTTP interface. Every address is relative to the page, so a sub-path or a proxy needs no setting. */

import type { ConversationHead, ConversationPage, ConversationView, Readiness, WireError } from "./events";

/** The server said no, or could not be reached (`code` "unreachable"). */
export class ApiError extends Error implements WireError {
  constructor(
    readonly code: string,
    message: string,
    readonly retryable: boolean,
    readonly status: number,
  ) {
    super(message);
  }
}

/** Who one is here. `open`: nobody needs a key. `logged_in`: by a cookie, which can be logged out. */
export interface SessionView {
  account: string;
  key: string | null;
  scopes: string[];
  logged_in: boolean;
  open: boolean;
}

/** For an answer that a living server gives at once: over a dead network, a request may hang for minutes. */
const READINESS_MS = 5000;
const ASKING_WHO = new Set(["api/v1/session", "api/v1/login"]);

export function pageUrl(path: string): URL {
  return new URL(path, document.baseURI);
}

export function socketUrl(): string {
  const url = pageUrl("ws");
  url.hash = "";
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return url.href;
}

/** `more`: such as `keepalive`, or a `signal` to give up by. */
export async function request(method: string, path: string, body?: object, more: RequestInit = {}): Promise<Response> {
  const init: RequestInit = { ...more, method, headers: { accept: "application/json" } };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { ...init.headers, "content-type": "application/json" };
  }
  try {
    const response = await fetch(pageUrl(path), init);
    if (response.status === 401 && !ASKING_WHO.has(path)) location.reload(); // the page asks for a key then
    return response;
  } catch (cause) {
    throw new ApiError("unreachable", String(cause), true, 0);
  }
}

export async function failure(response: Response): Promise<ApiError> {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text) as { error: WireError };
    return new ApiError(error.code, error.message, error.retryable, response.status);
  } catch {
    return new ApiError("http_error", `HTTP ${response.status}`, response.status >= 500, response.status);
  }
}

export async function call<T>(method: string, path: string, body?: object): Promise<T> {
  const response = await request(method, path, body);
  if (!response.ok) throw await failure(response);
  return (await response.json()) as T;
}

/** Throws ApiError with status 401 if a key is wanted. */
export function getSession(): Promise<SessionView> {
  return call("GET", "api/v1/session");
}

export function logIn(by: { key: string } | { token: string }): Promise<SessionView> {
  return call("POST", "api/v1/login", by);
}

export async function logOut(): Promise<void> {
  await request("POST", "api/v1/logout");
}

/** Has the page ask for a key if one is wanted by now; does nothing if the server cannot be reached. */
export async function checkSession(): Promise<void> {
  try {
    await getSession();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) location.reload();
  }
}

const conversationPath = (id: string): string => `api/v1/conversations/${encodeURIComponent(id)}`;

/** Of an answer's output tokens: those that went out to a reader, and those that arrived as far as one said so. */
export interface Delivery {
  sent_tokens: number;
  acknowledged_tokens: number;
}

export function getDelivery(responseId: string): Promise<Delivery> {
  return call("GET", `api/v1/responses/${encodeURIComponent(responseId)}`);
}

export function listConversations(limit: number, before: string | null): Promise<ConversationPage> {
  const cursor = before === null ? "" : `&before=${encodeURIComponent(before)}`;
  return call("GET", `api/v1/conversations?limit=${limit}${cursor}`);
}

export function listPinned(): Promise<ConversationPage> {
  return call("GET", "api/v1/conversations?limit=200&pinned=true");
}

export function pinConversation(id: string, pinned: boolean): Promise<ConversationHead> {
  return call("PATCH", conversationPath(id), { pinned });
}

export function getConversation(id: string): Promise<ConversationView> {
  return call("GET", conversationPath(id));
}

/** A new conversation with a system prompt as its root. */
export function createConversation(system: string): Promise<ConversationHead> {
  return call("POST", "api/v1/conversations", { system });
}

/** What its model is told first from the next turn on. */
export function changeSystem(id: string, system: string): Promise<ConversationHead> {
  return call("PATCH", conversationPath(id), { system });
}

export function renameConversation(id: string, title: string): Promise<ConversationHead> {
  return call("PATCH", conversationPath(id), { title });
}

/** `keepalive` lets the request outlive the page. Deleting what is already gone is no error. */
export async function deleteConversation(id: string, keepalive: boolean): Promise<void> {
  const response = await request("DELETE", conversationPath(id), undefined, { keepalive });
  if (!response.ok && response.status !== 404) throw await failure(response);
}

/** Readiness is told with any status: 200 only when ready. Throws ApiError when nobody answers. */
export async function getReadiness(): Promise<Readiness> {
  const response = await request("GET", "readyz", undefined, { signal: AbortSignal.timeout(READINESS_MS) });
  try {
    return (await response.json()) as Readiness;
  } catch {
    throw new ApiError("http_error", `HTTP ${response.status}`, true, response.status);
  }
}
