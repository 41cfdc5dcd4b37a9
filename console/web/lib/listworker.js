// Loads the pages of a long list away from the page's thread: it gets {path, query, key,
// token, most}, and posts {rows, remaining, done}, {waiting} while the server is away, and
// {code, status} for an answer that is an error.
import { rowsOf } from "./listrows.js";

const pageSize = 1000;

onmessage = async ({ data: { path, query, key, token, most } }) => {
  let loaded = 0;
  for (let tries = 0; token && loaded < most; ) {
    let answer;
    try {
      const params = new URLSearchParams({ ...query, limit: pageSize, continue: token, includeObject: "Metadata" });
      answer = await fetch(`/k8s${path}?${params}`, { headers: { Accept: "application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "X-Kelson-Console": key }, redirect: "error" });
      if ([429, 500, 502, 503, 504].includes(answer.status)) throw new Error((await answer.text()).slice(0, 500));
      const body = await answer.json();
      if (!answer.ok) {
        // The moment of the list is too long ago; the server offers to go on with what is
        // there now, and the watch knows the rest.
        if (answer.status === 410 && body.metadata?.continue) {
          token = body.metadata.continue;
          continue;
        }
        postMessage({ code: answer.status, status: body });
        return;
      }
      tries = 0;
      const rows = rowsOf(body);
      loaded += rows.length;
      token = body.metadata?.continue || "";
      postMessage({ rows, remaining: body.metadata?.remainingItemCount, token, done: !token });
    } catch (error) {
      postMessage({ waiting: String(error.message || error) });
      await new Promise((resolve) => setTimeout(resolve, Math.min(300 * 2 ** tries++, 5000)));
    }
  }
};
