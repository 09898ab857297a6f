
// The view in a client that shows MCP Apps (2026-01-26): JSON-RPC with the host over postMessage. All data is text.

const PROTOCOL = "2026-01-26";
const DATA = "mcp-mirror/memory";
const content = document.getElementById("content");
const waiting = new Map();
let lastId = 0;

const post = (message) => window.parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
const notify = (method, params = {}) => post({ method, params });

function request(method, params) {
  lastId += 1;
  const id = lastId;
  post({ id, method, params });
  return new Promise((resolve, reject) => waiting.set(id, { resolve, reject }));
}

window.addEventListener("message", ({ data, source }) => {
  if (source !== window.parent || data?.jsonrpc !== "2.0") return;
  if (data.method === undefined) {
    const pending = waiting.get(data.id);
    waiting.delete(data.id);
    if (data.error) pending?.reject(new Error(String(data.error.message)));
    else pending?.resolve(data.result);
  } else if (data.id !== undefined) {
    const known = ["ping", "ui/resource-teardown"].includes(data.method);
    post({ id: data.id, ...(known ? { result: {} } : { error: { code: -32601, message: "The view has no such method." } }) });
  } else if (data.method === "ui/notifications/tool-result") {
    show(data.params);
  } else if (data.method === "ui/notifications/host-context-changed") {
    applyContext(data.params);
  }
});

function applyContext(context) {
  if (context?.theme === "light" || context?.theme === "dark") document.documentElement.style.colorScheme = context.theme;
  for (const [name, value] of Object.entries(context?.styles?.variables ?? {})) {
    if (/^--[a-z0-9-]+$/.test(name) && typeof value === "string") document.documentElement.style.setProperty(name, value);
  }
}

function make(space, tag, attributes, children) {
  const element = space ? document.createElementNS(space, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) element.setAttribute(name, String(value));
  for (const child of children.flat(Infinity)) if (child || child === 0) element.append(child instanceof Node ? child : String(child));
  return element;
}

const h = (tag, attributes, ...children) => make(null, tag, attributes, children);
const s = (tag, attributes, ...children) => make("http://www.w3.org/2000/svg", tag, attributes, children);
const count = (value) => Math.round(value).toLocaleString("en");
const money = (value) => `${value < 0 ? "−" : ""}$${Math.abs(value).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: Math.abs(value) < 0.1 ? 4 : 2 })}`;
const bytes = (size) => (size >= 1e6 ? `${(size / 1e6).toFixed(1)} MB` : size >= 1e3 ? `${(size / 1e3).toFixed(1)} kB` : `${size} B`);
const shorten = (path) => path.replace(/-([0-9a-f]{8})-[0-9a-f-]{27}$/, "-$1…");
const cut = (text) => (text.length > 25 ? `${text.slice(0, 24)}…` : text);

function show(result) {
  let data;
  try {
    data = JSON.parse(result?._meta?.[DATA] ?? "");
  } catch {
    content.replaceChildren(h("p", {}, "This result has no figures. Call memory_list again."));
    return resize();
  }
  const { total } = data;
  const card = (label, figure, more) => h("div", { class: "card" }, h("span", {}, label), h("b", {}, figure), h("span", {}, more));
  content.replaceChildren(
    h("div", { class: "cards" },
      card("Stored", count(data.values), bytes(data.bytes)),
      card("Tokens kept out", count(total.kept_out), `in ${data.days} days`),
      card("Tokens shown", count(total.sent), `${count(total.calls)} calls`),
      card("Net savings", money(total.net), `at prices of ${data.model}`)),
    h("p", {}, `${money(total.avoided)} avoided; ${count(total.steps)} extra steps of memory tools cost ${money(total.shown + total.step_cost)}, with their context again at the cached price.`),
    ...(data.lineage?.nodes.length ? [h("h2", {}, "Lineage"), h("div", { class: "graph", tabindex: "0", role: "region", "aria-label": "Lineage, scrollable" }, draw(data.lineage))] : []),
    ...(data.by_tool.length ? [h("h2", {}, "By tool"), h("table", {}, h("thead", {}, h("tr", {}, ["Tool", "Calls", "Tokens kept out"].map((one) => h("th", { scope: "col" }, one)))),
      h("tbody", {}, data.by_tool.map((one) => h("tr", {}, h("td", {}, one.name), h("td", {}, count(one.calls)), h("td", {}, count(one.kept_out))))))] : []),
    h("p", {}, refreshButton()));
  resize();
}

function refreshButton() {
  const button = h("button", { type: "button" }, "Refresh");
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      show(await request("tools/call", { name: "memory_list", arguments: {} }));
    } catch (error) {
      button.replaceWith(h("span", {}, error.message));
    }
  });
  return button;
}

function draw(graph) {
  const box = { width: 172, height: 38, x: 34, y: 10, margin: 10 };
  const { places, layers, rows, edges } = layOut(graph.nodes, graph.edges.map((one) => [one.source, one.target]));
  const width = 2 * box.margin + layers * (box.width + box.x) - box.x;
  const height = 2 * box.margin + rows * (box.height + box.y) - box.y;
  const left = ({ layer }) => box.margin + layer * (box.width + box.x);
  const top = ({ row, rows: own }) => box.margin + ((row + 0.5) * (height - 2 * box.margin)) / own - box.height / 2;
  const lines = edges.map(([from, to]) => {
    const [a, b] = [places.get(from), places.get(to)];
    const [x1, y1, x2, y2] = [left(a) + box.width, top(a) + box.height / 2, left(b), top(b) + box.height / 2];
    return [s("path", { class: "edge", d: `M${x1} ${y1}C${x1 + 18} ${y1} ${x2 - 18} ${y2} ${x2 - 5} ${y2}` }), s("path", { class: "arrow", d: `M${x2} ${y2}l-7 -4v8z` })];
  });
  const boxes = graph.nodes.map((node) => {
    const isCall = node.type === "call";
    const small = isCall ? `${node.upstream || "mcp-mirror"} · ${node.outcome}` : node.removed ? "no longer stored" : `${node.kind} · ${bytes(node.bytes)}`;
    const state = ["error", "refused", "cancelled"].includes(node.outcome) ? "failed" : node.removed ? "removed" : "";
    return s("g", { class: `${node.type} ${state}`, transform: `translate(${left(places.get(node.id))} ${top(places.get(node.id))})` },
      s("title", {}, `${isCall ? node.tool : node.path}: ${small}`),
      s("rect", { width: box.width, height: box.height, rx: isCall ? 2 : 10 }),
      s("text", { x: 8, y: 16 }, cut(isCall ? node.tool : shorten(node.path))),
      s("text", { x: 8, y: 30, class: "small" }, cut(small)));
  });
  return s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${graph.nodes.length} calls and values` }, lines, boxes);
}

const resize = () => notify("ui/notifications/size-changed", { height: Math.ceil(document.body.scrollHeight) });

const opened = await request("ui/initialize", { protocolVersion: PROTOCOL, appInfo: { name: "mcp-mirror", version: "1" }, appCapabilities: {} });
applyContext(opened?.hostContext);
notify("ui/notifications/initialized");
resize();
