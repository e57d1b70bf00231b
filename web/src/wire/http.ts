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

export function pageUrl(path: string): URL {
  return new URL(path, document.baseURI);
}

export function socketUrl(): string {
  const url = pageUrl("ws");
  url.hash = "";
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return url.href;
}

async function request(method: string, path: string, body?: object, keepalive = false): Promise<Response> {
  const init: RequestInit = { method, keepalive, headers: { accept: "application/json" } };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { ...init.headers, "content-type": "application/json" };
  }
  try {
    return await fetch(pageUrl(path), init);
  } catch (cause) {
    throw new ApiError("unreachable", String(cause), true, 0);
  }
}

async function failure(response: Response): Promise<ApiError> {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text) as { error: WireError };
    return new ApiError(error.code, error.message, error.retryable, response.status);
  } catch {
    return new ApiError("http_error", `HTTP ${response.status}`, response.status >= 500, response.status);
  }
}

async function call<T>(method: string, path: string, body?: object): Promise<T> {
  const response = await request(method, path, body);
  if (!response.ok) throw await failure(response);
  return (await response.json()) as T;
}

const conversationPath = (id: string): string => `api/v1/conversations/${encodeURIComponent(id)}`;

export function listConversations(limit: number, before: string | null): Promise<ConversationPage> {
  const cursor = before === null ? "" : `&before=${encodeURIComponent(before)}`;
  return call("GET", `api/v1/conversations?limit=${limit}${cursor}`);
}

export function getConversation(id: string): Promise<ConversationView> {
  return call("GET", conversationPath(id));
}

/** A new conversation with a system prompt as its root. */
export function createConversation(system: string): Promise<ConversationHead> {
  return call("POST", "api/v1/conversations", { system });
}

export function renameConversation(id: string, title: string): Promise<ConversationHead> {
  return call("PATCH", conversationPath(id), { title });
}

/** `keepalive` lets the request outlive the page. Deleting what is already gone is no error. */
export async function deleteConversation(id: string, keepalive: boolean): Promise<void> {
  const response = await request("DELETE", conversationPath(id), undefined, keepalive);
  if (!response.ok && response.status !== 404) throw await failure(response);
}

/** Readiness is told with any status: 200 only when ready. Throws ApiError when nobody answers. */
export async function getReadiness(): Promise<Readiness> {
  const response = await request("GET", "readyz");
  try {
    return (await response.json()) as Readiness;
  } catch {
    throw new ApiError("http_error", `HTTP ${response.status}`, true, response.status);
  }
}
