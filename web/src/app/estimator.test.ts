import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { CacheEstimated, ClientEvent } from "../wire/events";
import { Estimator } from "./estimator.svelte";

const answer = (key: string): CacheEstimated => ({ type: "cache.estimated", idempotency_key: key }) as CacheEstimated;

describe("Estimator", () => {
  const sent: ClientEvent[] = [];
  const keys = (): string[] => sent.map((event) => ("idempotency_key" in event ? event.idempotency_key : ""));

  beforeEach(() => {
    vi.useFakeTimers();
    sent.length = 0;
  });
  afterEach(() => {
    vi.useRealTimers();
  });

  it("asks once when typing pauses, and takes only the newest answer", () => {
    const estimator = new Estimator((event) => sent.push(event) > 0);
    for (const input of ["a", "ab", "abc"]) estimator.ask({ input });
    vi.runAllTimers();
    expect(sent).toEqual([{ type: "cache.estimate", idempotency_key: keys()[0], input: "abc" }]);
    estimator.ask({ input: "abcd" });
    vi.runAllTimers();
    estimator.take(answer(keys()[0]!));
    expect(estimator.found).toBeNull();
    estimator.take(answer(keys()[1]!));
    expect(estimator.found?.idempotency_key).toBe(keys()[1]);
  });

  it("forgets a question that was sent or is still to be sent", () => {
    const estimator = new Estimator((event) => sent.push(event) > 0);
    estimator.ask({ input: "a" });
    vi.runAllTimers();
    estimator.ask({ input: "b" });
    estimator.forget();
    vi.runAllTimers();
    expect(sent.length).toBe(1);
    estimator.take(answer(keys()[0]!));
    expect(estimator.found).toBeNull();
  });

  it("tells a prompt that does not fit from other errors", () => {
    const estimator = new Estimator((event) => sent.push(event) > 0);
    const error = (key: string, code: string) =>
      estimator.takeError({ type: "error", code, message: "", retryable: false, idempotency_key: key });
    estimator.ask({ input: "a" });
    vi.runAllTimers();
    expect(error("another", "not_found")).toBe(false);
    expect(error(keys()[0]!, "conflict")).toBe(true);
    expect(estimator.refused).toBe(false);
    error(keys()[0]!, "context_length_exceeded");
    expect(estimator.refused).toBe(true);
  });
});
