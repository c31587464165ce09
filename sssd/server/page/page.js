// The page at /: a chat that shows its drafts, and the server at a glance. Talks to the API of this origin only.
"use strict";

const SOURCES = ["context", "datastore", "live", "prediction", "model"];
const PLOTTED = 160; // steps
const at = (id) => document.getElementById(id);

const messages = []; // the conversation, as the API takes it
let steps = []; // of the latest answer: {own, accepted, rejected}
let bySource = counts();
let running = null; // AbortController of the answer that streams

function counts() {
  return Object.fromEntries(SOURCES.map((s) => [s, { accepted: 0, drafted: 0 }]));
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

function headers() {
  const key = at("key").value.trim();
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

// ---- an answer --------------------------------------------------------------------------------

async function ask(event) {
  event.preventDefault();
  const text = at("prompt").value.trim();
  if (!text || running) return;
  at("hint").hidden = true;
  messages.push({ role: "user", content: text });
  at("talk").append(element("div", "turn user", text));
  at("prompt").value = "";
  const turn = element("div", "turn assistant busy");
  at("talk").append(turn);
  turn.scrollIntoView({ block: "end" });
  steps = [];
  bySource = counts();
  running = new AbortController();
  showBusy();
  const answer = { text: "", turn, began: 0, n: 0, nFirst: 0 };
  try {
    await stream(answer);
  } catch (error) {
    const stopped = error.name === "AbortError";
    at("talk").append(element("p", stopped ? "stopped" : "error", stopped ? "stopped" : error.message));
  }
  turn.classList.remove("busy");
  if (answer.text) messages.push({ role: "assistant", content: answer.text });
  else messages.pop();
  running = null;
  showBusy();
  showServer();
}

async function stream(answer) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: headers(),
    signal: running.signal,
    body: JSON.stringify({
      messages,
      stream: true,
      max_tokens: Number(at("max").value) || 256,
      temperature: Number(at("temperature").value) || 0,
      speculative: { enabled: at("speculate").checked, trace: true },
    }),
  });
  if (!response.ok) throw new Error(await refusal(response));
  for await (const chunk of events(response.body)) {
    if (chunk.error) throw new Error(chunk.error.message);
    const choice = (chunk.choices || [])[0];
    if (choice) take(answer, choice.delta.content || "", chunk.speculative);
  }
}

async function refusal(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `${response.status} ${response.statusText}`;
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
    }
  }
}

function take(answer, text, step) {
  answer.text += text;
  const follow = nearEnd(at("talk"));
  if (step) answer.turn.append(...spans(step));
  else if (text) answer.turn.append(text);
  if (step) count(answer, step);
  if (follow) at("talk").scrollTop = at("talk").scrollHeight;
  showDrafts(answer);
}

function nearEnd(box) {
  return box.scrollHeight - box.scrollTop - box.clientHeight < 60;
}

function spans(step) {
  const made = step.tokens.map((token) => {
    const span = element("span", "", token.text);
    if (token.source) {
      span.dataset.source = token.source;
      span.title = `drafted from ${token.source}`;
    }
    return span;
  });
  if (step.rejected.length) {
    const wrong = element("span", "rejected", step.rejected.map((t) => t.text).join("").replaceAll("\n", "⏎"));
    wrong.dataset.source = step.rejected[0].source;
    wrong.title = `${step.rejected.length} rejected`;
    made.push(wrong);
  }
  return made;
}

function count(answer, step) {
  const accepted = step.tokens.filter((t) => t.source);
  const now = performance.now();
  if (!answer.n) {
    answer.began = now;
    answer.nFirst = step.tokens.length;
  }
  answer.n += step.tokens.length;
  answer.last = now;
  for (const t of accepted) bySource[t.source].accepted += 1;
  for (const t of [...accepted, ...step.rejected]) bySource[t.source].drafted += 1;
  steps.push({
    own: step.tokens.length - accepted.length,
    accepted: accepted.length,
    rejected: step.rejected.length,
  });
}

// ---- what is shown ----------------------------------------------------------------------------

function showBusy() {
  at("stop").hidden = !running;
  at("send").hidden = Boolean(running);
  at("clear").disabled = Boolean(running);
}

function showDrafts(answer) {
  const seconds = (answer.last - answer.began) / 1000;
  if (answer.n > answer.nFirst && seconds > 0) at("speed").textContent = ((answer.n - answer.nFirst) / seconds).toFixed(1);
  if (steps.length) at("per-step").textContent = (answer.n / steps.length).toFixed(2);
  const all = SOURCES.map((s) => bySource[s]);
  const drafted = all.reduce((sum, c) => sum + c.drafted, 0);
  const accepted = all.reduce((sum, c) => sum + c.accepted, 0);
  at("accepted").textContent = drafted ? `${Math.round((100 * accepted) / drafted)}%` : "–";
  showSources();
  plot();
}

