// Where payload bytes live: blocks of any size in a region of shared memory. One thread (the wheel's) allocates and
// frees; the others only read blocks. A block is named by its ref: its byte offset in the memory divided by 16.
//
// 1. Memory is cut into pages of 16 KiB. A span is a run of pages cut into blocks of one class; a block above 64 KiB
//    is a run of its own. What describes a span is local to the thread, in the record of its first page.
// 2. FIRST of every page of a span is its first page + 1; of a large block, of its two outermost pages. Otherwise 0.
// 3. Free runs never touch each other, nor the frontier: pages from there on are not in use. Both outermost pages of a
//    free run know its length.
// 4. A freed block is the first to be handed out again; a never used one is the last resort, and so is the frontier.
// 5. A span without live blocks goes back, except one a class, which goes back when memory runs out.
//
// Classes as in jemalloc (four a doubling), a free list in each span as in mimalloc, boundary tags after Knuth (2.5).

import { assert } from './assert.js';

export const ARENA_UNIT_BYTES = 16;

const PAGE_SHIFT = 10;
const PAGE_UNITS = 1 << PAGE_SHIFT;
const PAGE_BYTES = PAGE_UNITS * ARENA_UNIT_BYTES;
/** Largest block that shares a span: 64 KiB. */
const SHARED_UNITS_MAX = 4096;
/** A ref is a positive Int32, and the index of a word in the region an unsigned one. */
const BYTES_TO_MAX = 2 ** 31 * ARENA_UNIT_BYTES;
const REGION_BYTES_MAX = 2 ** 32 * 4;
/** Up to here the arithmetic of sizes stays in integers, which a quarter of the time of a small block depends on. */
const INTEGER_BYTES_MAX = 2 ** 30;

/** Classes 1 to 16 are 16 to 256 bytes in steps of 16; from there four to every doubling, so at most a quarter extra. */
const CLASS_LARGE = 49;
const CLASS_UNITS = Int32Array.from({ length: CLASS_LARGE }, (_, kind) =>
  kind <= 16 ? kind : (5 + ((kind - 17) & 3)) << (2 + ((kind - 17) >> 2)),
);
/** Pages of a span: enough that what is left over at its end is at most an eighth. */
const SPAN_PAGES = CLASS_UNITS.map((units) => (units <= 512 ? 4 : 16));

/** Lists of spans with room, by class; behind them free runs by length, the last list holding all that are longer. */
const RUNS = CLASS_LARGE;
const RUN_LISTS = 128;

// A page's record: eight words, half a cache line.
const RECORD_SHIFT = 3;
const FIRST = 0;
/** Class + 64 * pages of the run; class 0 when free. */
const KIND = 1;
const USED = 2;
/** Ref of the block freed last, 0 for none. A free block's first word is the next one, its second a mark. */
const FREE = 3;
/** Ref of the first block never handed out, and the end of the last block. */
const FRESH = 4;
const LIMIT = 5;
/** Neighbours in a list: page + 1, 0 for none. */
const NEXT = 6;
const PREV = 7;

/** Not a proof, for payloads may hold anything: it says when the search for a double free is worth its time. */
const FREED_MARK = 0x5afe_b10c;

export class Arena {
  readonly #words: Int32Array;
  readonly #records: Int32Array;
  readonly #lists = new Int32Array(RUNS + RUN_LISTS);
  /** The span of each class that rule 5 keeps: its first page + 1, or 0. */
  readonly #kept = new Int32Array(CLASS_LARGE);
  readonly #base: number;
  readonly #pages: number;
  #frontier = 0;
  #touched = 0;
  #usedUnits = 0;

  /** Uses memory[bytesFrom, bytesTo), cut to whole pages. `bytesFrom` is a multiple of 64. */
  constructor(memory: SharedArrayBuffer, bytesFrom: number, bytesTo: number) {
    assert(bytesFrom >= 0 && bytesFrom % 64 === 0, 'an arena starts at a multiple of 64 bytes');
    assert(bytesTo <= memory.byteLength && bytesTo <= BYTES_TO_MAX, 'an arena ends inside its memory, below 32 GiB');
    assert(bytesTo - bytesFrom <= REGION_BYTES_MAX, 'an arena has at most 16 GiB');
    const start = Math.max(bytesFrom, 64); // ref 0 is never a block
    this.#base = start / ARENA_UNIT_BYTES;
    this.#pages = Math.max(0, Math.floor((bytesTo - start) / PAGE_BYTES));
    this.#records = new Int32Array(this.#pages << RECORD_SHIFT);
    this.#words = new Int32Array(memory, start, (this.#pages * PAGE_BYTES) / 4);
  }

  /** Bytes of live blocks, each counted with what its class rounds up to. */
  get usedBytes(): number {
    return this.#usedUnits * ARENA_UNIT_BYTES;
  }

  get capacityBytes(): number {
    return this.#pages * PAGE_BYTES;
  }

  /** How far into the region blocks have ever been: what the arena has made resident, at most. */
  get touchedBytes(): number {
    return this.#touched * PAGE_BYTES;
  }

