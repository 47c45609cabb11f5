// The profile editor: checks what is typed, says what is wrong under the field, saves, keeps everything
// that was typed when the deck says no.

import { answer, ask, busy, clearErrors, refresh } from "./actions.js";
import { t } from "./messages.js";

const FIELDS = { "kv-transfer-config": "kv_transfer_config", flags: "flags", environment: "environment" };

class Editor {
  constructor(form) {
    this.form = form;
    this.save = form.querySelector("[type=submit]");
    // What the page came with: something may have been typed before this script was here.
    this.saved = Object.fromEntries(Object.values(FIELDS).map((name) => [name, form.elements[name].defaultValue]));
    this.turn = 0;
    let timer = null;
    form.addEventListener("input", (event) => {
      if (event.target.name in this.saved) {
        clearTimeout(timer);
        timer = setTimeout(() => this.check(), 300);
      }
      this.showChanged();
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      busy(this.save, () => this.send());
    });
    for (const area of form.querySelectorAll("textarea.mono")) this.makeComfortable(area);
    window.addEventListener("beforeunload", (event) => {
      if (this.isChanged && !this.isLeaving) event.preventDefault();
    });
    this.showChanged();
    this.check();
  }

  texts() {
    return Object.fromEntries(Object.values(FIELDS).map((name) => [name, this.form.elements[name].value]));
  }

  get isChanged() {
    return Object.entries(this.texts()).some(([name, text]) => text !== this.saved[name]);
  }

  showChanged() {
    const isNew = this.form.dataset.new !== undefined;
    this.save.disabled = !isNew && !this.isChanged;
    const note = this.form.querySelector("[data-unchanged]");
    if (note) note.hidden = isNew || this.isChanged;
    for (const warning of document.querySelectorAll("[data-unsaved]")) warning.hidden = !this.isChanged;
  }

  /** Ask the deck what it thinks of the text; an older answer never covers a newer one. */
  async check() {
    const turn = ++this.turn;
    try {
      const told = await ask("POST", "/api/v1/profiles/validate", this.texts());
      if (turn === this.turn) this.showFindings(told.findings);
      return told;
    } catch (error) {
      if (turn === this.turn) answer(this.form, error.message, "bad");
      return null;
    }
  }

  showFindings(findings) {
    for (const [path, name] of Object.entries(FIELDS)) {
      const area = this.form.elements[name];
      const list = document.getElementById(`${name}-findings`);
      const own = findings.filter((finding) => finding.path === path || finding.path.startsWith(`${path}.`));
      list.replaceChildren(...own.map((finding) => this.item(finding, area, path)));
      const isWrong = own.some((finding) => finding.severity === "error");
      if (isWrong) area.setAttribute("aria-invalid", "true");
      else area.removeAttribute("aria-invalid");
    }
  }

  item(finding, area, path) {
    const item = document.createElement("li");
    item.className = `finding ${finding.severity}`;
    const inner = finding.path.slice(path.length + 1);
    if (inner) item.append(Object.assign(document.createElement("code"), { textContent: inner }), " ");
    item.append(finding.message);
    if (finding.line) {
      const jump = Object.assign(document.createElement("button"), { type: "button", className: "link", textContent: t("Go there") });
      jump.addEventListener("click", () => goTo(area, finding.line, finding.column ?? 1));
      item.append(" ", jump);
    }
    return item;
  }

  async send() {
    clearErrors(this.form);
    const name = this.form.dataset.name || this.form.elements.name.value.trim();
    try {
      const body = { ...this.texts(), comment: this.form.elements.comment.value };
      const version = await ask("POST", `/api/v1/profiles/${encodeURIComponent(name)}/versions`, body);
      this.saved = this.texts();
      this.isLeaving = true;
      location.assign(`/profiles/${encodeURIComponent(version.profile)}?version=${version.number}#apply`);
    } catch (error) {
      const told = await this.check();
      const isAtField = told && !told.valid;
      answer(this.form, isAtField ? t("Not saved: correct what is marked above.") : error.message, "bad");
      this.form.querySelector("[aria-invalid=true]")?.focus();
    }
  }

  /** Two spaces instead of losing the focus; Escape then Tab leaves the field. */
  makeComfortable(area) {
    let leaves = false;
    area.addEventListener("keydown", (event) => {
      if (event.key === "Tab" && !event.shiftKey && !leaves) {
        event.preventDefault();
        area.setRangeText("  ", area.selectionStart, area.selectionEnd, "end");
        area.dispatchEvent(new Event("input", { bubbles: true }));
      }
      leaves = event.key === "Escape";
    });
  }
}

function goTo(area, line, column) {
  const lines = area.value.split("\n");
  const at = lines.slice(0, line - 1).reduce((sum, text) => sum + text.length + 1, 0) + column - 1;
  area.focus();
  area.setSelectionRange(at, at + 1);
  area.scrollTop = Math.max(0, (line - 3) * 18);
}

export function start() {
  for (const form of document.querySelectorAll("[data-editor]")) new Editor(form);
  document.body.addEventListener("deck:sent", refresh);
}
