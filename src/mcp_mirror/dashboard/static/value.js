// One value: its facts, a bounded preview by its shape, download and deletion.

import * as api from "./api.js";
import { announce, bytes, count, duration, empty, failure, h, moment, replace, valueHref, valueLink } from "./dom.js";
import { lineageHref } from "./calls.js";
import { formatLabels } from "./values.js";

const LIMIT = 100;

export async function showValue(view) {
  const { main, query, signal } = view;
  const path = query.get("path") ?? "";
  const principal = query.get("principal") ?? "";
  const value = await api.get("value", { path, principal }, signal);
  const isPart = value.selected !== value.path;
  const preview = h("section", { "aria-label": "Preview" });
  const report = h("div");

  replace(main,
    h("p", { class: "crumbs" }, h("a", { href: principal ? `#/values?${new URLSearchParams({ principal })}` : "#/values" }, "Values"), isPart && [" / ", valueLink(value.path, undefined, principal), ...buildCrumbs()]),
    h("h1", { class: "path" }, value.selected),
    !value.model_sees && h("p", {}, h("span", { class: "tag hidden" }, "hidden from the model"), " The flow policy does not show this value to the model."),
    value.model_sees && !value.preview && h("p", {}, h("span", { class: "tag" }, "no preview"), " Notices show the model no part of this value."),
    buildFacts(), report,
    !value.hidden && h("div", { class: "actions" },
      h("button", { type: "button", onclick: save }, "Download"),
      h("a", { href: lineageHref(value.path, principal) }, "Lineage"),
      !isPart && h("button", { type: "button", class: "danger", onclick: forget }, "Forget")),
    value.hidden ? empty(value.hidden) : preview);
  if (!value.hidden) await showPreview(0);

  function buildCrumbs() {
    const steps = value.selected.slice(value.path.length + 1).split("/");
    return steps.map((step, at) => [" / ", at === steps.length - 1 ? decode(step) : valueLink(`${value.path}/${steps.slice(0, at + 1).join("/")}`, decode(step), principal)]);
  }

  function buildFacts() {
    const source = value.upstream ? `${value.tool} of ${value.upstream}` : value.tool;
    const facts = [
      ["Kind", value.media ?? (isPart ? `${value.selected_kind}, ${bytes(value.selected_bytes)}` : `${value.media_type ?? value.kind}, ${bytes(value.bytes)}, about ${count(value.tokens)} tokens`)],
      ["From", source],
      ["Made of", value.inputs.length && value.inputs.map((one, at) => [at > 0 && ", ", valueLink(one, undefined, principal)])],
      ["Rest of the result", value.companion && valueLink(value.companion, undefined, principal)],
      ["Stored", `${duration(value.now - value.created)} ago (${moment(value.created)})`],
      ["Expires in", `${duration(value.expires - value.now)} (${moment(value.expires)}); each use extends it`],
      ["Labels", Object.keys(value.labels).length > 0 && formatLabels(value.labels)],
      ["Shape", value.shape && h("pre", { tabindex: "0" }, value.shape)],
    ];
    return h("dl", { class: "facts" }, facts.map(([name, fact]) => fact ? [h("dt", {}, name), h("dd", {}, fact)] : null));
  }

  async function save(event) {
    const button = event.target;
    button.disabled = true;
    replace(report);
    try {
      await api.download({ path: value.selected, principal });
    } catch (error) {
      replace(report, failure(error));
    }
    button.disabled = false;
    button.focus();
  }

  async function forget(event) {
    const button = event.target;
    if (button.dataset.sure !== "1") {
      button.dataset.sure = "1";
      button.textContent = "Forget for good: press again";
      announce("Press again to delete this value.");
      return;
    }
    try {
      await api.change("forget", { path: value.path, principal });
      announce("The value was deleted.");
      location.hash = principal ? `#/values?${new URLSearchParams({ principal })}` : "#/values";
    } catch (error) {
      replace(report, failure(error));
    }
  }

  async function showPreview(offset) {
    if (value.is_image) return showImage();
    try {
      const part = await api.get("part", { path: value.selected, principal, offset, limit: LIMIT }, signal);
      replace(preview, buildPages(part), buildPart(part));
    } catch (error) {
      if (!signal.aborted) replace(preview, failure(error, () => showPreview(0)));
    }
  }

  async function showImage() {
    try {
      const url = URL.createObjectURL(await api.blob("image", { path: value.selected, principal }));
      signal.addEventListener("abort", () => URL.revokeObjectURL(url));
      replace(preview, h("img", { class: "picture", src: url, alt: `Image of ${value.tool}` }));
    } catch (error) {
      replace(preview, failure(error));
    }
  }

  function buildPages(part) {
    const rows = part.lines ?? part.rows ?? part.entries;
    if (part.total <= rows.length) return null;
    const last = part.offset + rows.length;
    const first = h("input", { type: "text", inputmode: "numeric", class: "short", value: String(part.offset), "aria-label": "First row" });
    const jump = (event) => { event.preventDefault(); showPreview(Math.min(Math.max(Number.parseInt(first.value, 10) || 0, 0), Math.max(part.total - 1, 0))); };
    return h("form", { class: "bar", onsubmit: jump },
      h("span", {}, `${count(part.offset)} to ${count(last - 1)} of ${count(part.total)} ${part.view === "text" ? "lines" : part.view === "table" ? "rows" : "entries"}`),
      h("button", { type: "button", disabled: part.offset === 0, onclick: () => showPreview(Math.max(0, part.offset - LIMIT)) }, "Previous"),
      h("button", { type: "button", disabled: part.next === null, onclick: () => showPreview(part.next) }, "Next"),
      first, h("button", {}, "Go"));
  }

  function buildPart(part) {
    if (part.view === "table") return buildTable(part);
    if (part.view === "tree") return part.entries.length ? h("ul", { class: "tree" }, part.entries.map((one) => buildEntry(value.selected, one))) : empty("Empty.");
    return h("div", { class: "lines", tabindex: "0", role: "region", "aria-label": "Text, scrollable" },
      h("table", {}, h("tbody", {}, part.lines.map((line, at) => h("tr", {}, h("td", { "aria-hidden": "true" }, String(part.offset + at + 1)), h("td", {}, line))))));
  }

  function buildTable(part) {
    const isNumber = part.columns.map((_, column) => part.rows.every((row) => row[column] === null || ["number", "null"].includes(row[column][0])));
    return [
      h("div", { class: "wide cells", tabindex: "0", role: "region", "aria-label": "Rows, scrollable" }, h("table", {},
        h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "number" }, "#"), part.columns.map((name, at) => h("th", { scope: "col", class: isNumber[at] ? "number" : "" }, name)))),
        h("tbody", {}, part.rows.map((row, at) => h("tr", {},
          h("td", { class: "number" }, h("a", { href: valueHref(`${value.selected}/${part.offset + at}`, principal) }, String(part.offset + at))),
          row.map((cell, column) => h("td", { class: isNumber[column] ? "number" : "" }, cell === null ? "" : cell[0] === "null" ? h("span", { class: "faint" }, "null") : cell[1]))))))),
      part.hidden_columns && h("p", { class: "note" }, "More columns are not shown. Open a row to see all of its keys."),
    ];
  }

  function buildEntry(parent, one) {
    const isBranch = one.kind === "object" || one.kind === "array";
    const below = one.token === null ? null : `${parent}/${one.token}`;
    const item = h("li");
    const name = h("span", { class: "key" }, one.key.trim() ? one.key : JSON.stringify(one.key)); // a link needs a text
    if (!isBranch || below === null) {
      const text = one.kind === "text" ? JSON.stringify(one.text) : one.text;
      item.append(...[below === null ? name : h("a", { href: valueHref(below, principal) }, name), ": ", h("span", { class: one.kind === "text" ? "" : "mono" }, text)].map((each) => each instanceof Node ? each : document.createTextNode(each)));
      return item;
    }
    const list = h("ul", { hidden: true });
    const open = h("button", { type: "button", class: "plain", "aria-expanded": "false", onclick: toggle }, "▸ ", name);
    async function toggle() {
      list.hidden = !list.hidden;
      open.setAttribute("aria-expanded", String(!list.hidden));
      open.firstChild.data = list.hidden ? "▸ " : "▾ ";
      if (list.hidden || list.firstChild) return;
      try {
        const part = await api.get("part", { path: below, principal, limit: LIMIT }, signal);
        const entries = part.view === "tree" ? part.entries.map((each) => buildEntry(below, each)) : part.view === "table"
          ? part.rows.map((row, at) => h("li", {}, h("a", { href: valueHref(`${below}/${part.offset + at}`, principal) }, String(part.offset + at)), ": ", part.columns.map((key, column) => row[column] && `${key}: ${row[column][1]}`).filter(Boolean).join(", ")))
          : part.lines.map((line) => h("li", {}, line));
        replace(list, entries.length ? entries : h("li", { class: "faint" }, "empty"), part.next !== null && h("li", {}, h("a", { href: valueHref(below, principal) }, `${count(part.total - part.entries?.length || part.total - LIMIT)} more`)));
      } catch (error) {
        replace(list, h("li", {}, failure(error)));
      }
    }
    item.append(open, document.createTextNode(" "), h("span", { class: "faint" }, `${one.kind}, ${bytes(one.bytes)}`), document.createTextNode(" "), h("a", { href: valueHref(below, principal), "aria-label": `Open ${one.key}` }, "open"), list);
    return item;
  }

}

function decode(step) {
  return step.replaceAll("~1", "/").replaceAll("~0", "~");
}