  /** The ref of a block of at least `bytes`, or -1 when there is no room. */
  alloc(bytes: number): number {
    const units = unitsOf(bytes);
    if (units > SHARED_UNITS_MAX) return this.#allocRun(units);
    const kind = classOf(units);
    const page = this.#lists[kind] !== 0 ? this.#lists[kind] - 1 : this.#openSpan(kind);
    if (page < 0) return -1;
    const records = this.#records;
    const span = page << RECORD_SHIFT;
    const size = CLASS_UNITS[kind];
    const free = records[span + FREE];
    const ref = free !== 0 ? free : records[span + FRESH];
    const words = this.#words;
    const word = this.#wordOf(ref);
    if (free !== 0) {
      const next = words[word];
      assert(next === 0 || this.#firstOf(next) === page + 1, 'the free list of a span stays in the span');
      records[span + FREE] = next;
    } else {
      records[span + FRESH] = ref + size;
    }
    // Also where the block is fresh, for its memory may have been another's, mark and all.
    words[word + 1] = 0;
    if (records[span + USED]++ === 0 && this.#kept[kind] === page + 1) this.#kept[kind] = 0;
    if (records[span + FREE] === 0 && records[span + FRESH] === records[span + LIMIT]) this.#unlist(kind, page);
    this.#usedUnits += size;
    return ref;
  }

  /** Gives back a block; `bytes` is what it was allocated with, or anything of the same class. */
  free(ref: number, bytes: number): void {
    const units = unitsOf(bytes);
    const kind = classOf(units);
    const first = this.#firstOf(ref);
    assert(first > 0, 'a freed ref lies in a span');
    const records = this.#records;
    const page = first - 1;
    const span = page << RECORD_SHIFT;
    assert((records[span + KIND] & 63) === kind, 'a block is freed with the size it was allocated with');
    if (kind === CLASS_LARGE) {
      this.#freeRun(page, ref, units);
      return;
    }
    const size = CLASS_UNITS[kind];
    assert(ref < records[span + FRESH] && (ref - this.#refOf(page)) % size === 0, 'a freed ref is a block of its span');
    const words = this.#words;
    const word = this.#wordOf(ref);
    if (words[word + 1] === (FREED_MARK ^ ref)) this.#refuseDoubleFree(span, ref);
    const head = records[span + FREE];
    words[word] = head;
    words[word + 1] = FREED_MARK ^ ref;
    records[span + FREE] = ref;
    this.#usedUnits -= size;
    if (head === 0 && records[span + FRESH] === records[span + LIMIT]) this.#list(kind, page);
    if (--records[span + USED] === 0) this.#spanEmptied(kind, page);
  }

  #refOf(page: number): number {
    return this.#base + (page << PAGE_SHIFT);
  }

  #wordOf(ref: number): number {
    return ((ref - this.#base) << 2) >>> 0;
  }

  /** First page + 1 of the span that holds this ref; not positive (outside of the region: undefined) when in none. */
  #firstOf(ref: number): number {
    return this.#records[(((ref - this.#base) >>> PAGE_SHIFT) << RECORD_SHIFT) + FIRST];
  }

  #refuseDoubleFree(span: number, ref: number): void {
    for (let free = this.#records[span + FREE]; free !== 0; ) {
      assert(free !== ref, 'a block is freed once');
      free = this.#words[this.#wordOf(free)];
    }
  }

  /** The first page of a new span, or -1. Near the end of memory a span may be as short as one block. */
  #openSpan(kind: number): number {
    const size = CLASS_UNITS[kind];
    const shortest = (size + PAGE_UNITS - 1) >> PAGE_SHIFT;
    let pages = SPAN_PAGES[kind];
    let page = this.#takeRun(pages);
    if (page < 0 && this.#giveBackKept()) page = this.#takeRun(pages);
    for (; page < 0 && pages > shortest; ) page = this.#takeRun(--pages);
    if (page < 0) return -1;
    const records = this.#records;
    for (let i = page; i < page + pages; i++) records[(i << RECORD_SHIFT) + FIRST] = page + 1;
    const span = page << RECORD_SHIFT;
    const start = this.#refOf(page);
    records[span + KIND] = kind | (pages << 6);
    records[span + USED] = 0;
    records[span + FREE] = 0;
    records[span + FRESH] = start;
    records[span + LIMIT] = start + Math.floor((pages << PAGE_SHIFT) / size) * size;
    this.#list(kind, page);
    return page;
  }

  #spanEmptied(kind: number, page: number): void {
    if (this.#kept[kind] === 0) this.#kept[kind] = page + 1;
    else this.#closeSpan(kind, page);
  }

  #closeSpan(kind: number, page: number): void {
    this.#unlist(kind, page);
    const pages = this.#records[(page << RECORD_SHIFT) + KIND] >>> 6;
    for (let i = page; i < page + pages; i++) this.#records[(i << RECORD_SHIFT) + FIRST] = 0;
    this.#giveRun(page, pages);
  }

  #giveBackKept(): boolean {
    let any = false;
    for (let kind = 1; kind < CLASS_LARGE; kind++) {
      const kept = this.#kept[kind];
      if (kept === 0) continue;
      this.#kept[kind] = 0;
      this.#closeSpan(kind, kept - 1);
      any = true;
    }
    return any;
  }

