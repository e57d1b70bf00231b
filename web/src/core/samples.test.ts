import { expect, it } from "vitest";
import { growths, withSample, type Sample } from "./samples";

const at = (time: number, evicted: number): Sample<"evicted"> => ({ at: time, counts: { evicted } });

it("says what came between two looks", () => {
  const samples = [at(0, 5), at(2000, 5), at(4000, 9)];
  expect(growths(samples, "evicted")).toEqual([0, 4]);
  expect(growths([at(0, 5)], "evicted")).toEqual([]);
});

it("forgets what is old", () => {
  let samples: readonly Sample<"evicted">[] = [];
  for (let time = 0; time <= 10_000; time += 1000) samples = withSample(samples, at(time, time), 3000);
  expect(samples.map((sample) => sample.at)).toEqual([7000, 8000, 9000, 10_000]);
});

it("begins anew when the server has", () => {
  expect(withSample([at(0, 100), at(1, 120)], at(2, 3), 1000)).toEqual([at(2, 3)]);
});
