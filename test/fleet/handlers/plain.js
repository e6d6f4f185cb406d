export default (payload) => payload * 2;
