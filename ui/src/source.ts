// Where the model comes from: the plugin's server, which also sends changes and answers; or this file, if it was saved.
import type { Store } from "./store";
import type { Answer, Difference, Model } from "./types";

interface Saved {
  model: Model;
  answers: Record<string, Answer | { error: string }>;
}

const RETRY_MILLISECONDS = 2000;

export class Source {
  readonly saved: Saved | null;
  private readonly token = new URLSearchParams(location.search).get("token") ?? "";
  private stream: EventSource | null = null;

  constructor(private readonly store: Store) {
    this.saved = JSON.parse(document.getElementById("saved")?.textContent ?? "null") as Saved | null;
  }

  async start(): Promise<void> {
    if (this.saved) {
      this.store.replace(this.saved.model);
      return;
    }
    await this.load();
  }

  private address(name: string, question: Record<string, string> = {}): string {
    return `${name}?${new URLSearchParams({ ...question, token: this.token }).toString()}`;
  }

  private async load(): Promise<void> {
    try {
      const response = await fetch(this.address("cluster"));
      if (!response.ok) throw new Error(await response.text());
      this.store.lost = "";
      this.store.replace((await response.json()) as Model);
      this.follow();
    } catch (error) {
      // A server that rejects the token never accepts it; one that has ended may be started again.
      this.lose(error instanceof Error && error.message.includes("token") ? error.message : "");
    }
  }

  private lose(said: string): void {
    this.stream?.close();
    this.stream = null;
    const last = this.store.model ? "This is the last state that arrived." : "";
    this.store.lost = said || `\`kubectl gpushare ui\` does not answer: it has ended, or the connection to it is interrupted. ${last}`;
    this.store.changed();
    setTimeout(() => void this.load(), RETRY_MILLISECONDS);
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
      if (this.stream === stream) this.lose("");
    });
  }

  /** Ask for an answer. Throws an error with the sentence to show. */
  async ask<T extends Answer>(name: string, question: Record<string, string>): Promise<T> {
    if (this.saved) {
      const known = Object.entries(question).sort(([one], [other]) => (one < other ? -1 : 1));
      const answer = this.saved.answers[[name, ...known.map(([key, value]) => `${key}=${value}`)].join("&")];
      if (!answer) throw new Error(`n/a, because this is a saved page, and this answer was not saved with it: run \`kubectl gpushare ${name}\``);
      return checked(answer) as T;
    }
    let response: Response;
    try {
      response = await fetch(this.address(name, question));
    } catch {
      throw new Error("n/a, because `kubectl gpushare ui` does not answer");
    }
    return checked((await response.json()) as Answer | { error: string }) as T;
  }
}

function checked(answer: Answer | { error: string }): Answer {
  if ("error" in answer) throw new Error(answer.error);
  return answer;
}
