// Charts over time: sparklines in SVG, and larger charts with uPlot, which is loaded when needed.
import * as format from "../format.js";
import { html, useEffect, useMemo, useRef, useState } from "../html.js";
import { useStore } from "../store.js";
import { systemDark, theme } from "./theme_choice.js";

const WIDTH = 88;
const HEIGHT = 22;

/** A line without axes. Unknown values interrupt it. `highest` fixes the scale. */
export function Sparkline({ values, highest, label }) {
  const { line, area } = useMemo(() => sparklinePaths(values, highest), [values, highest]);
  return html`<svg class="sparkline" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${label}>
    <title>${label}</title><path class="area" d=${area} /><path d=${line} />
  </svg>`;
}

/** Returns the paths of the line and of the area below it; one subpath per run of known values. */
export function sparklinePaths(values = [], highest) {
  const top = highest ?? Math.max(...values.filter(format.known), 0);
  const x = (index) => ((index / Math.max(1, values.length - 1)) * WIDTH).toFixed(1);
  const y = (value) => (HEIGHT - 1.5 - (top > 0 ? Math.min(1, value / top) : 0) * (HEIGHT - 3)).toFixed(1);
  const runs = [];
  let run = null;
  values.forEach((value, index) => {
    if (!format.known(value)) run = null;
    else if (run) run.push(index);
    else runs.push((run = [index]));
  });
  const points = (indices) => indices.map((index) => `${x(index)} ${y(values[index])}`).join("L");
  return {
    line: runs.map((indices) => `M${points(indices)}`).join(""),
    area: runs
      .map((indices) => `M${x(indices[0])} ${HEIGHT}L${points(indices)}L${x(indices.at(-1))} ${HEIGHT}Z`)
      .join(""),
  };
}

// ---- uPlot

let uplot = null;

function loadUPlot() {
  uplot ??= new Promise((resolve, reject) => {
    const sheet = Object.assign(document.createElement("link"), {
      rel: "stylesheet",
      href: new URL("../../vendor/uplot.css", import.meta.url).href,
    });
    const script = Object.assign(document.createElement("script"), {
      src: new URL("../../vendor/uplot.js", import.meta.url).href,
      onload: () => resolve(window.uPlot),
      onerror: () => {
        uplot = null;
        reject(new Error("vendor/uplot.js cannot be loaded"));
      },
    });
    document.head.prepend(sheet); // app.css changes some of its rules
    document.head.append(script);
  });
  return uplot;
}

/** What a canvas needs: the colour of a token of app.css in the current theme. */
function color(token) {
  const probe = document.createElement("i");
  probe.style.color = `var(${token})`;
  document.documentElement.append(probe);
  const resolved = getComputedStyle(probe).color;
  probe.remove();
  return resolved;
}

/** A chart of values over time, with a legend that follows the pointer.
 *
 * `times`: milliseconds; `series`: `{label, values, color, stacked?}`, where `color` is a token of
 * app.css (`--busy`); `show` formats a value; `highest` fixes the scale to 0..highest; unknown
 * values are gaps. Drag selects a time, a double click resets it.
 */
export function TimeChart({ title, times, series, show = format.count, highest, height = 150 }) {
  const holder = useRef(null);
  const chart = useRef(null);
  const data = useMemo(() => chartData(times, series), [times, series]);
  const zoomed = useRef(false); // a selected time stays, also when new data arrive
  const latest = useRef(data);
  latest.current = data;
  const chosen = useStore(theme);
  const system = useStore(systemDark);
  const [failure, setFailure] = useState("");
  const [position, setPosition] = useState(null); // of the pointer: an index of times
  const shape = series.map(({ label, color: token, stacked }) => `${label} ${token} ${stacked}`).join();

  useEffect(() => {
    let gone = false;
    const watcher = new ResizeObserver(() => {
      if (holder.current) chart.current?.setSize({ width: holder.current.clientWidth, height });
    });
    loadUPlot().then(
      (UPlot) => {
        if (gone || !holder.current) return;
        const options = chartOptions({
          series,
          show,
          highest,
          width: holder.current.clientWidth,
          height,
          onPosition: setPosition,
          zoomed,
        });
        chart.current = new UPlot(options, latest.current, holder.current);
        watcher.observe(holder.current);
      },
      (error) => setFailure(error.message),
    );
    return () => {
      gone = true;
      watcher.disconnect();
      chart.current?.destroy();
      chart.current = null;
    };
  }, [shape, chosen, system, highest, height]);

  useEffect(() => {
    const plot = chart.current;
    if (!plot) return;
    plot.setData(data, !zoomed.current);
    if (zoomed.current) plot.redraw();
  }, [data]);

  const at = position !== null && position < (times?.length ?? 0) ? position : (times?.length ?? 0) - 1;
  return html`<figure class="chart" aria-label=${`${title}. ${summary(series, show)}`}>
    <figcaption class="chart-head"><span class="chart-title">${title}</span>
      <span class="muted">${position === null ? "\u00a0" : format.time(times?.[at])}</span></figcaption>
    <ul class="legend" aria-hidden="true">${series.map(
      ({ label, values, color: token }) => html`
      <li key=${label}><i class="swatch" style=${{ background: `var(${token})` }} />${label} <b>${show(values?.[at])}</b></li>`,
    )}</ul>
    <div class="plot" ref=${holder} style=${{ height: `${height}px` }}>${failure}</div>
  </figure>`;
}

