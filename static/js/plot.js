// One chart drawn with uPlot: stacked shares as areas, everything else as lines from 0.

import uPlot from "../vendor/uplot-1.6.32/uPlot.esm.js";
import { count, duration, share, size } from "./format.js";

const SYNC = uPlot.sync("deck");
const DASHES = { "state-slots": [6, 3], waiting: [6, 3], p90: [6, 3], p99: [2, 3], preemptions: [2, 3] };
const AXIS = { share, seconds: duration, bytes: size };

/** A custom property as the browser resolves it, light-dark() included. */
export function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

const isStacked = (data) => data.chart === "token-origin";

/** Columns as uPlot wants them; stacked ones are summed from the bottom, a gap stays a gap. */
function columnsOf(data) {
  if (!isStacked(data)) return [data.at, ...data.lines.map((line) => line.values)];
  const sums = data.at.map(() => 0);
  return [data.at, ...data.lines.map((line) => line.values.map((value, index) => {
    if (value === null) return null;
    sums[index] += value;
    return sums[index];
  }))];
}

function seriesOf(data) {
  return data.lines.map((line) => {
    const stroke = colour(line.key);
    const common = { label: line.label, stroke, width: 1.5, points: { show: false }, spanGaps: false };
    // Areas a little lighter than their edge: a large one would glare at night.
    if (isStacked(data)) return { ...common, fill: stroke.replace("rgb(", "rgba(").replace(")", ", 0.72)") };
    return { ...common, width: 2, dash: DASHES[line.key], points: { show: (u, index, from, to) => isAlone(u, index, from, to), size: 4, fill: stroke } };
  });
}

/** A value between two gaps has no line; it is drawn as a point. */
function isAlone(u, index, from, to) {
  const values = u.data[index];
  const alone = [];
  for (let i = from; i <= to; i++) if (values[i] !== null && (values[i - 1] ?? null) === null && (values[i + 1] ?? null) === null) alone.push(i);
  return alone.length > 0 && alone;
}

function yRange(data) {
  if (data.unit === "share") return () => [0, 1];
  return (_u, _low, high) => [0, high > 0 ? high * 1.1 : 1];
}

function timeTicks(_u, splits, _axis, _space, step) {
  const withSeconds = step < 60;
  const withDate = step >= 86400;
  return splits.map((at) => {
    const date = new Date(at * 1000);
    if (withDate) return date.toLocaleDateString([], { month: "short", day: "numeric" });
    return date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: withSeconds ? "2-digit" : undefined, hour12: false });
  });
}

/** Restarts, resets, rollouts and alerts: a line across the plot with a small flag on top. */
function drawMarks(u, marks) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour("ink-2");
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  // Marks that stand closer than this are one: a row of restarts must not hide the lines.
  const apart = 12 * devicePixelRatio;
  let previous = -Infinity;
  for (const mark of [...marks].sort((one, other) => one.at - other.at)) {
    const x = Math.round(u.valToPos(mark.at, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width || x - previous < apart) continue;
    previous = x;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const flag = 4 * devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(x - flag, bbox.top);
    ctx.lineTo(x + flag, bbox.top);
    ctx.lineTo(x, bbox.top + flag * 1.5);
    ctx.fill();
  }
  ctx.restore();
}

export function draw(box, first, height, { onCursor, onZoom }) {
  let data = first;
  let zoomed = null;
  const ink = colour("ink-3");
  const line = colour("line");
  const axis = { stroke: ink, font: `11px ${getComputedStyle(document.body).fontFamily}`, ticks: { show: false } };
  const grid = { stroke: line, width: 1 };
  const label = AXIS[data.unit] ?? count;
  const options = {
    width: box.clientWidth,
    height,
    padding: [8, 8, 0, 0],
    legend: { show: false },
    cursor: { sync: { key: SYNC.key, setSeries: false }, drag: { x: true, y: false, setScale: false }, points: { show: !isStacked(data), size: 6 }, y: false },
    scales: { x: { time: true, range: () => zoomed ?? [data.from, data.to] }, y: { range: yRange(data) } },
    series: [{}, ...seriesOf(data)],
    // The bottom area is drawn last, over the taller ones.
    drawOrder: ["axes", "series"],
    axes: [
      { ...axis, grid: { show: false }, values: timeTicks, size: 20, gap: 4, space: 72 },
      { ...axis, grid, values: (_u, splits) => splits.map((value) => (data.unit === "share" ? `${Math.round(value * 100)} %` : label(value))), size: 56, gap: 6, space: 36, incrs: data.unit === "share" ? [0.25, 0.5] : data.unit === "requests" ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] : undefined },
    ],
    hooks: {
      setCursor: [(u) => onCursor(u.cursor.idx ?? null)],
      setSelect: [(u) => {
        if (u.select.width < 4) return;
        const range = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
        u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        onZoom(range);
      }],
      draw: [(u) => drawMarks(u, data.marks)],
    },
  };
  if (isStacked(data)) {
    // Each area fills down to the one below it, so nothing shines through.
    options.bands = data.lines.slice(1).map((_line, index) => ({ series: [index + 2, index + 1] }));
  }
  const plot = new uPlot(options, columnsOf(data), box);
  plot.over.addEventListener("dblclick", () => onZoom(null));

  return {
    update(next, zoom) {
      data = next;
      zoomed = zoom;
      plot.setData(columnsOf(data));
    },
    zoom(range) {
      zoomed = range;
      plot.setScale("x", { min: range?.[0] ?? data.from, max: range?.[1] ?? data.to });
    },
    point(index) {
      const left = index === null ? -10 : plot.valToPos(data.at[index], "x");
      plot.setCursor({ left, top: index === null ? -10 : 10 }, true, true);
    },
    resize(width, tall) {
      if (width > 0) plot.setSize({ width, height: tall });
    },
    destroy: () => plot.destroy(),
  };
}
