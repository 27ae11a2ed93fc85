// Where the model comes from: the plugin's server, which also sends changes and answers; or this file, if it was saved.
import type { Store } from "./store";
import type { Answer, Difference, Model } from "./types";

interface Saved {
  model: Model;
  answers: Record<string, Answer | { error: string }>;
}

const RETRY_MILLISECONDS = 2000;
const TOKEN = "gpushare-token"; // in sessionStorage: in the address, others could read it over one's shoulder
const REJECTED = "The command of this page has ended or was started again: open the address that `kubectl gpushare ui` prints now.";

export class Source {
  readonly saved: Saved | null;
  private readonly token: string;
  private stream: EventSource | null = null; // none while the tab is hidden
  private isLost = false;

  constructor(private readonly store: Store) {
    this.saved = JSON.parse(document.getElementById("saved")?.textContent ?? "null") as Saved | null;
    this.token = this.saved ? "" : tokenOfAddress();
  }

  async start(): Promise<void> {
    if (this.saved) {
      this.store.replace(this.saved.model);
      return;
    }
    // A browser allows six connections to a server in all tabs: a hidden tab gives its own back.
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.pause();
      else if (!this.stream && this.store.model && !this.isLost) this.follow();
    });
    await this.load();
  }

  private pause(): void {
    this.stream?.close();
    this.stream = null;
  }

  private address(name: string, question: Record<string, string> = {}): string {
    return `${name}?${new URLSearchParams({ ...question, token: this.token }).toString()}`;
  }

  private async load(): Promise<void> {
    try {
      const response = await fetch(this.address("cluster"));
      if (response.status === 403 && (await response.clone().text()).includes("token")) {
        this.lose(REJECTED, false);
        return;
      }
      if (!response.ok) throw new Error(await response.text());
      this.store.lost = "";
      this.isLost = false;
      this.store.replace((await response.json()) as Model);
      if (!document.hidden) this.follow();
    } catch {
      this.lose("", true);
    }
  }

  /** Say why no changes arrive. A server that rejects the token never accepts it; one that has ended may come back. */
  private lose(said: string, isTriedAgain: boolean): void {
    this.pause();
    this.isLost = true;
    const last = this.store.model ? "This is the last state that arrived." : "";
    this.store.lost = said || `\`kubectl gpushare ui\` does not answer: it has ended, or the connection to it is interrupted. ${last}`;
    this.store.changed();
    if (isTriedAgain) setTimeout(() => void this.load(), RETRY_MILLISECONDS);
  }

  private follow(): void {
    this.stream?.close();
    const stream = new EventSource(this.address("changes", { after: String(this.store.model?.version ?? 0) }));
    this.stream = stream;
    stream.addEventListener("message", (event: MessageEvent<string>) => {
      this.store.apply(JSON.parse(event.data) as Difference);
    });
    stream.addEventListener("reload", () => {
      stream.close();
      void this.load();
    });
    stream.addEventListener("error", () => {
      stream.close();
      if (this.stream === stream) this.lose("", true);
    });
  }

  /** Ask for an answer. Throws an error with the sentence to show. */
  async ask<T extends Answer>(name: string, question: Record<string, string>, signal: AbortSignal): Promise<T> {
    if (this.saved) {
      const known = Object.entries(question).sort(([one], [other]) => (one < other ? -1 : 1));
      const answer = this.saved.answers[[name, ...known.map(([key, value]) => `${key}=${value}`)].join("&")];
      if (!answer) throw new Error(`n/a, because this is a saved page, and this answer was not saved with it: run \`kubectl gpushare ${name}\``);
      return checked(answer) as T;
    }
    let response: Response;
    try {
      response = await fetch(this.address(name, question), { signal });
    } catch {
      throw new Error("n/a, because `kubectl gpushare ui` does not answer");
    }
    return checked((await response.json()) as Answer | { error: string }) as T;
  }
}

/** Take the token out of the address, for a reload too; the address keeps what was chosen. */
function tokenOfAddress(): string {
  const given = new URLSearchParams(location.search).get("token");
  if (given === null) return sessionStorage.getItem(TOKEN) ?? "";
  sessionStorage.setItem(TOKEN, given);
  history.replaceState(null, "", location.pathname + location.hash);
  return given;
}

function checked(answer: Answer | { error: string }): Answer {
  if ("error" in answer) throw new Error(answer.error);
  return answer;
}
