// The search of Sphinx finds only pages that have all words of a question, so questions in sentences find nothing.
// Among the pages that have them, it compares only the best of the words, and then the alphabet. So for questions of
// several words, the pages are sorted by how many of the words, and of the pairs of neighbours, they have, and how rare
// these are. Entries of the index, titles and names that match the whole question stay in front. The longest pages have
// almost all words, so they come last.
//
// Results lead to the section that has the most of the words, and the rarest of them, in its title, in its entries of the
// index, or in its text. SEARCH_SECTIONS has them (docs/_ext/search_sections.py), on the page of the search only.
(() => {
  const MORE = 10, WELL = 15, NAMED = 3, SECTION = 15;
  const [ANCHOR, TITLE, NAMES, WORDS, TARGETS] = [0, 1, 2, 3, 4]; // of the entries of SEARCH_SECTIONS
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

  const is_object = (result) => result[6] === "object"; // it has all words somewhere in its name, in any order
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

  // Return a function that compares the sections of a page with a question: it returns the best one, and how good it is.
  const compare_sections = (places) => {
    const stemmer = new Stemmer();
    const stems = [...new Set(places.map(([word]) => stemmer.stemWord(word)))];
    const all = Object.values(SEARCH_SECTIONS).flat();
    const has = (text, stem) => ` ${text} `.includes(` ${stem} `);
    const count = (stem) => all.filter((section) => has(section[NAMES], stem) || has(section[WORDS], stem)).length;
    const rarities = new Map(stems.map((stem) => [stem, Math.log(all.length / (count(stem) || all.length))]));
    const total = [...rarities.values()].reduce((sum, rarity) => sum + rarity, 0);
    return (page) => {
      const sections = SEARCH_SECTIONS[page] ?? [];
      let best = sections[0], most = 0;
      for (const section of sections) {
        let sum = 0;
        for (const [stem, rarity] of rarities) {
          if (has(section[NAMES], stem)) sum += rarity * NAMED;
          else sum += rarity * (has(section[WORDS], stem) + has(sections[0][NAMES], stem));
        }
        if (sum > most * (1 + 1e-9)) [best, most] = [section, sum];
      }
      return [best, total ? most / total : 0];
    };
  };

  // Return results that lead to sections, with their titles, each section once. Results that are exact, such as entries of
  // the index that match the whole question, lead to their own sections. The last result is the best one.
  const lead = (results, exact, find_section) => {
    const led = new Map();
    for (const result of [...results].reverse()) {
      const [page, title, anchor, ...rest] = result;
      const sections = SEARCH_SECTIONS[page];
      let best = result;
      if (sections && (!exact.has(result) || result[6] === "index") && !is_object(result)) {
        const is_own = (section) => section[TARGETS].includes(anchor.slice(1));
        const section = exact.has(result) ? sections.find(is_own) : find_section(page)[0];
        const whole = Search._index.titles[Search._index.docnames.indexOf(page)];
        if (section?.[ANCHOR]) best = [page, `${whole} > ${section[TITLE]}`, `#${section[ANCHOR]}`, ...rest];
        else if (section) best = [page, title, "", ...rest];
      }
      const place = `${page}${best[2] ?? ""}`;
      if (!led.has(place)) led.set(place, best);
    }
    return [...led.values()].reverse();
  };

  const rank = (search, results, question, places, find_section) => {
    if (places.length < 2) {
      const is_vague = ([page, , , , score]) => LONGEST.has(page) && score < WELL;
      return [...results.filter(is_vague), ...results.filter((result) => !is_vague(result))]; // the last is best
    }
    const exact = results.filter((result) => !is_text(result) && !is_object(result));
    const complete = new Map(results.filter(is_text).map((result) => [result[0], result]));
    const shown = new Set(exact.map((result) => result[0]));
    const ranks = [...compare(search, question, places)]
      .filter(([page]) => complete.has(page) || !LONGEST.has(page))
      .map(([page, [sum, first]]) => [LONGEST.has(page) ? 0 : sum + SECTION * find_section(page)[1], complete.get(page) ?? first])
      .sort(([one], [other]) => one - other);
    const others = ranks.map(([, result]) => result).filter(([page]) => !shown.has(page));
    const more = Math.max(MORE, complete.size);
    return [...results.filter(is_object), ...others.slice(-more), ...exact];
  };

  const install = () => {
    if (typeof Search === "undefined") return; // it is only on the page of the search
    const search = Search._performSearch;
    Search._performSearch = (query, ...terms) => {
      const results = search(query, ...terms);
      const question = query.toLowerCase().replace(/\s+/g, " ");
      const places = find_useful(question);
      const exact = new Set(results.filter((result) => !is_text(result)));
      const find_section = compare_sections(places);
      return lead(rank(search, results, question, places, find_section), exact, find_section);
    };
  };

  if (document.addEventListener) document.addEventListener("DOMContentLoaded", install);
  else install();
})();
