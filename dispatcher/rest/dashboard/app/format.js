// Numbers, sizes, durations and times as text. Unknown values (null, NaN, infinite) are "–".
export const UNKNOWN = "–";
const THIN = "\u202f"; // a narrow space between a number and its unit, which does not break

export function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

function digits(value, decimals = 0) {
  return value.toLocaleString("en-US", {
    minimumFractionDigits: decimals, maximumFractionDigits: decimals,
  });
}

/** `1,131`, `65.5 k`, `12.3 M`. */
export function count(value) {
  if (!known(value)) return UNKNOWN;
  if (Math.abs(value) < 10_000) return digits(Math.round(value));
  let amount = value / 1000;
  for (const unit of ["k", "M", "G"]) {
    if (Math.abs(amount) < 999.95) return `${digits(amount, 1)}${THIN}${unit}`;
    amount /= 1000;
  }
  return `${digits(amount, 1)}${THIN}T`;
}

/** All digits: `12,345,678`. */
export function exactCount(value) {
  return known(value) ? digits(Math.round(value)) : UNKNOWN;
}

/** `0.4/s`, `980/s`, `35.1 k/s`. */
export function rate(perSecond) {
  if (!known(perSecond)) return UNKNOWN;
  if (perSecond > 0 && perSecond < 10) return `${digits(perSecond, 1)}/s`;
  return `${count(perSecond)}/s`;
}

/** `100 B`, `1.5 MiB`. */
export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  let amount = value;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(amount) < 1024) {
      return `${digits(amount, unit === "B" ? 0 : 1)}${THIN}${unit}`;
    }
    amount /= 1024;
  }
  return `${digits(amount, 1)}${THIN}TiB`;
}

export function byteRate(perSecond) {
  return known(perSecond) ? `${bytes(perSecond)}/s` : UNKNOWN;
}

/** `250 ms`, `12.3 s`, `4 min 05 s`, `2 h 30 min`, `3 d 04 h`. Skewed clocks never show less than 0. */
export function duration(ms) {
  if (!known(ms)) return UNKNOWN;
  const value = Math.max(0, ms);
  if (value < 999.5) return `${Math.round(value)}${THIN}ms`;
  if (value < 59_950) return `${digits(value / 1000, 1)}${THIN}s`;
  return parts(Math.round(value / 1000));
}

/** A duration that counts up on the page: whole seconds only. */
export function runningTime(ms) {
  if (!known(ms)) return UNKNOWN;
  const seconds = Math.max(0, Math.floor(ms / 1000));
  return seconds < 60 ? `${seconds}${THIN}s` : parts(seconds);
}

function parts(seconds) {
  const two = (value) => String(value).padStart(2, "0");
  const minutes = Math.floor(seconds / 60);
  const hours = Math.floor(minutes / 60);
  const days = Math.floor(hours / 24);
  if (!hours) return `${minutes}${THIN}min ${two(seconds % 60)}${THIN}s`;
  if (!days) return `${hours}${THIN}h ${two(minutes % 60)}${THIN}min`;
  return `${days}${THIN}d ${two(hours % 24)}${THIN}h`;
}

/** A share of 0..1: `82 %`; `<1 %` for little, so that little does not look like none. */
export function percent(share) {
  if (!known(share)) return UNKNOWN;
  if (share > 0 && share < 0.01) return `<1${THIN}%`;
  return `${digits(Math.round(share * 100))}${THIN}%`;
}

/** The share within 0..1, or 0 if it is unknown, for bars. */
export function within(share) {
  return known(share) ? Math.min(1, Math.max(0, share)) : 0;
}

const TIME = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const DATE = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

function valid(ms) {
  return known(ms) && ms > 0 && Math.abs(ms) < 8.64e15;
}

/** A time in the viewer's zone, without its date if it is less than half a day from `now`. */
export function time(ms, now = Date.now()) {
  if (!valid(ms)) return UNKNOWN;
  return (Math.abs(now - ms) < 43_200_000 ? TIME : DATE).format(ms);
}

export function isoTime(ms) {
  return valid(ms) ? new Date(ms).toISOString() : "";
}

/** `1 slot`, `2 slots`. */
export function counted(number, one, many = `${one}s`) {
  return `${exactCount(number)} ${number === 1 ? one : many}`;
}

/** The name of a vertex or operator, without long parameters: `Source: sales → SelectExpr(…)`. */
export function shortName(name) {
  const text = String(name ?? "");
  let short = "";
  let depth = 0;
  let start = 0;
  for (let index = 0; index < text.length; index += 1) {
    if (text[index] === "(" && depth++ === 0) {
      short += text.slice(start, index);
      start = index;
    } else if (text[index] === ")" && depth > 0 && --depth === 0) {
      short += index - start > LONGEST_PARAMETERS ? "(…)" : text.slice(start, index + 1);
      start = index + 1;
    }
  }
  return (short + text.slice(start)).replaceAll(" -> ", " → ");
}

const LONGEST_PARAMETERS = 24;

/** The first characters of an id. */
export function shortId(id) {
  return String(id ?? "").slice(0, 8);
}
