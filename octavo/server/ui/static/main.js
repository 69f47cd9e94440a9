// Tabs and the key.
import { byId, notice } from "./api.js";
import * as chat from "./chat.js";
import * as engine from "./engine.js";

function turnTo(name) {
  for (const each of ["chat", "engine"]) {
    byId(each).hidden = each !== name;
    byId(`tab-${each}`).classList.toggle("on", each === name);
  }
  engine.watch();
}

const loadModels = () => chat.loadModels().catch((error) => notice(error.message));

byId("key").value = sessionStorage.getItem("octavo-key") ?? "";
byId("key").onchange = () => { sessionStorage.setItem("octavo-key", byId("key").value); loadModels(); };
byId("tab-chat").onclick = () => turnTo("chat");
byId("tab-engine").onclick = () => turnTo("engine");
document.addEventListener("visibilitychange", engine.watch);
chat.start();
loadModels();
if (location.hash === "#engine") turnTo("engine");
