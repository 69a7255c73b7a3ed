// Where the vertices and edges of a job graph are drawn. Pure: ids in, coordinates out.
import { Graph, layout } from "../../vendor/dagre.js";

export const NODE = { width: 232, height: 104 };

/** Returns `{width, height, nodes: Map(id -> {x, y}), edges: [{source, target, points, label}]}`.
 *
 * `x`, `y`: the upper left corner; `label`: the point where an edge's rate stands. `direction`: "LR"
 * or "TB". Edges from unknown vertices are left out.
 */
export function layoutGraph(vertices, direction = "LR") {
  const graph = new Graph();
  const across = direction === "LR";
  graph.setGraph({ rankdir: direction, nodesep: across ? 28 : 24, ranksep: across ? 96 : 60, marginx: 16, marginy: 16 });
  graph.setDefaultEdgeLabel(() => ({}));
  const ids = new Set(vertices.map(({ id }) => id));
  for (const id of ids) graph.setNode(id, { ...NODE });
  for (const { id, inputs } of vertices) {
    for (const input of inputs) if (ids.has(input)) graph.setEdge(input, id, { width: 10, height: 10 });
  }
  layout(graph);
  const nodes = new Map([...ids].map((id) => {
    const { x, y } = graph.node(id);
    return [id, { x: x - NODE.width / 2, y: y - NODE.height / 2 }];
  }));
  const edges = graph.edges().map(({ v, w }) => {
    const { points } = graph.edge(v, w);
    const ends = anchored(points, nodes.get(v), nodes.get(w), across);
    return { source: v, target: w, points: ends, label: ends[Math.floor(ends.length / 2)] };
  });
  const { width = 0, height = 0 } = graph.graph();
  return { width, height, nodes, edges };
}

/** Lets an edge leave in the middle of the source's side, and arrive in that of the target's. */
function anchored(points, source, target, across) {
  const first = across
    ? { x: source.x + NODE.width, y: source.y + NODE.height / 2 }
    : { x: source.x + NODE.width / 2, y: source.y + NODE.height };
  const last = across
    ? { x: target.x, y: target.y + NODE.height / 2 }
    : { x: target.x + NODE.width / 2, y: target.y };
  return [first, ...points.slice(1, -1), last];
}

/** A smooth SVG path through the points. */
export function edgePath(points, direction = "LR") {
  const across = direction === "LR";
  let path = `M${points[0].x} ${points[0].y}`;
  for (let index = 1; index < points.length; index += 1) {
    const [from, to] = [points[index - 1], points[index]];
    const [dx, dy] = across ? [(to.x - from.x) / 2, 0] : [0, (to.y - from.y) / 2];
    path += `C${from.x + dx} ${from.y + dy} ${to.x - dx} ${to.y - dy} ${to.x} ${to.y}`;
  }
  return path;
}

/** The same text for jobs with the same vertices and edges, so that a layout is made once. */
export function shapeOf(vertices) {
  return vertices.map(({ id, inputs }) => `${id}<${inputs.join()}`).join(";");
}
