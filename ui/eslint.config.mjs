import js from "@eslint/js";
import tseslint from "typescript-eslint";

// The page shows names that any user of the cluster may have chosen: no markup is ever made from text.
const MARKUP = ["innerHTML", "outerHTML", "insertAdjacentHTML", "write", "setHTMLUnsafe"];

export default tseslint.config(
  { ignores: ["node_modules/"] },
  js.configs.recommended,
  { files: ["*.mjs"], languageOptions: { globals: { process: "readonly", console: "readonly", URL: "readonly" } } },
  {
    files: ["src/**/*.ts"],
    extends: [tseslint.configs.strictTypeChecked],
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      "no-restricted-properties": ["error", ...MARKUP.map((property) => ({ property, message: "use textContent" }))],
      "no-restricted-globals": ["error", "eval", "localStorage"],
      "no-implied-eval": "error",
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      "@typescript-eslint/no-non-null-assertion": "error",
      "@typescript-eslint/no-confusing-void-expression": ["error", { ignoreArrowShorthand: true }],
    },
  },
);
