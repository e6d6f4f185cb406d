// One fleet for several queues.
import { defineQueue, handle } from 'millrace';

const double = defineQueue('double', { attempts: 1 });
const fail = defineQueue('fail', { attempts: 2, backoff: { base: 0 } });
const bytes = defineQueue('bytes', { codec: 'bytes' });

export default [
  handle(double, (payload) => payload * 2),
  handle(fail, (payload) => {
    throw new Error(payload);
  }),
  handle(bytes, (payload) => payload.toReversed()),
];
