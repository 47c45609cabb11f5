// The charts of a page: they share cursor, zoom and the line to the deck. Numbers and marks come from
// /api/v1/series; this file only draws them.

import { copy, curl } from "./copy.js";
import { clock, inUnit } from "./format.js";
import { t } from "./messages.js";
import { draw } from "./plot.js";
import { labelOf, reasonText, tableOf } from "./chart_parts.js";

const SLOWEST_REFRESH_SECONDS = 60;
const charts = [];
let zoom = null;

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.box = figure.querySelector(".plot");
    this.legend = figure.querySelector(".legend");
    this.reading = figure.querySelector("[data-reading]");
    this.height = Number(figure.dataset.height);
    const place = figure.closest("[data-window]").dataset;
    const query = new URLSearchParams({ chart: figure.dataset.chart, window: place.window });
    if (place.fleet) query.set("fleet", place.fleet);
    this.address = `/api/v1/series?${query}`;
    this.data = null;
    this.index = null;
    this.asTable = false;
    this.listen();
  }

  listen() {
    const table = this.figure.querySelector("[data-table]");
    table.addEventListener("click", () => {
      this.asTable = !this.asTable;
      table.setAttribute("aria-pressed", String(this.asTable));
      table.textContent = this.asTable ? t("Back to the chart") : t("Open as table");
      this.show();
    });
    const button = this.figure.querySelector("[data-curl]");
    button.addEventListener("click", () => copy(curl(this.address), button));
    this.box.addEventListener("keydown", (event) => this.onKey(event));
    this.box.addEventListener("blur", () => this.point(null));
    new ResizeObserver(() => this.plot?.resize(this.box.clientWidth, this.height)).observe(this.box);
  }

  async refresh() {
    if (this.isLoading) return;
    this.isLoading = true;
    try {
      const answer = await fetch(this.address, { headers: { accept: "application/json" } });
      const body = await answer.json();
      if (!answer.ok) throw new Error(body.error?.message ?? answer.statusText);
      this.data = body;
      this.loadedAt = Date.now();
      this.fault = null;
    } catch (error) {
      this.fault = error instanceof TypeError ? t("The deck does not answer.") : error.message;
    }
    this.isLoading = false;
    this.show();
  }

  /** Old enough to be read again? Long windows change slowly. */
  get isDue() {
    const step = this.data ? Math.min(this.data.step_seconds, SLOWEST_REFRESH_SECONDS) : 0;
    return !this.loadedAt || Date.now() - this.loadedAt >= Math.max(1500, step * 900);
  }

  show() {
    if (!this.data) {
      if (this.fault) this.say(this.fault, true);
      return;
    }
    const isEmpty = this.data.empty_reason !== null;
    this.box.classList.toggle("as-table", this.asTable && !isEmpty);
    if (isEmpty || this.asTable) this.forgetPlot();
    if (isEmpty) this.say(reasonText(this.data.empty_reason, this.data.chart));
    else if (this.asTable) this.box.replaceChildren(tableOf(this.data));
    else this.drawPlot();
    if (this.fault && !isEmpty) this.warn(this.fault);
    this.tell();
  }

  drawPlot() {
    if (!this.plot) {
      this.box.replaceChildren();
      this.plot = draw(this.box, this.data, this.height, {
        onCursor: (index) => { this.index = index; this.tell(); },
        onZoom: (range) => setZoom(range),
      });
      if (zoom) this.plot.zoom(zoom);
    } else {
      this.box.querySelector(".chart-state")?.remove();
      this.plot.update(this.data, zoom);
    }
  }

  forgetPlot() {
    this.plot?.destroy();
    this.plot = null;
    this.index = null;
  }

  /** A state that takes the chart's place: empty, or an error with a way to try again. */
  say(text, canRetry = false) {
    this.forgetPlot();
    const state = document.createElement("div");
    state.className = "chart-state";
    state.append(Object.assign(document.createElement("p"), { textContent: text }));
    if (!canRetry) state.append(Object.assign(document.createElement("p"), { className: "small", textContent: this.figure.dataset.help }));
    if (canRetry) {
      const retry = Object.assign(document.createElement("button"), { type: "button", className: "button", textContent: t("Try again") });
      retry.addEventListener("click", () => this.refresh());
      state.append(retry);
    }
    this.box.replaceChildren(state);
    if (!this.data || this.data.empty_reason !== null) this.legend.replaceChildren();
  }

  /** The last drawing stays, with since when and why it is not current. */
  warn(text) {
    this.box.querySelector(".chart-state")?.remove();
    const since = clock(this.loadedAt / 1000);
    const note = Object.assign(document.createElement("p"), {
      className: "chart-state over",
      textContent: t("as of %(time)s · %(why)s", { time: since, why: text }),
    });
    this.box.append(note);
  }

  /** The legend: values at the cursor, or the newest ones. */
  tell() {
    if (!this.data || this.data.empty_reason !== null) return;
    const at = this.index ?? newest(this.data);
    const entries = this.data.lines.map((line) => {
      const entry = Object.assign(document.createElement("span"), { className: "entry" });
      entry.style.setProperty("--key", `var(--${line.key})`);
      const swatch = Object.assign(document.createElement("span"), { className: `swatch ${swatchOf(this.data, line)}` });
      const value = Object.assign(document.createElement("span"), { className: "value", textContent: inUnit(line.values[at], line.unit) });
      if (line.values[at] !== null && line.values[at] !== undefined) value.title = String(line.values[at]);
      entry.append(swatch, labelOf(this.data, line), " ", value);
      return entry;
    });
    const time = Object.assign(document.createElement("span"), { className: "at" });
    const mark = this.index === null ? null : nearMark(this.data, at);
    time.textContent = mark ? `${clock(mark.at)} ${mark.text}` : this.index === null ? whenNewest(this.data, at) : clock(this.data.at[at]);
    this.legend.replaceChildren(...entries, time);
  }

  onKey(event) {
    if (!this.data || this.asTable || this.data.empty_reason !== null) return;
    const last = this.data.at.length - 1;
    const from = this.index ?? newest(this.data);
    const moves = { ArrowLeft: from - 1, ArrowRight: from + 1, PageUp: from - 10, PageDown: from + 10, Home: 0, End: last };
    if (event.key in moves) {
      event.preventDefault();
      this.point(Math.min(last, Math.max(0, moves[event.key])));
    } else if (event.key === "Escape") {
      this.point(null);
      setZoom(null);
    }
  }

  /** Put the cursor on a moment, on all charts, and read it out. */
  point(index) {
    this.index = index;
    this.plot?.point(index);
    this.tell();
    if (index === null) return;
    const values = this.data.lines.map((line) => `${labelOf(this.data, line)} ${inUnit(line.values[index], line.unit)}`);
    const mark = nearMark(this.data, index);
    this.reading.textContent = [clock(this.data.at[index]), ...values, ...(mark ? [mark.text] : [])].join(", ");
  }
}

