// The frame of the page: sign-in, navigation, and the choice of a principal for operators.

import * as api from "./api.js";
import { showCall, showCalls } from "./calls.js";
import { announce, failure, h, replace } from "./dom.js";
import { showLineage } from "./lineage.js";
import { showSavings } from "./savings.js";
import { showValue } from "./value.js";
import { showValues } from "./values.js";

const SECTIONS = [
  ["calls", "Calls", showCalls],
  ["values", "Values", showValues],
  ["lineage", "Lineage", showLineage],
  ["savings", "Savings", showSavings],
  ["why", "Why", (view) => showCalls(view, true)],
];
const HIDDEN = { value: ["values", showValue], call: ["calls", showCall] };
const main = document.getElementById("main");
const sections = document.getElementById("sections");
const scope = document.getElementById("scope");
let session = null;
let close = null;

async function start() {
  const link = /^#token=([A-Za-z0-9_-]+)$/.exec(location.hash);
  if (link) {
    history.replaceState(null, "", "/");
    try {
      await api.login(link[1]);
    } catch (error) {
      if (error.status === 404) api.keepToken(link[1]);
      else if (!api.readToken()) return replace(main, failure(error));
    }
  }
  await open();
}

async function open() {
  try {
    session = await api.get("session");
  } catch (error) {
    if (error.status === 401 || error.status === 403) return askToken(api.readToken() ? error.message : "");
    return replace(main, failure(error, open));
  }
  sections.hidden = false;
  showPrincipals();
  await route();
}

function askToken(message) {
  api.dropToken();
  sections.hidden = true;
  const input = h("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false", required: true });
  const submit = (event) => {
    event.preventDefault();
    const token = input.value.trim();
    if (!/^[\x21-\x7e]+$/.test(token)) return;
    api.keepToken(token);
    open();
  };
  replace(main, h("h1", {}, "Sign in"),
    message && h("div", { class: "failure", role: "alert" }, message),
    h("form", { class: "login", onsubmit: submit },
      h("label", { class: "field", for: "token" }, "Bearer token of the gateway"), input,
      h("p", { class: "note" }, "Enter the token that your MCP client uses. This tab keeps it until you close it. A page of ", h("code", {}, "mcp-mirror dashboard"), " needs its link instead."),
      h("div", {}, h("button", { class: "primary" }, "Sign in"))));
  input.focus();
}

function showPrincipals() {
  scope.hidden = false;
  if (!session.is_operator || session.principals.length < 2) {
    return replace(scope, session.principals[0].name);
  }
  const choose = (event) => go(readRoute().section, { principal: event.target.value });
  const chosen = readRoute().query.get("principal") ?? "";
  const options = session.principals.map((one, at) =>
    h("option", { value: at ? one.id : "", selected: chosen === (at ? one.id : "") }, one.name));
  replace(scope, h("label", { for: "principal" }, "Principal"),
    h("select", { id: "principal", onchange: choose }, options, h("option", { value: "*", selected: chosen === "*" }, "all")));
}

export function readRoute() {
  const [section, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { section: section || "calls", query: new URLSearchParams(query ?? "") };
}

function go(section, query) {
  const given = Object.entries(query).filter(([, value]) => value);
  const next = `#/${section in HIDDEN ? HIDDEN[section][0] : section}?${new URLSearchParams(given)}`;
  location.hash = next.replace(/\?$/, "");
}

async function route() {
  if (!session) return;
  if (location.hash === "#main") return main.focus();
  const { section, query } = readRoute();
  const current = HIDDEN[section]?.[0] ?? section;
  const principal = query.get("principal");
  replace(sections, SECTIONS.map(([id, title]) =>
    h("a", { href: `#/${id}${principal ? `?${new URLSearchParams({ principal })}` : ""}`, "aria-current": id === current ? "page" : null }, title)));
  showPrincipals();
  close?.();
  const controller = new AbortController();
  close = () => controller.abort();
  const show = HIDDEN[section]?.[1] ?? SECTIONS.find(([id]) => id === section)?.[2] ?? showCalls;
  const view = { main: h("div"), query, session, signal: controller.signal, section: current };
  replace(main, view.main);
  window.scrollTo(0, 0);
  document.title = `${SECTIONS.find(([id]) => id === current)?.[1] ?? "Calls"} · mcp-mirror`;
  try {
    await show(view);
  } catch (error) {
    if (controller.signal.aborted) return;
    if (error.status === 401) return askToken(error.message);
    replace(view.main, h("h1", {}, SECTIONS.find(([id]) => id === current)?.[1] ?? "Calls"), failure(error, route));
    announce(error.message);
  }
}

window.addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) start();
  else route();
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
start();
