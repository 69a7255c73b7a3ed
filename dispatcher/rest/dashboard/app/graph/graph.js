// The job graph: vertices as cards, edges with their rates; pans and zooms.
import * as format from "../format.js";
import { html, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../html.js";
import { isSkewed, State, TimeShares, TIME_LEGEND } from "../ui/values.js";
import { edgePath, layoutGraph, NODE, shapeOf } from "./layout.js";

const NARROW = 620; // below this width, the graph runs from top to bottom
const HIGHEST = 460;
const LOWEST = 190;
const ZOOM = { legible: 0.25, least: 0.15, most: 2, step: 1.25 };
const FAR = 0.5; // below this zoom, vertices show their number and busy share only
const DRAG = 4; // pixels until a press is a drag

/** `selected`: the id of a vertex or undefined; `onSelect(id)`; `bottleneck`: its id or undefined. */
export function JobGraph({ vertices, edges, selected, bottleneck, onSelect, hrefOf }) {
  const box = useRef(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    setWidth(box.current.clientWidth);
    const watcher = new ResizeObserver(() => setWidth(box.current.clientWidth));
    watcher.observe(box.current);
    return () => watcher.disconnect();
  }, []);

  const direction = width && width < NARROW ? "TB" : "LR";
  const shape = shapeOf(vertices);
  const plan = useMemo(() => layoutGraph(vertices, direction), [shape, direction]);
  const fit = useMemo(() => fitted(plan, width, direction), [plan, width]);
  const [view, setView] = useState(null); // null: fitted
  useEffect(() => setView(null), [plan]);
  const { x, y, zoom } = view ?? fit;
  const rates = new Map(edges.map((edge) => [`${edge.source} ${edge.target}`, edge.records_per_s]));

  const zoomBy = useCallback(
    (factor, at) => setView((last) => zoomed(last ?? fit, factor, at ?? { x: width / 2, y: fit.height / 2 })),
    [fit, width],
  );
  const moveBy = useCallback(
    (dx, dy) =>
      setView((last) => {
        const from = last ?? fit;
        return { ...from, x: from.x + dx, y: from.y + dy };
      }),
    [fit],
  );
  usePointers(box, zoomBy, moveBy);

  function onKeyDown(event) {
    const step = 60;
    const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    if (event.target !== event.currentTarget) return;
    if (moves[event.key]) moveBy(...moves[event.key]);
    else if (event.key === "+" || event.key === "=") zoomBy(ZOOM.step);
    else if (event.key === "-") zoomBy(1 / ZOOM.step);
    else if (event.key === "0") setView(null);
    else return;
    event.preventDefault();
  }

  const planeStyle = {
    transform: `translate(${x}px, ${y}px) scale(${zoom})`,
    width: `${plan.width}px`,
    height: `${plan.height}px`,
  };
  return html`<section class="card" aria-labelledby="graph-title">
    <header>
      <h2 id="graph-title">Graph</h2>
      ${TIME_LEGEND}
      <div class="segments push" role="group" aria-label="Zoom">
        <button type="button" title="Zoom out" aria-label="Zoom out" onClick=${() => zoomBy(1 / ZOOM.step)}>−</button>
        <button type="button" title="Show the whole graph" onClick=${() => setView(null)}>Fit</button>
        <button type="button" title="Zoom in" aria-label="Zoom in" onClick=${() => zoomBy(ZOOM.step)}>+</button>
      </div>
    </header>
    <div class="graph" ref=${box} tabindex="0" role="group" onKeyDown=${onKeyDown}
      aria-label="Job graph. Arrow keys move it, plus and minus zoom, 0 shows all of it."
      style=${{ height: `${fit.height}px` }}>
      <div class=${`graph-plane${zoom < FAR ? " far" : ""}`} style=${planeStyle}>
        <svg width=${plan.width} height=${plan.height} aria-hidden="true">
          ${plan.edges.map(
            ({ source, target, points }) => html`<${Edge} key=${`${source} ${target}`}
            path=${edgePath(points, direction)} rate=${rates.get(`${source} ${target}`)} />`,
          )}
        </svg>
        ${vertices.map(
          (vertex, index) => html`<${Vertex} key=${vertex.id} vertex=${vertex} number=${index + 1}
          at=${plan.nodes.get(vertex.id)} selected=${vertex.id === selected}
          bottleneck=${vertex.id === bottleneck} href=${hrefOf(vertex.id)} onSelect=${onSelect} />`,
        )}
        ${plan.edges.map(({ source, target, label }) => {
          const rate = rates.get(`${source} ${target}`);
          return (
            format.known(rate) &&
            html`<span key=${`${source} ${target}`} class="edge-rate"
            style=${{ left: `${label.x}px`, top: `${label.y}px` }}>${format.rate(rate)}</span>`
          );
        })}
      </div>
    </div>
  </section>`;
}

function Edge({ path, rate }) {
  const width = format.known(rate) && rate > 0 ? 1.4 + Math.log10(1 + rate) * 0.45 : 1.2;
  return html`<path d=${path} class=${rate > 0 ? "edge flows" : "edge"} stroke-width=${width.toFixed(2)} />`;
}

