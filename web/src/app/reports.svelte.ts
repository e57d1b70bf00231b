/** The reports on show: one question at a time, and only ever the answer to the last. */

import { mainTotal, sinceOf, type Range } from "../core/reports";
import { told } from "../text/failures";
import { ApiError } from "../wire/http";
import {
  getKept,
  getPrices,
  getReport,
  getTurns,
  type KeptSum,
  type PriceBook,
  type PriceName,
  type Report,
  type ReportKind,
  type ReportQuery,
  type TurnRow,
} from "../wire/pages";

const PAGE = 50;
const MOST_DAYS = 1000;
const PATIENCE_MS = 150;

/** What all of the page shows, of one moment. */
interface Shown {
  days: Report;
  /** At the prices that were billed, if others are on show. */
  billed: Report | null;
  turns: readonly TurnRow[];
  kept: readonly KeptSum[];
  table: Report;
  kind: ReportKind;
}

export class Reports {
  range = $state<Range>(30);
  kind = $state<ReportKind>("sessions");
  session = $state.raw<{ id: string; title: string } | null>(null);
  prices = $state.raw<Partial<Record<PriceName, number>>>({});
  book = $state.raw<PriceBook | null>(null);
  shown = $state.raw<Shown | null>(null);
  busy = $state(false);
  error = $state("");
  total = $derived(mainTotal(this.shown?.days.totals ?? []));
  isWhatIf = $derived(Object.keys(this.prices).length > 0);
  query: ReportQuery = $derived({
    since: sinceOf(this.range, new Date()),
    session: this.session?.id ?? null,
    prices: this.prices,
  });
  #asked = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** Reads everything anew. */
  async refresh(): Promise<void> {
    const asked = ++this.#asked;
    clearTimeout(this.#timer);
    this.busy = true;
    const { query, kind } = this;
    try {
      const [days, billed, { rows: turns }, kept, table, book] = await Promise.all([
        getReport("days", query, MOST_DAYS, null),
        this.isWhatIf ? getReport("days", { ...query, prices: {} }, 1, null) : null,
        getTurns(query),
        query.session === null ? getKept(query) : { totals: [] },
        getReport(kind, query, PAGE, null),
        this.book ?? getPrices(),
      ]);
      if (asked !== this.#asked) return;
      this.shown = { days, billed, turns, kept: kept.totals, table, kind };
      this.book = book;
      this.error = "";
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (asked !== this.#asked) return;
      this.error = told(error);
    }
    this.busy = false;
  }

  setRange(range: Range): void {
    this.range = range;
    void this.refresh();
  }

  setKind(kind: ReportKind): void {
    this.kind = kind;
    void this.refresh();
  }

  setSession(session: { id: string; title: string } | null): void {
    this.session = session;
    void this.refresh();
  }

  /** As if a million tokens cost so much; null: as they do. Asked for when the slider rests. */
  setPrice(name: PriceName, price: number | null): void {
    const { [name]: _, ...others } = this.prices;
    this.prices = price === null ? others : { ...others, [name]: price };
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.refresh(), PATIENCE_MS);
  }

  resetPrices(): void {
    this.prices = {};
    void this.refresh();
  }

  /** The next page of the table. */
  async loadMore(): Promise<void> {
    const { shown, query } = this;
    if (!shown || shown.table.next === null) return;
    const asked = this.#asked;
    try {
      const { rows, next } = await getReport(shown.kind, query, PAGE, shown.table.next);
      if (asked !== this.#asked) return;
      this.shown = { ...shown, table: { ...shown.table, rows: [...shown.table.rows, ...rows], next } };
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.error = told(error);
    }
  }
}
