// The live list of calls, and the calls with a reason why a path was not used or a call was refused.

import * as api from "./api.js";
import { announce, bytes, clock, count, empty, emptyOf, failure, h, milliseconds, moment, replace, valueLink } from "./dom.js";

const PAUSE = 2000;
const MOST = 500;
const OUTCOMES = ["ok", "stored", "error", "refused", "asked", "cancelled"];

export async function showCalls(view, onlyWhy = false) {
  const { main, query, session, signal } = view;
  const principal = query.get("principal") ?? "";
  const isAll = principal === "*";
  const state = { newest: null, next: null, isPaused: false, isEmpty: true };
  const filters = { tool: query.get("tool") ?? "", upstream: query.get("upstream") ?? "", outcome: query.get("outcome") ?? "" };
  const body = h("tbody");
  const more = h("div", { class: "actions" });
  const message = h("div");
  const pause = h("button", { type: "button", "aria-pressed": "false", onclick: togglePause }, "Pause");
  const table = h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Calls, scrollable" },
    h("table", {}, h("thead", {}, h("tr", {},
      ["Time", "Tool"].map((one) => h("th", { scope: "col" }, one)),
      isAll && h("th", { scope: "col" }, "Principal"),
      h("th", { scope: "col", class: "optional" }, "Upstream"),
      h("th", { scope: "col" }, "Outcome"),
      onlyWhy && h("th", { scope: "col" }, "Why"),
      [["Duration", "number optional"], ["Bytes shown", "number optional"], ["Tokens shown", "number"], ["Tokens kept out", "number"]].map(([one, kind]) => h("th", { scope: "col", class: kind }, one)))), body));
  const columns = 8 + Number(isAll) + Number(onlyWhy);

  replace(main, h("h1", {}, onlyWhy ? "Why a path was not used, and why a call was refused" : "Calls"),
    h("form", { class: "bar", role: "search", "aria-label": "Filter calls", onsubmit: (event) => { event.preventDefault(); reload(); } },
      h("label", { class: "grow" }, "Tool", input("tool")),
      h("label", {}, "Upstream", h("input", { type: "text", class: "short", value: filters.upstream, oninput: (event) => change("upstream", event.target.value) })),
      h("label", {}, "Outcome", h("select", { onchange: (event) => change("outcome", event.target.value) },
        h("option", { value: "" }, "any"), OUTCOMES.map((one) => h("option", { value: one, selected: filters.outcome === one }, one)))),
      pause),
    message, table, more);
  table.hidden = true;

  function input(name) {
    return h("input", { type: "search", value: filters[name], oninput: (event) => change(name, event.target.value) });
  }

  let timer = 0;
  function change(name, value) {
    filters[name] = value.trim();
    clearTimeout(timer);
    timer = setTimeout(reload, 250);
  }

  function togglePause() {
    state.isPaused = !state.isPaused;
    pause.setAttribute("aria-pressed", String(state.isPaused));
    pause.textContent = state.isPaused ? "Continue" : "Pause";
  }

  const request = (cursors) => api.get("calls", { ...filters, ...cursors, principal, why: onlyWhy ? "1" : "" }, signal);

  async function reload() {
    try {
      const page = await request({ limit: 50 });
      body.replaceChildren(...page.calls.flatMap(buildRow));
      Object.assign(state, { newest: page.newest, next: page.next });
      showMore();
      showEmpty(page.calls.length === 0);
    } catch (error) {
      if (!signal.aborted) report(error);
    }
  }

  function report(error) {
    if (error.status === 401) return location.reload();
    replace(message, failure(error, () => { replace(message); reload(); }));
  }

  function showEmpty(isEmpty) {
    table.hidden = isEmpty;
    if (!isEmpty) return replace(message);
    const isFiltered = Object.values(filters).some(Boolean);
    if (isFiltered) return replace(message, empty("No call passes these filters. Clear a filter to see more."));
    const text = onlyWhy ? "Every path was used, and no call was refused. Reasons appear here as soon as one is not."
      : "No calls yet. Use a tool in your MCP client, and the call appears here within seconds.";
    replace(message, emptyOf(session, principal, text));
  }

  function showMore() {
    replace(more, state.next && h("button", { type: "button", onclick: loadMore }, "Older calls"));
  }

  async function loadMore() {
    try {
      const page = await request({ before: state.next, limit: 100 });
      body.append(...page.calls.flatMap(buildRow));
      state.next = page.next;
      showMore();
      announce(`${page.calls.length} older calls`);
    } catch (error) {
      if (!signal.aborted) report(error);
    }
  }

  async function poll() {
    if (state.isPaused || document.hidden || !state.newest) return;
    try {
      const page = await request({ after: state.newest, limit: 100 });
      state.newest = page.newest;
      if (!page.calls.length) return;
      const known = new Set([...body.querySelectorAll("tr[data-id]")].map((row) => row.dataset.id));
      const fresh = page.calls.filter((one) => !known.has(one.id));
      const rows = fresh.flatMap(buildRow);
      for (const row of rows) row.classList.add("fresh");
      body.prepend(...rows);
      while (body.children.length > 2 * MOST) body.lastElementChild.remove();
      showEmpty(false);
      announce(fresh.length === 1 ? `1 new call: ${fresh[0].tool}` : `${fresh.length} new calls`);
    } catch (error) {
      if (!signal.aborted) report(error);
    }
  }

  function buildRow(call) {
    const detail = h("tr", { class: "detail", hidden: true });
    const id = `call-${call.id.replace(/[^A-Za-z0-9_-]/g, "")}`;
    detail.id = id;
    const open = h("button", { type: "button", class: "plain", "aria-expanded": "false", "aria-controls": id }, call.tool);
    open.addEventListener("click", () => {
      detail.hidden = !detail.hidden;
      open.setAttribute("aria-expanded", String(!detail.hidden));
      if (!detail.firstChild) detail.append(h("td", { colspan: String(columns) }, buildDetail(call, session)));
    });
    const row = h("tr", { "data-id": call.id },
      h("td", { class: "nowrap" }, h("time", { datetime: new Date(call.at * 1000).toISOString() }, clock(call.at))),
      h("td", {}, open),
      isAll && h("td", {}, call.principal_name),
      h("td", { class: "optional" }, call.upstream || h("span", { class: "faint" }, "mcp-mirror")),
      h("td", {}, tag(call)),
      onlyWhy && h("td", {}, call.why[0]?.[2] ?? ""),
      h("td", { class: "number optional" }, milliseconds(call.milliseconds)),
      h("td", { class: "number optional" }, bytes(call.bytes)),
      h("td", { class: "number" }, count(call.sent)),
      h("td", { class: "number" }, call.kept_out ? count(call.kept_out) : h("span", { class: "faint" }, "0")));
    return [row, detail];
  }

  await reload();
  const interval = setInterval(poll, PAUSE);
  signal.addEventListener("abort", () => { clearInterval(interval); clearTimeout(timer); });
}

