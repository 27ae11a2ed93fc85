// The panel beside the map: the queue, what fits, the plan, what changed, and the words of `describe` and `why`.
import { command, el, patch, write } from "./dom";
import { ago, clock, count } from "./format";
import { request } from "./request";
import { note, number, page } from "./sections";
import type { Source } from "./source";
import type { Store, Tab } from "./store";
import { chart, reading } from "./strip";
import type { Answer, FitAnswer, PlanAnswer, Waiting, WhyAnswer } from "./types";

const TABS: readonly { tab: Tab; text: string }[] = [
  { tab: "queue", text: "Queue" },
  { tab: "fit", text: "Fit" },
  { tab: "plan", text: "Plan" },
  { tab: "history", text: "History" },
  { tab: "details", text: "Details" },
];
const WORKING = "Working it out …";
const MAX_SHOWN = 100; // pods of the queue, and changes

const LEAST_PAUSE_MILLISECONDS = 5000; // between two times that the page asks the same by itself
const PAUSE_PER_ANSWER = 10; // so that answers take at most a tenth of the time

type Question = Record<string, string>;

interface Said {
  answer: Answer | null; // the last one; it stays until the next arrives
  error: string;
  isOld: boolean; // the cluster has changed since
  asking: AbortController | null;
  due: number; // by performance.now(): not asked again by itself before
}

export class Panel {
  readonly element = el("aside", { class: "panel", "aria-label": "Queue, fit, plan, history and details" });
  private readonly tabs = el("div", { class: "tabs", role: "tablist", "aria-label": "Panel" });
  private readonly body = el("div", { class: "body", role: "tabpanel", id: "panel", tabindex: 0 });
  private readonly status = el("div", { class: "spoken", role: "status" });
  private readonly said = new Map<string, Said>();
  private shown = "";
  private moment = -1; // of the slider, in Unix seconds; -1: the last one
  private again = 0;
  private judging: AbortController | null = null;

  constructor(
    private readonly store: Store,
    private readonly source: Source,
  ) {
    this.element.append(this.tabs, this.body, this.status);
  }

  update(): void {
    const { store } = this;
    const { tab } = store.view;
    const waiting = store.model?.queue.pods.length ?? 0;
    const counts: Partial<Record<Tab, number>> = { queue: waiting + (store.model?.queue.more ?? 0), plan: store.plan?.moves.length ?? 0 };
    const focused = this.tabs.contains(document.activeElement);
    this.tabs.replaceChildren(
      ...TABS.map((each) =>
        el(
          "button",
          {
            type: "button",
            role: "tab",
            id: `tab-${each.tab}`,
            "aria-selected": each.tab === tab ? "true" : "false",
            "aria-controls": "panel",
            tabindex: each.tab === tab ? 0 : -1,
            click: () => store.set({ tab: each.tab }),
            keydown: (event: KeyboardEvent) => this.turn(event),
          },
          each.text,
          counts[each.tab] ? " " : null,
          counts[each.tab] ? el("span", { class: "badge" }, count(counts[each.tab] ?? 0)) : null,
        ),
      ),
    );
    if (focused) document.getElementById(`tab-${tab}`)?.focus();
    this.body.setAttribute("aria-labelledby", `tab-${tab}`);
    if (this.body.contains(document.activeElement) && document.activeElement !== this.body && this.shown === tab && tab !== "queue" && tab !== "details") {
      if (tab === "history") return; // its slider has the focus
    }
    const top = this.shown === tab ? this.body.scrollTop : 0;
    this.shown = tab;
    const views: Record<Tab, () => (HTMLElement | SVGElement)[]> = {
      queue: () => this.queue(),
      fit: () => this.fit(),
      plan: () => this.plan(),
      history: () => this.history(),
      details: () => this.details(),
    };
    const aside = new Map([...this.body.querySelectorAll(".scroll")].map((each) => [each.id, each.scrollLeft]));
    const made = el("div", {}, ...views[tab]());
    number(made);
    patch(this.body, [...made.children]);
    this.body.scrollTop = top;
    for (const each of this.body.querySelectorAll(".scroll")) each.scrollLeft = aside.get(each.id) ?? 0;
    this.announce();
    this.refresh();
  }