function summary(series, show) {
  return series.map(({ label, values }) => `${label}: ${show(values?.at(-1))} now`).join(", ");
}

/** uPlot's columns: seconds, then one column per series; stacked series are cumulated. */
export function chartData(times = [], series = []) {
  let below = times.map(() => 0);
  return [
    times.map((ms) => ms / 1000),
    ...series.map(({ values, stacked }) => {
      const own = times.map((_, index) => (format.known(values?.[index]) ? values[index] : null));
      if (!stacked) return own;
      below = own.map((value, index) => (value === null ? null : value + (below[index] ?? 0)));
      return below;
    }),
  ];
}

function chartOptions({ series, show, highest, width, height, onPosition, zoomed }) {
  const text = color("--muted");
  const grid = { stroke: color("--line"), width: 1 };
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const lines = series.map(({ label, color: token, stacked }, index) => ({
    label,
    stroke: color(token),
    width: 1.4,
    fill: stacked ? undefined : withAlpha(color(token), 0.08),
    points: { show: false },
    spanGaps: false,
  }));
  const stackedCount = series.filter(({ stacked }) => stacked).length;
  // A band fills from a series down to the one below it.
  const bands = Array.from({ length: Math.max(0, stackedCount - 1) }, (_, index) => ({
    series: [index + 2, index + 1],
    fill: withAlpha(color(series[index + 1].color), 0.55),
  }));
  if (stackedCount) lines[0].fill = withAlpha(color(series[0].color), 0.55);
  return {
    width,
    height,
    padding: [8, 28, 0, 0],
    cursor: { y: false, points: { size: 6 }, drag: { x: true, y: false } },
    legend: { show: false },
    hooks: {
      setCursor: [(plot) => onPosition(plot.cursor.idx ?? null)],
      setSelect: [
        (plot) => {
          zoomed.current = plot.select.width > 0;
        },
      ],
      ready: [
        (plot) =>
          plot.over.addEventListener("dblclick", () => {
            zoomed.current = false;
          }),
      ],
    },
    scales: {
      x: { time: true },
      y: { range: (plot, low, high) => [0, highest ?? niceTop(high)] },
    },
    series: [{}, ...lines],
    bands,
    axes: [
      {
        stroke: text,
        grid: { show: false },
        ticks: { ...grid, size: 4 },
        font,
        size: 28,
        space: 70,
        values: (plot, splits) => splits.map((seconds) => axisTime(seconds)),
      },
      {
        stroke: text,
        grid,
        ticks: { show: false },
        font,
        size: 58,
        space: 32,
        values: (plot, splits) => splits.map(show),
        ...(BINARY.has(show) && { incrs: POWERS_OF_TWO }),
      },
    ],
  };
}

const BINARY = new Set([format.bytes, format.byteRate]);
const POWERS_OF_TWO = Array.from({ length: 50 }, (_, power) => 2 ** power);

const AXIS_TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const AXIS_SECONDS = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });

function axisTime(seconds) {
  return (seconds % 60 === 0 ? AXIS_TIME : AXIS_SECONDS).format(seconds * 1000);
}

/** The scale's end: a little above the highest value, so that an idle job has an axis as well. */
function niceTop(high) {
  return high > 0 ? high * 1.08 : 1;
}

function withAlpha(rgb, alpha) {
  return rgb.replace("rgb(", "rgba(").replace(")", `, ${alpha})`);
}
