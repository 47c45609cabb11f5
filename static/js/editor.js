// The profile editor: fields and JSON in step, checked while typed, each finding with the change that
// mends it; saves, and keeps everything that was typed when the deck says no.

import { answer, ask, busy, clearErrors, part, refresh, showError } from "./actions.js";
import { copy } from "./copy.js";
import { size } from "./format.js";
import { t } from "./messages.js";
import { apply, setAt } from "./patch.js";
import { Fields } from "./profile_fields.js";
import { drawSlots } from "./slot_chart.js";

const PARTS = { "kv-transfer-config": "kv_transfer_config", flags: "flags", environment: "environment" };
const NAMES = Object.values(PARTS);

class Editor {
  constructor(form) {
    this.form = form;
    this.save = form.querySelector("[type=submit]");
    this.allow = JSON.parse(form.dataset.allow || "[]");
    // What the page came with: something may have been typed before this script was here.
    this.saved = { ...Object.fromEntries(NAMES.map((name) => [name, form.elements[name].defaultValue])), allow: JSON.stringify(this.allow) };
    this.turn = 0;
    this.planTurn = 0;
    this.timer = null;
    this.fields = new Fields(document.getElementById("fields"), (pointer, value) => this.setField(pointer, value));
    form.addEventListener("input", (event) => {
      if (NAMES.includes(event.target.name)) this.showFields();
      if (NAMES.includes(event.target.name) || event.target.dataset.pointer || event.target.name === "session_tokens") this.later();
      this.showChanged();
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      busy(this.save, () => this.send());
    });
    for (const area of form.querySelectorAll("textarea.mono")) this.makeComfortable(area);
    for (const button of form.querySelectorAll("[data-depth]")) button.addEventListener("click", () => busy(button, () => this.deeper(Number(button.dataset.depth))));
    for (const button of form.querySelectorAll("[data-preset]")) button.addEventListener("click", () => this.take(JSON.parse(button.dataset.preset)));
    this.form.querySelector("[data-fleet]")?.addEventListener("change", () => this.check());
    window.addEventListener("beforeunload", (event) => {
      if (this.isChanged && !this.isLeaving) event.preventDefault();
    });
    this.showAllowed();
    this.showFields();
    this.showChanged();
    this.check();
  }

  texts() {
    return Object.fromEntries(NAMES.map((name) => [name, this.form.elements[name].value]));
  }

  /** The profile as an object; null while a text is not a JSON object. */
  profile() {
    const found = { allow: [...this.allow] };
    for (const name of NAMES) {
      const text = this.form.elements[name].value;
      try {
        found[name] = text.trim() ? JSON.parse(text) : {};
      } catch {
        return null;
      }
      if (typeof found[name] !== "object" || found[name] === null || Array.isArray(found[name])) return null;
    }
    return found;
  }

  get isChanged() {
    const now = { ...this.texts(), allow: JSON.stringify(this.allow) };
    return Object.entries(now).some(([name, text]) => text !== this.saved[name]);
  }

  showChanged() {
    const isNew = this.form.dataset.new !== undefined;
    this.save.disabled = !isNew && !this.isChanged;
    const note = this.form.querySelector("[data-unchanged]");
    if (note) note.hidden = isNew || this.isChanged;
    for (const warning of document.querySelectorAll("[data-unsaved]")) warning.hidden = !this.isChanged;
  }

  showFields() {
    const profile = this.profile();
    if (profile) this.fields.show(profile);
    else this.fields.rest();
  }

  setField(pointer, value) {
    const profile = this.profile();
    if (!profile) return;
    const config = profile.kv_transfer_config;
    if (value !== undefined && pointer.startsWith("/kv_transfer_config/")) {
      // A value of the host tier in an empty sheet begins a connector.
      config.kv_connector ??= "OffloadingConnector";
      config.kv_role ??= "kv_both";
      if (Object.keys(config.kv_connector_extra_config ?? {}).length === 0) config.kv_connector_extra_config = { spec_name: "TieringOffloadingSpec" };
    }
    setAt(profile, pointer, value);
    this.write(profile);
  }

