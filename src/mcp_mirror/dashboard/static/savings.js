// Tokens and money over time, and the use of the memory.

import * as api from "./api.js";
import { bytes, count, emptyOf, failure, h, money, replace, short } from "./dom.js";

const DAYS = [["Today", 1], ["7 days", 7], ["30 days", 30], ["90 days", 90]];

export async function showSavings(view) {
  const { main, query, session, signal } = view;
  const principal = query.get("principal") ?? "";
  const asked = { days: 7, model: "", later_steps: "", step_context: "" };
  const report = h("div");
  const controls = h("form", { class: "bar", "aria-label": "Assumptions", onsubmit: (event) => event.preventDefault() });
  replace(main, h("h1", {}, "Savings"), controls, report);

  async function load() {
    try {
      const found = await api.get("savings", { ...asked, principal }, signal);
      show(found);
    } catch (error) {
      if (!signal.aborted) replace(report, failure(error, load));
    }
  }

  let timer = 0;
  const change = (name) => (event) => {
    asked[name] = event.target.value;
    clearTimeout(timer);
    timer = setTimeout(load, 200);
  };

  function buildControls(found) {
    const number = (name, value) => h("input", { type: "text", inputmode: "numeric", pattern: "[0-9]*", class: "short", value: String(value), oninput: change(name) });
    replace(controls,
      h("label", {}, "Time", h("select", { onchange: change("days") }, DAYS.map(([name, days]) => h("option", { value: String(days), selected: found.days === days }, name)))),
      h("label", {}, "Model", h("select", { onchange: change("model") }, found.prices.map((one) => h("option", { value: one.name, selected: one.name === found.model }, one.name)))),
      h("label", {}, "Later steps", number("later_steps", found.later_steps)),
      h("label", {}, "Context of a step, tokens", number("step_context", found.step_context)));
  }

  function show(found) {
    if (!controls.firstChild) buildControls(found);
    const { total } = found;
    const price = found.prices.find((one) => one.name === found.model);
    const ratio = total.sent ? `${count(total.kept_out / total.sent)} for each token shown` : "";
    replace(report,
      total.calls === 0 ? emptyOf(session, principal, "No calls in this time. Use a tool in your MCP client, or choose a longer time.") : [
        h("div", { class: "cards" },
          card("Tokens kept out", short(total.kept_out), ratio),
          card("Tokens shown", short(total.sent), `${count(total.calls)} ${total.calls === 1 ? "call" : "calls"}`),
          card("Net savings", money(total.net), `${money(total.avoided)} avoided, ${money(total.shown + total.step_cost)} spent`),
          card("Extra steps", count(total.steps), `calls of memory tools, ${money(total.step_cost)} of context again`)),
        h("p", { class: "note" }, explain(total, price, found)),
        h("h2", {}, "By day"), buildBars(found.by_day),
        buildTable("By upstream", found.by_upstream), buildTable("By tool", found.by_tool),
        session.is_operator && found.by_principal.length > 1 && buildTable("By principal", found.by_principal)],
      buildMemory(found.memory), buildPrices(found));
  }

  await load();
  signal.addEventListener("abort", () => clearTimeout(timer));
}

function explain(total, price, found) {
  return `${count(total.kept_out)} tokens stayed out of the context. Each would have cost ${money(price.input)} per million when the model first read it, and ${money(price.cached)} per million (cached) in each of ${count(found.later_steps)} later steps: ${money(total.avoided)}. ` +
    `Memory tools showed ${count(total.read_again)} tokens again (${money(total.shown)}), in ${count(total.steps)} extra steps, each of which costs its context of ${count(found.step_context)} tokens again at the cached price (${money(total.step_cost)}). Net: ${money(total.net)}. Output tokens are not counted.`;
}

const card = (label, figure, more) => h("div", { class: "card" }, h("span", { class: "label" }, label), h("span", { class: "figure" }, figure), h("span", { class: "label" }, more));

