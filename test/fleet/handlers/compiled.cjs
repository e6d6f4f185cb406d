// What a compiler makes of a module with a default export.
Object.defineProperty(exports, '__esModule', { value: true });
exports.default = (payload) => payload * 2;
