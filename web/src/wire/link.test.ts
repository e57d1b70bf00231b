import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { ServerEvent } from "./events";
import { Link, type LinkState } from "./link";

/** The browser's WebSocket as the link uses it. */
class Line {
  static opened: Line[] = [];
  readonly sent: unknown[] = [];
  isClosed = false;
  onopen: (() => void) | null = null;
  onclose: (() => void) | null = null;
  onmessage: ((message: { data: unknown }) => void) | null = null;

  constructor(
    readonly url: string,
    readonly protocol: string,
  ) {
    Line.opened.push(this);
  }

  send(frame: string): void {
    this.sent.push(JSON.parse(frame));
  }

  close(): void {
    this.isClosed = true;
  }

  hear(event: object): void {
    this.onmessage?.({ data: JSON.stringify(event) });
  }
}

const GREETING = { type: "session.created", heartbeat_s: 10, model: "m", context_length: 1 };

function setup() {
  const states: LinkState[] = [];
  const events: ServerEvent[] = [];
  const link = new Link(
    "ws://host/ws",
    { onState: (state) => states.push(state), onEvent: (event) => events.push(event) },
    () => 0.5,
  );
  link.connect();
  const line = (): Line => Line.opened.at(-1) as Line;
  const greet = (): void => {
    line().onopen?.();
    line().hear(GREETING);
  };
  return { link, states, events, line, greet };
}

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("WebSocket", Line);
  Line.opened = [];
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

describe("Link", () => {
  it("is open once the server has greeted, and refuses to send before", () => {
    const { link, states, events, line, greet } = setup();
    expect(line().protocol).toBe("chatd.v1");
    expect(link.send({ type: "ping" })).toBe(false);
    greet();
    expect(line().sent).toEqual([{ type: "session.hello" }]);
    expect(link.send({ type: "ping" })).toBe(true);
    expect(states).toEqual(["open"]);
    expect(events.map((event) => event.type)).toEqual(["session.created"]);
  });

  it("comes back later and later, and at once after a success", () => {
    const { states, line, greet } = setup();
    const waits = [187.5, 375, 750].map((wait) => {
      line().onclose?.();
      vi.advanceTimersByTime(wait - 1);
      const before = Line.opened.length;
      vi.advanceTimersByTime(1);
      return Line.opened.length - before;
    });
    expect(waits).toEqual([1, 1, 1]);
    greet();
    line().onclose?.();
    vi.advanceTimersByTime(188);
    expect(Line.opened.length).toBe(5);
    expect(states).toEqual(["lost", "lost", "lost", "open", "lost"]);
  });

  it("gives up a line that is silent for a heartbeat after a ping", () => {
    const { states, line, greet } = setup();
    greet();
    const silent = line();
    vi.advanceTimersByTime(10_000);
    expect(silent.sent.at(-1)).toEqual({ type: "ping" });
    vi.advanceTimersByTime(9_999);
    expect(states).toEqual(["open"]);
    vi.advanceTimersByTime(1);
    expect(states).toEqual(["open", "lost"]);
    expect(silent.isClosed).toBe(true);
  });

  it("keeps a line that says anything", () => {
    const { states, line, greet } = setup();
    greet();
    for (let beat = 0; beat < 20; beat += 1) {
      vi.advanceTimersByTime(9_000);
      line().hear({ type: "pong" });
    }
    expect(states).toEqual(["open"]);
    expect(line().sent.length).toBe(1);
  });

  it("hears nothing of a line it has given up", () => {
    const { link, states, events, line, greet } = setup();
    greet();
    const old = line();
    link.restart();
    expect(Line.opened.length).toBe(2);
    old.hear({ type: "pong" });
    old.onclose?.();
    expect(states).toEqual(["open", "lost"]);
    expect(events.length).toBe(1);
  });

  it("finds out fast whether a line survived a sleep", () => {
    const { link, states, line, greet } = setup();
    greet();
    link.probe(3000);
    line().hear({ type: "pong" });
    vi.advanceTimersByTime(3000);
    expect(states).toEqual(["open"]);
    link.probe(3000);
    vi.advanceTimersByTime(3000);
    expect(states).toEqual(["open", "lost"]);
  });

  it("takes a new line at once when it wakes up over one that does not open", () => {
    const { link, states, greet } = setup();
    link.probe(3000);
    expect(Line.opened.length).toBe(1); // it has only just begun
    vi.advanceTimersByTime(1_000);
    link.renew(2_000);
    expect(Line.opened.length).toBe(1);
    link.probe(3000);
    expect(Line.opened.length).toBe(2);
    greet();
    expect(states).toEqual(["lost", "open"]);
    vi.advanceTimersByTime(5_000);
    link.renew(1_000);
    expect(Line.opened.length).toBe(2);
  });

  it("comes back within 5 s however long it was away, and though whoever hears of the loss fails", () => {
    const { line } = setup();
    for (let attempt = 0; attempt < 20; attempt += 1) {
      line().onclose?.();
      vi.advanceTimersByTime(5_000);
      expect(Line.opened.length).toBe(attempt + 2);
    }
    const failing = new Link("ws://host/ws", { onState: () => { throw new Error("no"); }, onEvent: () => undefined }, () => 0.5);
    failing.connect();
    expect(() => line().onclose?.()).toThrow("no");
    const before = Line.opened.length;
    vi.advanceTimersByTime(250);
    expect(Line.opened.length).toBe(before + 1);
  });

  it("gives up a server that never greets, and lets pass what is no event", () => {
    const { states, events, line } = setup();
    line().onopen?.();
    line().onmessage?.({ data: new ArrayBuffer(1) });
    line().onmessage?.({ data: "{" });
    line().onmessage?.({ data: "[]" });
    vi.advanceTimersByTime(8_000);
    expect(states).toEqual(["lost"]);
    expect(events).toEqual([]);
  });
});