function buildBars(days) {
  const most = Math.max(...days.map((one) => one.kept_out + one.sent), 1);
  const bar = (one) => {
    const kept = h("span", { class: "kept" });
    const sent = h("span", { class: "sent" });
    kept.style.height = `${(100 * one.kept_out) / most}%`;
    sent.style.height = `${(100 * one.sent) / most}%`;
    return h("li", { title: `${one.name}: ${count(one.kept_out)} kept out, ${count(one.sent)} shown` }, kept, sent);
  };
  return [
    h("div", { class: "chart", "aria-hidden": "true" },
      h("ol", { class: "bars" }, days.map(bar)),
      h("p", { class: "axis" }, h("span", {}, days[0].name), days.length > 1 && h("span", {}, days.at(-1).name))),
    h("p", { class: "legend" }, h("span", {}, h("i", { class: "kept" }), "kept out"), h("span", {}, h("i", { class: "sent" }), "shown")),
    h("details", {}, h("summary", {}, "Figures by day"), buildRows(days, "Day")),
  ];
}

const buildTable = (title, rows) => [h("h2", {}, title), buildRows(rows, title.replace("By ", ""))];

function buildRows(rows, name) {
  const heads = [[name[0].toUpperCase() + name.slice(1), ""], ["Calls", "number"], ["Errors", "number optional"], ["Refused", "number optional"], ["Mean duration", "number optional"], ["Bytes shown", "number optional"], ["Tokens shown", "number optional"], ["Tokens kept out", "number"], ["Net", "number"]];
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": `${heads[0][0]}, scrollable` }, h("table", {},
    h("thead", {}, h("tr", {}, heads.map(([one, kind]) => h("th", { scope: "col", class: kind }, one)))),
    h("tbody", {}, rows.map((one) => h("tr", {},
      h("td", {}, one.name), number(one.calls), number(one.errors, "optional"), number(one.refused, "optional"),
      h("td", { class: "number optional" }, `${count(one.milliseconds / Math.max(one.calls, 1))} ms`),
      h("td", { class: "number optional" }, bytes(one.bytes)), number(one.sent, "optional"), number(one.kept_out),
      h("td", { class: "number" }, money(one.net)))))));
}

const number = (value, kind = "") => h("td", { class: `number ${kind}` }, count(value));

function buildMemory(rows) {
  const share = (value, most, text, what) => h("td", { class: "nowrap" }, most > 0 && h("meter", { min: "0", max: String(most), high: String(most * 0.9), value: String(value), "aria-label": what }), ` ${text}`);
  return [h("h2", {}, "Memory"), h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Memory, scrollable" }, h("table", {},
    h("thead", {}, h("tr", {}, ["Principal", "Values", "Bytes", "Tokens kept out since the first call"].map((one, at) => h("th", { scope: "col", class: at === 3 ? "number optional" : "" }, one)))),
    h("tbody", {}, rows.map((one) => h("tr", {}, h("td", {}, one.principal),
      share(one.values, one.max_values, `${count(one.values)} of ${count(one.max_values)}`, "Values of the quota"),
      share(one.bytes, one.max_bytes, `${bytes(one.bytes)} of ${bytes(one.max_bytes)}`, "Bytes of the quota"), number(one.kept_out, "optional"))))))];
}

function buildPrices(found) {
  return h("details", {}, h("summary", {}, "Prices"),
    h("p", { class: "note" }, `USD per million tokens of input: list prices, read in ${found.prices_read}. Prices change: write yours under `, h("code", {}, "dashboard.prices"), " in the gateway's configuration, such as ", h("code", {}, "my-model: {input: 2, cached_input: 0.2}"), "."),
    h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Model"), h("th", { scope: "col", class: "number" }, "Input"), h("th", { scope: "col", class: "number" }, "Cached input"))),
      h("tbody", {}, found.prices.map((one) => h("tr", {}, h("td", {}, one.name), h("td", { class: "number" }, money(one.input)), h("td", { class: "number" }, money(one.cached))))))));
}
