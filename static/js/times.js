// Relative times that stay true, with the absolute one in the viewer's zone as title.

import { clock } from "./format.js";
import { language } from "./messages.js";

const units = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
const relative = new Intl.RelativeTimeFormat(language, { numeric: "always", style: "short" });
const absolute = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "long" });

export function ago(at, now = Date.now()) {
  const seconds = Math.round((at - now) / 1000);
  const [unit, step] = units.find(([, length]) => Math.abs(seconds) >= length) ?? units.at(-1);
  return relative.format(Math.trunc(seconds / step), unit);
}

export function refreshTimes(root = document) {
  for (const element of root.querySelectorAll("time[data-relative]")) {
    const at = Date.parse(element.dateTime);
    const text = ago(at);
    if (element.textContent !== text) element.textContent = text;
    element.title = absolute.format(at);
  }
}

/** Times of day, with the date where it is not today's. */
function showClocks(root = document) {
  for (const element of root.querySelectorAll("time[data-clock]")) {
    const at = new Date(element.dateTime);
    element.textContent = clock(at / 1000, at.toDateString() !== new Date().toDateString());
    element.title = absolute.format(at);
  }
}

export function keepTimes() {
  refreshTimes();
  showClocks();
  setInterval(refreshTimes, 1000);
  document.body.addEventListener("htmx:afterSwap", (event) => {
    refreshTimes(event.target);
    showClocks(event.target);
  });
}
