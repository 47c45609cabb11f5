// An engine's log: the last lines, then what comes. Lines are put in as text, never as HTML.

import { ask } from "./actions.js";
import { clock } from "./format.js";
import { t } from "./messages.js";

const KEPT_LINES = 2000;
const FIRST_LINES = 500;
const LEVELS = ["debug", "info", "warning", "error", "critical"];

class Log {
  constructor(box) {
    this.box = box;
    this.list = box.querySelector("[data-lines]");
    this.state = box.querySelector("[data-state]");
    this.search = box.querySelector("[name=search]");
    this.level = box.querySelector("[name=level]");
    this.pause = box.querySelector("[data-pause]");
    this.follow = box.querySelector("[name=follow]");
    this.after = 0;
    this.waiting = [];
    this.listen();
    this.read();
  }

  listen() {
    let timer = null;
    this.search.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.read(), 250);
    });
    this.level.addEventListener("change", () => this.read());
    this.pause.addEventListener("click", () => this.setPaused(this.pause.getAttribute("aria-pressed") !== "true"));
    this.follow.addEventListener("change", () => this.toEnd());
    this.list.addEventListener("scroll", () => {
      // Scrolling up stops following; coming back to the end starts it again.
      this.follow.checked = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 24;
    });
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.connect()));
  }

  get isPaused() {
    return this.pause.getAttribute("aria-pressed") === "true";
  }

  setPaused(isPaused) {
    this.pause.setAttribute("aria-pressed", String(isPaused));
    this.pause.textContent = isPaused ? t("Go on") : t("Pause");
    if (!isPaused) this.add(this.waiting.splice(0));
    this.tell();
  }

  /** The last lines that match; following goes on after them. */
  async read() {
    const query = new URLSearchParams({ lines: FIRST_LINES });
    if (this.search.value) query.set("search", this.search.value);
    if (this.level.value) query.set("level", this.level.value);
    try {
      const told = await ask("GET", `${this.box.dataset.log}?${query}`);
      this.list.replaceChildren();
      this.waiting = [];
      this.add(told.lines);
      this.connect();
      this.tell();
    } catch (error) {
      this.state.textContent = error.message;
    }
  }

  connect() {
    this.close();
    this.source = new EventSource(`${this.box.dataset.follow}?after=${this.after}`);
    this.source.addEventListener("lines", (event) => {
      const { lines, skipped } = JSON.parse(event.data);
      const wanted = lines.filter((line) => this.matches(line));
      if (skipped) wanted.unshift({ skipped });
      if (this.isPaused) this.waiting.push(...wanted);
      else this.add(wanted);
      this.tell();
    });
    this.source.onerror = () => {
      const isGone = this.source.readyState === EventSource.CLOSED;
      this.close();
      clearTimeout(this.retry);
      this.retry = setTimeout(() => this.connect(), isGone ? 5000 : 1500);
    };
  }

  close() {
    this.source?.close();
    this.source = null;
  }

  matches(line) {
    const isFound = line.text.toLowerCase().includes(this.search.value.toLowerCase());
    return isFound && (!this.level.value || LEVELS.indexOf(line.level) >= LEVELS.indexOf(this.level.value));
  }

  /** A line that comes again under its number, as progress bars do, takes the place of the older one. */
  add(lines) {
    for (const line of lines) {
      if (line.number) this.after = Math.max(this.after, line.number);
      const older = line.number && this.list.querySelector(`[data-number="${line.number}"]`);
      if (older) older.replaceWith(this.element(line));
      else this.list.append(this.element(line));
    }
    while (this.list.childElementCount > KEPT_LINES) this.list.firstElementChild.remove();
    this.toEnd();
  }

  element(line) {
    const element = document.createElement("li");
    if (line.skipped) {
      element.className = "skipped";
      element.textContent = t("%(count)s lines left out; the file has them all.", { count: line.skipped });
      return element;
    }
    element.className = `level-${line.level || "none"}`;
    element.dataset.number = line.number;
    const stamp = document.createElement("span");
    stamp.className = "stamp";
    stamp.textContent = line.at ? clock(line.at) : "";
    const text = document.createElement("span");
    text.className = "text";
    text.append(...this.marked(line.text));
    element.append(stamp, text);
    return element;
  }

  /** The searched words marked. */
  marked(text) {
    const wanted = this.search.value.toLowerCase();
    if (!wanted) return [text];
    const parts = [];
    let from = 0;
    for (let at = text.toLowerCase().indexOf(wanted); at >= 0; at = text.toLowerCase().indexOf(wanted, from)) {
      const mark = document.createElement("mark");
      mark.textContent = text.slice(at, at + wanted.length);
      parts.push(text.slice(from, at), mark);
      from = at + wanted.length;
    }
    return [...parts, text.slice(from)];
  }

  toEnd() {
    if (this.follow.checked) this.list.scrollTop = this.list.scrollHeight;
  }

  tell() {
    if (this.isPaused) this.state.textContent = t("paused, %(count)s new lines", { count: this.waiting.length });
    else if (!this.list.childElementCount) this.state.textContent = this.search.value || this.level.value ? t("No line matches.") : t("Nothing was written yet.");
    else this.state.textContent = "";
  }
}

export function start() {
  for (const box of document.querySelectorAll("[data-log]")) new Log(box);
}
