// What each reference length buys, drawn: tokens held, state slots and sessions over the length. The numbers
// are the server's.

import uPlot from "../vendor/uplot-1.6.32/uPlot.esm.js";
import { count } from "./format.js";
import { colour } from "./plot.js";

const HEIGHT = 220;
const LINES = ["tokens", "states", "sessions"];
const LOOK = {
  tokens: { key: "token-slots", scale: "tokens" },
  states: { key: "state-slots", scale: "slots", dash: [6, 3] },
  sessions: { key: "ink", scale: "slots", dash: [2, 3] },
};

const whole = (tokens) => tokens.toLocaleString("en");

class SlotChart {
  constructor(box) {
    this.box = box;
    this.data = JSON.parse(box.dataset.slots);
    this.lines = LINES.filter((name) => box.querySelector(`[data-line=${name}]`));
    this.place = box.querySelector(".plot");
    this.index = null;
    this.place.addEventListener("keydown", (event) => this.onKey(event));
    this.place.addEventListener("blur", () => this.point(null));
    this.observer = new ResizeObserver(() => this.place.clientWidth && this.plot?.setSize({ width: this.place.clientWidth, height: HEIGHT }));
    this.draw();
    this.observer.observe(this.place);
  }

  draw() {
    this.plot?.destroy();
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: colour("ink-3"), font, ticks: { show: false } };
    const grid = { stroke: colour("line"), width: 1 };
    const from0 = { range: (_u, _low, high) => [0, high > 0 ? high * 1.1 : 1] };
    const isNarrow = this.place.clientWidth < 480;
    this.plot = new uPlot({
      width: this.place.clientWidth,
      height: HEIGHT,
      padding: [8, 8, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      scales: { x: { time: false, distr: 3, log: 2, range: (_u, low, high) => [low / 1.15, high * 1.15] }, tokens: from0, slots: from0 },
      series: [{}, ...this.lines.map((name) => this.series(name))],
      axes: [
        { ...axis, grid: { show: false }, size: 22, gap: 4, splits: () => this.data.at, filter: (_u, at) => at, values: (_u, at) => at.map((value, place) => (isNarrow && place % 2 ? "" : whole(value))) },
        { ...axis, grid, scale: "slots", size: 48, gap: 4, values: (_u, at) => at.map(count) },
        { ...axis, grid: { show: false }, scale: "tokens", side: 1, size: 52, gap: 4, stroke: colour("token-slots"), values: (_u, at) => at.map(count) },
      ],
      hooks: { setCursor: [(u) => { this.index = u.cursor.idx ?? null; this.tell(); }], draw: [(u) => this.mark(u)] },
    }, [this.data.at, ...this.lines.map((name) => this.data[name])], this.place);
    this.tell();
  }

  series(name) {
    const { key, scale, dash } = LOOK[name];
    return { scale, stroke: colour(key), width: 2, dash, points: { show: true, size: 6, fill: colour(key) } };
  }

  /** The present setting: a line across the plot with a small flag on top. */
  mark(u) {
    if (this.data.current === null) return;
    const { ctx, bbox } = u;
    const x = Math.round(u.valToPos(this.data.current, "x", true));
    const flag = 4 * devicePixelRatio;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour("accent");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.beginPath();
    ctx.moveTo(x - flag, bbox.top);
    ctx.lineTo(x + flag, bbox.top);
    ctx.lineTo(x, bbox.top + flag * 1.5);
    ctx.fill();
    ctx.restore();
  }

  /** The legend: values at the cursor, else at the present setting, else at the middle. */
  tell() {
    const now = this.data.at.indexOf(this.data.current);
    const at = this.index ?? (now >= 0 ? now : Math.floor(this.data.at.length / 2));
    for (const name of this.lines) {
      const value = this.box.querySelector(`[data-line=${name}] .value`);
      value.textContent = count(this.data[name][at]);
      value.title = String(this.data[name][at]);
    }
    const place = this.box.querySelector("[data-at]");
    place.textContent = this.index === null && now >= 0 ? `${whole(this.data.at[at])} · ${place.dataset.now}` : whole(this.data.at[at]);
  }

  onKey(event) {
    const last = this.data.at.length - 1;
    const from = this.index ?? Math.max(0, this.data.at.indexOf(this.data.current));
    const moves = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last };
    if (event.key in moves) {
      event.preventDefault();
      this.point(Math.min(last, Math.max(0, moves[event.key])));
    } else if (event.key === "Escape") {
      this.point(null);
    }
  }

  point(index) {
    const left = index === null ? -10 : this.plot.valToPos(this.data.at[index], "x");
    this.plot.setCursor({ left, top: index === null ? -10 : 10 });
    this.index = index;
    this.tell();
    if (index === null) return;
    const values = this.lines.map((name) => this.box.querySelector(`[data-line=${name}]`).textContent.trim());
    this.box.querySelector("[data-reading]").textContent = [whole(this.data.at[index]), ...values].join(", ");
  }

  end() {
    this.observer.disconnect();
    this.plot.destroy();
  }
}

let drawn = null;

/** Draw what `place` holds, instead of what was drawn before. */
export function drawSlots(place) {
  drawn?.end();
  const box = place.querySelector("[data-slots]");
  drawn = box ? new SlotChart(box) : null;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn?.draw());
