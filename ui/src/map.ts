// The map of GPUs: groups of tiles or dots, of which only the visible ones exist, whatever the size of the cluster.
import { drawArrows } from "./arrows";
import { el, shown, write } from "./dom";
import { CELL_HEIGHT, DOT, drawDots, type Cell } from "./dots";
import { ago, gpus, isShared, sentence, severity } from "./format";
import { hasStatus, type Ref, type Store } from "./store";
import { idOf, tile } from "./tile";

const TILE_HEIGHT = 104;
const HEAD_HEIGHT = 34;
const TILE_LEAST = 168; // pixels
const TILE_MOST = 300;
const GAP = 8;
const AHEAD = 240; // pixels above and below the window that are drawn, too
const STALE_SECONDS = 900;
const REST_MILLISECONDS = 200; // without scrolling, before the address follows

interface Group {
  name: string;
  refs: Ref[];
}

interface Row {
  top: number;
  height: number;
  group: Group;
  refs: Ref[] | null; // null: the head of its group
}

export class GpuMap {
  readonly element: HTMLElement;
  private readonly space = el("div", { class: "space", role: "presentation" });
  private readonly canvas = el("canvas", { class: "dots", role: "presentation" });
  private readonly spoken = el("div", { class: "spoken", role: "option", id: "spoken", "aria-selected": "true" });
  private readonly arrows = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  private rows: Row[] = [];
  private cells: Cell[] = [];
  private order: Ref[] = [];
  private readonly places = new Map<string, { row: Row; column: number } | Cell>();
  private readonly drawn = new Map<Row, HTMLElement>();
  private columns = 4;
  private tileWidth = 240;
  private height = 0;
  private laidOut: unknown[] = [];
  private isPlaced = false;
  private resting = 0;
  cursor = "";
  onOpen: (what: string) => void = () => undefined;

  constructor(private readonly store: Store) {
    this.arrows.setAttribute("class", "arrows");
    this.arrows.setAttribute("aria-hidden", "true");
    this.element = el(
      "div",
      { class: "map", role: "listbox", tabindex: 0, "aria-label": "GPUs", id: "map" },
      this.canvas,
      this.space,
      this.spoken,
    );
    this.space.append(this.arrows);
    this.element.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.element.addEventListener("click", (event) => this.clicked(event));
    this.element.addEventListener("dblclick", (event) => this.zoomTo(this.under(event.clientX, event.clientY)));
    this.element.addEventListener("mousemove", (event) => this.hovered(event));
    new ResizeObserver(() => {
      this.laidOut = [];
      store.changed();
    }).observe(this.element);
  }

  /** Lay out again if nodes, filters or the width changed, and draw what is visible. */
  update(refs: Ref[]): void {
    const { group, show } = this.store.view;
    const key = [this.store.model, this.store.nodes, this.store.view.q, this.store.view.ns, group, show, this.store.zoom, this.element.clientWidth, this.store.planAfter];
    if (key.some((part, position) => part !== this.laidOut[position])) {
      this.laidOut = key;
      this.layOut(refs.filter((ref) => hasStatus(ref, show)));
    }
    for (const element of this.drawn.values()) element.remove();
    this.drawn.clear();
    this.draw();
    this.speak();
    drawArrows(this.arrows, this.store, (name) => this.middle(name), this.height);
    if (!this.isPlaced && this.height > 0) {
      this.isPlaced = true;
      if (this.store.view.at) this.scrollTo(this.store.view.at, "start");
    }
  }

  private layOut(refs: Ref[]): void {
    const isTiles = this.store.zoom === "tiles";
    this.element.classList.toggle("is-dots", !isTiles);
    const width = this.element.clientWidth - 2 * GAP;
    const groups = grouped(refs, this.store);
    this.rows = [];
    this.cells = [];
    this.places.clear();
    this.order = groups.flatMap((group) => group.refs);
    if (isTiles) this.tiles(groups, width);
    else this.dots(groups, width);
    this.space.style.height = `${this.height}px`;
    this.element.style.setProperty("--content", `${this.height}px`);
    this.canvas.hidden = isTiles;
  }

