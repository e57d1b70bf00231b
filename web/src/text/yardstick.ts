/**
 * How much work something is, for tests: not in milliseconds, which a busy or a slow machine has more of, but as a
 * multiple of a job that is known to be linear, done beside it. Only tests use this.
 */

const TRIES = 12;
const TEXT = "The quick brown fox *jumps* over [the lazy](dog) & `so` on. ".repeat(1700); // 100 kB

/** Reads 100 kB a character at a time, and once with a pattern. */
function yard(): number {
  let sum = 0;
  for (let at = 0; at < TEXT.length; at += 1) sum += TEXT.charCodeAt(at) & 1;
  for (const { index } of TEXT.matchAll(/[*`[\]&]/g)) sum += index & 1;
  return sum;
}

function timed(run: () => unknown): number {
  const began = performance.now();
  run();
  return performance.now() - began;
}

/** The least of some tries of each, in turn; done once it is at most `enough`. */
export function yards(run: () => unknown, enough: number): number {
  let [best, unit] = [Infinity, 0];
  for (let tries = 0; tries < TRIES && !(best <= enough * unit); tries += 1) {
    unit = Math.max(unit, timed(yard));
    best = Math.min(best, timed(run));
  }
  return best / unit;
}
