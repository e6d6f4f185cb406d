export default (bytes) => {
  if (!(bytes instanceof Uint8Array) || bytes.length === 0) throw new Error('no bytes');
  return bytes.length;
};