  /** Tell a screen reader that an answer is awaited, or could not be given: once. */
  private announce(): void {
    const plan: [string, Question][] = this.store.view.tab === "plan" ? [["defrag", this.planned ? { pod: this.planned } : {}]] : [];
    const shown = [...this.questions(), ...plan].map(([name, question]) => this.said.get(key(name, question)));
    const text = shown.find((said) => said?.error)?.error ?? (shown.some((said) => said?.asking && !said.answer) ? WORKING : "");
    if (this.status.textContent !== text) write(this.status, text);
  }

  private turn(event: KeyboardEvent): void {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const at = TABS.findIndex((each) => each.tab === this.store.view.tab);
    const next = TABS[(at + step + TABS.length) % TABS.length];
    if (next) this.store.set({ tab: next.tab });
  }

  private queue(): HTMLElement[] {
    const queue = this.store.model?.queue;
    if (!queue || !this.store.model) return [];
    if (queue.why) return [note(`The queue is n/a, because ${queue.why}`)];
    const placed = this.placed();
    if (!queue.pods.length) return [...placed, note("No pod waits for a GPU.")];
    const words = this.store.view.q.toLowerCase().split(/\s+/).filter(Boolean);
    const { ns } = this.store.view;
    const matching = queue.pods.filter((each) => !ns || each.pod.startsWith(`${ns}/`));
    const found = matching.filter((each) => words.every((word) => each.pod.toLowerCase().includes(word)));
    const shown = words.length && found.length ? found : matching;
    const more = shown.length - MAX_SHOWN + (queue.more ?? 0);
    return [
      ...placed,
      el("ul", { class: "queue", "data-same": "queue" }, ...shown.slice(0, MAX_SHOWN).map((each) => this.waiting(each))),
      ...(more > 0 ? [note(`${more} more wait: search for one, or run kubectl gpushare top pods -A`)] : []),
    ];
  }

  /** The chosen pod, if it waits no longer: its share has an outline on the map. */
  private placed(): HTMLElement[] {
    const { sel } = this.store.view;
    const pod = sel.startsWith("pod:") ? sel.slice(4) : "";
    if (!pod || this.waits(pod)) return [];
    return [el("p", {}, `${pod} waits no longer. `, el("button", { type: "button", class: "plain", click: () => this.open(sel) }, "Describe it"))];
  }

  private waits(pod: string): boolean {
    return this.store.model?.queue.pods.some((each) => each.pod === pod) ?? false;
  }

  private waiting(each: Waiting): HTMLElement {
    const key = `pod:${each.pod}`;
    const isOpen = this.store.view.sel === key;
    const now = this.store.model?.at ?? 0;
    const facts = [each.priority ? `priority ${each.priority}` : "", each.since === undefined ? "" : ago(each.since, now)];
    return el(
      "li",
      { class: isOpen ? "waiting open" : "waiting", "data-same": each.pod },
      el(
        "button",
        { type: "button", id: `waits-${encodeURIComponent(each.pod)}`, "data-same": each.pod, "aria-expanded": isOpen ? "true" : "false", click: () => void this.choose(this.store.view.sel === key ? "" : each.pod) },
        el("span", { class: "who" }, el("b", {}, each.pod), el("span", { class: "dim" }, facts.filter(Boolean).join(" · "))),
        el("span", { class: "asks" }, each.asks.join("; ") || "an invalid request"),
        el("span", { class: "reason" }, each.reason),
        each.nearest ? el("span", { class: "nearest" }, el("b", {}, each.nearest), ` ${each.lacks ?? ""}`) : null,
      ),
      isOpen && el("div", { class: "more" }, command(each.command), ...this.answered("why", { pod: each.pod }, false), this.planFor(each.pod)),
    );
  }

