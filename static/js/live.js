// The one line to the deck. htmx's SSE extension opens it through here; charts and logs listen to
// `deck:<kind>` events on the body. While the page is hidden the line is closed, so that many tabs
// do not use up the browser's connections; on coming back everything shown is read again.

import { t } from "./messages.js";

const KINDS = ["engine", "fleet", "scrape", "log", "alert", "profile", "rollout", "request"];

let source = null;
let address = "";
let lostAt = null;
let toSettle = null;

/** How long changes are gathered before `deck:changed` tells of them: the last one is never missed. */
const SETTLE_MS = 400;

/** An EventSource that can be closed and opened again behind the listeners' back. */
class Line extends EventTarget {
  constructor(url) {
    super();
    address = url;
    this.readyState = 0;
    source = this;
    this.open();
  }

  open() {
    this.close();
    this.inner = new EventSource(address);
    this.inner.onopen = () => {
      this.readyState = 1;
      show("open");
      if (lostAt !== null) tell("refresh", {});
      else settle(); // what happened between the page's making and now was told to nobody
      lostAt = null;
    };
    this.inner.onerror = () => {
      this.readyState = this.inner.readyState === EventSource.CLOSED ? 0 : this.inner.readyState;
      lostAt ??= Date.now();
      show("lost");
      // A browser gives up on an answer that is not 200; a restarted deck should be found again.
      if (this.inner.readyState === EventSource.CLOSED) this.retry ??= setTimeout(() => { this.retry = null; this.open(); }, 3000);
    };
    this.inner.addEventListener("skipped", () => tell("refresh", {}));
    for (const kind of KINDS) {
      this.inner.addEventListener(kind, (event) => {
        this.dispatchEvent(new MessageEvent(kind, { data: event.data }));
        tell(kind, JSON.parse(event.data));
        if (["engine", "fleet", "rollout"].includes(kind)) settle();
      });
    }
  }

  close() {
    this.inner?.close();
    this.readyState = 2;
  }
}

function tell(kind, detail) {
  document.body.dispatchEvent(new CustomEvent(`deck:${kind}`, { detail }));
}

function settle() {
  toSettle ??= setTimeout(() => {
    toSettle = null;
    tell("changed", {});
  }, SETTLE_MS);
}

function show(state) {
  const dot = document.getElementById("live");
  if (!dot || dot.dataset.state === state) return;
  dot.dataset.state = state;
  dot.textContent = state === "open" ? t("live") : t("connection lost, trying again");
}

/** Before htmx's extension starts. */
export function installLine() {
  window.htmx.createEventSource = (url) => new Line(url);
  document.addEventListener("visibilitychange", () => {
    if (!source) return;
    if (document.hidden) {
      lostAt ??= Date.now();
      source.close();
    } else {
      source.open();
    }
  });
}

/** Parts that update in place wait while the reader selects text in them, and keep scroll positions. */
export function protectReaders() {
  const scrolls = new Map();
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    const target = event.detail.target;
    const selection = document.getSelection();
    const isReading = selection && !selection.isCollapsed && target.contains(selection.anchorNode);
    if (isReading && event.detail.requestConfig?.verb === "get") event.detail.shouldSwap = false;
    for (const box of document.querySelectorAll("[id] .scroll")) {
      if (box.scrollLeft) scrolls.set(box.closest("[id]").id, box.scrollLeft);
    }
  });
  document.body.addEventListener("htmx:afterSwap", () => {
    for (const [id, left] of scrolls) {
      const box = document.getElementById(id)?.querySelector(".scroll");
      if (box) box.scrollLeft = left;
    }
    scrolls.clear();
  });
}
