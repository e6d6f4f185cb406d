/** millrace/testing: for users' own tests. See TESTING.md beside this file. */
export { type Clock, ManualClock } from '../clock.js';
export { type CrashDisk, crashDisk } from './crash-disk.js';
export { type AskedQueue, Ledger, type LedgerReport } from './ledger.js';
export { openTemporary } from './temporary.js';