  /** Write the parts that differ back into their texts, as they stand after a save. */
  write(profile) {
    const before = this.profile();
    for (const name of NAMES) {
      const text = Object.keys(profile[name]).length ? JSON.stringify(profile[name], null, 2) : "";
      if (!before || JSON.stringify(before[name]) !== JSON.stringify(profile[name])) this.form.elements[name].value = text;
    }
    this.allow = [...(profile.allow ?? [])];
    this.showAllowed();
    this.showChanged();
  }

  take(content) {
    this.write({ kv_transfer_config: {}, flags: {}, environment: {}, allow: [], ...content });
    this.showFields();
    this.check();
  }

  /** One click: the change that a finding proposes. */
  mend(fix) {
    if (fix.edit) {
      const area = this.form.elements[fix.edit.field];
      area.value = area.value.slice(0, fix.edit.start) + fix.edit.text + area.value.slice(fix.edit.end);
      this.showChanged();
    } else {
      const profile = this.profile();
      if (!profile) return;
      this.write(apply(profile, fix.patch));
    }
    this.showFields();
    this.check();
  }

  showAllowed() {
    const list = document.getElementById("allowed");
    list.closest("[data-allowed]").hidden = this.allow.length === 0;
    list.replaceChildren(...this.allow.map((path) => {
      const item = document.createElement("li");
      const button = Object.assign(document.createElement("button"), { type: "button", className: "link", textContent: t("Remove") });
      button.addEventListener("click", () => {
        this.allow = this.allow.filter((other) => other !== path);
        this.showAllowed();
        this.showChanged();
        this.check();
      });
      item.append(Object.assign(document.createElement("code"), { textContent: path }), " ", button);
      return item;
    }));
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.check(), 200);
  }

  body() {
    return { ...this.texts(), allow: this.allow, fleet: this.form.querySelector("[data-fleet]")?.value || null };
  }

  /** What the engine says of a version that is not being changed is kept beside it. */
  keptWith(depth) {
    const { name, version } = this.form.dataset;
    return depth > 1 && name && !this.isChanged ? `${name}@${version}` : null;
  }

  /** Ask the deck what it thinks of the text; an older answer never covers a newer one. */
  async check(depth = 1) {
    clearTimeout(this.timer);
    const turn = ++this.turn;
    this.askForPlan();
    try {
      const told = await ask("POST", "/api/v1/profiles/validate", { ...this.body(), depth, keep_with: this.keptWith(depth) });
      if (turn === this.turn) this.show(told);
      return told;
    } catch (error) {
      if (turn === this.turn) answer(this.form, error.message, "bad");
      return null;
    }
  }

  /** What the draft buys; while it cannot be read, what was said last stays, and is marked as old. */
  async askForPlan() {
    const place = document.getElementById("profile-plan");
    const isReadable = this.profile() !== null;
    place.classList.toggle("is-old", !isReadable);
    if (!isReadable && place.querySelector("[data-slots]")) return;
    const turn = ++this.planTurn;
    const html = await part("/planner/draft", "profile-plan", new FormData(this.form));
    if (html === null || turn !== this.planTurn) return;
    place.innerHTML = html;
    drawSlots(place);
    const counted = place.querySelector("[data-session]");
    if (counted) this.form.elements.session_tokens.placeholder = counted.dataset.session;
  }

  /** The engine's own word; it takes seconds, so the page says what is going on. */
  async deeper(depth) {
    const place = document.getElementById("depth-answer");
    place.textContent = t("Asking…");
    const told = await this.check(depth);
    place.textContent = told?.depth ? told.depth.summary : "";
  }

  show(told) {
    this.showFindings(told.findings);
    this.showMemory(told.host_memory);
    document.getElementById("depth-answer").textContent = told.depth?.summary ?? "";
  }

  showFindings(findings) {
    document.getElementById("findings").replaceChildren(...findings.map((finding) => this.item(finding)));
    this.form.querySelector("[data-nothing]").hidden = findings.length > 0;
    const wrong = findings.filter((finding) => finding.severity === "error").map((finding) => finding.path);
    for (const [path, name] of Object.entries(PARTS)) {
      if (wrong.some((one) => one === path || one.startsWith(`${path}.`))) this.form.elements[name].setAttribute("aria-invalid", "true");
      else this.form.elements[name].removeAttribute("aria-invalid");
    }
    this.fields.mark(new Set(wrong.map(pointerOf)));
  }

  item(finding) {
    const item = document.createElement("li");
    item.className = `finding ${finding.severity}`;
    item.dataset.path = finding.path;
    const word = { error: t("Error"), warning: t("Warning"), note: t("Note") }[finding.severity];
    item.append(Object.assign(document.createElement("strong"), { textContent: word }), " ");
    item.append(Object.assign(document.createElement("code"), { textContent: finding.path }), " ", finding.message);
    if (finding.line) item.append(" ", this.button(t("Go there"), "goto", () => this.goTo(finding)));
    for (const fix of [finding.fix, ...finding.other_fixes].filter(Boolean)) {
      item.append(" ", this.button(fix.label, "fix", () => this.mend(fix)));
    }
    return item;
  }

  button(label, kind, act) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: label, className: kind === "fix" ? "button small" : "link" });
    button.dataset[kind] = "";
    button.addEventListener("click", act);
    return button;
  }

  goTo(finding) {
    const name = Object.entries(PARTS).find(([path]) => finding.path.startsWith(path))?.[1];
    if (name) goTo(this.form.elements[name], finding.line, finding.column ?? 1);
  }

  showMemory(rows) {
    const section = document.getElementById("host-memory");
    section.hidden = rows.length === 0;
    section.querySelector("tbody").replaceChildren(...rows.map((row) => {
      const line = document.createElement("tr");
      const cells = [row.connector, size(row.per_rank_bytes), `× ${row.ranks}`, size(row.host_total_bytes)];
      const titles = [row.path, `${row.per_rank_bytes} B`, "", `${row.host_total_bytes} B`];
      line.append(...cells.map((textContent, place) => Object.assign(document.createElement("td"), { textContent, title: titles[place] })));
      return line;
    }));
  }

  async send() {
    clearErrors(this.form);
    const name = this.form.dataset.name || this.form.elements.name.value.trim();
    try {
      const body = { ...this.body(), comment: this.form.elements.comment.value };
      const version = await ask("POST", `/api/v1/profiles/${encodeURIComponent(name)}/versions`, body);
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

/** `flags.block-size` -> `/flags/block-size`. */
function pointerOf(path) {
  const extra = "kv-transfer-config.kv_connector_extra_config.";
  if (path.startsWith(extra)) return `/kv_transfer_config/kv_connector_extra_config/${path.slice(extra.length)}`;
  const [part, ...rest] = path.split(".");
  return `/${PARTS[part] ?? part}/${rest.join(".")}`;
}

function goTo(area, line, column) {
  const lines = area.value.split("\n");
  const at = lines.slice(0, line - 1).reduce((sum, text) => sum + text.length + 1, 0) + column - 1;
  area.focus();
  area.setSelectionRange(at, at + 1);
  area.scrollTop = Math.max(0, (line - 3) * 18);
}

async function copyCommand(button) {
  try {
    copy((await ask("GET", button.dataset.command)).command, button);
  } catch (error) {
    button.title = error.message;
    button.textContent = error.message;
  }
}

/** An exported file, read here and sent as what it holds. */
async function importFile(form) {
  clearErrors(form);
  try {
    const text = (await form.querySelector("[type=file]").files[0]?.text()) ?? "";
    const version = await ask("POST", "/api/v1/profiles/import", { document: JSON.parse(text), name: form.elements.name.value.trim() || null });
    location.assign(`/profiles/${encodeURIComponent(version.profile)}`);
  } catch (error) {
    if (error instanceof SyntaxError) answer(form, t("This file is not JSON."), "bad");
    else showError(form, error);
  }
}

export function start() {
  for (const form of document.querySelectorAll("[data-editor]")) new Editor(form);
  for (const button of document.querySelectorAll("[data-command]")) button.addEventListener("click", () => busy(button, () => copyCommand(button)));
  for (const form of document.querySelectorAll("[data-import]")) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      busy(form.querySelector("[type=submit]"), () => importFile(form));
    });
  }
  document.body.addEventListener("deck:sent", refresh);
}