function showSources() {
  const rows = SOURCES.map((source) => {
    const row = element("tr");
    const name = element("span", "", source);
    name.dataset.source = source;
    const first = element("td");
    first.append(name);
    row.append(first, element("td", "", String(bySource[source].accepted)), element("td", "", String(bySource[source].drafted)));
    return row;
  });
  at("sources").tBodies[0].replaceChildren(...rows);
}

function plot() {
  const canvas = at("widths");
  const scale = window.devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  canvas.width = width * scale;
  canvas.height = height * scale;
  const draw = canvas.getContext("2d");
  draw.scale(scale, scale);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const shown = steps.slice(-PLOTTED);
  const most = Math.max(4, ...shown.map((s) => s.own + s.accepted + s.rejected));
  const left = 22;
  const bar = (width - left) / Math.max(40, shown.length);
  const unit = (height - 4) / most;
  draw.font = "10px sans-serif";
  draw.textAlign = "right";
  for (const value of [0, Math.ceil(most / 2), most]) {
    const y = Math.round(height - 1 - value * unit) + 0.5;
    draw.fillStyle = colour("--dim");
    draw.fillText(value, left - 5, Math.max(9, y + (value ? 8 : 0)));
    draw.fillStyle = colour("--line");
    draw.fillRect(left, y - 0.5, width - left, 1);
  }
  shown.forEach((step, i) => {
    let y = height - 1;
    for (const [n, name, alpha] of [
      [step.own, "--dim", 1],
      [step.accepted, "--main", 1],
      [step.rejected, "--main", 0.28],
    ]) {
      draw.globalAlpha = alpha;
      draw.fillStyle = colour(name);
      y -= n * unit;
      draw.fillRect(left + i * bar, y, Math.max(1, bar - 1), n * unit);
    }
  });
}

const brief = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

async function showServer() {
  let stats;
  try {
    const response = await fetch("stats", { cache: "no-store" });
    if (!response.ok) throw new Error(String(response.status));
    stats = await response.json();
  } catch {
    at("state").textContent = "not reachable";
    at("state").className = "away";
    return;
  }
  at("state").textContent = stats.phase;
  at("state").className = stats.phase === "ready" ? "ready" : "";
  at("model").textContent = stats.model;
  document.title = stats.model ? `${stats.model} · sssd` : "sssd";
  const loop = stats.loop;
  if (!loop) return;
  at("running").textContent = `${loop.running} of ${loop.slots}`;
  at("waiting").textContent = `${loop.waiting} of ${loop.queue_limit}`;
  at("written").textContent = brief.format(stats.generated_tokens);
  const decoding = loop.steps_speculating + loop.steps_plain;
  at("speculating").textContent = decoding ? `${Math.round((100 * loop.steps_speculating) / decoding)}%` : "–";
  at("datastore").textContent = stats.datastore
    ? `${brief.format(stats.datastore.tokens)} tokens${stats.datastore.present ? "" : ", vanished"}`
    : "none";
  at("live").textContent = stats.live ? `${brief.format(stats.live.tokens)} tokens` : "off";
  const failures = loop.engine_failures + loop.drafter_failures + (stats.live ? stats.live.failures : 0);
  at("failures").textContent = String(failures);
  at("failures").className = failures ? "worse" : "";
  at("slots").replaceChildren(...Array.from({ length: loop.slots }, (_, i) => element("i", i < loop.running ? "used" : "")));
}

// ---- wiring -----------------------------------------------------------------------------------

function apply() {
  at("talk").classList.toggle("coloured", at("colours").checked);
  at("talk").classList.toggle("rejects", at("rejects").checked);
}

function clear() {
  messages.length = 0;
  steps = [];
  bySource = counts();
  at("talk").replaceChildren(at("hint"));
  at("hint").hidden = false;
  for (const id of ["speed", "per-step", "accepted"]) at(id).textContent = "–";
  showSources();
  plot();
}

at("ask").addEventListener("submit", ask);
at("stop").addEventListener("click", () => running && running.abort());
at("clear").addEventListener("click", clear);
at("colours").addEventListener("change", apply);
at("rejects").addEventListener("change", apply);
at("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("ask").requestSubmit();
  }
});
window.addEventListener("resize", plot);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", plot);
apply();
showSources();
plot();
showServer();
setInterval(() => document.hidden || showServer(), 1000);
