"use strict";
/* The pages: the list of runs, one run, and the comparison of several. All text becomes text nodes, never markup. */
const main = document.getElementById("main");
const embedded = document.getElementById("values");
const query = new URLSearchParams(location.search);

function make(name, properties, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties || {}))
    if (key in node) node[key] = value; else node.setAttribute(key, value);
  node.append(...children.filter((each) => each !== null && each !== undefined).map((each) => each instanceof Node ? each : String(each)));
  return node;
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${whole % 60}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h ${Math.floor(whole % 3600 / 60)}m`;
  return `${Math.floor(whole / 86400)}d ${Math.floor(whole % 86400 / 3600)}h`;
}

function since(text) {
  const begin = Date.parse(text);
  return Number.isNaN(begin) ? "" : span((Date.now() - begin) / 1000);
}

function clock(seconds) {
  const date = new Date(seconds * 1000), two = (number) => String(number).padStart(2, "0");
  const day = date.toDateString() === new Date().toDateString() ? "" : `${two(date.getMonth() + 1)}-${two(date.getDate())} `;
  return `${day}${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

function page(name, ...children) {
  document.title = `${name} - orch`;
  main.replaceChildren(...children);
}

function table(heads) {
  const body = make("tbody");
  const head = make("thead", {}, make("tr", {}, ...heads.map((each) => make("th", { scope: "col" }, each))));
  return { body, node: make("div", { className: "scroll", tabIndex: 0 }, make("table", {}, head, body)) };
}

/* Keep the rows that are there already, so that focus and marked boxes stay. */
function rows(body, keys, create, update) {
  const known = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  keys.forEach((key, index) => {
    let row = known.get(key);
    if (!row) { row = create(key); row.dataset.key = key; }
    if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] || null);
    known.delete(key);
    update(row, index);
  });
  for (const row of known.values()) row.remove();
}

/* The newest values of a page: embedded in it, or as they come. While the page is hidden, nothing is sent: browsers open six streams. */
let stream = null, ended = false;
const connection = document.getElementById("connection");

function follow(path, handlers) {
  const open = () => {
    stream = new EventSource(path);
    stream.onopen = () => write(connection, "live");
    stream.onerror = () => write(connection, stream.readyState === EventSource.CLOSED
      ? "refused: no such run is recorded here, or orch web was started again" : "no connection: orch web does not answer");
    for (const [name, show] of Object.entries(handlers)) stream.addEventListener(name, (event) => show(JSON.parse(event.data)));
    stream.addEventListener("end", () => { ended = true; stream.close(); write(connection, ""); });
  };
  ended = false;
  if (stream) stream.close();
  open();
  document.onvisibilitychange = () => {
    if (document.hidden) { stream.close(); write(connection, "paused"); } else if (!ended) open();
  };
}

/* The list */

function showList() {
  const found = table(["", "run", "state", "verdict", "step", "age", "took", "note"]);
  found.node.classList.add("list");
  const marked = new Set();
  const compare = make("button", { type: "button", disabled: true }, "Compare the loss of 2 to 4 runs");
  const filter = make("input", { type: "search", name: "filter", autocomplete: "off" });
  const count = make("p", { className: "faint" });
  const problem = make("p", { className: "problem" });
  let all = [], total = 0;
  const draw = () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    const shown = all.filter((run) => words.every((word) => `${run.id} ${run.state} ${run.note || ""} ${run.tags.join(" ")} ${run.verdict}`.toLowerCase().includes(word)));
    rows(found.body, shown.map((run) => run.id), (id) => {
      const box = make("input", { type: "checkbox", "aria-label": `compare ${id}` });
      box.onchange = () => {
        if (box.checked) marked.add(id); else marked.delete(id);
        compare.disabled = marked.size < 2 || marked.size > 4;
      };
      const cells = ["state", "wide", "", "", "", "wide"].map((name) => make("td", { className: name }));
      return make("tr", {}, make("td", {}, box), make("td", {}, make("a", { href: `/run/${id}` }, id)), ...cells);
    }, (row, index) => {
      const run = shown[index], [, , state, verdict, step, age, took, note] = row.cells;
      const end = run.is_over ? run.ended && Date.parse(run.ended) : Date.now();
      const seen = run.looked_s ? `seen ${span(Date.now() / 1000 - run.looked_s)} ago` : "";
      write(state, run.state);
      state.className = `state ${run.state}`;
      write(verdict, run.verdict || seen);
      write(step, run.step === null ? "" : run.steps ? `${run.step}/${run.steps}` : `${run.step}`);
      write(age, since(run.created));
      write(took, end ? span((end - Date.parse(run.created)) / 1000) : "");
      write(note, [run.note, ...run.tags.map((tag) => `#${tag}`)].filter(Boolean).join(" "));
    });
    write(count, total > all.length ? `the newest ${all.length} of ${total} runs` : total ? "" : "no run is recorded here");
  };
  compare.onclick = () => { location.href = `/compare?${[...marked].map((id) => `run=${id}`).join("&")}`; };
  filter.oninput = draw;
  const form = make("form", {}, make("label", {}, "Filter ", filter), compare);
  form.onsubmit = (event) => event.preventDefault();
  page("runs", make("h1", {}, "Runs on this machine"), form, found.node, count, problem);
  setInterval(draw, 10000);
  follow("/events/runs", { runs: (value) => {
    if (value.runs) [all, total] = [value.runs, value.count];
    write(problem, [value.problem, ...(value.problem_records || [])].filter(Boolean).join("; "));
    draw();
  } });
}

