/** uPlot as this page draws with it: over named places, in the colours of the theme. */

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

export interface Series {
  readonly name: string;
  /** A colour of base.css, as `--accent`. */
  readonly color: string;
  readonly values: readonly (number | null)[];
  /** Bars stand on each other in the order of the series. */
  readonly kind: "bar" | "line";
}

export interface Plan {
  readonly labels: readonly string[];
  readonly series: readonly Series[];
  /** What stands at the axis. */
  readonly axis: (value: number) => string;
  /** The highest value there can be, if that is known. */
  readonly most?: number;
  /** There is nothing between two whole numbers. */
  readonly isWhole?: boolean;
}

const HEIGHT = 190;
const FONT = "12px system-ui, sans-serif";

/** Draws into `holder` and keeps to its width; `onPlace` is told where the pointer is. */
export function plot(holder: HTMLElement, plan: Plan, onPlace: (index: number | null) => void): () => void {
  let chart = draw(holder, plan, onPlace);
  const redraw = (): void => {
    chart.destroy();
    chart = draw(holder, plan, onPlace);
  };
  const sizes = new ResizeObserver(() => chart.setSize({ width: holder.clientWidth, height: HEIGHT }));
  sizes.observe(holder);
  const themes = new MutationObserver(redraw);
  themes.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", redraw);
  return () => {
    sizes.disconnect();
    themes.disconnect();
    dark.removeEventListener("change", redraw);
    chart.destroy();
  };
}

function draw(holder: HTMLElement, plan: Plan, onPlace: (index: number | null) => void): uPlot {
  const color = colorsOf(holder);
  const { labels, axis } = plan;
  const bars = stacked(plan.series.filter(({ kind }) => kind === "bar"));
  const lines = plan.series.filter(({ kind }) => kind === "line");
  // The highest stack first: those below it are drawn over it.
  const drawn = [...bars.reverse(), ...lines];
  const soft = color("--text-soft");
  const grid = { stroke: color("--line"), width: 1 };
  const options: uPlot.Options = {
    width: holder.clientWidth,
    height: HEIGHT,
    padding: [8, 22, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { show: lines.length > 0 } },
    scales: {
      x: { time: false, range: () => [-0.5, Math.max(0.5, labels.length - 0.5)] },
      y: { range: (_, __, highest) => [0, plan.most ?? (highest > 0 ? highest * 1.08 : 1)] },
    },
    axes: [
      {
        stroke: soft,
        font: FONT,
        grid: { show: false },
        ticks: { show: false },
        gap: 6,
        size: 28,
        space: (self) => widest(self, labels) + 18,
        incrs: [1, 2, 5, 7, 10, 14, 30, 60, 90, 180, 365],
        values: (_, places) => places.map((place) => (Number.isInteger(place) ? (labels[place] ?? "") : "")),
      },
      {
        stroke: soft,
        font: FONT,
        grid,
        ticks: { show: false },
        gap: 8,
        size: (self, values) => Math.ceil(widest(self, values ?? [])) + 14,
        ...(plan.isWhole ? { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000, 100_000] } : {}),
        values: (_, values) => values.map((value) => axis(value)),
      },
    ],
    series: [
      {},
      ...drawn.map((one): uPlot.Series => {
        const stroke = color(one.color);
        if (one.kind === "bar") return { stroke, fill: stroke, width: 0, paths: uPlot.paths.bars?.({ size: [0.72, 44] }) as uPlot.Series.PathBuilder, points: { show: false } };
        return { stroke, width: 2, points: { show: true, size: 5, fill: stroke, stroke }, spanGaps: true };
      }),
    ],
    hooks: { setCursor: [(self) => onPlace(self.cursor.idx ?? null)] },
  };
  const data: uPlot.AlignedData = [labels.map((_, place) => place), ...drawn.map(({ values }) => [...values])];
  return new uPlot(options, data, holder);
}

/** Each series with those before it added up. */
function stacked(bars: readonly Series[]): Series[] {
  const sums: number[] = [];
  return bars.map((one) => ({
    ...one,
    values: one.values.map((value, place) => (sums[place] = (sums[place] ?? 0) + (value ?? 0))),
  }));
}

function widest(self: uPlot, texts: readonly string[]): number {
  self.ctx.save();
  self.ctx.font = FONT;
  const width = Math.max(16, ...texts.map((text) => self.ctx.measureText(text).width));
  self.ctx.restore();
  return width;
}

/** Canvases know no custom properties: an element says what a colour is now. */
function colorsOf(holder: HTMLElement): (name: string) => string {
  return (name) => {
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    holder.append(probe);
    const { color } = getComputedStyle(probe);
    probe.remove();
    return color;
  };
}
