export default async (payload) => payload * 2;
