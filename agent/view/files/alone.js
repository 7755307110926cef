// Starts the page from one file: the modules lie in it as text, each after those that it imports.
const urls = {};
for (const one of document.querySelectorAll("script.module")) {
  const text = one.textContent.replace(/from "\.\/(\w+\.js)"/g, (whole, name) => `from "${urls[name]}"`);
  urls[one.id] = URL.createObjectURL(new Blob([text], {type: "text/javascript"}));
}
await import(urls["app.js"]);
