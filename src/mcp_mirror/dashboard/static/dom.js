// Builds elements and formats figures. Text is only ever set as text: nothing here parses HTML.

export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  set(element, attributes);
  append(element, children);
  return element;
}

export function s(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  set(element, attributes);
  append(element, children);
  return element;
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(visible(String(child))));
  }
}

// Characters that change the direction or the length of a line are written as their codes.
export function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g,
    (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

export const count = (value) => Math.round(value).toLocaleString("en");

export function bytes(size) {
  for (const [unit, scale] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    const amount = size / scale;
    if (amount >= 0.9995) return `${amount >= 99.95 ? amount.toFixed(0) : amount.toPrecision(3).replace(/\.?0+$/, "")} ${unit}`;
  }
  return `${size} B`;
}

export function short(value) {
  const size = Math.abs(value);
  for (const [unit, scale] of [["B", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (size >= scale) return `${(value / scale).toFixed(size >= 100 * scale ? 0 : 1)}${unit}`;
  }
  return String(value);
}

export function duration(seconds) {
  const value = Math.max(0, seconds);
  for (const [unit, scale] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (value >= scale) return `${Math.round(value / scale)} ${unit}`;
  }
  return `${Math.round(value)} s`;
}

export function milliseconds(value) {
  if (value >= 60000) return duration(value / 1000);
  return value >= 1000 ? `${(value / 1000).toFixed(1)} s` : `${Math.round(value)} ms`;
}

export function clock(seconds) {
  const date = new Date(seconds * 1000);
  if (date.toDateString() === new Date().toDateString()) return date.toLocaleTimeString("en-GB");
  return date.toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" }).replace(",", "");
}

export const moment = (seconds) => new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC";

export function money(value) {
  const size = Math.abs(value);
  const digits = size >= 100 ? 0 : size >= 0.995 || size === 0 ? 2 : size >= 0.01 ? 3 : 5;
  return `${value < 0 ? "−" : ""}$${size.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

export function valueLink(path, text, principal) {
  return h("a", { href: valueHref(path, principal), class: "path" }, text ?? shorten(path));
}

export function valueHref(path, principal) {
  return `#/value?${new URLSearchParams({ path, ...(principal ? { principal } : {}) })}`;
}

// A base ends with 36 characters of its UUID: the page shows the first 8.
export function shorten(path) {
  return path.replace(/-([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/, "-$1…");
}

export function failure(error, retry) {
  return h("div", { class: "failure", role: "alert" },
    h("p", {}, error.message),
    retry && h("button", { type: "button", onclick: retry }, "Try again"));
}

export function empty(text) {
  return h("p", { class: "empty" }, text);
}

// A principal has nothing yet. An operator whose page shows the operator's own data may look for that of others.
export function emptyOf(session, principal, text) {
  const hasOthers = session.is_operator && session.principals.length > 1 && !principal;
  return empty(hasOthers ? `${text} Only the data of ${session.principals[0].name} is shown: choose another principal at the top.` : text);
}
