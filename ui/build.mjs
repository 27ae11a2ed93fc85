// Builds the page into one file, kubectl_gpushare/ui/page.html; with --check compares it with the one that is there.
// Script and style are inline and allowed by their hashes alone, so that a saved copy works and loads nothing.
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const target = new URL("../kubectl_gpushare/ui/page.html", import.meta.url);
const here = (name) => new URL(name, import.meta.url).pathname;

const bundle = async (entry) => {
  const made = await build({
    entryPoints: [here(entry)],
    bundle: true,
    minify: true,
    write: false,
    format: "iife",
    target: "es2022",
    charset: "utf8",
    legalComments: "none",
  });
  return made.outputFiles[0].text.trim().replaceAll("</", "<\\/");
};

const hash = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;

const script = await bundle("src/main.ts");
const style = await bundle("src/page.css");
const policy = [
  "default-src 'none'",
  `script-src ${hash(script)}`,
  `style-src ${hash(style)}`,
  "img-src data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
].join("; ");
const page = readFileSync(here("src/page.html"), "utf8")
  .replace("{{policy}}", () => policy)
  .replace("{{style}}", () => style)
  .replace("{{script}}", () => script);

if (process.argv.includes("--check")) {
  if (readFileSync(target, "utf8") !== page) {
    console.error("error: kubectl_gpushare/ui/page.html is not what ui/ builds: run `make page`");
    process.exit(1);
  }
} else {
  writeFileSync(target, page);
}
