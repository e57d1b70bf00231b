import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { ApiError } from "../wire/http";
import type { Hit, HitPage } from "../wire/pages";
import { Search } from "./search.svelte";

const hit = (id: string): Hit => ({ conversation_id: id, title: id, message_id: null, role: null, at: "", snippet: [] });

/** A server that answers when it is told to. */
class Server {
  asked: { query: string; before: string | null; answer: (page: HitPage | Error) => void }[] = [];
  readonly ask = (query: string, before: string | null): Promise<HitPage> =>
    new Promise((resolve, reject) => {
      this.asked.push({ query, before, answer: (page) => (page instanceof Error ? reject(page) : resolve(page)) });
    });
}

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

const pause = (): Promise<unknown> => vi.advanceTimersByTimeAsync(500);

it("asks once nothing more is written", async () => {
  const server = new Server();
  const search = new Search(server.ask);
  search.write("s");
  search.write("sk");
  expect(server.asked).toEqual([]);
  await pause();
  expect(server.asked.map(({ query, before }) => [query, before])).toEqual([["sk", null]]);
  server.asked[0]?.answer({ hits: [hit("a")], next: null });
  await pause();
  expect([search.state, search.hits.length, search.more]).toEqual(["found", 1, false]);
});

it("shows only the answer to the last question", async () => {
  const server = new Server();
  const search = new Search(server.ask);
  search.write("old");
  await pause();
  search.write("new");
  await pause();
  server.asked[1]?.answer({ hits: [hit("new")], next: null });
  server.asked[0]?.answer({ hits: [hit("old")], next: null });
  await pause();
  expect(search.hits.map((each) => each.title)).toEqual(["new"]);
  search.write(" ");
  expect([search.state, search.hits]).toEqual(["idle", []]);
});

it("reads on where a page is empty and not the last, and adds pages", async () => {
  const server = new Server();
  const search = new Search(server.ask);
  search.write("rare");
  await pause();
  server.asked[0]?.answer({ hits: [], next: "9" });
  await pause();
  expect(server.asked[1]?.before).toBe("9");
  server.asked[1]?.answer({ hits: [hit("a")], next: "5" });
  await pause();
  expect([search.hits.length, search.more]).toEqual([1, true]);
  void search.loadMore();
  await pause();
  expect(server.asked[2]?.before).toBe("5");
  server.asked[2]?.answer({ hits: [hit("b")], next: null });
  await pause();
  expect([search.hits.map((each) => each.title), search.more]).toEqual([["a", "b"], false]);
});

it("says what went wrong", async () => {
  const server = new Server();
  const search = new Search(server.ask);
  search.write("x");
  await pause();
  server.asked[0]?.answer(new ApiError("invalid_parameter", "q is too long", false, 400));
  await pause();
  expect([search.state, search.error]).toEqual(["failed", "Q is too long."]);
});
