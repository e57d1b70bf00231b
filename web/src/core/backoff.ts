const FIRST_MS = 250;
const LONGEST_MS = 5000;

/** Milliseconds to wait before connection attempt `attempt` (0 is the first retry). `random` in [0, 1) spreads clients. */
export function retryDelay(attempt: number, random: number): number {
  const ceiling = Math.min(LONGEST_MS, FIRST_MS * 2 ** attempt);
  return ceiling / 2 + (ceiling / 2) * random;
}
