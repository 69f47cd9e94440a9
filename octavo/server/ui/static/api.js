// Requests to the server that the page came from. The key stays in this tab.
export const byId = (id) => document.getElementById(id);
export const key = () => byId("key").value;

export function headers() {
  return key() ? { Authorization: `Bearer ${key()}` } : {};
}

export async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  if (!answer.ok) {
    const said = await answer.json().catch(() => null);
    throw new Error(said?.error?.message ?? `${path}: status ${answer.status}`);
  }
  return answer;
}

export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      if (frame === "data: [DONE]") return;
      if (frame.startsWith("data: ")) yield JSON.parse(frame.slice(6));
    }
  }
}

export function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

export const notice = (text) => { byId("notice").textContent = text; };
