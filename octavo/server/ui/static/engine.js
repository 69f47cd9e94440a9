// The engine, asked four times a second while its tab is in front, and not at all otherwise.
import { ask, byId, element, notice } from "./api.js";

const EVERY_MS = 250, MOST_STEPS = 200, MINUTE_S = 60;
const STATES = ["free", "cached", "used", "shared"], PHASES = ["schedule", "execute", "sample", "update"];
let steps = [], seen = [], timer = null;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
const isWatched = () => !byId("engine").hidden && !document.hidden;

export function watch() {
  clearTimeout(timer);
  if (isWatched()) look();
}

async function look() {
  try {
    show(await (await ask("ui/engine/state")).json());
    notice("");
  } catch (error) { notice(error.message); }
  if (isWatched()) timer = setTimeout(look, EVERY_MS);
}

function show(view) {
  const { snapshot } = view;
  seen = [...seen.filter((each) => each.at > view.at - MINUTE_S), view];
  steps = [...steps, ...snapshot.steps.filter((step) => step.step_id > (steps.at(-1)?.step_id ?? 0) || step.step_id < (steps[0]?.step_id ?? 0))].slice(-MOST_STEPS);
  drawBlocks(snapshot.blocks);
  showRequests(snapshot);
  drawBars(byId("times"), steps.map((step) => PHASES.map((phase) => step.seconds[phase] ?? 0)), PHASES);
  drawBars(byId("tokens"), steps.map((step) => [step.num_prefill_tokens, step.num_decode_tokens]), ["prefill", "decode"], snapshot.token_budget);
  const last = steps.at(-1);
  byId("steps-text").textContent = last ? `the last ${steps.length}; step ${last.step_id}: ${(1e3 * PHASES.reduce((sum, phase) => sum + (last.seconds[phase] ?? 0), 0)).toFixed(1)} ms, budget ${snapshot.token_budget} tokens` : "";
  showFigures(view);
}

function pen(canvas) {
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth, height = Number(canvas.dataset.height ??= canvas.height);
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return { context, width, height };
}

function drawBlocks(blocks) {
  const { context, width, height } = pen(byId("blocks"));
  const cells = blocks.runs.flatMap(([state, length]) => Array(length).fill(state));
  let size = 14;
  while (size > 2 && Math.floor(width / size) * Math.floor(height / size) < cells.length) size--;
  const perRow = Math.max(Math.floor(width / size), 1);
  cells.forEach((state, index) => {
    context.fillStyle = colour(STATES[state]);
    context.fillRect((index % perRow) * size, Math.floor(index / perRow) * size, size - 1, size - 1);
  });
  const count = STATES.map((name, state) => `${cells.filter((cell) => cell === state).length} ${name}`);
  byId("blocks").dataset.runs = JSON.stringify(blocks.runs);
  byId("blocks-text").textContent = `${blocks.num_blocks - blocks.num_free} of ${blocks.num_blocks} held; ` +
    (blocks.blocks_per_cell > 1 ? `1 cell = ${blocks.blocks_per_cell} blocks; cells: ` : "") + count.join(", ");
}

function showRequests({ requests, num_requests }) {
  const running = requests.filter((each) => each.status === "running").length;
  byId("requests-text").textContent = `${num_requests} unfinished, ${running} running` + (num_requests > requests.length ? `, the first ${requests.length} shown` : "");
  byId("requests").replaceChildren(...requests.map((request) => {
    const row = byId("row").content.firstElementChild.cloneNode(true), cells = row.children;
    const texts = [request.request_id, request.status, null, request.num_prompt_tokens, request.num_cached_tokens, request.num_output_tokens, request.num_blocks, request.num_preemptions];
    texts.forEach((text, index) => { if (text !== null) cells[index].textContent = text; });
    cells[2].firstElementChild.value = request.num_computed_tokens / Math.max(request.max_total_tokens, 1);
    cells[2].title = `${request.num_computed_tokens} computed of at most ${request.max_total_tokens}`;
    return row;
  }));
}

function drawBars(canvas, bars, names, line = 0) {
  const { context, width, height } = pen(canvas);
  const most = Math.max(...bars.map((bar) => bar.reduce((sum, each) => sum + each, 0)), line, 1e-9) * 1.05, step = width / MOST_STEPS;
  bars.forEach((bar, index) => {
    let bottom = height;
    bar.forEach((value, part) => {
      const tall = (value / most) * height;
      context.fillStyle = colour(names[part]);
      context.fillRect(index * step, bottom - tall, Math.max(step - 0.5, 1), tall);
      bottom -= tall;
    });
  });
  if (line) { context.fillStyle = "#d33"; context.fillRect(0, height - (line / most) * height, width, 1); }
}

function percentile(bounds, counts, share) {
  const total = counts.reduce((sum, each) => sum + each, 0);
  if (!total) return "–";
  let below = 0;
  for (let i = 0; i < counts.length; i++) {
    if (below + counts[i] >= share * total) {
      const low = i ? bounds[i - 1] : 0, high = bounds[i] ?? low;
      return `${(1e3 * (low + (high - low) * (share * total - below) / counts[i])).toFixed(0)} ms`;
    }
    below += counts[i];
  }
}

function lastMinute(view, name) {
  const { bounds, counts } = view.latencies[name], before = seen[0] === view ? null : seen[0].latencies[name].counts;
  const new_ = before ? counts.map((count, i) => Math.max(count - before[i], 0)) : counts;
  return [0.5, 0.9, 0.99].map((share) => percentile(bounds, new_.some(Boolean) ? new_ : counts, share)).join(" / ");
}

function showFigures(view) {
  const { totals } = view, first = seen[0], spent = view.at - first.at;
  const rate = (name) => spent > 0 ? ((totals[name] - first.totals[name]) / spent).toFixed(1) : "–";
  const mib = (bytes) => `${(bytes / 2 ** 20).toFixed(0)} MiB`;
  const hits = totals["vllm:prefix_cache_hits"], queries = totals["vllm:prefix_cache_queries"];
  const figures = {
    "Prefix cache hit rate": queries ? `${(100 * hits / queries).toFixed(1)} % of ${queries} tokens` : "–",
    "TTFT p50 / p90 / p99": lastMinute(view, "ttft"),
    "ITL p50 / p90 / p99": lastMinute(view, "itl"),
    "Prompt tokens/s": rate("vllm:prompt_tokens"), "Output tokens/s": rate("vllm:generation_tokens"),
    "Preemptions": totals["vllm:num_preemptions"], "Steps": totals["octavo:num_steps"],
    "Memory": Object.entries(view.resident_bytes).map(([name, bytes]) => `${name} ${mib(bytes)}`).join(", "),
  };
  byId("figures").replaceChildren(...Object.entries(figures).flatMap(([name, value]) => [element("dt", "", name), element("dd", "", String(value))]));
}
