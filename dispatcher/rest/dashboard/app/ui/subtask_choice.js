// Chooses a vertex and a subtask of it; the page's query keeps both.
import { html } from "../html.js";
import { setQuery } from "../router.js";

export function vertexOf(job, query) {
  return job.vertices.find(({ id }) => id === query.vertex) ?? job.vertices[0];
}

export function SubtaskChoice({ job, query }) {
  const vertex = vertexOf(job, query);
  if (!vertex) return null;
  return html`
    <label class="row log-task"><span>Vertex</span><select class="input" onChange=${({ currentTarget }) => setQuery({ vertex: currentTarget.value, subtask: undefined })}>
      ${job.vertices.map(({ id, name }) => html`<option key=${id} value=${id} selected=${id === vertex.id}>${name}</option>`)}</select></label>
    <label class="row"><span>Subtask</span><input class="input subtask" type="number" min="0" max=${vertex.parallelism - 1} value=${query.subtask ?? 0}
      onChange=${({ currentTarget }) => setQuery({ subtask: currentTarget.value })} /></label>`;
}
