// Sizes as people write them: 64 GiB, 64 GB or bytes.

import { size } from "./format.js";

const UNITS = { "": 1, b: 1, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40, kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12 };
const SHOWN = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["TB", 1e12], ["GB", 1e9], ["MB", 1e6]];

/** Bytes, or null for what is no size. */
export function parseSize(text) {
  const match = /^\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*$/i.exec(text);
  const factor = match && UNITS[match[2].toLowerCase()];
  return factor ? Math.floor(Number(match[1]) * factor) : null;
}

/** The shortest way to write a number of bytes exactly. */
export function sizeText(bytes) {
  for (const [unit, factor] of SHOWN) if (bytes >= factor && bytes % factor === 0) return `${bytes / factor} ${unit}`;
  return String(bytes);
}

/** Both ways at once: what stands beside a field. */
export function bothWays(bytes) {
  return bytes >= 1024 ? `${bytes.toLocaleString("en")} B = ${size(bytes)}` : `${bytes} B`;
}
