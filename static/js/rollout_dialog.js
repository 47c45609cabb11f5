// The dialog before a rollout: asks the deck what would happen, again whenever the way changes.

import { part } from "./actions.js";
import { t } from "./messages.js";

class RolloutDialog {
  constructor(form) {
    this.form = form;
    this.place = form.querySelector("[data-preview-place]");
    this.turn = 0;
    form.addEventListener("change", (event) => {
      if (["strategy", "drain_timeout_seconds"].includes(event.target.name)) this.load();
    });
  }

  async load() {
    const turn = ++this.turn;
    const typed = this.form.elements.drain_timeout_seconds?.value ?? "";
    this.place.setAttribute("aria-busy", "true");
    const html = await part(this.form.dataset.preview, "rollout-preview", new FormData(this.form));
    if (turn !== this.turn) return;
    this.place.removeAttribute("aria-busy");
    if (html === null) {
      this.place.textContent = t("The deck does not say what would happen. Close this and try again.");
      return;
    }
    const focused = this.form.contains(document.activeElement) ? document.activeElement.id : "";
    this.place.innerHTML = html;
    const drain = this.form.elements.drain_timeout_seconds;
    if (drain) drain.value = typed;
    if (focused) document.getElementById(focused)?.focus();
  }
}

export function start() {
  const dialogs = new Map();
  for (const form of document.querySelectorAll("form[data-preview]")) dialogs.set(form.closest("dialog").id, new RolloutDialog(form));
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-dialog]");
    if (button) dialogs.get(button.dataset.dialog)?.load();
  });
}