  private tiles(groups: Group[], width: number): void {
    const most = Math.max(1, Math.floor((width + GAP) / (TILE_LEAST + GAP)));
    const largest = Math.max(1, ...groups.map((group) => group.refs.length));
    this.columns = Math.min(most, largest);
    // A node with eight GPUs looks like one in one, two or four rows of equal length.
    if (this.store.view.group === "node") while (this.columns > 1 && largest % this.columns) this.columns -= 1;
    if (this.columns === 1) this.columns = Math.min(most, largest);
    this.tileWidth = Math.min(TILE_MOST, (width - (this.columns - 1) * GAP) / this.columns);
    let top = GAP;
    for (const group of groups) {
      this.rows.push({ top, height: HEAD_HEIGHT, group, refs: null });
      top += HEAD_HEIGHT;
      for (let first = 0; first < group.refs.length; first += this.columns) {
        const row = { top, height: TILE_HEIGHT + GAP, group, refs: group.refs.slice(first, first + this.columns) };
        row.refs.forEach((ref, column) => this.places.set(ref.name, { row, column }));
        this.rows.push(row);
        top += row.height;
      }
      top += GAP;
    }
    this.height = top;
  }

  private dots(groups: Group[], width: number): void {
    let [x, y] = [GAP, GAP];
    for (const group of groups) {
      const isNode = this.store.view.group === "node";
      const size = isNode ? Math.max(8, group.refs.length) : Math.max(8, Math.floor(width / DOT) - 2);
      for (let first = 0; first < group.refs.length; first += size) {
        const cell = { label: first ? "" : isNode ? group.name : `${group.name} · ${group.refs.length} GPUs`, refs: group.refs.slice(first, first + size), x, y };
        const across = Math.min(size, isNode ? size : width) * DOT + 14;
        if (x > GAP && x + across > width + GAP) [x, y] = [GAP, y + CELL_HEIGHT];
        [cell.x, cell.y] = [x, y];
        x += across;
        this.cells.push(cell);
        for (const ref of cell.refs) this.places.set(ref.name, cell);
        if (!isNode) [x, y] = [GAP, y + (first + size < group.refs.length ? DOT : CELL_HEIGHT)];
      }
    }
    this.height = y + CELL_HEIGHT + GAP;
  }

  private scrolled(): void {
    this.draw();
    clearTimeout(this.resting);
    this.resting = setTimeout(() => this.store.remember({ at: this.top() }), REST_MILLISECONDS);
  }

  private draw(): void {
    const [top, bottom] = [this.element.scrollTop, this.element.scrollTop + this.element.clientHeight];
    if (this.store.zoom === "dots") {
      const first = lowerBound(this.cells, top - CELL_HEIGHT, (cell) => cell.y);
      const visible: Cell[] = [];
      for (let at = first; at < this.cells.length; at += 1) {
        const cell = this.cells[at];
        if (!cell || cell.y > bottom) break;
        visible.push(cell);
      }
      drawDots(this.canvas, visible, top, this.store, this.cursor);
    } else {
      this.drawTiles(top, bottom);
    }
  }

  private drawTiles(top: number, bottom: number): void {
    const wanted = new Set<Row>();
    for (let at = lowerBound(this.rows, top - AHEAD - TILE_HEIGHT, (row) => row.top); at < this.rows.length; at += 1) {
      const row = this.rows[at];
      if (!row || row.top > bottom + AHEAD) break;
      wanted.add(row);
    }
    for (const [row, element] of this.drawn) {
      if (!wanted.has(row)) {
        element.remove();
        this.drawn.delete(row);
      }
    }
    for (const row of wanted) {
      if (this.drawn.has(row)) continue;
      const element = row.refs ? this.row(row.refs, row.group) : this.head(row.group);
      element.style.top = `${row.top}px`;
      if (!row.refs) element.style.width = `${this.columns * (this.tileWidth + GAP) - GAP}px`;
      this.drawn.set(row, element);
      this.space.insertBefore(element, this.arrows);
    }
  }

