// The lineage of a value, or of the newest calls: which call made which value, and which calls used it.

import * as api from "./api.js";
import { announce, bytes, clock, empty, emptyOf, h, replace, s, shorten, valueHref, valueLink } from "./dom.js";
import { layOut } from "./layout.js";

const BOX = { width: 198, height: 44, x: 44, y: 16, margin: 14 };
const LONGEST = 26;

export async function showLineage(view) {
  const { main, query, session, signal } = view;
  const path = query.get("path") ?? "";
  const principal = query.get("principal") ?? "";
  if (principal === "*") return replace(main, h("h1", {}, "Lineage"), empty("Lineage is drawn for one principal. Choose one at the top."));
  const owner = principal && principal !== session.principal ? principal : "";
  const graph = simplify(await api.get("lineage", { path, principal }, signal));
  const title = path ? ["Lineage of ", h("span", { class: "path" }, shorten(path))] : "Lineage of the newest calls";
  const links = path && h("p", {}, valueLink(path, "Open the value", owner), " · ", h("a", { href: owner ? `#/lineage?${new URLSearchParams({ principal: owner })}` : "#/lineage" }, "Newest calls"));
  if (!graph.nodes.length) {
    const reason = path ? empty("The log of calls has neither the call that made this value nor one that used it. It keeps the newest calls.")
      : emptyOf(session, principal, "No call has stored or used a value yet. Use a tool with a large result, then pass its path to another tool.");
    return replace(main, h("h1", {}, title), links, reason);
  }
  replace(main, h("h1", {}, title), links,
    h("p", { class: "legend" }, "Rounded: values. Square: calls. Dashed: values that are gone. Select a box to open it."),
    graph.cut && h("p", { class: "note" }, "The graph is larger; the nearest part is shown. Select a value to see its neighbours."),
    h("div", { class: "graph", role: "region", "aria-label": "Graph, scrollable", tabindex: "0" }, draw(graph, path, owner)),
    h("details", {}, h("summary", {}, "The same as a list"), buildList(graph, owner)));
  announce(`${graph.nodes.length} boxes, ${graph.edges.length} connections`);
}

// A value that several calls made, such as a companion, and a value that a call used in several parts, have one line.
function simplify(graph) {
  const edges = new Map(graph.edges.map((one) => [`${one.source}\n${one.target}`, [one.source, one.target]]));
  return { ...graph, edges: [...edges.values()] };
}

function draw(graph, path, owner) {
  const { places, layers, rows, edges } = layOut(graph.nodes, graph.edges);
  const width = 2 * BOX.margin + layers * BOX.width + (layers - 1) * BOX.x;
  const height = 2 * BOX.margin + rows * BOX.height + (rows - 1) * BOX.y;
  const left = ({ layer }) => BOX.margin + layer * (BOX.width + BOX.x);
  const top = ({ row, rows: own }) => BOX.margin + ((row + 0.5) * (height - 2 * BOX.margin)) / own - BOX.height / 2;
  const lines = edges.map(([from, to]) => {
    const [a, b] = [places.get(from), places.get(to)];
    const [x1, y1, x2, y2] = [left(a) + BOX.width, top(a) + BOX.height / 2, left(b), top(b) + BOX.height / 2];
    const bend = Math.max((x2 - x1) / 2, 24);
    return [s("path", { class: "edge", d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2 - 6} ${y2}` }),
      s("path", { class: "arrow", d: `M${x2} ${y2}l-8 -4v8z` })];
  });
  const boxes = graph.nodes.map((node) => {
    const place = places.get(node.id);
    const names = ["node", node.type, node.removed && "removed", ["error", "refused", "cancelled"].includes(node.outcome) && "failed", node.path && node.path === path && "chosen"];
    return s("a", { href: href(node, owner), class: names.filter(Boolean).join(" "), transform: `translate(${left(place)} ${top(place)})` },
      s("title", {}, describe(node)),
      s("rect", { class: "box", width: BOX.width, height: BOX.height, rx: node.type === "value" ? 12 : 2 }),
      s("text", { x: 10, y: 18 }, cut(node.type === "value" ? shorten(node.path) : node.tool)),
      s("text", { x: 10, y: 35, class: "small" }, cut(detail(node))));
  });
  return s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Values and calls" }, lines, boxes);
}

// A call that the log does not have any more is only known by the value that it made.
function href(node, owner) {
  if (node.type === "value") return valueHref(node.path, owner);
  if (/-[0-9a-f]{8}-[0-9a-f]{4}-4/.test(node.call)) return valueHref(node.call, owner);
  return `#/call?${new URLSearchParams({ id: node.call, ...(owner ? { principal: owner } : {}) })}`;
}

const cut = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text);

function detail(node) {
  if (node.type === "call") return [node.upstream || "mcp-mirror", node.outcome, clock(node.at)].join(" · ");
  if (node.removed) return "no longer stored";
  return [node.kind, bytes(node.bytes)].join(" · ");
}

const describe = (node) => node.type === "value" ? `Value ${node.path}: ${detail(node)}` : `Call of ${node.tool}: ${detail(node)}`;

function buildList(graph, owner) {
  const byId = new Map(graph.nodes.map((node) => [node.id, node]));
  const link = (node) => node.type === "value" ? valueLink(node.path, undefined, owner) : h("a", { href: href(node, owner) }, node.tool);
  return h("ul", {}, graph.edges.map(([from, to]) => h("li", {}, link(byId.get(from)), " → ", link(byId.get(to)))));
}