  private planFor(pod: string): HTMLElement {
    return el("button", { type: "button", class: "plain", id: "plan-for", click: () => void this.makePlan(pod) }, "Plan moves that make room for it");
  }

  /** Choose a waiting pod: its reasons appear, and the GPUs that nearly fit light up. */
  async choose(pod: string): Promise<void> {
    this.store.lit.clear();
    this.store.set({ sel: pod ? `pod:${pod}` : "", tab: "queue" });
    if (!pod) return;
    await this.ask<WhyAnswer>("why", { pod });
    if (this.store.view.sel === `pod:${pod}`) this.onLit([...this.store.lit.keys()][0] ?? "");
  }

  /** Light up the GPUs that an answer to `why` names. Each answer replaces the one before: the cluster has changed. */
  private light(answer: WhyAnswer | null): void {
    this.store.lit.clear();
    for (const miss of answer?.nearest.slice(0, 3) ?? []) this.store.lit.set(miss.gpu, miss.why);
    for (const gpu of answer?.choices.slice(0, 1) ?? []) this.store.lit.set(gpu, "fits here now");
  }

  onLit: (gpu: string) => void = () => undefined;

  private fit(): HTMLElement[] {
    const { fit, view } = this.store;
    if (!view.fit) return [note("Type a request into the box above the map, such as 0.5 + 16Gi, or drag it over the map. The flags of `kubectl gpushare fit` go there too: memory-limit=24Gi isolation=mps.")];
    const asked = request(view.fit);
    const head = fit
      ? [
          el("p", { class: fit.reason ? "verdict no" : "verdict yes" }, fit.reason ? "It does not fit now." : `It fits, on ${fit.best.join(", ")}.${fit.more !== null && fit.more > 1 ? ` ${fit.more} like it would fit.` : ""}`),
          ...(fit.counts.length ? [el("ul", { class: "counts" }, ...fit.counts.map((each) => el("li", {}, el("b", {}, count(each.gpus)), ` ${each.phrase}`)))] : []),
        ]
      : [];
    return [...head, ...this.answered("fit", asked)];
  }

  /** What the box of the request shows. */
  fitState(): { error: string; isAsking: boolean } {
    const text = this.store.view.fit;
    const said = text ? this.said.get(key("fit", request(text))) : undefined;
    return { error: said?.error ?? "", isAsking: Boolean(said?.asking && !said.answer) };
  }

  /** Ask where a request fits; the map shows the answer. */
  async askFit(text: string): Promise<FitAnswer | null> {
    this.store.fit = null;
    this.store.set({ fit: text });
    return text ? this.ask<FitAnswer>("fit", request(text)) : null;
  }

  /** The reason why the request of the page does not fit on one GPU, from the engine. */
  async verdict(text: string, gpu: string): Promise<string> {
    this.judging?.abort();
    this.judging = new AbortController();
    try {
      return (await this.source.ask<FitAnswer>("fit", { ...request(text), on_gpu: gpu }, this.judging.signal)).verdict;
    } catch (error) {
      return (error as Error).message;
    }
  }

  private plan(): HTMLElement[] {
    const { store } = this;
    const make = el("button", { type: "button", class: "plain", id: "make-plan", click: () => void this.makePlan("") }, "Plan for all waiting pods");
    const question = this.planned ? { pod: this.planned } : {};
    if (!this.said.has(key("defrag", question))) return [note("The fewest moves that make room, drawn over the map as arrows. The page only shows them."), make];
    const turn = (isAfter: boolean, text: string): HTMLElement =>
      el("button", { type: "button", id: `plan-${text}`, "aria-pressed": store.planAfter === isAfter ? "true" : "false", click: () => {
        store.planAfter = isAfter;
        store.changed();
      } }, text);
    return [
      store.plan
        ? el("div", { class: "choice", role: "group", "aria-label": "The map shows the GPUs" }, turn(false, "Before"), turn(true, "After"))
        : this.said.get(key("defrag", question))?.answer
          ? note("The GPUs may have changed since this plan was made: plan again to see it over the map.")
          : el("span", {}),
      ...this.answered("defrag", question),
      make,
    ];
  }

