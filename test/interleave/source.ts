/**
 * Loads a production source of `native-free` with another module in the place of its atomics, and with faults put in on
 * purpose where a test asks for them. What is checked is the text of the file that ships, not a copy of it.
 */
import { readFileSync } from 'node:fs';
import ts from 'typescript';

/** Replaces the one place where `from` stands. */
export interface Edit {
  readonly from: string | RegExp;
  readonly to: string;
}

function edited(text: string, edits: readonly Edit[]): string {
  for (const { from, to } of edits) {
    const places = text.split(from).length - 1;
    if (places !== 1) throw new Error(`an edit must fit one place, this one fits ${places}: ${from}`);
    text = text.replace(from, () => to);
  }
  return text;
}

export function loadSource<T>(
  file: string,
  modules: Readonly<Record<string, unknown>>,
  edits: readonly Edit[] = [],
): T {
  const text = edited(readFileSync(new URL(`../../native-free/${file}`, import.meta.url), 'utf8'), edits);
  const options = { module: ts.ModuleKind.CommonJS, target: ts.ScriptTarget.ES2022 };
  const { outputText } = ts.transpileModule(text, { compilerOptions: options, fileName: file });
  const require = (name: string): unknown => {
    if (!(name in modules)) throw new Error(`${file} imports ${name}, which the model does not have`);
    return modules[name];
  };
  const exports = {} as T;
  new Function('require', 'exports', outputText)(require, exports);
  return exports;
}
