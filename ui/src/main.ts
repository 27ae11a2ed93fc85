// The page of `kubectl gpushare ui`: puts its parts together and draws them again after every change.
import { brick } from "./brick";
import { el, patch, shown, write } from "./dom";
import { clock, count } from "./format";
import { keys } from "./keys";
import { GpuMap } from "./map";
import { Panel } from "./panel";
import { Source } from "./source";
import { hasStatus, Store, type Grouping, type Ref, type Status, type Zoom } from "./store";
import { strip } from "./strip";

const STATUSES: readonly { status: Status; text: string }[] = [
  { status: "all", text: "All" },
  { status: "room", text: "With room" },
  { status: "full", text: "Full" },
  { status: "idle", text: "Held, idle" },
  { status: "trouble", text: "Trouble" },
  { status: "other", text: "Other modes" },
];
const TYPING_MILLISECONDS = 250;
const SILENT_SECONDS = 30; // beyond the usual pause, after which the state is called old

const store = new Store();
const source = new Source(store);
const map = new GpuMap(store);
const panel = new Panel(store, source);
map.onOpen = (what) => panel.open(what);
panel.onLit = (gpu) => map.scrollTo(gpu, "nearest");
const help = keys(store, map, panel);

const alerts = el("div", { class: "alerts", role: "status", "aria-live": "polite" });
const cluster = el("span", { class: "cluster" });
const state = el("span", { class: "state" });
const figures = el("section", { "aria-label": "Totals" });
const statuses = el("div", { class: "statuses", role: "group", "aria-label": "Show GPUs" });
const namespaces = el("select", { id: "namespace", "aria-label": "Namespace", change: () => store.set({ ns: namespaces.value }) });
const answer = el("span", { class: "fit-answer", role: "status" });
const nothing = el("p", { class: "nothing", role: "status" });

const search = el("input", { id: "search", type: "search", placeholder: "Search pod, node, model, UUID …", "aria-label": "Search", value: store.view.q, autocomplete: "off", spellcheck: "false" });
search.addEventListener("input", () => store.set({ q: search.value }));

const asked = el("input", { id: "request", type: "text", placeholder: "0.5 + 16Gi", "aria-label": "Request: compute + memory", value: store.view.fit, autocomplete: "off", spellcheck: "false" });
let typing = 0;
asked.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => void panel.askFit(asked.value.trim()), TYPING_MILLISECONDS);
});
asked.addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  clearTimeout(typing);
  store.set({ tab: "fit" });
  void panel.askFit(asked.value.trim());
});

const group = choice<Grouping>("Group by", ["node", "pool", "model"], () => store.view.group, (value) => store.set({ group: value }));
const zoom = choice<Zoom>("Zoom", ["tiles", "dots"], () => store.zoom, (value) => store.set({ zoom: value }));

document.body.prepend(
  el(
    "header",
    { class: "top" },
    el("h1", {}, el("span", { class: "logo", "aria-hidden": "true" }), "gpushare"),
    cluster,
    state,
    el("span", { class: "grow" }),
    group.element,
    zoom.element,
    search,
    namespaces,
    el("button", { type: "button", class: "plain", "aria-label": "Theme", title: "Theme (t)", click: () => document.dispatchEvent(new KeyboardEvent("keydown", { key: "t", bubbles: true })) }, "◐"),
    el("button", { type: "button", class: "plain", "aria-label": "Keys", title: "Keys (?)", click: () => help.showModal() }, "?"),
  ),
  alerts,
  figures,
  el(
    "main",
    {},
    el(
      "section",
      { class: "left", "aria-label": "GPUs of the cluster" },
      el("div", { class: "tools" }, statuses, el("span", { class: "grow" }), el("div", { class: "fit-box" }, brick(store, map, panel), asked), answer),
      nothing,
      map.element,
    ),
    panel.element,
  ),
  help,
);

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
prefersDark.addEventListener("change", () => store.set({}));
function paint(): void {
  const { theme } = store.view;
  document.documentElement.dataset["theme"] = theme === "auto" ? (prefersDark.matches ? "dark" : "light") : theme;
}
paint();

let version = -1;
store.onChange(() => {
  const { model } = store;
  paint();
  document.body.classList.toggle("lost", store.lost !== "");
  patch(alerts, warnings().map(([style, text]) => el("p", { class: style }, text)));
  if (!model) {
    state.textContent = store.lost ? "" : "Reading the cluster …";
    return;
  }
  document.title = shown(`gpushare · ${model.cluster.name || "cluster"}`);
  write(cluster, model.cluster.name);
  sayHowOld();
  if (model.version !== version) {
    if (version >= 0) panel.forget();
    else if (store.view.fit) void panel.askFit(store.view.fit);
    if (version < 0) {
      if (model.cluster.namespace && !store.view.ns) store.set({ ns: model.cluster.namespace });
      reopen();
    }
    version = model.version;
    figures.className = "strip";
    patch(figures, strip(model, (status) => store.set({ show: status })));
    fillNamespaces();
  }
  const found = store.found();
  drawStatuses(found);
  sayWhatFits();
  group.update();
  zoom.update();
  map.update(found);
  sayWhyNothing();
  panel.update();
});

