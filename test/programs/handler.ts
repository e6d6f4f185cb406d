/** The simplest handler module: twice the payload. */
import type { Handler } from 'millrace';

const twice: Handler<number, number> = (payload) => payload * 2;
export default twice;
