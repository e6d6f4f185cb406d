module.exports = (payload) => payload * 2;