  private planned = "";

  async makePlan(pod: string): Promise<void> {
    const { store } = this;
    this.planned = pod;
    store.plan = null;
    store.planAfter = false;
    this.said.delete(key("defrag", pod ? { pod } : {}));
    store.set({ tab: "plan" });
    store.plan = await this.ask<PlanAnswer>("defrag", pod ? { pod } : {});
    store.changed();
  }

  private history(): (HTMLElement | SVGElement)[] {
    const { model } = this.store;
    if (!model) return [];
    const { points, changes } = model;
    const dark = model.absent.used ?? "";
    const found = this.moment < 0 ? -1 : points.findIndex((point) => point.at >= this.moment);
    const at = found < 0 ? points.length - 1 : found;
    const text = el("output", { for: "moment" }, points[at] ? reading(points[at], dark) : "");
    const holder = el("div", {}, chart(points, 360, 150, true, points[at]?.at));
    const slider = el("input", { type: "range", id: "moment", min: 0, max: Math.max(0, points.length - 1), value: at, "aria-label": "Moment", "aria-valuetext": text.textContent });
    slider.addEventListener("input", () => {
      const point = points[Number(slider.value)];
      if (!point) return;
      this.moment = point === points.at(-1) ? -1 : point.at;
      write(text, reading(point, dark));
      slider.setAttribute("aria-valuetext", text.textContent);
      holder.replaceChildren(chart(points, 360, 150, true, point.at));
    });
    const words = this.store.view.q.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = [...changes].reverse().filter((change) => words.every((word) => `${change.what} ${change.text} ${change.kind}`.toLowerCase().includes(word)));
    return [
      holder,
      slider,
      text,
      ...(points.some((point) => point.told) ? [note("The shaded part is what pods and Events tell of the last hour: shares that have ended are missing there.")] : []),
      el("h2", {}, "Arrivals and departures"),
      shown.length
        ? el("ol", { class: "changes" }, ...shown.slice(0, MAX_SHOWN).map((change) =>
            el("li", { class: change.trouble ? "bad" : "" }, el("time", {}, clock(change.at)), el("span", { class: "kind" }, change.kind), el("b", {}, change.what), el("span", {}, change.text))))
        : note("None so far."),
    ];
  }

  private details(): HTMLElement[] {
    const [kind = "", ...rest] = this.store.view.sel.split(":");
    const name = rest.join(":");
    if (!name) return [note("Choose a GPU, a node or a pod. Enter opens the GPU under the cursor.")];
    const node = kind === "gpu" ? name.slice(0, name.lastIndexOf("/")) : "";
    const pods = kind === "gpu" ? [...new Set((this.store.find(name)?.gpu.shares ?? []).map((share) => share.pod))] : [];
    return [
      ...(node ? [el("div", { class: "links", role: "group", "aria-label": "Its node and pods" }, el("button", { type: "button", click: () => this.open(`node:${node}`) }, `node ${node}`), ...pods.slice(0, 12).map((pod) => el("button", { type: "button", click: () => this.open(`pod:${pod}`) }, pod)))] : []),
      ...this.answered("describe", { kind, name }),
      ...(kind === "pod" ? [el("h2", {}, "Why there"), ...this.answered("why", { pod: name }, false)] : []),
    ];
  }

  /** Show the words of `describe` about a GPU, node or pod. */
  open(what: string): void {
    this.store.lit.clear();
    this.store.set({ sel: what, tab: "details" });
    for (const [name, question] of this.questions()) if (name !== "fit") void this.ask(name, question);
  }

