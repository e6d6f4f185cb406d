export const handler = (payload) => payload * 2;
