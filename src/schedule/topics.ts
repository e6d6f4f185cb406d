/**
 * Which queues a topic goes to: patterns of words in a trie, `*` for one word, `#` for any number of them.
 * Scheduler thread only; pure.
 *
 * B1  A lookup walks the trie once a word with the set of nodes that are still possible, each at most once: so its cost
 *     is bounded by words times the branches that match, whatever the patterns are, and does not grow with bindings.
 * B2  A queue that is reached by several patterns is given once.
 * B3  A node without bindings and branches is removed.
 */

class Node {
  readonly parent: Node | undefined;
  readonly word: string;
  readonly branches = new Map<string, Node>();
  readonly queues: number[] = [];
  /** The last step that had this node in its set. */
  seen = 0;

  constructor(parent: Node | undefined, word: string) {
    this.parent = parent;
    this.word = word;
  }
}

export class Topics {
  /** Bindings there are. */
  size = 0;
  readonly #root = new Node(undefined, '');
  #step = 0;

  /** False: it is bound already. */
  bind(pattern: string, queue: number): boolean {
    let node = this.#root;
    for (const word of pattern.split('.')) {
      let next = node.branches.get(word);
      if (next === undefined) {
        next = new Node(node, word);
        node.branches.set(word, next);
      }
      node = next;
    }
    if (node.queues.includes(queue)) return false;
    node.queues.push(queue);
    this.size++;
    return true;
  }

  /** False: it was not bound. */
  unbind(pattern: string, queue: number): boolean {
    let node: Node | undefined = this.#root;
    for (const word of pattern.split('.')) {
      node = node.branches.get(word);
      if (node === undefined) return false;
    }
    const at = node.queues.indexOf(queue);
    if (at < 0) return false;
    node.queues.splice(at, 1);
    this.size--;
    while (node.parent !== undefined && node.queues.length === 0 && node.branches.size === 0) {
      node.parent.branches.delete(node.word);
      node = node.parent;
    }
    return true;
  }

  /** The queues that a topic goes to, in no order. */
  match(topic: string): number[] {
    let nodes: Node[] = [];
    this.#enter(this.#root, ++this.#step, nodes);
    for (let from = 0; from <= topic.length; ) {
      const dot = topic.indexOf('.', from);
      const end = dot < 0 ? topic.length : dot;
      const word = topic.slice(from, end);
      const step = ++this.#step;
      const next: Node[] = [];
      for (const node of nodes) {
        // `#` takes one more word.
        if (node.word === '#') this.#enter(node, step, next);
        const same = word === '*' || word === '#' ? undefined : node.branches.get(word);
        if (same !== undefined) this.#enter(same, step, next);
        const any = node.branches.get('*');
        if (any !== undefined) this.#enter(any, step, next);
      }
      nodes = next;
      from = end + 1;
    }
    const found: number[] = [];
    for (const { queues } of nodes) found.push(...queues);
    return nodes.length < 2 ? found : [...new Set(found)];
  }

  /** Puts a node into a set, and the `#` below it, which may stand for no word. */
  #enter(node: Node, step: number, into: Node[]): void {
    if (node.seen === step) return;
    node.seen = step;
    into.push(node);
    const rest = node.branches.get('#');
    if (rest !== undefined) this.#enter(rest, step, into);
  }
}