/* One run */

function section(title, ...children) {
  const problem = make("p", { className: "problem" });
  const node = make("section", {}, make("h2", {}, title), problem, ...children);
  return { node, problem };
}

function recordView() {
  const state = make("span", { className: "state" }), verdict = make("p", { className: "verdict" }), note = make("p", { className: "faint" });
  const values = make("dl"), diagnosis = make("pre", { tabIndex: 0 }), cause = section("Diagnosis", diagnosis);
  const title = make("h1"), problem = make("p", { className: "problem" });
  let hasVerdict = false;
  cause.node.hidden = true;
  return {
    nodes: [title, verdict, problem, note, values, cause.node],
    record(value) {
      write(problem, value.problem || "");
      if (!value.id) return;
      document.title = `${value.state} ${value.id} - orch`;
      title.replaceChildren(value.id, "  ", state);
      write(state, value.state);
      state.className = `state ${value.state}`;
      write(note, [value.note, ...value.tags.map((tag) => `#${tag}`)].filter(Boolean).join(" "));
      if (!hasVerdict) write(verdict, value.message || "");
      cause.node.hidden = !value.diagnosis.length;
      write(diagnosis, value.diagnosis.join("\n"));
    },
    overview(value) {
      if (value.problem) write(problem, value.problem);
      if (!value.verdict) return;
      hasVerdict = true;
      write(verdict, value.verdict);
      verdict.className = `verdict ${value.health}`;
      values.replaceChildren(...value.values.flatMap(([label, text]) => [make("dt", {}, label), make("dd", {}, text)]));
    },
  };
}

function nodesView() {
  const found = table([]), open = new Set(), { node } = section("Nodes", found.node);
  let heads = [];
  const show = (value) => {
    const listed = value.rows || [], known = (value.columns || []).filter((name) => listed.some((row) => row.cells[name]));
    node.hidden = !listed.length;
    if (known.join() !== heads.join()) {
      heads = known;
      found.body.replaceChildren();
      found.node.querySelector("thead tr").replaceChildren(...heads.map((name) => make("th", { scope: "col" }, name)));
    }
    const isPart = (row) => (row.cells.NODE || "").startsWith("  ");
    const hasParts = new Set(listed.filter(isPart).map((row) => row.node));
    const shown = listed.filter((row) => !isPart(row) || open.has(row.node));
    const keys = shown.map((row) => isPart(row) ? `${row.node}/${row.cells.NODE}` : row.node);
    rows(found.body, keys, () => make("tr", {}, ...heads.map(() => make("td", {}, make("span")))), (line, index) => {
      const row = shown[index];
      line.className = `${isPart(row) ? "part" : ""} ${row.bad ? "bad" : ""}`;
      heads.forEach((name, column) => write(line.cells[column].querySelector("span"), (row.cells[name] || "").trim()));
      let button = line.querySelector("button");
      if (!isPart(row) && !button) {
        button = make("button", { type: "button", className: "open" });
        line.cells[0].prepend(button);
      }
      if (!button) return;
      button.hidden = !hasParts.has(row.node);
      button.setAttribute("aria-label", `ranks and cards of ${row.node}`);
      button.setAttribute("aria-expanded", open.has(row.node));
      write(button, open.has(row.node) ? "−" : "+");
      button.onclick = () => { if (!open.delete(row.node)) open.add(row.node); show(value); };
    });
  };
  return { node, show };
}

function curvesView() {
  const charts = make("div", { className: "charts" }), note = make("p", { className: "faint" }), { node, problem } = section("Curves", charts, note);
  const known = new Map();
  return { node, show(value) {
    write(problem, value.problem || "");
    for (const [name, points] of Object.entries(value.curves || {})) {
      if (!known.has(name)) { known.set(name, new Chart(name)); charts.append(known.get(name).node); }
      known.get(name).show([{ name, points }]);
    }
    const parts = known.size ? [] : ["no values; the shared trainer, and programs that report their progress, have some"];
    if (known.size && value.from_looks) parts.push("the program writes no metrics.jsonl: these are the values since the page was opened");
    if (value.whole === false) parts.push("reading the rest of metrics.jsonl: samples so far");
    write(note, parts.join("; "));
  } };
}