  #allocRun(units: number): number {
    const pages = Math.ceil(units / PAGE_UNITS);
    let page = this.#takeRun(pages);
    if (page < 0 && this.#giveBackKept()) page = this.#takeRun(pages);
    if (page < 0) return -1;
    this.#records[(page << RECORD_SHIFT) + FIRST] = page + 1;
    this.#records[((page + pages - 1) << RECORD_SHIFT) + FIRST] = page + 1;
    this.#records[(page << RECORD_SHIFT) + KIND] = CLASS_LARGE | (pages << 6);
    this.#usedUnits += pages << PAGE_SHIFT;
    return this.#refOf(page);
  }

  #freeRun(page: number, ref: number, units: number): void {
    const pages = this.#records[(page << RECORD_SHIFT) + KIND] >>> 6;
    assert(ref === this.#refOf(page), 'a freed ref is the start of its block');
    assert(pages === Math.ceil(units / PAGE_UNITS), 'a block is freed with the size it was allocated with');
    this.#records[(page << RECORD_SHIFT) + FIRST] = 0;
    this.#records[((page + pages - 1) << RECORD_SHIFT) + FIRST] = 0;
    this.#usedUnits -= pages << PAGE_SHIFT;
    this.#giveRun(page, pages);
  }

  /** The shortest free run that is long enough, else the frontier. Of the longest ones any that fits. */
  #takeRun(pages: number): number {
    for (let list = Math.min(pages, RUN_LISTS - 1); list < RUN_LISTS; list++) {
      for (let link = this.#lists[RUNS + list]; link !== 0; ) {
        const record = (link - 1) << RECORD_SHIFT;
        const spare = (this.#records[record + KIND] >>> 6) - pages;
        if (spare >= 0) {
          this.#unlistRun(link - 1, spare + pages);
          if (spare > 0) this.#listRun(link - 1 + pages, spare);
          return link - 1;
        }
        link = this.#records[record + NEXT];
      }
    }
    if (this.#frontier + pages > this.#pages) return -1;
    const page = this.#frontier;
    this.#frontier += pages;
    if (this.#frontier > this.#touched) this.#touched = this.#frontier;
    return page;
  }

  /** Joins the run with its free neighbours and with the frontier (rule 3). */
  #giveRun(page: number, pages: number): void {
    const records = this.#records;
    let start = page;
    let end = page + pages;
    if (start > 0 && records[((start - 1) << RECORD_SHIFT) + FIRST] === 0) {
      const before = records[((start - 1) << RECORD_SHIFT) + KIND] >>> 6;
      start -= before;
      this.#unlistRun(start, before);
    }
    if (end < this.#frontier && records[(end << RECORD_SHIFT) + FIRST] === 0) {
      const after = records[(end << RECORD_SHIFT) + KIND] >>> 6;
      this.#unlistRun(end, after);
      end += after;
    }
    if (end === this.#frontier) this.#frontier = start;
    else this.#listRun(start, end - start);
  }

  #listRun(page: number, pages: number): void {
    this.#records[(page << RECORD_SHIFT) + KIND] = pages << 6;
    this.#records[((page + pages - 1) << RECORD_SHIFT) + KIND] = pages << 6;
    this.#list(RUNS + Math.min(pages, RUN_LISTS - 1), page);
  }

  #unlistRun(page: number, pages: number): void {
    this.#unlist(RUNS + Math.min(pages, RUN_LISTS - 1), page);
  }

  #list(list: number, page: number): void {
    const head = this.#lists[list];
    this.#records[(page << RECORD_SHIFT) + NEXT] = head;
    this.#records[(page << RECORD_SHIFT) + PREV] = 0;
    if (head !== 0) this.#records[((head - 1) << RECORD_SHIFT) + PREV] = page + 1;
    this.#lists[list] = page + 1;
  }

  #unlist(list: number, page: number): void {
    const next = this.#records[(page << RECORD_SHIFT) + NEXT];
    const prev = this.#records[(page << RECORD_SHIFT) + PREV];
    if (prev !== 0) this.#records[((prev - 1) << RECORD_SHIFT) + NEXT] = next;
    else this.#lists[list] = next;
    if (next !== 0) this.#records[((next - 1) << RECORD_SHIFT) + PREV] = prev;
  }
}

/** An empty block still has a place of its own. */
function unitsOf(bytes: number): number {
  if (bytes > 0 && bytes <= INTEGER_BYTES_MAX) return (bytes + (ARENA_UNIT_BYTES - 1)) >> 4;
  assert(bytes >= 0 && bytes <= BYTES_TO_MAX, 'the size of a block is between 0 and 32 GiB');
  return bytes === 0 ? 1 : Math.ceil(bytes / ARENA_UNIT_BYTES);
}

function classOf(units: number): number {
  if (units <= 16) return units;
  if (units > SHARED_UNITS_MAX) return CLASS_LARGE;
  const power = 31 - Math.clz32(units - 1);
  return 17 + ((power - 4) << 2) + (((units - 1) >> (power - 2)) & 3);
}
