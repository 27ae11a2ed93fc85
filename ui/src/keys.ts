// The keys. Each has a word in the help, which the page shows on "?".
import { el } from "./dom";
import type { GpuMap } from "./map";
import type { Panel } from "./panel";
import type { Grouping, Store, View } from "./store";

const GROUPS: readonly Grouping[] = ["node", "pool", "model"];
const THEMES: readonly View["theme"][] = ["auto", "light", "dark"];

interface Key {
  keys: string[];
  text: string;
  act: () => void;
}

export function keys(store: Store, map: GpuMap, panel: Panel): HTMLDialogElement {
  const help = el("dialog", { class: "help", "aria-label": "Keys" });
  const next = <T>(all: readonly T[], now: T): T => all[(all.indexOf(now) + 1) % all.length] ?? now;
  const waiting = (step: number): void => {
    const pods = store.model?.queue.pods ?? [];
    const at = pods.findIndex((each) => `pod:${each.pod}` === store.view.sel);
    const pod = pods[Math.min(pods.length - 1, Math.max(0, at + step))];
    if (pod) void panel.choose(pod.pod);
  };
  const focus = (id: string): void => document.getElementById(id)?.focus();
  const table: Key[] = [
    { keys: ["/"], text: "search", act: () => focus("search") },
    { keys: ["f"], text: "ask what fits", act: () => focus("request") },
    { keys: ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"], text: "move over the map", act: () => undefined },
    { keys: ["Enter"], text: "describe the GPU under the cursor", act: () => map.cursor && panel.open(`gpu:${map.cursor}`) },
    { keys: ["n"], text: "describe its node", act: () => map.cursor && panel.open(`node:${map.cursor.slice(0, map.cursor.lastIndexOf("/"))}`) },
    { keys: ["j"], text: "next waiting pod", act: () => waiting(1) },
    { keys: ["k"], text: "previous waiting pod", act: () => waiting(-1) },
    { keys: ["p"], text: "plan moves", act: () => void panel.makePlan("") },
    { keys: ["h"], text: "history", act: () => store.set({ tab: "history" }) },
    { keys: ["g"], text: "group by node, pool, model", act: () => store.set({ group: next(GROUPS, store.view.group) }) },
    { keys: ["z"], text: "dots or tiles", act: () => (store.zoom === "dots" ? map.zoomTo(map.cursor || map.top() || firstOf(store)) : store.set({ zoom: "dots" })) },
    { keys: ["t"], text: "theme", act: () => store.set({ theme: next(THEMES, store.view.theme) }) },
    { keys: ["Escape"], text: "clear what is chosen", act: () => clear(store) },
    { keys: ["?"], text: "these keys", act: () => help.showModal() },
  ];
  help.append(
    el("h2", {}, "Keys"),
    el("dl", {}, ...table.flatMap((key) => [el("dt", {}, ...key.keys.map((name) => el("kbd", {}, name.replace("Arrow", "")))), el("dd", {}, key.text)])),
    el("form", { method: "dialog" }, el("button", { class: "plain" }, "Close")),
  );
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    const target = event.target as HTMLElement;
    if (target.matches("input, textarea, select")) {
      if (event.key === "Escape") target.blur();
      return;
    }
    const arrows: Partial<Record<string, [number, number]>> = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const arrow = arrows[event.key];
    if (arrow) {
      if (target.closest(".panel")) return;
      event.preventDefault();
      map.element.focus({ preventScroll: true });
      map.move(...arrow);
      return;
    }
    const found = table.find((key) => key.keys.includes(event.key));
    if (!found || (event.key === "Enter" && target !== map.element)) return;
    event.preventDefault();
    found.act();
  });
  return help;
}

function firstOf(store: Store): string {
  for (const ref of store.all()) return ref.name;
  return "";
}

export function clear(store: Store): void {
  store.lit.clear();
  store.fit = null;
  store.plan = null;
  store.planAfter = false;
  store.set({ sel: "", fit: "", q: "", ns: "", show: "all" });
  const search = document.getElementById("search") as HTMLInputElement | null;
  const request = document.getElementById("request") as HTMLInputElement | null;
  if (search) search.value = "";
  if (request) request.value = "";
}