  private row(refs: Ref[], group: Group): HTMLElement {
    const made = el("div", { class: "row", role: "group", "aria-label": group.name });
    const isWithNode = this.store.view.group !== "node";
    for (const ref of refs) {
      const element = tile(ref, this.store, isWithNode);
      element.style.width = `${this.tileWidth}px`;
      if (ref.name === this.cursor) element.classList.add("cursor");
      made.append(element);
    }
    return made;
  }

  private head(group: Group): HTMLElement {
    const node = this.store.view.group === "node" ? this.store.nodes.get(group.name) : undefined;
    const room = group.refs.filter((ref) => ref.gpu.fits).length;
    const fits = group.refs.filter((ref) => this.store.fits(ref)).length;
    const shared = group.refs.filter((ref) => isShared(ref.gpu));
    const held = shared.reduce((sum, ref) => sum + (ref.gpu.held?.[0] ?? 0), 0) / 100;
    const models = [...new Set(group.refs.map((ref) => ref.gpu.model))];
    const status = (node?.status ?? []).filter((word) => !word.includes(":"));
    const summary = `${gpus(held)}/${shared.length} allocated · ${room} with room`;
    return el(
      "div",
      {
        class: "head",
        role: "option",
        "aria-selected": node && this.store.view.sel === `node:${node.name}` ? "true" : "false",
        "aria-label": `${this.store.view.group} ${group.name}: ${group.refs.length} GPUs, ${summary}${node?.reason ? `; ${node.reason}` : ""}`,
        "data-node": node?.name,
        title: node?.reason,
      },
      el("b", {}, group.name),
      el("span", { class: "dim models" }, `${group.refs.length} × ${models.length === 1 ? (models[0] ?? "") : `${models.length} models`}`),
      el("span", { class: "dim summary" }, summary),
      this.store.fit && el("span", { class: "accent" }, `${fits} fit`),
      ...status.map((word) => el("span", { class: `word ${severity(word)}` }, word)),
      node && this.heard(node.name),
    );
  }

  private heard(name: string): HTMLElement {
    const model = this.store.model;
    const known = model?.heard[name];
    const why = model?.absent.nodes ?? "its Node has no heartbeat";
    if (!model || !known) return el("span", { class: "heard", title: `last heard n/a, because ${why}` }, "heard n/a");
    const [at, by] = known;
    const isStale = model.cluster.live && model.at - at > STALE_SECONDS;
    return el("span", { class: isStale ? "heard stale" : "heard", title: `by its ${by}` }, `heard ${ago(at, model.at)} ago, ${by}`);
  }

  private speak(): void {
    const ref = this.cursor ? this.store.find(this.cursor) : undefined;
    const isDots = this.store.zoom === "dots";
    this.spoken.hidden = !isDots;
    write(this.spoken, ref ? sentence(ref.node, ref.gpu, this.store.model?.absent.used ?? "") : `${this.order.length} GPUs`);
    if (ref) this.element.setAttribute("aria-activedescendant", isDots ? "spoken" : idOf(ref.name));
    else this.element.removeAttribute("aria-activedescendant");
  }

  get isEmpty(): boolean {
    return this.order.length === 0;
  }

  /** Move the cursor: by GPUs, or by rows of them. */
  move(across: number, down: number): void {
    if (!this.order.length) return;
    const at = this.order.findIndex((ref) => ref.name === this.cursor);
    const place = this.places.get(this.cursor);
    const stride = place && "refs" in place ? place.refs.length : this.columns;
    const next = at < 0 ? 0 : Math.min(this.order.length - 1, Math.max(0, at + across + down * stride));
    this.cursor = this.order[next]?.name ?? "";
    this.scrollTo(this.cursor, "nearest");
    this.store.changed();
  }

