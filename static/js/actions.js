// Forms and buttons that act through the REST interface. Nothing typed is lost by a failed request,
// nothing is sent twice, and an error stands at the field it is about.

import { t } from "./messages.js";

/** Ask the deck; throws what the page can show. */
export async function ask(method, address, body) {
  let answer;
  try {
    answer = await fetch(address, {
      method,
      headers: { accept: "application/json", ...(body === undefined ? {} : { "content-type": "application/json" }) },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw { message: t("The deck does not answer. Nothing was lost; try again.") };
  }
  if (answer.status === 401) throw { message: t("The sign-in has ended. Sign in again in another tab, then send this once more.") };
  const told = answer.status === 204 ? {} : await answer.json().catch(() => ({}));
  if (!answer.ok) throw told.error ?? { message: t("The deck answered %(status)s.", { status: answer.status }) };
  return told;
}

/** A part of a page, rendered by the deck for what a form says; null when it does not come. */
export async function part(address, target, form) {
  try {
    const answer = await fetch(address, { method: "POST", headers: { "hx-request": "true", "hx-target": target }, body: form });
    return answer.ok ? await answer.text() : null;
  } catch {
    return null;
  }
}

/** Mark a control as at work for as long as `work` runs; a second click does nothing. */
export async function busy(button, work) {
  if (button.getAttribute("aria-busy") === "true") return;
  button.setAttribute("aria-busy", "true");
  button.setAttribute("aria-disabled", "true");
  try {
    await work();
  } finally {
    button.removeAttribute("aria-busy");
    button.removeAttribute("aria-disabled");
  }
}

/** The fields of a form as a JSON object; `a.b` becomes an object in an object. */
export function valuesOf(form) {
  const values = {};
  for (const field of form.elements) {
    if (!field.name || field.disabled || field.type === "submit" || (field.type === "radio" && !field.checked)) continue;
    if (field.dataset.optional !== undefined && field.value === "") continue;
    let value = field.type === "checkbox" ? field.checked : field.value;
    if (field.dataset.scale !== undefined) value = numberOf(field);
    const path = field.name.split(".");
    const last = path.pop();
    path.reduce((place, key) => (place[key] ??= {}), values)[last] = value;
  }
  return values;
}

function numberOf(field) {
  const number = Number(field.value) * Number(field.dataset.scale);
  return field.value.trim() === "" || Number.isNaN(number) ? field.value : Number(number.toPrecision(12));
}

export function clearErrors(form) {
  for (const field of form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
  for (const note of form.querySelectorAll(".error[data-made]")) note.remove();
  answer(form, "");
}

/** Put an error at its field; without one it stands beside the button. */
export function showError(form, error) {
  const parts = error.path?.split(".") ?? [];
  const field = [error.path, parts.at(-1), parts[0]].map((name) => name && form.elements[name]).find((found) => found?.closest);
  if (!field) {
    answer(form, error.message, "bad");
    return;
  }
  const note = Object.assign(document.createElement("p"), { className: "error", textContent: error.message, id: `${field.id}-error` });
  note.dataset.made = "";
  note.setAttribute("role", "alert");
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-describedby", note.id);
  field.closest(".field").append(note);
  field.focus();
}

export function answer(form, text, tone = "") {
  const place = form.querySelector(".form-answer");
  if (!place) return;
  place.textContent = text;
  place.className = `form-answer ${tone}`;
}

export function refresh() {
  document.body.dispatchEvent(new CustomEvent("deck:refresh", { detail: {} }));
}

async function send(form) {
  const [method, address] = form.dataset.api.split(" ");
  clearErrors(form);
  try {
    const body = form.dataset.bodyless === undefined ? valuesOf(form) : undefined;
    const told = await ask(method, address, body);
    answer(form, form.dataset.done ?? t("Saved."), "good");
    form.closest("dialog")?.close();
    form.dispatchEvent(new CustomEvent("deck:sent", { detail: told, bubbles: true }));
    if (form.dataset.goto) location.assign(form.dataset.goto);
    else refresh();
  } catch (error) {
    showError(form, error);
  }
}

/** A webhook's test: the answer stands in its row. */
async function test(button) {
  const place = document.getElementById(button.dataset.answer);
  place.textContent = t("Sending…");
  place.className = "form-answer small";
  try {
    const told = await ask("POST", button.dataset.test);
    const isSent = told.state === "delivered";
    place.textContent = isSent ? t("Delivered: %(answer)s", { answer: told.answer || told.status }) : t("Failed: %(answer)s", { answer: told.answer || told.status });
    place.className = `form-answer small ${isSent ? "good" : "bad"}`;
  } catch (error) {
    place.textContent = error.message;
    place.className = "form-answer small bad";
  }
}

/** Open a dialog, its form filled from the button's data-fill. */
function open(button) {
  const dialog = document.getElementById(button.dataset.dialog);
  const form = dialog.querySelector("form");
  if (form) {
    clearErrors(form);
    if (button.dataset.fill !== undefined) fill(form, button);
    for (const field of form.querySelectorAll("[data-confirm-name]")) field.value = "";
    checkNames(form);
  }
  dialog.showModal();
}

function fill(form, button) {
  form.reset();
  form.dataset.api = button.dataset.api;
  for (const [name, value] of Object.entries(JSON.parse(button.dataset.fill))) {
    const field = form.elements[name];
    if (!field) continue;
    if (field.type === "checkbox") field.checked = Boolean(value);
    else field.value = value;
  }
  for (const field of form.querySelectorAll("[data-confirm-name]")) field.dataset.confirmName = button.dataset.name ?? field.dataset.confirmName;
  const heading = form.querySelector("[data-heading]");
  if (heading) heading.textContent = button.dataset.heading;
}

/** What is dangerous asks for the name. */
function checkNames(form) {
  const fields = [...form.querySelectorAll("[data-confirm-name]")];
  if (!fields.length) return;
  const matches = fields.every((field) => field.value.trim() === field.dataset.confirmName);
  form.querySelector("[type=submit]").disabled = !matches;
}

export function installActions() {
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.dataset.api) return;
    event.preventDefault();
    busy(event.submitter ?? form.querySelector("[type=submit]"), () => send(form));
  });
  document.addEventListener("input", (event) => {
    if (event.target.form) checkNames(event.target.form);
  });
  document.addEventListener("change", (event) => {
    if (event.target.dataset?.submit !== undefined) event.target.form.submit();
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button || button.getAttribute("aria-disabled") === "true") return;
    if (button.dataset.dialog) open(button);
    if (button.dataset.close !== undefined) button.closest("dialog").close();
    if (button.dataset.test) busy(button, () => test(button));
  });
}
