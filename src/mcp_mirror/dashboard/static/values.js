// The list of stored values with its filters, a page at a time.

import * as api from "./api.js";
import { announce, bytes, count, duration, empty, emptyOf, failure, h, moment, replace, valueLink } from "./dom.js";

const KINDS = ["object", "array", "text", "number", "boolean", "null", "binary"];
const PAGE = 100;
const SIZES = [["any", "", ""], ["under 10 kB", "", "10000"], ["10 kB to 1 MB", "10000", "1000000"], ["over 1 MB", "1000000", ""]];

export async function showValues(view) {
  const { main, query, session, signal } = view;
  const principal = query.get("principal") ?? "";
  if (principal === "*") return replace(main, h("h1", {}, "Values"), empty("Values are listed for one principal. Choose one at the top."));
  const filters = { search: query.get("search") ?? "", kind: "", tool: query.get("tool") ?? "", smallest: "", largest: "" };
  const before = [];
  let here = "";
  let next = null;
  const summary = h("p", { class: "faint" });
  const results = h("div");
  const pages = h("div", { class: "actions" });
  const tool = h("select", { onchange: (event) => change({ tool: event.target.value }) });

  replace(main, h("h1", {}, "Values"),
    h("form", { class: "bar", role: "search", "aria-label": "Filter values", onsubmit: (event) => { event.preventDefault(); load(""); } },
      h("label", { class: "grow" }, "Search path, tool, upstream or label", h("input", { type: "search", value: filters.search, oninput: (event) => change({ search: event.target.value }) })),
      h("label", {}, "Tool", tool),
      h("label", {}, "Kind", h("select", { onchange: (event) => change({ kind: event.target.value }) }, h("option", { value: "" }, "any"), KINDS.map((one) => h("option", {}, one)))),
      h("label", {}, "Size", h("select", { onchange: (event) => { const [, smallest, largest] = SIZES[event.target.value]; change({ smallest, largest }); } }, SIZES.map(([name], at) => h("option", { value: String(at) }, name))))),
    summary, results, pages);

  let timer = 0;
  function change(given) {
    Object.assign(filters, given);
    clearTimeout(timer);
    timer = setTimeout(() => { before.length = 0; load(""); }, 250);
  }

  // A request compares a bounded number of values with the filters. A search continues until a page is full, and pauses
  // after each request for as long as the request took, so that the gateway has time for calls.
  const stop = h("button", { type: "button" }, "Stop");
  let attempt = 0;
  async function load(after) {
    const mine = ++attempt;
    let page = { values: [], searched: 0, next: after };
    stop.disabled = true; // before the first response nothing is known to show
    stop.onclick = () => { attempt++; show(page, false); pages.querySelector("button").focus(); };
    try {
      do {
        const begun = performance.now();
        const more = await api.get("values", { ...filters, principal, after: page.next }, signal);
        if (mine !== attempt) return;
        stop.disabled = false;
        page = { ...more, values: [...page.values, ...more.values], searched: page.searched + more.searched };
        here = after;
        next = page.next;
        show(page, isUnfinished(page), more.values.length > 0);
        if (isUnfinished(page)) await new Promise((done) => { setTimeout(done, performance.now() - begun); });
      } while (mine === attempt && !signal.aborted && isUnfinished(page));
    } catch (error) {
      if (!signal.aborted && mine === attempt) replace(results, failure(error, () => load("")));
    }
  }

  const isUnfinished = (page) => page.next && page.values.length < PAGE;

  function show(page, isSearching, hasNews = true) {
    const isFiltered = Object.values(filters).some(Boolean);
    replace(tool, h("option", { value: "" }, "any"), page.tools.map((one) => h("option", { selected: one === filters.tool }, one)));
    const searched = isFiltered && page.searched > page.values.length ? ` Compared with the filters: ${count(page.searched)}.` : "";
    replace(summary, page.total ? `${count(page.total)} ${page.total === 1 ? "value" : "values"}, ${bytes(page.bytes)}.${searched}` : "");
    if (isSearching && page.values.length === 0) replace(results, h("p", {}, "Searching older values…"));
    else if (hasNews || !page.values.length) replace(results, page.values.length ? buildTable(page) : explain(page, isFiltered));
    if (isSearching) return pages.contains(stop) || replace(pages, stop);
    const older = () => { before.push(here); load(next); };
    replace(pages,
      before.length > 0 && h("button", { type: "button", onclick: () => load(before.pop()) }, "Newer"),
      next && h("button", { type: "button", onclick: older }, page.values.length < PAGE ? "Search further" : "Older"));
    announce(`${page.values.length} values`);
  }

  function explain(page, isFiltered) {
    if (next) return empty(`None of the newest ${count(page.searched)} values passes these filters. Search further, or change a filter.`);
    if (isFiltered && page.total) return empty("No value passes these filters. Clear a filter to see more.");
    return emptyOf(session, principal, "Nothing is stored yet. Call a tool whose result is large, such as a file or a list of records, in your MCP client.");
  }

  function buildTable(page) {
    const owner = principal && principal !== session.principal ? principal : "";
    const heads = [["Path", ""], ["Tool", "optional"], ["Upstream", "optional"], ["Kind", ""], ["Size", "number"], ["Age", "number"], ["Expires in", "number optional"], ["Labels", "optional"]];
    return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Values, scrollable" }, h("table", {},
      h("thead", {}, h("tr", {}, heads.map(([name, kind]) => h("th", { scope: "col", class: kind }, name)))),
      h("tbody", {}, page.values.map((one) => h("tr", {},
        h("td", {}, valueLink(one.path, undefined, owner), !one.model_sees && [" ", h("span", { class: "tag hidden" }, "hidden from the model")], one.model_sees && !one.preview && [" ", h("span", { class: "tag" }, "no preview")]),
        h("td", { class: "optional" }, one.tool),
        h("td", { class: "optional" }, one.upstream || h("span", { class: "faint" }, "mcp-mirror")),
        h("td", {}, one.media_type ?? one.kind),
        h("td", { class: "number" }, bytes(one.bytes)),
        h("td", { class: "number", title: moment(one.created) }, duration(page.now - one.created)),
        h("td", { class: "number optional", title: moment(one.expires) }, duration(one.expires - page.now)),
        h("td", { class: "optional" }, formatLabels(one.labels)))))));
  }

  signal.addEventListener("abort", () => clearTimeout(timer));
  await load("");
}

export function formatLabels(labels) {
  return Object.entries(labels).map(([name, value], at) => [at > 0 && " ", h("span", { class: "tag" }, `${name}: ${value}`)]);
}