function Vertex({ vertex, number, at, selected, bottleneck, href, onSelect }) {
  const { busy, back_pressured: blocked } = vertex.time ?? {};
  const heat =
    vertex.status === "FAILED"
      ? "failed"
      : bottleneck
        ? "bottleneck"
        : blocked > 0.5 && blocked > busy
          ? "blocked"
          : busy > 0.8
            ? "hot"
            : "";
  function select(event) {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    onSelect(vertex.id);
  }
  return html`<a class=${`vertex ${heat}${selected ? " selected" : ""}`} href=${href} onClick=${select} draggable=${false}
    aria-current=${selected ? "true" : undefined} title=${vertex.name}
    style=${{ left: `${at.x}px`, top: `${at.y}px`, width: `${NODE.width}px`, height: `${NODE.height}px` }}>
    <span class="vertex-far" aria-hidden="true"><b>${number}</b><span class="busy-text">${format.percent(busy)}</span></span>
    <span class="vertex-name">${format.shortName(vertex.name)}</span>
    <span class="vertex-facts">
      <span title=${`Vertex ${number}, ${format.counted(vertex.parallelism, "task")}`}>[${number}] × ${vertex.parallelism}</span>
      ${vertex.status !== "RUNNING" && html`<${State} name=${vertex.status} />`}
      ${bottleneck && html`<span class="badge plain tone-bad">bottleneck</span>`}
      ${!bottleneck && isSkewed(vertex) && html`<span class="badge plain tone-warn">skewed</span>`}
    </span>
    <${TimeShares} time=${vertex.time} />
    <span class="vertex-shares"><span><b class="busy-text">${format.percent(busy)}</b> busy</span>
      <span><b class="blocked-text">${format.percent(blocked)}</b> back-pressured</span></span>
  </a>`;
}

/** Returns the view that shows the whole graph, or the start of a very large one, and the height of its box. */
export function fitted(plan, width, direction) {
  if (!width || !plan.width) return { x: 0, y: 0, zoom: 1, height: LOWEST };
  const byWidth = Math.min(1, width / plan.width);
  const highest = direction === "TB" ? 2 * HIGHEST : HIGHEST;
  const zoom = Math.max(ZOOM.legible, Math.min(byWidth, highest / plan.height));
  const height = Math.max(LOWEST, Math.min(highest, Math.ceil(plan.height * zoom)));
  const middle = (room, size) => Math.max(0, (room - size * zoom) / 2); // else from its start
  return { x: middle(width, plan.width), y: middle(height, plan.height), zoom, height };
}

/** Zooms by a factor so that the point `at` stays in its place. */
export function zoomed(view, factor, at) {
  const zoom = Math.min(ZOOM.most, Math.max(ZOOM.least, view.zoom * factor));
  const ratio = zoom / view.zoom;
  return { ...view, zoom, x: at.x - (at.x - view.x) * ratio, y: at.y - (at.y - view.y) * ratio };
}

/** Drags with one pointer, pinches with two, and zooms with Ctrl and the wheel. */
function usePointers(box, zoomBy, moveBy) {
  useEffect(() => {
    const element = box.current;
    const pointers = new Map();
    let dragged = 0;

    const inside = (event) => {
      const { left, top } = element.getBoundingClientRect();
      return { x: event.clientX - left, y: event.clientY - top };
    };
    const distance = () => {
      const [a, b] = [...pointers.values()];
      return Math.hypot(a.x - b.x, a.y - b.y) || 1;
    };
    function down(event) {
      if (event.button !== 0) return;
      dragged = 0;
      pointers.set(event.pointerId, inside(event));
    }
    function move(event) {
      const before = pointers.get(event.pointerId);
      if (!before) return;
      const after = inside(event);
      if (pointers.size === 2) {
        const apart = distance();
        pointers.set(event.pointerId, after);
        const [a, b] = [...pointers.values()];
        zoomBy(distance() / apart, { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 });
      } else if (dragged > DRAG) {
        pointers.set(event.pointerId, after);
        moveBy(after.x - before.x, after.y - before.y);
      } else {
        dragged = Math.hypot(after.x - before.x, after.y - before.y);
        if (dragged > DRAG) element.setPointerCapture(event.pointerId);
      }
    }
    function up(event) {
      pointers.delete(event.pointerId);
    }
    function click(event) {
      // the end of a drag selects no vertex
      if (dragged > DRAG) {
        event.preventDefault();
        event.stopPropagation();
      }
    }
    function wheel(event) {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      zoomBy(Math.exp(-event.deltaY / 250), inside(event));
    }
    const listeners = {
      pointerdown: down,
      pointermove: move,
      pointerup: up,
      pointercancel: up,
      wheel,
    };
    for (const [name, listener] of Object.entries(listeners))
      element.addEventListener(name, listener, { passive: false });
    element.addEventListener("click", click, true);
    return () => {
      for (const [name, listener] of Object.entries(listeners)) element.removeEventListener(name, listener);
      element.removeEventListener("click", click, true);
    };
  }, [zoomBy, moveBy]);
}