function buildDetail(call, session) {
  const owner = call.principal === session.principal ? "" : call.principal;
  const link = (path) => valueLink(path, path, owner);
  const why = call.why.map(([place, text, reason]) => h("li", {}, place && [h("code", {}, place), " "], text && [h("code", {}, text), ": "], reason));
  return [
    h("dl", { class: "facts" },
      fact("Began", moment(call.at)), fact("Duration", milliseconds(call.milliseconds)), fact("Bytes of the reply", count(call.bytes)),
      fact("Stored as", call.path && [link(call.path), " ", h("a", { href: lineageHref(call.path, owner) }, "lineage")]),
      fact("Used", call.inputs.length && call.inputs.map((path, at) => [at > 0 && ", ", link(path)])),
      fact("Called by the script", call.parent), fact("Id", h("code", {}, call.id))),
    call.hidden && h("p", { class: "note" }, call.hidden),
    why.length > 0 && [h("h2", {}, "Why"), h("ul", {}, why)],
    call.arguments && [h("h2", {}, "Arguments"), h("pre", { tabindex: "0" }, linkPaths(indent(call.arguments), call.inputs, link))],
    call.path && !call.hidden && buildNotice(call.path, owner),
  ];
}

// The notice is written again from the value, so opening a call reads no value.
function buildNotice(path, principal) {
  const section = h("div", { class: "actions" });
  const open = async () => {
    try {
      const { notice } = await api.get("notice", { path, principal });
      const block = h("pre", { tabindex: "0" }, notice);
      section.replaceWith(h("h2", {}, "Notice"), block);
      block.focus();
    } catch (error) {
      replace(section, failure(error));
    }
  };
  section.append(h("button", { type: "button", onclick: open }, "Show the notice"));
  return section;
}

export async function showCall(view) {
  const { main, query, session, signal } = view;
  const principal = query.get("principal") ?? "";
  const call = await api.get("call", { id: query.get("id") ?? "", principal }, signal);
  replace(main, h("p", { class: "crumbs" }, h("a", { href: principal ? `#/calls?${new URLSearchParams({ principal })}` : "#/calls" }, "Calls"), " / "),
    h("h1", {}, call.tool), h("p", {}, tag(call), " ", call.upstream || "mcp-mirror", `, ${count(call.sent)} tokens shown, ${count(call.kept_out)} kept out`),
    buildDetail(call, session));
}

const tag = (call) => [h("span", { class: `tag ${OUTCOMES.includes(call.outcome) ? call.outcome : ""}` }, call.outcome), call.reason && [" ", h("span", { class: "faint" }, call.reason.replaceAll("_", " "))]];

const fact = (name, value) => (value ? [h("dt", {}, name), h("dd", {}, value)] : null);

export const lineageHref = (path, principal) => `#/lineage?${new URLSearchParams({ path, ...(principal ? { principal } : {}) })}`;

function indent(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

// Replaces the paths that the call used by links.
function linkPaths(text, paths, link) {
  let parts = [text];
  for (const path of paths) {
    parts = parts.flatMap((part) => (typeof part === "string" ? part.split(path).flatMap((piece, at) => (at ? [link(path), piece] : [piece])) : [part]));
  }
  return parts;
}
