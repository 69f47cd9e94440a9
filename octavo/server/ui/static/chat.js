// The chat. Conversations are kept in the browser (localStorage) and nowhere else.
import { ask, byId, element, events, key, notice } from "./api.js";
import { render } from "./markdown.js";

const SAMPLING = { temperature: 0.7, top_p: 1, top_k: 0, min_p: 0, repetition_penalty: 1, max_tokens: 256, seed: "" };
const STORE = "octavo-chats";
const MOST_CHATS = 50;
let chats = load(), current = null, running = null, models = {};

function load() {
  try { return JSON.parse(localStorage.getItem(STORE)) ?? []; } catch { return []; }
}

function save() {
  if (current.messages.length && !chats.includes(current)) chats.unshift(current);
  chats = chats.slice(0, MOST_CHATS);
  try { localStorage.setItem(STORE, JSON.stringify(chats)); } catch { notice("The browser keeps no more history."); }
  showHistory();
}

function open(chat) {
  running?.abort();
  current = chat;
  byId("messages").replaceChildren();
  chat.messages.forEach((message) => show(message));
  byId("system").value = chat.system ?? "";
  showRaw();
}

function showHistory() {
  byId("history").replaceChildren(...chats.map((chat) => {
    const item = element("li"), title = element("button", "", chat.messages[0]?.content.slice(0, 40) || "…");
    const remove = element("button", "", "×");
    title.onclick = () => open(chat);
    remove.title = "Delete";
    remove.onclick = () => { chats = chats.filter((each) => each !== chat); localStorage.setItem(STORE, JSON.stringify(chats)); showHistory(); };
    item.append(title, remove);
    return item;
  }));
}

function show(message) {
  const box = element("div", `message ${message.role}`), body = element("div", "body");
  const figures = element("div", "figures");
  box.append(body, figures);
  byId("messages").append(box);
  const view = { message, body, figures };
  draw(view);
  return view;
}

function draw({ message, body, figures }) {
  if (message.showTokens) body.replaceChildren(tokens(message.tokens));
  else body.replaceChildren(render(message.content));
  const said = element("span", "", message.figures ?? "");
  figures.replaceChildren(said);
  if (message.tokens?.length) {
    const toggle = element("button", "", message.showTokens ? "text" : "probabilities");
    toggle.onclick = () => { message.showTokens = !message.showTokens; draw({ message, body, figures }); };
    figures.append(toggle);
  }
  byId("messages").scrollTop = byId("messages").scrollHeight;
}

function tokens(list) {
  const made = element("div", "tokens");
  for (const { token, logprob, top } of list) {
    const span = element("span", "", token), p = Math.exp(logprob);
    span.style.background = `hsl(${Math.round(p * 120)} 70% 50% / 0.25)`;
    span.title = [[token, logprob], ...top].map(([t, l]) => `${JSON.stringify(t)} ${(100 * Math.exp(l)).toFixed(1)} %`).join("\n");
    made.append(span);
  }
  return made;
}

function body() {
  const system = byId("system").value.trim();
  const history = current.messages.map(({ role, content }) => ({ role, content }));
  const asked = { model: byId("model").value, messages: [...(system ? [{ role: "system", content: system }] : []), ...history], stream: true, stream_options: { include_usage: true } };
  for (const name of Object.keys(SAMPLING)) {
    const value = byId(`s-${name}`).value;
    if (value !== "") asked[name] = Number(value);
  }
  if (byId("logprobs").checked) Object.assign(asked, { logprobs: true, top_logprobs: 4 });
  return asked;
}

const showRaw = () => { byId("raw").textContent = JSON.stringify(body(), null, 2); };

async function send(text) {
  current.system = byId("system").value;
  current.messages.push({ role: "user", content: text });
  show(current.messages.at(-1));
  const asked = body();
  byId("raw").textContent = JSON.stringify(asked, null, 2);
  const message = { role: "assistant", content: "", tokens: [] };
  const view = show(message), timer = { start: performance.now(), first: 0, last: 0, n: 0 };
  running = new AbortController();
  busy(true);
  notice("");
  try {
    await receive(asked, view, timer);
  } catch (error) {
    if (error.name !== "AbortError") notice(error.message);
    message.figures = `${message.figures ?? ""} ${error.name === "AbortError" ? "stopped" : "failed"}`;
  }
  running = null;
  busy(false);
  draw(view);
  current.messages.push(message);
  save();
}

