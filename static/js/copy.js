// "Copy as curl". Browsers give the clipboard only to secure origins; elsewhere the text is shown to be copied.

import { t } from "./messages.js";

export function curl(path) {
  return `curl -H "Authorization: Bearer $TIERDECK_ADMIN_TOKEN" '${location.origin}${path}'`;
}

/** Buttons that copy the call behind a page. */
export function start() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy-curl]");
    if (button) copy(curl(button.dataset.copyCurl), button);
  });
}

export async function copy(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = t("Copied");
    setTimeout(() => { button.textContent = label; }, 1500);
  } catch {
    const dialog = document.createElement("dialog");
    const field = document.createElement("textarea");
    field.className = "mono";
    field.readOnly = true;
    field.rows = 3;
    field.value = text;
    field.setAttribute("aria-label", t("Copied"));
    dialog.append(field);
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
    field.select();
  }
}
