// The page /firesteel/v1/docs: the routes of openapi.json, each with a form that calls it.

const BASE = new URL("../../", document.baseURI); // the server's root, also behind a prefix

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** An example of a value of a JSON Schema. */
function example(schema) {
  const type = [schema.type].flat()[0];
  if (schema.anyOf) return example(schema.anyOf[0]);
  if (type === "array") return [example(schema.items)];
  if (type === "object") {
    const properties = Object.entries(schema.properties ?? {});
    if (schema.additionalProperties) return { "…": example(schema.additionalProperties) };
    return Object.fromEntries(properties.map(([name, of]) => [name, example(of)]));
  }
  return { string: "", integer: 0, number: 0.5, boolean: false }[type] ?? null;
}

function input(parameter) {
  const field = element("input", { name: parameter.name, required: parameter.required });
  return element("label", {}, `${parameter.name} `, field, " ");
}

function bodyOf(operation) {
  const media = operation.requestBody?.content ?? {};
  const schema = media["application/json"]?.schema;
  if (!schema) return null;
  return element("textarea", { rows: 5, cols: 60, value: JSON.stringify(example(schema), null, 2) });
}

async function call(verb, path, operation, form, body, output) {
  const query = new URLSearchParams();
  let where = path;
  for (const parameter of operation.parameters) {
    const value = form.elements[parameter.name].value;
    if (parameter.in === "path") where = where.replace(`{${parameter.name}}`, encodeURIComponent(value));
    else if (value) query.set(parameter.name, value);
  }
  const options = { method: verb.toUpperCase(), credentials: "same-origin" };
  if (body) {
    options.body = body.value;
    options.headers = { "Content-Type": "application/json" };
  }
  const url = new URL(where.slice(1) + (query.size ? `?${query}` : ""), BASE);
  output.textContent = `${verb.toUpperCase()} ${url.pathname}${url.search} …`;
  try {
    const response = await fetch(url, options);
    const text = await response.text();
    let shown = text;
    try {
      shown = JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      // not JSON
    }
    output.textContent = `${response.status} ${response.statusText}\n${shown}`;
  } catch (error) {
    output.textContent = String(error);
  }
}

function route(verb, path, operation) {
  const output = element("pre", { tabIndex: 0 });
  const body = bodyOf(operation);
  const form = element("form", {}, ...operation.parameters.map(input));
  if (body) form.append(element("div", {}, body));
  form.append(element("button", { type: "submit" }, "Send"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    call(verb, path, operation, form, body, output);
  });
  const answer = Object.values(operation.responses)[0].content?.["application/json"]?.schema;
  return element(
    "details",
    {},
    element("summary", {}, element("code", {}, `${verb.toUpperCase()} ${path}`), ` ${operation.summary}`),
    element("p", {}, operation.description),
    form,
    output,
    ...(answer ? [element("p", {}, "Answer:"), element("pre", {}, JSON.stringify(example(answer), null, 2))] : []),
  );
}

async function show() {
  const response = await fetch(new URL("firesteel/v1/openapi.json", BASE), { credentials: "same-origin" });
  const api = await response.json();
  if (!response.ok) {
    document.getElementById("about").textContent = api.errors.join("\n");
    return;
  }
  document.getElementById("about").textContent = api.info.description;
  const groups = new Map();
  for (const [path, verbs] of Object.entries(api.paths)) {
    for (const [verb, operation] of Object.entries(verbs)) {
      const tag = operation.tags[0];
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(route(verb, path, operation));
    }
  }
  const routes = document.getElementById("routes");
  for (const [tag, shown] of [...groups].sort()) routes.append(element("h2", {}, tag), ...shown);
}

show();