/** Say how old the state is. A server that reads nothing any more looks like a cluster in which nothing happens. */
function sayHowOld(): void {
  const { model } = store;
  if (!model) return;
  const silent = Math.round((Date.now() - store.heardAt) / 1000);
  const isOld = model.cluster.live && !source.saved && silent > SILENT_SECONDS + (model.cluster.pause ?? 0);
  const live = isOld ? `no news for ${silent} s` : `live, ${clock(model.at)}`;
  const text = source.saved ? `saved ${new Date(model.at * 1000).toLocaleString()}` : model.cluster.live ? live : `from a file, ${clock(model.at)}`;
  if (state.textContent !== text) state.textContent = text;
  state.className = `state ${store.lost || model.trouble || isOld ? "old" : model.cluster.live ? "live" : ""}`;
}
setInterval(sayHowOld, 5000);

function sayWhatFits(): void {
  const { fit } = store;
  const { error, isAsking } = panel.fitState();
  write(answer, error ? "see Fit" : isAsking ? "…" : fit ? (fit.reason ? "fits nowhere" : `${count(total())} fit`) : "");
  answer.title = error;
  answer.className = `fit-answer ${error || fit?.reason ? "no" : "yes"}`;
}

/** Say why the map is empty: the cluster has no GPUs, or the filters leave none. */
function sayWhyNothing(): void {
  nothing.hidden = !map.isEmpty;
  write(nothing, map.isEmpty ? (store.model?.empty || "No GPU matches: Esc clears the search and the filters.") : "");
}

function reopen(): void {
  const { sel, tab } = store.view;
  if (sel.startsWith("pod:") && tab === "queue") void panel.choose(sel.slice(4));
  else if (sel && tab === "details") panel.open(sel);
}

function total(): number {
  return Object.values(store.fit?.fits ?? {}).reduce((sum, digits) => sum + digits.replaceAll("0", "").length, 0);
}

function warnings(): [string, string][] {
  const { model } = store;
  const said: [string, string][] = [];
  if (store.lost) said.push(["bad", store.lost]);
  if (model?.trouble) said.push(["bad", `The cluster does not answer, so this may be out of date: ${model.trouble}`]);
  for (const problem of model?.problems ?? []) said.push(["bad", problem]);
  for (const missing of model?.notes ?? []) said.push(["note", `n/a: ${missing}`]);
  return said.slice(0, 8);
}

function fillNamespaces(): void {
  const names = new Set<string>();
  const add = (pod: string): unknown => names.add(pod.split("/")[0] ?? "");
  for (const { gpu } of store.all()) for (const share of gpu.shares ?? []) add(share.pod);
  for (const pod of store.model?.queue.pods ?? []) add(pod.pod);
  if (store.view.ns) names.add(store.view.ns);
  namespaces.replaceChildren(
    el("option", { value: "" }, "All namespaces"),
    ...[...names].sort().map((name) => el("option", { value: name, selected: name === store.view.ns }, name)),
  );
}

function drawStatuses(found: Ref[]): void {
  const focused = document.activeElement?.id ?? "";
  statuses.replaceChildren(
    ...STATUSES.map(({ status, text }) => {
      const all = status === "all" ? found.length : found.filter((ref) => hasStatus(ref, status)).length;
      const isOn = store.view.show === status;
      const style = all && status === "trouble" ? "bad" : "";
      return el("button", { type: "button", id: `show-${status}`, class: style, "aria-pressed": isOn ? "true" : "false", click: () => store.set({ show: isOn ? "all" : status }) }, text, " ", el("span", { class: "badge" }, count(all)));
    }),
  );
  if (focused.startsWith("show-")) document.getElementById(focused)?.focus();
}

function choice<T extends string>(label: string, all: readonly T[], now: () => T, set: (value: T) => void): { element: HTMLElement; update: () => void } {
  const buttons = all.map((value) => el("button", { type: "button", click: () => set(value) }, value));
  return {
    element: el("div", { class: "choice", role: "group", "aria-label": label }, ...buttons),
    update: () => buttons.forEach((button, at) => button.setAttribute("aria-pressed", all[at] === now() ? "true" : "false")),
  };
}

store.changed();
void source.start();