  zoomTo(name: string | undefined): void {
    if (!name) return;
    this.cursor = name;
    this.store.set({ zoom: "tiles" });
    this.laidOut = [];
    this.update(this.store.found());
    this.scrollTo(name, "start");
  }

  scrollTo(name: string, where: "start" | "nearest"): void {
    const place = this.places.get(name);
    if (!place) return;
    const [top, height] = "row" in place ? [place.row.top, place.row.height] : [place.y, CELL_HEIGHT];
    const { scrollTop, clientHeight } = this.element;
    if (where === "start" || top < scrollTop) this.element.scrollTop = top - HEAD_HEIGHT;
    else if (top + height > scrollTop + clientHeight) this.element.scrollTop = top + height - clientHeight + GAP;
  }

  /** The GPU at the top of the window, which the address keeps. */
  top(): string {
    const at = this.element.scrollTop;
    if (at < HEAD_HEIGHT) return "";
    if (this.store.zoom === "dots") return this.cells[lowerBound(this.cells, at, (cell) => cell.y)]?.refs[0]?.name ?? "";
    return this.rows.slice(lowerBound(this.rows, at, (row) => row.top)).find((row) => row.refs)?.refs?.[0]?.name ?? "";
  }

  private middle(name: string): [number, number] | undefined {
    const place = this.places.get(name);
    if (!place) return undefined;
    if ("row" in place) return [GAP + place.column * (this.tileWidth + GAP) + this.tileWidth / 2, place.row.top + TILE_HEIGHT / 2];
    const at = place.refs.findIndex((ref) => ref.name === name);
    return [place.x + at * DOT + DOT / 2, place.y + 15 + DOT / 2];
  }

  /** The GPU at a point of the window. */
  under(x: number, y: number): string | undefined {
    if (this.store.zoom === "tiles") {
      const element = document.elementFromPoint(x, y)?.closest<HTMLElement>("[data-gpu]");
      return element?.dataset["gpu"];
    }
    const box = this.element.getBoundingClientRect();
    const [left, top] = [x - box.left, y - box.top + this.element.scrollTop];
    const cell = this.cells.find((one) => top >= one.y && top < one.y + CELL_HEIGHT && left >= one.x && left < one.x + one.refs.length * DOT);
    return cell?.refs[Math.floor((left - cell.x) / DOT)]?.name;
  }

  private clicked(event: MouseEvent): void {
    const name = this.under(event.clientX, event.clientY);
    const node = (event.target as Element).closest<HTMLElement>("[data-node]")?.dataset["node"];
    if (name) {
      this.cursor = name;
      this.onOpen(`gpu:${name}`);
    } else if (node) {
      this.onOpen(`node:${node}`);
    }
  }

  private hovered(event: MouseEvent): void {
    if (this.store.zoom !== "dots") return;
    const name = this.under(event.clientX, event.clientY);
    const ref = name ? this.store.find(name) : undefined;
    this.canvas.title = ref ? shown(sentence(ref.node, ref.gpu, this.store.model?.absent.used ?? "")) : "";
  }
}

function grouped(refs: Ref[], store: Store): Group[] {
  const groups = new Map<string, Group>();
  for (const ref of refs) {
    const { group } = store.view;
    const name = group === "node" ? ref.node.name : group === "pool" ? ref.node.pool : ref.gpu.model;
    let found = groups.get(name);
    if (!found) groups.set(name, (found = { name, refs: [] }));
    found.refs.push(ref);
  }
  return [...groups.values()];
}

function lowerBound<T>(items: T[], value: number, key: (item: T) => number): number {
  let [low, high] = [0, items.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    const item = items[middle];
    if (item !== undefined && key(item) < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
