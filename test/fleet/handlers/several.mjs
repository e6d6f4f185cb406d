// A queue whose jobs never end, one way or the other, beside one whose jobs do.
import { defineQueue, handle } from 'millrace';

export default [
  handle(defineQueue('hang', { attempts: 1 }), (how) => {
    if (how === 'busy') for (;;);
    return new Promise(() => {});
  }),
  handle(defineQueue('quick'), (n) => n * 2),
];
