// A layered layout of a directed graph: layers by the longest way from a source, order by the mean of the neighbours.

const PASSES = 8;

// Returns a map from each node's id to its layer and its row, and the number of layers and rows.
export function layOut(nodes, edges) {
  const ids = new Set(nodes.map((one) => one.id));
  const known = edges.filter(([from, to]) => ids.has(from) && ids.has(to) && from !== to);
  const layer = findLayers(nodes, known);
  const layers = [];
  for (const { id } of nodes) (layers[layer.get(id)] ??= []).push(id);
  const before = group(known, 1, 0);
  const after = group(known, 0, 1);
  for (let pass = 0; pass < PASSES; pass += 1) {
    const isDown = pass % 2 === 0;
    const order = isDown ? layers.keys() : [...layers.keys()].reverse();
    for (const at of order) sortByNeighbours(layers[at], positions(layers), isDown ? before : after);
  }
  const places = new Map();
  for (const [at, row] of layers.entries()) row.forEach((id, index) => places.set(id, { layer: at, row: index, rows: row.length }));
  return { places, layers: layers.length, rows: Math.max(...layers.map((row) => row.length), 1), edges: known };
}

function findLayers(nodes, edges) {
  const waiting = new Map(nodes.map((one) => [one.id, 0]));
  const after = group(edges, 0, 1);
  for (const [, to] of edges) waiting.set(to, waiting.get(to) + 1);
  const layer = new Map();
  const ready = nodes.filter((one) => waiting.get(one.id) === 0).map((one) => one.id);
  for (const id of ready) layer.set(id, 0);
  while (ready.length) {
    const id = ready.shift();
    for (const to of after.get(id) ?? []) {
      layer.set(to, Math.max(layer.get(to) ?? 0, layer.get(id) + 1));
      waiting.set(to, waiting.get(to) - 1);
      if (waiting.get(to) === 0) ready.push(to);
    }
  }
  for (const { id } of nodes) if (!layer.has(id)) layer.set(id, 0); // part of a cycle, which calls cannot make
  return layer;
}

function group(edges, from, to) {
  const found = new Map();
  for (const edge of edges) found.set(edge[from], [...(found.get(edge[from]) ?? []), edge[to]]);
  return found;
}

function positions(layers) {
  const found = new Map();
  for (const row of layers) row.forEach((id, index) => found.set(id, (index + 0.5) / row.length));
  return found;
}

function sortByNeighbours(row, at, neighbours) {
  const weight = new Map(row.map((id) => {
    const near = (neighbours.get(id) ?? []).map((one) => at.get(one));
    return [id, near.length ? near.reduce((sum, one) => sum + one, 0) / near.length : at.get(id)];
  }));
  row.sort((one, other) => weight.get(one) - weight.get(other));
}
