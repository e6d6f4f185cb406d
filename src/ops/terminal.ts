/**
 * How numbers, times and error messages look to people, and which colours a stream shows. Pure but for `paint`, which
 * looks at the stream: no colour in pipes, under NO_COLOR, or on a dumb terminal.
 */
import { styleText } from 'node:util';
import { printable } from '../errors.js';

export type Style = 'bold' | 'dim' | 'red' | 'green' | 'yellow' | 'cyan';

export function paint(stream: NodeJS.WriteStream, style: Style, text: string): string {
  return styleText(style, text, { stream });
}

/** 1234567 -> "1,234,567". */
export function count(value: number): string {
  return Math.round(value).toLocaleString('en-US');
}

/** 1 -> "1 line", 2 -> "2 lines". */
export function many(value: number, one: string, several = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : several}`;
}

/** A rate or an average, with the figures that mean something. */
export function figures(value: number): string {
  return value >= 99.5 ? count(value) : value.toPrecision(2).replace(/\.0$/, '');
}

const SIZES = ['B', 'kB', 'MB', 'GB', 'TB'] as const;

/** Decimal units: 1500 -> "1.5 kB". */
export function size(bytes: number): string {
  let value = bytes;
  let unit = 0;
  while (value >= 999.5 && unit < SIZES.length - 1) {
    value /= 1000;
    unit++;
  }
  return `${unit === 0 || value >= 99.95 ? value.toFixed(0) : value.toFixed(1)} ${SIZES[unit]}`;
}

/** 850 -> "0.9 s", 75_000 -> "1 min 15 s", 7_500_000 -> "2 h 05 min". */
export function duration(ms: number): string {
  const seconds = ms / 1000;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${String(whole % 60).padStart(2, '0')} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, '0')} min`;
}

/** Somebody else's text, as one line that does nothing to a terminal. */
export function oneLine(text: string): string {
  return printable(text.replace(/\s*[\r\n]+\s*/g, ' ').trim());
}

/** JSON without the characters that are allowed in it raw and yet steer a terminal. It stays the same JSON. */
export function tameJson(json: string): string {
  return printable(json);
}

/** Columns as wide as their widest cell, aligned to the right but for those in `left`. */
export function table(rows: readonly (readonly string[])[], left: ReadonlySet<number>): string[] {
  const widths: number[] = [];
  for (const row of rows) {
    for (const [column, cell] of row.entries()) widths[column] = Math.max(widths[column] ?? 0, cell.length);
  }
  return rows.map((row) =>
    row
      .map((cell, column) => (left.has(column) ? cell.padEnd(widths[column]!) : cell.padStart(widths[column]!)))
      .join('  ')
      .trimEnd(),
  );
}
