/** Chance from a seed (mulberry32), and a hash over what it led to. */
export class Chance {
  #state: number;

  constructor(seed: number) {
    this.#state = seed | 0;
  }

  /** In [0, 1). */
  readonly next = (): number => {
    this.#state = (this.#state + 0x6d2b79f5) | 0;
    let t = Math.imul(this.#state ^ (this.#state >>> 15), 1 | this.#state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };

  /** A whole number below `count`. */
  below(count: number): number {
    return Math.floor(this.next() * count);
  }

  is(probability: number): boolean {
    return this.next() < probability;
  }

  of<T>(choices: readonly T[]): T {
    return choices[this.below(choices.length)]!;
  }

  /** A key, each as likely as its weight says; 0 = never. */
  weighted<K extends string>(weights: Readonly<Partial<Record<K, number>>>): K {
    const entries = Object.entries(weights) as [K, number][];
    let left = this.next() * entries.reduce((sum, [, weight]) => sum + weight, 0);
    for (const [key, weight] of entries) {
      left -= weight;
      if (left < 0) return key;
    }
    return entries.at(-1)![0];
  }
}

/** FNV-1a over the lines of a trace, twice 32 bits. */
export class TraceHash {
  #a = 0x811c9dc5;
  #b = 0x01234567;

  add(line: string): void {
    for (let i = 0; i < line.length; i++) {
      const unit = line.charCodeAt(i);
      this.#a = Math.imul(this.#a ^ unit, 0x01000193);
      this.#b = Math.imul(this.#b ^ unit, 0x5bd1e995) ^ (this.#b >>> 15);
    }
  }

  toString(): string {
    const word = (bits: number): string => (bits >>> 0).toString(16).padStart(8, '0');
    return word(this.#a) + word(this.#b);
  }
}