  /** Take the answers for old: the cluster has changed. Those that are shown stay until they are asked for again. */
  forget(): void {
    const kept = new Set(this.questions().map(([name, question]) => key(name, question)));
    const plan = key("defrag", this.planned ? { pod: this.planned } : {});
    const { sel, tab } = this.store.view;
    if (tab === "queue" && sel.startsWith("pod:") && !this.waits(sel.slice(4))) this.store.lit.clear();
    for (const [address, said] of this.said) {
      if (address === plan) continue;
      if (kept.has(address)) said.isOld = true;
      else if (!said.asking) this.said.delete(address);
    }
  }

  /** The questions whose answers are on the page now, but for the plan, which stays as it was made. */
  private questions(): [string, Question][] {
    const { view } = this.store;
    const [kind = "", ...rest] = view.sel.split(":");
    const name = rest.join(":");
    const asked: [string, Question][] = [];
    if (view.fit) asked.push(["fit", request(view.fit)]);
    if (name && view.tab === "details") asked.push(["describe", { kind, name }]);
    if (name && kind === "pod" && (view.tab === "details" || (view.tab === "queue" && this.waits(name)))) asked.push(["why", { pod: name }]);
    return asked;
  }

  /** Ask again what is shown and old, but seldom: an answer may take long. What is no longer shown is not awaited. */
  private refresh(): void {
    if (!this.store.model) return;
    const questions = this.questions();
    const shown = new Set(questions.map(([name, question]) => key(name, question)));
    for (const [address, said] of this.said) if (!shown.has(address) && !address.startsWith("defrag?")) said.asking?.abort();
    let next = Infinity;
    for (const [name, question] of questions) {
      const said = this.said.get(key(name, question));
      if (said && (!said.isOld || said.asking)) continue;
      if (said && said.due > performance.now()) next = Math.min(next, said.due);
      else void this.ask(name, question);
    }
    clearTimeout(this.again);
    if (next < Infinity) this.again = setTimeout(() => this.refresh(), next - performance.now());
  }

  private async ask<T extends Answer>(name: string, question: Question): Promise<T | null> {
    const address = key(name, question);
    const said: Said = this.said.get(address) ?? { answer: null, error: "", isOld: false, asking: null, due: 0 };
    said.asking?.abort();
    const asking = new AbortController();
    Object.assign(said, { asking, isOld: false });
    this.said.set(address, said);
    const began = performance.now();
    try {
      const answer = await this.source.ask<T>(name, question, asking.signal);
      if (said.asking !== asking) return null;
      Object.assign(said, { answer, error: "" });
      return answer;
    } catch (error) {
      if (said.asking === asking && asking.signal.aborted) this.said.delete(address);
      else if (said.asking === asking) Object.assign(said, { answer: null, error: (error as Error).message });
      return null;
    } finally {
      if (said.asking === asking) {
        said.asking = null;
        said.due = performance.now() + Math.max(LEAST_PAUSE_MILLISECONDS, PAUSE_PER_ANSWER * (performance.now() - began));
        if (name === "fit" && this.store.view.fit && key("fit", request(this.store.view.fit)) === address) this.store.fit = said.answer as FitAnswer | null;
        if (name === "why" && this.store.view.tab === "queue" && this.store.view.sel === `pod:${question["pod"] ?? ""}`) this.light(said.answer as WhyAnswer | null);
        this.store.changed();
      }
    }
  }

  private answered(name: string, question: Question, isWithCommand = true): HTMLElement[] {
    const said = this.said.get(key(name, question));
    if (said?.error) return [el("p", { class: "error" }, said.error)];
    if (!said?.answer) return [el("p", { class: "dim" }, WORKING)];
    return [...(isWithCommand ? [command(said.answer.command)] : []), page(said.answer.page)];
  }
}

function key(name: string, question: Record<string, string>): string {
  return `${name}?${new URLSearchParams(question).toString()}`;
}
