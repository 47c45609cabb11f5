// Words of the scripts in the reader's language. English is the source; the page brings the rest.

const found = document.getElementById("messages");
const messages = found ? JSON.parse(found.textContent) : {};

export const language = document.documentElement.lang || "en";

/** The translation of `message` with `%(name)s` filled in. */
export function t(message, values = {}) {
  const text = messages[message] ?? message;
  return text.replace(/%\((\w+)\)s/g, (whole, name) => (name in values ? String(values[name]) : whole));
}
