// Words and tables of the charts.

import { clock, inUnit } from "./format.js";
import { t } from "./messages.js";

/** Why there is nothing to draw, and what will appear. */
export function reasonText(reason, chart) {
  const texts = {
    no_engine: t("There is no engine."),
    starting: t("The engine is starting; numbers come when it is ready."),
    not_running: t("The engine does not run."),
    scrape_failed: t("The engine's numbers cannot be read."),
    missing_metric: chart === "slots"
      ? t("The engine does not tell this. It does with the host tier's connector in its profile.")
      : t("The engine does not tell this."),
    idle: t("No requests in this window."),
    no_requests: t("No requests in this window."),
    no_requests_yet: t("No requests yet."),
    no_data: t("No data in this window."),
  };
  return texts[reason] ?? t("No data (%(code)s).", { code: reason });
}

/** What a line is called; its key is its meaning. */
export function labelOf(data, line) {
  const texts = {
    vram: t("VRAM hit"),
    host: data.chart === "memory" ? t("Host tier") : t("Host hit"),
    avoidable: t("Avoidable recompute"),
    recomputed: t("Other recompute"),
    "token-slots": t("Token slots used"),
    "state-slots": t("State slots used"),
    running: t("Running"),
    waiting: t("Waiting"),
    preemptions: t("Preemptions per min"),
    kv: t("KV cache in VRAM"),
  };
  return texts[line.key] ?? line.label;
}

/** The same numbers as a table, newest first. */
export function tableOf(data) {
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  for (const [index, label] of [t("Time"), ...data.lines.map((line) => labelOf(data, line))].entries()) {
    const cell = Object.assign(document.createElement("th"), { scope: "col", textContent: label });
    if (index) cell.className = "right";
    head.append(cell);
  }
  const body = table.createTBody();
  for (let row = data.at.length - 1; row >= 0; row--) {
    if (data.lines.every((line) => line.values[row] === null)) continue;
    const line = body.insertRow();
    line.insertCell().textContent = clock(data.at[row], data.window_seconds > 86400);
    for (const { unit, values } of data.lines) {
      const cell = line.insertCell();
      cell.className = "right";
      cell.textContent = inUnit(values[row], unit);
    }
  }
  return table;
}
