export type Age = "today" | "yesterday" | "week" | "older";

/** How long ago `when` was, in local calendar days. */
export function ageOf(when: Date, now: Date): Age {
  const days = (Date.UTC(...dayOf(now)) - Date.UTC(...dayOf(when))) / 86_400_000;
  if (days <= 0) return "today";
  if (days === 1) return "yesterday";
  return days <= 7 ? "week" : "older";
}

function dayOf(when: Date): [number, number, number] {
  return [when.getFullYear(), when.getMonth(), when.getDate()];
}