function timelineView() {
  const list = make("ol"), { node } = section("Timeline", list);
  return { node, show(value) {
    const findings = (value.findings || []).map((each) => make("li", { className: "warning" },
      each.text + (each.age_s === null ? "" : ` (for ${span(each.age_s)})`)));
    const moments = (value.moments || []).map((each) => make("li", {}, make("time", {}, clock(each.time_s)), each.text));
    node.hidden = !findings.length && !moments.length;
    list.replaceChildren(...findings, ...moments);
  } };
}

function logView(change) {
  const rank = make("input", { name: "rank", className: "short", placeholder: "all", autocomplete: "off", value: query.get("rank") || "" });
  const text = make("input", { type: "search", name: "text", autocomplete: "off", value: query.get("text") || "" });
  const lines = make("input", { type: "number", name: "lines", min: 1, max: 1000, value: query.get("lines") || 200 });
  const form = make("form", {}, make("label", {}, "Ranks ", rank), make("label", {}, "Text ", text), make("label", {}, "Last lines ", lines),
    make("button", { type: "submit" }, "Show"));
  const log = make("pre", { className: "log", tabIndex: 0, "aria-label": "log" });
  const { node, problem } = section("Log", form, log);
  let all = [];
  const draw = () => {
    const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 30 || !log.childElementCount;
    log.replaceChildren(...all.map(([time, host, number, stream, line]) =>
      make("div", { className: stream }, make("time", {}, clock(time)), make("b", {}, number === null ? `${host} ` : `${host}/${number} `), line)));
    if (!all.length) write(log, "no lines");
    if (isAtEnd) log.scrollTop = log.scrollHeight;
  };
  form.onsubmit = (event) => {
    event.preventDefault();
    change({ rank: rank.value.trim(), text: text.value, lines: lines.value });
  };
  return { node, show(value) {
    write(problem, [value.problem, value.unread].filter(Boolean).join("; "));
    if (value.lines) { all = value.lines; draw(); }
  }, filter(wanted) {
    const words = wanted.text.toLowerCase(), ranges = wanted.rank.split(",").filter(Boolean).map((each) => each.split("-").map(Number));
    const whole = embeddedValues.log.lines || [];
    all = whole.filter(([, , number, , line]) => line.toLowerCase().includes(words) &&
      (!ranges.length || ranges.some((range) => number !== null && number >= range[0] && number <= range[range.length - 1]))).slice(-wanted.lines);
    draw();
  } };
}

const embeddedValues = embedded ? JSON.parse(embedded.textContent) : null;

function showRun(id) {
  const filters = () => ["rank", "text", "lines"].filter((name) => query.get(name))
    .map((name) => `${name}=${encodeURIComponent(query.get(name))}`).join("&");
  const head = recordView(), nodes = nodesView(), curves = curvesView(), timeline = timelineView();
  const log = logView((wanted) => {
    if (embedded) { log.filter(wanted); return; }
    for (const [name, value] of Object.entries(wanted)) query.set(name, value);
    history.replaceState(null, "", `?${filters()}`);
    start();
  });
  const handlers = {
    record: head.record,
    overview(value) { head.overview(value); nodes.show(value); timeline.show(value); },
    curves: curves.show,
    log: log.show,
  };
  const start = () => follow(`/events/run/${id}?${filters()}`, handlers);
  page(id, ...head.nodes, curves.node, nodes.node, timeline.node, log.node);
  nodes.node.hidden = timeline.node.hidden = true;
  if (!embedded) { start(); return; }
  for (const [name, value] of Object.entries(embeddedValues)) if (handlers[name]) handlers[name](value);
  const home = document.getElementById("home");
  home.replaceWith(make("strong", {}, "orch"));
  write(connection, `as of ${embeddedValues.written}`);
}

/* The comparison */

function showComparison(runs) {
  const chart = new Chart("loss"), series = new Map(runs.map((run) => [run, []])), problem = make("p", { className: "problem" });
  const links = make("p", {}, ...runs.flatMap((run, index) => [index ? " and " : "", make("a", { href: `/run/${run}` }, run)]));
  page("comparison", make("h1", {}, "Loss"), links, problem, make("div", { className: "alone" }, chart.node));
  const handlers = Object.fromEntries(runs.map((run) => [`curves ${run}`, (value) => {
    series.set(run, (value.curves || {}).loss || []);
    const without = [...series].filter(([, points]) => !points.length).map(([name]) => name);
    write(problem, [value.problem, without.length ? `no loss of ${without.join(", ")}` : ""].filter(Boolean).join("; "));
    chart.show([...series].map(([name, points]) => ({ name, points })));
  }]));
  follow(`/events/compare?${runs.map((run) => `run=${encodeURIComponent(run)}`).join("&")}`, handlers);
}

if (embedded) showRun(embeddedValues.record.id || "run");
else if (location.pathname.startsWith("/run/")) showRun(location.pathname.slice(5));
else if (location.pathname === "/compare") showComparison(query.getAll("run").slice(0, 4));
else showList();
