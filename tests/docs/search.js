// Ask the search of the rendered site: node search.js SITE, with one question a line on the standard input.
// The site's own scripts do the work, in the few surroundings of a browser that they need.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const site = process.argv[2];
globalThis.document = { getElementById: () => null, documentElement: { dataset: {} } };
globalThis.window = globalThis;
globalThis.localStorage = { setItem: () => {} };
globalThis.SPHINX_HIGHLIGHT_ENABLED = false;
globalThis._ = (text) => text;
globalThis._ready = () => {};
globalThis.DOCUMENTATION_OPTIONS = {};
for (const name of ["language_data", "searchtools", "search_words", "search_sections"])
  vm.runInThisContext(fs.readFileSync(path.join(site, "_static", `${name}.js`), "utf8"), name);
vm.runInThisContext(fs.readFileSync(path.join(site, "searchindex.js"), "utf8"));

const questions = fs.readFileSync(0, "utf8").split("\n").filter((line) => line);
const answers = vm.runInThisContext("(question) => Search._performSearch(...Search._parseQuery(question))");
for (const question of questions) {
  const places = answers(question).map(([page, , anchor]) => `${page}${anchor ?? ""}`).reverse();
  console.log(JSON.stringify([question, [...new Set(places)]]));
}
