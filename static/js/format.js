// Numbers as the server writes them (app/web/formats.py): three significant digits, unit beside.

export const MISSING = "–";

export function significant(value, digits = 3) {
  if (value === 0) return "0";
  if (!Number.isFinite(value)) return MISSING;
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  let text = value.toFixed(decimals);
  if (decimals && text.replace(/^[-0.]+/, "").replace(".", "").length > digits) text = value.toFixed(decimals - 1);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

function stepped(value, steps) {
  for (const [step, suffix] of steps) if (Math.abs(value) >= step * 0.9995) return [value / step, suffix];
  return null;
}

const DECIMAL = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const BINARY = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];

export function count(value) {
  const found = stepped(value, DECIMAL);
  return found ? significant(found[0]) + found[1] : significant(value);
}

export function share(ratio) {
  const percent = ratio * 100;
  if (percent > 0 && percent < 0.05) return "<0.1 %";
  if (percent >= 99.95 && percent < 100) return ">99.9 %";
  if (percent === 0 || percent === 100) return `${percent} %`;
  return `${percent.toFixed(1)} %`;
}

export function size(bytes) {
  const found = stepped(bytes, BINARY);
  return found ? `${significant(found[0])} ${found[1]}` : `${significant(bytes)} B`;
}

export function duration(seconds) {
  if (seconds < 0.9995) return `${significant(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${significant(seconds)} s`;
  const whole = Math.round(seconds);
  for (const [step, name, lower, lowerName] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
    if (whole < step) continue;
    const rest = Math.floor((whole % step) / lower);
    return rest ? `${Math.floor(whole / step)} ${name} ${rest} ${lowerName}` : `${Math.floor(whole / step)} ${name}`;
  }
  return `${whole} s`;
}

/** A value in the unit that a chart names. */
export function inUnit(value, unit) {
  if (value === null || value === undefined) return MISSING;
  if (unit === "ratio" || unit === "share") return share(value);
  if (unit === "seconds" || unit === "s") return duration(value);
  if (unit === "bytes" || unit === "B") return size(value);
  return count(value);
}

/** `exact` is for titles and tables. */
export function clock(epochSeconds, withDate = false) {
  const date = new Date(epochSeconds * 1000);
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  return withDate ? `${date.toLocaleDateString()} ${time}` : time;
}