/** Swatches look like what they stand for: areas, and lines with their dashes. */
function swatchOf(data, line) {
  if (data.chart === "token-origin") return `area ${line.key}`;
  return `line ${{ "state-slots": "dashed", waiting: "dashed", p90: "dashed", p99: "dotted", preemptions: "dotted" }[line.key] ?? ""}`;
}

function newest(data) {
  for (let index = data.at.length - 1; index >= 0; index--) {
    if (data.lines.some((line) => line.values[index] !== null)) return index;
  }
  return data.at.length - 1;
}

/** The newest values may be of now, of a stretch that ends now, or of a while ago. */
function whenNewest(data, index) {
  if (data.to - data.at[index] > 2 * data.step_seconds) return clock(data.at[index]);
  return data.smoothed_seconds > 10 ? t("last %(time)s", { time: inUnit(data.smoothed_seconds, "seconds") }) : t("now");
}

function nearMark(data, index) {
  const reach = Math.max(data.step_seconds, data.window_seconds / 150);
  return data.marks.find((mark) => Math.abs(mark.at - data.at[index]) <= reach) ?? null;
}

/** One zoom for all charts, kept in the address. */
function setZoom(range) {
  zoom = range;
  for (const chart of charts) chart.plot?.zoom(range);
  const address = new URL(location.href);
  for (const [name, value] of [["from", range?.[0]], ["to", range?.[1]]]) {
    if (range) address.searchParams.set(name, value.toFixed(0));
    else address.searchParams.delete(name);
  }
  history.replaceState(null, "", address);
  const reset = document.getElementById("reset-zoom");
  if (reset) reset.hidden = !range;
}

function zoomOfAddress() {
  const query = new URLSearchParams(location.search);
  const range = [Number(query.get("from")), Number(query.get("to"))];
  return range[0] > 0 && range[1] > range[0] ? range : null;
}

function refreshDue() {
  for (const chart of charts) if (chart.isDue) chart.refresh();
}

export function start() {
  for (const figure of document.querySelectorAll("[data-chart]")) charts.push(new Chart(figure));
  const wanted = zoomOfAddress();
  if (wanted) setZoom(wanted);
  document.getElementById("reset-zoom")?.addEventListener("click", () => setZoom(null));
  document.body.addEventListener("deck:scrape", refreshDue);
  document.body.addEventListener("deck:engine", refreshDue);
  document.body.addEventListener("deck:refresh", () => charts.forEach((chart) => chart.refresh()));
  const redraw = () => charts.forEach((chart) => { chart.forgetPlot(); chart.show(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  charts.forEach((chart) => chart.refresh());
}
