import { afterEach, expect, it } from "vitest";
import { en } from "./en";
import { loadingStep } from "./loading";
import { speak } from "./strings.svelte";
import { zh } from "./zh";

afterEach(() => speak(en));

it("says in Chinese what the server loads, with its numbers", () => {
  expect(loadingStep("layer 13 of 30")).toBe("layer 13 of 30");
  speak(zh);
  expect(loadingStep("layer 13 of 30")).toBe("第 13 层，共 30 层");
  expect(loadingStep("compiling for this CPU, once: kernel 2 of 9")).toBe("首次为此 CPU 编译：第 2 个内核，共 9 个");
  expect(loadingStep("polishing 3 spoons")).toBe("polishing 3 spoons");
});
