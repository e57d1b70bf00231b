import { afterEach, expect, it } from "vitest";
import { en } from "./en";
import { told } from "./failures";
import { speak } from "./strings.svelte";
import { zh } from "./zh";

afterEach(() => speak(en));

const LONG = "The prompt has 5000 tokens; the model's context holds 4096 and needs one for the answer";

it("says what the server says, and in Chinese what kind of failure it was", () => {
  expect(told({ code: "context_length_exceeded", message: LONG })).toBe(`${LONG}.`);
  speak(zh);
  expect(told({ code: "context_length_exceeded", message: LONG })).toMatch(/^内容有 5000 个词元，超出/);
  expect(told({ code: "server_died", message: "the server stopped" })).toMatch(/^服务器/);
  expect(told({ code: "invalid_parameter", message: "conversation 1 is of no kind" })).toBe("Conversation 1 is of no kind.");
  expect(told({ code: "unreachable", message: "TypeError" })).toBe(zh.unreachable);
});
