// The fields of the profile editor: filled from the JSON, written back into it.

import { valueAt } from "./patch.js";
import { bothWays, parseSize, sizeText } from "./sizes.js";

export class Fields {
  /** `onChange(pointer, value)` is called for each change by hand; undefined takes the value away. */
  constructor(place, onChange) {
    this.place = place;
    this.inputs = [...place.querySelectorAll("[data-pointer]")];
    for (const input of this.inputs) {
      input.addEventListener("input", () => {
        this.tellBytes(input);
        const value = read(input);
        if (value !== null) onChange(input.dataset.pointer, value);
      });
    }
  }

  /** Show a profile; the field that is being typed in keeps what is typed. */
  show(profile) {
    for (const input of this.inputs) {
      input.disabled = false;
      if (input !== document.activeElement) fill(input, valueAt(profile, input.dataset.pointer));
      this.tellBytes(input);
    }
    this.place.querySelector("[data-unreadable]").hidden = true;
  }

  /** The JSON cannot be read: nothing may be written into it from here. */
  rest() {
    for (const input of this.inputs) input.disabled = true;
    this.place.querySelector("[data-unreadable]").hidden = false;
  }

  mark(pointers) {
    for (const input of this.inputs) {
      if (pointers.has(input.dataset.pointer)) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    }
  }

  tellBytes(input) {
    if (input.dataset.kind !== "size") return;
    const bytes = parseSize(input.value);
    document.getElementById(`${input.id}-bytes`).textContent = bytes === null ? "" : bothWays(bytes);
  }
}

/** What a field says: undefined when it is empty, null when it is not a value yet. */
function read(input) {
  const text = input.value.trim();
  if (text === "") return undefined;
  switch (input.dataset.kind) {
    case "size": return parseSize(text) ?? text;
    case "yes": return text === "true";
    case "choice": return text;
    default: return Number.isFinite(Number(text)) ? Number(text) : text;
  }
}

function fill(input, value) {
  if (value === undefined || value === null) input.value = "";
  else if (input.dataset.kind === "size") input.value = Number.isInteger(value) ? sizeText(value) : String(value);
  else if (input.tagName === "SELECT") choose(input, String(value));
  else input.value = String(value);
}

/** A value that the list does not offer is shown all the same. */
function choose(select, value) {
  select.querySelector("[data-foreign]")?.remove();
  if (![...select.options].some((option) => option.value === value)) {
    const option = Object.assign(document.createElement("option"), { value, textContent: value });
    option.dataset.foreign = "";
    select.append(option);
  }
  select.value = value;
}

