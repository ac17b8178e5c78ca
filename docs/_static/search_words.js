// The search of Sphinx finds only pages that have all words of a question, so questions in sentences find nothing.
// Among the pages that have them, it compares only the best of the words, and then the alphabet. So for questions of
// several words, the pages are sorted by how many of the words, and of the pairs of neighbours, they have, and how rare
// these are. Entries of the index, titles and names that match the whole question stay in front. The longest pages have
// almost all words, so they come last.
(() => {
  const MORE = 10, WELL = 15;
  const LONGEST = new Set(["reference/api", "reference/changelog", "explanation/architecture"]);

  const score = (search, query) => {
    const scores = new Map();
    for (const result of search(...Search._parseQuery(query)))
      if (result[4] > (scores.get(result[0])?.[4] ?? 0)) scores.set(result[0], result);
    return scores;
  };

  // Return the places of the words in the question, without "the" and its like.
  const find_useful = (query) => {
    const is_useful = ([word]) => !(stopwords.has?.(word) ?? stopwords.includes(word));
    return [...query.matchAll(/[\p{L}\p{N}_.-]{2,}/gu)].filter(is_useful);
  };

  const is_text = (result) => result[6] === "text";

  const compare = (search, query, places) => {
    const words = places.map(([word]) => word);
    // Pairs are as in the question, with "the" and its like in between: the entries of the index have them, too.
    const ends = places.map((place) => place.index + place[0].length);
    const pairs = words.slice(1).map((_, index) => query.slice(places[index].index, ends[index + 1]));
    const found = new Map();
    for (const part of new Set([...words, ...pairs])) {
      const scores = score(search, part);
      const is_good = (result) => result[4] >= WELL; // it has the words in its title, or in an entry of the index
      const count = [...scores.values()].filter(is_good).length;
      for (const [page, result] of scores) {
        const rarity = Math.log(1 + Search._index.docnames.length / (1 + (is_good(result) ? count : scores.size)));
        const [sum, first] = found.get(page) ?? [0, result];
        const together = part.includes(" ") && !is_text(result) ? 2 : 1; // a title or an entry has both words of a pair
        found.set(page, [sum + rarity * together * Math.log(2 + result[4]), first]);
      }
    }
    return found;
  };

  const install = () => {
    if (typeof Search === "undefined") return; // it is only on the page of the search
    const search = Search._performSearch;
    Search._performSearch = (query, ...terms) => {
      const results = search(query, ...terms);
      const question = query.toLowerCase().replace(/\s+/g, " ");
      const places = find_useful(question);
      if (places.length < 2) {
        const is_vague = ([page, , , , score]) => LONGEST.has(page) && score < WELL;
        return [...results.filter(is_vague), ...results.filter((result) => !is_vague(result))]; // the last is best
      }
      const exact = results.filter((result) => !is_text(result));
      const complete = new Map(results.filter(is_text).map((result) => [result[0], result]));
      const shown = new Set(exact.map((result) => result[0]));
      const ranks = [...compare(search, question, places)]
        .filter(([page]) => complete.has(page) || !LONGEST.has(page))
        .map(([page, [sum, first]]) => [LONGEST.has(page) ? 0 : sum, complete.get(page) ?? first])
        .sort(([one], [other]) => one - other);
      const others = ranks.map(([, result]) => result).filter(([page]) => !shown.has(page));
      const more = Math.max(MORE, complete.size);
      return [...others.slice(-more), ...exact];
    };
  };

  if (document.addEventListener) document.addEventListener("DOMContentLoaded", install);
  else install();
})();
