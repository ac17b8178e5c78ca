// The search of Sphinx finds only pages that have all words of a question, so questions in sentences find nothing.
// If it finds fewer than four pages, those that have the most, and the rarest, of the words follow. The longest pages
// have almost all words, so they come last, unless a title or an entry of the index has the words.
(() => {
  const ENOUGH = 4, MORE = 10, WELL = 15;
  const LONGEST = new Set(["reference/api", "reference/changelog", "explanation/architecture"]);

  const score = (search, query) => {
    const scores = new Map();
    for (const result of search(...Search._parseQuery(query)))
      if (result[4] > (scores.get(result[0])?.[4] ?? 0)) scores.set(result[0], result);
    return scores;
  };

  const find_similar = (search, query, known) => {
    const words = query.toLowerCase().split(/[^\p{L}\p{N}_.-]+/u).filter((word) => word.length > 1);
    const useful = words.filter((word) => !(stopwords.has?.(word) ?? stopwords.includes(word)));
    const pairs = useful.slice(1).map((word, index) => `${useful[index]} ${word}`);
    const found = new Map();
    for (const part of [...new Set([...useful, ...pairs])]) {
      const scores = score(search, part);
      const rarity = Math.log(1 + Search._index.docnames.length / (1 + scores.size));
      for (const [page, result] of scores) {
        const [sum] = found.get(page) ?? [0];
        found.set(page, [sum + rarity * Math.log(2 + result[4]), found.get(page)?.[1] ?? result]);
      }
    }
    const others = [...found].filter(([page]) => !known.has(page) && !LONGEST.has(page)).sort((one, other) => other[1][0] - one[1][0]);
    return others.slice(0, MORE).map(([, [, result]]) => result);
  };

  const install = () => {
    if (typeof Search === "undefined") return; // it is only on the page of the search
    const search = Search._performSearch;
    Search._performSearch = (query, ...terms) => {
      const results = search(query, ...terms);
      const is_vague = ([page, , , , score]) => LONGEST.has(page) && score < WELL;
      const [vague, good] = [results.filter(is_vague), results.filter((result) => !is_vague(result))];
      const known = new Set(results.map((result) => result[0]));
      const enough = new Set(good.map((result) => result[0])).size >= ENOUGH;
      return [...vague, ...(enough ? [] : find_similar(search, query, known).reverse()), ...good]; // the last is best
    };
  };

  if (document.addEventListener) document.addEventListener("DOMContentLoaded", install);
  else install();
})();
