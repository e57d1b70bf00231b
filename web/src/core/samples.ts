/** Counters that only ever grow, looked at now and then: how much they grew in each stretch of time. Pure. */

export interface Sample<Name extends string> {
  /** Milliseconds. */
  readonly at: number;
  readonly counts: Readonly<Record<Name, number>>;
}

/** `samples` with one more; those older than `keepMs` are left out. A counter that fell begins anew. */
export function withSample<Name extends string>(
  samples: readonly Sample<Name>[],
  next: Sample<Name>,
  keepMs: number,
): readonly Sample<Name>[] {
  const last = samples.at(-1);
  const names = Object.keys(next.counts) as Name[];
  const isNewRun = last !== undefined && names.some((name) => next.counts[name] < last.counts[name]);
  const kept = isNewRun ? [] : samples.filter(({ at }) => at >= next.at - keepMs);
  return [...kept, next];
}

/** What came between each two samples. */
export function growths<Name extends string>(samples: readonly Sample<Name>[], name: Name): number[] {
  return samples.slice(1).map((sample, at) => sample.counts[name] - (samples[at]?.counts[name] ?? 0));
}