async function receive(asked, view, timer) {
  const answer = await ask("v1/chat/completions", {
    method: "POST", body: JSON.stringify(asked), headers: { "Content-Type": "application/json" }, signal: running.signal,
  });
  for await (const event of events(answer)) {
    if (event.error) throw new Error(event.error.message);
    const choice = event.choices[0];
    if (choice?.delta?.content) take(choice, view.message, timer);
    if (event.usage) showUsage(event.usage, asked.model);
    view.message.figures = figures(timer, event.usage);
    draw(view);
  }
}

function take(choice, message, timer) {
  timer.last = performance.now();
  timer.first ||= timer.last;
  message.content += choice.delta.content;
  for (const { token, logprob, top_logprobs } of choice.logprobs?.content ?? [])
    message.tokens.push({ token, logprob, top: top_logprobs.map((each) => [each.token, each.logprob]) });
}

function figures({ start, first, last }, usage) {
  if (!first) return "";
  const parts = [`TTFT ${(first - start).toFixed(0)} ms`];
  if (usage) {
    if (last > first) parts.push(`${((usage.completion_tokens - 1) * 1000 / (last - first)).toFixed(1)} tok/s`);
    parts.push(`${usage.prompt_tokens} + ${usage.completion_tokens} tokens`);
    parts.push(`${usage.prompt_tokens_details?.cached_tokens ?? 0} cached`);
  }
  return parts.join(" · ");
}

function showUsage(usage, model) {
  const most = models[model] || 1, share = Math.min(usage.total_tokens / most, 1);
  byId("context").style.width = `${100 * share}%`;
  byId("context-text").textContent = `context: ${usage.total_tokens} of ${most} tokens (${(100 * share).toFixed(1)} %)`;
}

function busy(is) {
  byId("send").hidden = is;
  byId("stop").hidden = !is;
}

const url = () => new URL("v1/chat/completions", document.baseURI).href;
const shellQuoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function asCurl() {
  const auth = key() ? ` -H "Authorization: Bearer $API_KEY"` : "";
  return `curl -N ${shellQuoted(url())}${auth} -H 'Content-Type: application/json' -d ${shellQuoted(byId("raw").textContent)}`;
}

function asPython() {
  return `import json\nfrom openai import OpenAI\n\nclient = OpenAI(base_url=${JSON.stringify(url().replace("/chat/completions", ""))}, api_key="KEY")\n` +
    `body = json.loads(${JSON.stringify(byId("raw").textContent)})\n` +
    `stream = client.post("/chat/completions", body=body | {"stream": False, "stream_options": None}, cast_to=object)\nprint(stream["choices"][0]["message"]["content"])\n`;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    notice("Copied.");
  } catch {  // only pages of HTTPS and of this machine may
    byId("raw").textContent = text;
    notice("The browser does not let this page copy: take the text below.");
  }
}

export async function loadModels() {
  const listed = (await (await ask("v1/models")).json()).data;
  models = Object.fromEntries(listed.map((each) => [each.id, each.max_model_len]));
  byId("model").replaceChildren(...listed.map((each) => element("option", "", each.id)));
  notice("");
  showRaw();
}

export function start() {
  byId("sampling").append(...Object.entries(SAMPLING).map(([name, value]) => {
    const label = element("label", "", name), input = element("input");
    Object.assign(input, { id: `s-${name}`, type: "number", step: "any", value });
    label.append(input);
    return label;
  }));
  open({ messages: [] });
  showHistory();
  byId("chat").addEventListener("input", () => { if (!running) showRaw(); });
  byId("new").onclick = () => open({ messages: [] });
  byId("stop").onclick = () => running?.abort();
  byId("curl").onclick = () => copy(asCurl());
  byId("python").onclick = () => copy(asPython());
  byId("ask").onsubmit = (event) => {
    event.preventDefault();
    const text = byId("prompt").value.trim();
    if (!text || running) return;
    byId("prompt").value = "";
    send(text);
  };
  byId("prompt").onkeydown = (event) => {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); byId("ask").requestSubmit(); }
  };
}
