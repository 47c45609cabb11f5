// The planner: brings a file into the form, says sizes both ways, and puts an error at its field.

import { clearErrors, showError } from "./actions.js";
import { copy } from "./copy.js";
import { size } from "./format.js";
import { parseSize } from "./sizes.js";
import { drawSlots } from "./slot_chart.js";

/** What came back: its chart, and its error at the field. */
function showResult(form) {
  drawSlots(document.getElementById("plan-result"));
  const focused = document.activeElement;
  clearErrors(form);
  const fault = document.querySelector("#plan-result [data-fault]");
  if (fault) showError(form, { path: fault.dataset.faultField, message: fault.dataset.fault });
  // Whoever types stays where they type.
  if (fault && form.contains(focused)) focused.focus();
}

function saySize(field) {
  const place = field.form.querySelector(`[data-size-of="${field.name}"]`);
  place.dataset.help ??= place.textContent;
  const bytes = parseSize(field.value);
  place.textContent = bytes === null ? place.dataset.help : `${bytes.toLocaleString("en")} B\n= ${size(bytes)}`;
}

async function take(file, area) {
  if (!file) return;
  area.value = await file.text();
  area.dispatchEvent(new Event("input", { bubbles: true }));
}

function takeFiles(form) {
  const area = form.elements.config;
  const chooser = form.querySelector("[data-file]");
  const button = form.querySelector("[data-choose-file]");
  button.hidden = false;
  button.addEventListener("click", () => chooser.click());
  chooser.addEventListener("change", () => take(chooser.files[0], area));
  area.addEventListener("dragover", (event) => { event.preventDefault(); area.classList.add("is-over"); });
  area.addEventListener("dragleave", () => area.classList.remove("is-over"));
  area.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    area.classList.remove("is-over");
    take(event.dataTransfer.files[0], area);
  });
}

export function start() {
  const form = document.getElementById("plan-form");
  takeFiles(form);
  for (const field of form.querySelectorAll("[data-size]")) {
    saySize(field);
    field.addEventListener("input", () => saySize(field));
  }
  document.body.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.elt.id === "plan-result") showResult(form);
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy-command]");
    if (button) copy(document.querySelector("[data-command]").textContent, button);
  });
  showResult(form);
}
